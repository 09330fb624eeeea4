"""Fair turns: whose forward pass is next.

    running   A   B   C           share the forward passes: the one that has had the least compute goes next
    waiting   D   E               in order of arrival, each told its place

One thread drives all runs, one pass at a time, and ends when nobody runs: OpenMP keeps a team for each thread that ever
computed, and with more of its threads than cores all of them turn slow.

Fair means by seconds of compute, not by passes: who has sixteen sequences in the batch gets fewer passes, not more of
the machine (start-time fair queueing, Goyal et al. 1996). A newcomer starts level with whoever has had least: no one saves up.
While some wait, a run that has had `turn_seconds` of compute goes to the end of the queue: every wait is bounded by the number
ahead.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from engine.errors import RequestError

log = logging.getLogger("pagewalk.turns")
NICE = 10


class Turn:
    """A run among the others. `advance()` computes one pass and says whether there is more to do.

    `ended()` is called once, after the last pass or when the run leaves; `done` is set after it. seconds: of compute so far.
    """

    def __init__(self, advance: Callable[[], bool], ended: Callable[[], None]) -> None:
        self.advance, self.ended = advance, ended
        self.done = threading.Event()
        self.seconds = 0.0  # of compute in all
        self.level = 0.0  # the same, on the scale that all who run share
        self.since = 0.0  # of compute since it last came from the queue
        self.last_pass = 0
        self.leaving = False


class Turns:
    """At most `max_running` runs share the passes, `max_waiting` more wait. resource: what is shared. clock: in seconds."""

    def __init__(
        self,
        max_running: int = 12,
        max_waiting: int = 32,
        turn_seconds: float = 1.0,
        resource: str = "a turn",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.resource = resource
        self.max_running, self.max_waiting, self.turn_seconds = max_running, max_waiting, turn_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running: list[Turn] = []
        self._waiting: deque[Turn] = deque()
        self._computing: Turn | None = None
        self._driver: threading.Thread | None = None
        self._passes = itertools.count(1)

    def join(self, turn: Turn, queue: bool = True) -> None:
        """Lets a run compute until `advance` returns False or it leaves.

        queue=False is for a single pass, which need not wait for a place. Raises RequestError if the queue is full.
        """
        with self._lock:
            if queue and len(self._running) >= self.max_running and len(self._waiting) >= self.max_waiting:
                raise RequestError(
                    f"The queue is full: {len(self._running)} runs share the model and {len(self._waiting)} wait. "
                    "Try again in a minute."
                )
            if queue:
                self._waiting.append(turn)
                self._fill()
            else:
                self._let_run(turn)
            if self._driver is None:
                self._driver = threading.Thread(target=self._drive, name="forward-passes", daemon=True)
                self._driver.start()

    def leave(self, turn: Turn) -> None:
        """No pass of this run begins after this; returns when the one in progress, if it is this run's, has ended."""
        with self._lock:
            turn.leaving = True
            mine = self._computing is turn
            if not mine:
                ends = self._remove(turn)
        if not mine and ends:
            self._end(turn)
        if threading.current_thread() is not self._driver:
            turn.done.wait()

    def place(self, turn: Turn) -> int:
        """0 for one that runs (or has ended), else its place in the queue, from 1."""
        with self._lock:
            return self._waiting.index(turn) + 1 if turn in self._waiting else 0

    def sentence(self, place: int) -> str:
        """For the one who waits at this place."""
        return f"Waiting for {self.resource}: place {place} in the queue."

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    # ---- inside; with the lock held, but for _drive and _end ---------------------------------------------

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.max_running:
            self._let_run(self._waiting.popleft())

    def _let_run(self, turn: Turn) -> None:
        turn.level = max(turn.level, min((other.level for other in self._running), default=turn.level))
        turn.since = 0.0
        self._running.append(turn)

    def _remove(self, turn: Turn) -> bool:
        """Takes the turn out, wherever it is; False if it had gone already."""
        if turn in self._running:
            self._running.remove(turn)
            self._fill()
            return True
        if turn in self._waiting:
            self._waiting.remove(turn)
            return True
        return False

    def _next(self) -> Turn | None:
        self._fill()
        self._computing = min(self._running, key=lambda turn: (turn.level, turn.last_pass), default=None)
        if self._computing is None:
            self._driver = None
        return self._computing

    def _drive(self) -> None:
        _stand_back()
        while True:
            with self._lock:
                turn = self._next()
            if turn is None:
                return
            began = self._clock()
            try:
                more = turn.advance()
            except Exception:  # a run tells its own faults; whatever slips through must not stop the others
                log.exception("a run broke off")
                more = False
            seconds = self._clock() - began
            with self._lock:
                self._computing = None
                turn.last_pass = next(self._passes)
                turn.seconds += seconds
                turn.level += seconds
                turn.since += seconds
                ends = turn.leaving or not more
                if ends:
                    self._remove(turn)
                elif self._waiting and turn.since >= self.turn_seconds:
                    self._running.remove(turn)
                    self._waiting.append(turn)
            if ends:
                self._end(turn)

    def _end(self, turn: Turn) -> None:
        try:
            turn.ended()
        except Exception:
            log.exception("a run could not be ended")
        finally:
            turn.advance, turn.ended = (lambda: False), (lambda: None)  # whose run this was may be forgotten now
            turn.done.set()


def _stand_back() -> None:
    """Lowers this thread's priority, and that of the threads it starts: on a laptop the page and the lookups go first."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
