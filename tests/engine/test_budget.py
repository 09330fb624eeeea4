"""One budget for all sessions: what is held, what is refused, who makes room."""

from __future__ import annotations

import pytest

from engine.budget import Budget
from engine.errors import RequestError


class Owner:
    pass


def test_what_is_held_replaces_what_was_held_and_dies_with_its_owner() -> None:
    budget, a, b = Budget(100), Owner(), Owner()
    budget.hold(a, 60)
    budget.hold(b, 40)
    budget.hold(a, 30)
    assert (budget.num_bytes, budget.num_owners, budget.held(a)) == (70, 2, 30)
    del b
    assert (budget.num_bytes, budget.num_owners) == (30, 1)


def test_too_much_is_refused_with_the_numbers_and_changes_nothing() -> None:
    budget, a, b = Budget(100 << 20), Owner(), Owner()
    budget.hold(a, 70 << 20)
    budget.hold(b, 10 << 20)
    with pytest.raises(RequestError, match=r"needs 40 MiB .*; 70 of the host's 100 MiB are in use by others"):
        budget.hold(b, 40 << 20)
    assert budget.held(b) == 10 << 20
    budget.hold(b, 30 << 20)


def test_the_missing_bytes_are_asked_for_once_and_the_owner_is_spared() -> None:
    budget, a, b = Budget(100), Owner(), Owner()
    budget.hold(a, 90)
    asked: list[tuple[int, object]] = []

    def make_room(num_bytes: int, owner: object) -> None:
        asked.append((num_bytes, owner))
        budget.hold(a, 20)

    budget.make_room = make_room
    budget.hold(b, 60)
    assert asked == [(50, b)] and budget.num_bytes == 80


def test_holding_less_always_succeeds_even_over_the_limit() -> None:
    budget, a = Budget(100), Owner()
    budget.hold(a, 100)
    budget.total = 10
    budget.hold(a, 50)
    assert budget.held(a) == 50
