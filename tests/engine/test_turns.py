"""Fair turns: shares by compute, bounded waits, places in the queue, and one thread that ends."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from engine.errors import RequestError
from engine.turns import Turn, Turns


class Crowd:
    """Runs on a clock of their own: a pass of `name` takes `cost` seconds of it. Everything happens in the driver's thread."""

    def __init__(self, **kwargs: float) -> None:
        self.now = 0.0
        self.turns = Turns(clock=lambda: self.now, **kwargs)  # type: ignore[arg-type]
        self.order: list[str] = []
        self.ended: list[str] = []
        self.hold = threading.Event()  # the driver waits for it in its first pass, so that all can join before
        self.entered = threading.Event()
        self.runs: dict[str, Turn] = {}
        self.at: dict[int, Callable[[], object]] = {}  # number of passes done -> what happens then

    def join(self, name: str, passes: int, cost: float = 1.0, queue: bool = True) -> Turn:
        left = [passes]

        def advance() -> bool:
            self.entered.set()
            assert self.hold.wait(30)
            self.order.append(name)
            self.now += cost
            self.at.pop(len(self.order), lambda: None)()
            left[0] -= 1
            return left[0] > 0

        turn = Turn(advance, lambda: self.ended.append(name))
        self.turns.join(turn, queue)
        self.runs[name] = turn
        return turn

    def run(self) -> None:
        self.hold.set()
        while any(not turn.done.is_set() for turn in self.runs.values()):
            for turn in list(self.runs.values()):
                assert turn.done.wait(30)


def test_equal_runs_take_turns_pass_by_pass() -> None:
    crowd = Crowd()
    for name in "ABC":
        crowd.join(name, 4)
    crowd.run()
    assert "".join(crowd.order) == "ABC" * 4 and sorted(crowd.ended) == ["A", "B", "C"]


def test_a_run_with_long_passes_gets_as_much_compute_as_the_others_and_not_more() -> None:
    crowd = Crowd()
    crowd.join("heavy", 100, cost=4.0)
    crowd.join("light", 100, cost=1.0)
    crowd.run()
    last_light = len(crowd.order) - 1 - crowd.order[::-1].index("light")
    passes = Counter(crowd.order[: last_light + 1])  # while both ran
    assert passes["light"] == 100 and abs(passes["heavy"] * 4.0 - 100.0) <= 4.0


def test_nobody_waits_longer_than_one_pass_of_each_other_run() -> None:
    crowd = Crowd()
    for name in "ABCDE":
        crowd.join(name, 20)
    crowd.run()
    for name in "ABCDE":
        at = [i for i, other in enumerate(crowd.order) if other == name]
        assert max(b - a for a, b in itertools.pairwise(at)) <= 5


def test_a_newcomer_starts_level_and_cannot_claim_the_past() -> None:
    crowd = Crowd()
    crowd.join("old", 50)
    crowd.at[10] = lambda: crowd.join("new", 20)
    crowd.run()
    assert Counter(crowd.order[10:50]) == {"old": 20, "new": 20}


def test_those_behind_the_running_ones_are_told_their_place_and_move_up() -> None:
    crowd = Crowd(max_running=2, turn_seconds=4.0)
    for name in "ABCD":
        crowd.join(name, 3)
    places = {name: crowd.turns.place(turn) for name, turn in crowd.runs.items()}
    assert places == {"A": 0, "B": 0, "C": 1, "D": 2}
    assert (crowd.turns.num_running, crowd.turns.num_waiting) == (2, 2)
    crowd.turns.leave(crowd.runs["C"])
    assert crowd.turns.place(crowd.runs["D"]) == 1 and crowd.ended == ["C"]
    crowd.run()
    assert "".join(crowd.order) == "ABABA" + "DBDD"


def test_a_run_that_had_its_share_makes_room_for_one_that_waits_and_comes_back() -> None:
    crowd = Crowd(max_running=1, turn_seconds=3.0)
    crowd.join("A", 7)
    crowd.join("B", 4)
    crowd.run()
    assert "".join(crowd.order) == "AAABBBAAABA"


def test_without_anyone_waiting_nobody_has_to_make_room() -> None:
    crowd = Crowd(max_running=1, turn_seconds=3.0)
    crowd.join("A", 7)
    crowd.run()
    assert crowd.order == ["A"] * 7


def test_a_single_pass_does_not_queue() -> None:
    crowd = Crowd(max_running=1)
    crowd.join("A", 3)
    assert crowd.turns.place(crowd.join("step", 1, queue=False)) == 0
    crowd.run()
    assert crowd.order[:2] in (["A", "step"], ["step", "A"])


def test_a_full_queue_refuses_with_the_numbers() -> None:
    crowd = Crowd(max_running=1, max_waiting=1)
    crowd.join("A", 1)
    crowd.join("B", 1)
    with pytest.raises(RequestError, match="1 runs share the model and 1 wait"):
        crowd.join("C", 1)
    crowd.run()
    assert crowd.order == ["A", "B"]


def test_leaving_waits_for_the_pass_in_progress_and_allows_no_other() -> None:
    crowd = Crowd()
    turn = crowd.join("A", 100)
    assert crowd.entered.wait(30)  # the driver is inside a pass
    leaver = threading.Thread(target=crowd.turns.leave, args=(turn,))
    leaver.start()
    while not turn.leaving:
        pass
    assert leaver.is_alive() and not turn.done.is_set()
    crowd.hold.set()
    leaver.join(30)
    assert not leaver.is_alive() and crowd.order == ["A"] and crowd.ended == ["A"]


def test_a_run_that_breaks_off_ends_alone() -> None:
    crowd = Crowd()
    broken = Turn(lambda: 1 // 0 > 0, lambda: crowd.ended.append("broken"))
    crowd.join("A", 3)
    crowd.turns.join(broken)
    crowd.runs["broken"] = broken
    crowd.run()
    assert crowd.order == ["A"] * 3 and sorted(crowd.ended) == ["A", "broken"]


def test_all_passes_run_in_one_thread_which_ends_with_the_last_run() -> None:
    seen: set[threading.Thread] = set()
    turns, left = Turns(), Counter(A=20, B=20, C=20)

    def advance_of(name: str):
        def advance() -> bool:
            seen.add(threading.current_thread())
            left[name] -= 1
            return left[name] > 0

        return advance

    gate = threading.Event()
    first = Turn(lambda: not gate.wait(30), lambda: None)
    runs = [first, *(Turn(advance_of(name), lambda: None) for name in "ABC")]
    for turn in runs:
        turns.join(turn)
    gate.set()
    for turn in runs:
        assert turn.done.wait(30)
    (driver,) = seen
    driver.join(30)
    assert not driver.is_alive()
