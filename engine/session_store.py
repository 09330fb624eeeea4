"""Everyone who is looking: sessions by token, what they share, and when each is forgotten."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from typing import Any

from engine.budget import Budget
from engine.engine import Engine
from engine.errors import PagewalkError
from engine.limits import Limits
from engine.session import EXPIRED, EngineMaker, Session
from engine.turns import Turns

log = logging.getLogger("pagewalk.sessions")

RECENT_SECONDS = 5.0
"""Who was seen this lately is not idle, whatever they do: their next call is on its way."""
ABANDONED_SECONDS = 60.0
"""Unseen for this long, a session makes room for a new visitor when all places are taken."""


class SessionStore:
    """Sessions by token, and who is looking at them. Idle and closed ones are forgotten by `sweep()`.

    All of them take turns at one model and share one budget of memory.
    """

    def __init__(self, limits: Limits | None = None, make_engine: EngineMaker = Engine, turns: Turns | None = None) -> None:
        self.limits = limits or Limits()
        self.turns = turns or Turns(self.limits.max_running, self.limits.max_waiting, self.limits.turn_seconds)
        self.budget = Budget(self.limits.memory_bytes)
        self.budget.make_room = self._make_room
        self.stopping: str | None = None
        self._make_engine = make_engine
        self._sessions: dict[str, Session] = {}
        self._by_viewer: dict[str, str] = {}
        self._lock = threading.Lock()

    def of_viewer(self, viewer: str) -> Session:
        """The session of one open page, made on first use. Raises PagewalkError when the host is full, or about to stop."""
        self.sweep()
        with self._lock:
            if self.stopping is not None:
                raise PagewalkError(self.stopping)
            session = self._sessions.get(self._by_viewer.get(viewer, ""))
            crowded_out = None
            if session is None:
                if len(self._sessions) >= self.limits.max_sessions:
                    crowded_out = self._pop_abandoned()
                session = Session(self.limits, self.turns, self.budget, self._make_engine)
                self._sessions[session.token] = session
                self._by_viewer[viewer] = session.token
            session.last_seen, session.closed_at = time.monotonic(), None
        if crowded_out is not None:
            crowded_out.forget()
        return session

    def by_token(self, token: str) -> Session:
        """The session an unguessable token names. Raises PagewalkError if it is gone."""
        with self._lock:
            session = self._sessions.get(token)
        if session is None:
            raise PagewalkError(EXPIRED)
        session.last_seen = time.monotonic()
        return session

    def knows(self, token: str) -> bool:
        return token in self._sessions

    def readopt(self, token: str, viewer: str, patience: float = 1.5) -> Session | None:
        """A reloaded page comes back to its session. One that another open page shows (a duplicated tab) is not handed out.

        The old page's good-bye may arrive a little after the new page's first call: `patience`, in seconds.
        """
        deadline = time.monotonic() + patience
        while self.knows(token):
            with self._lock:
                session = self._sessions.get(token)
                if session is not None and session.closed_at is not None:
                    self._by_viewer[viewer] = token
                    session.last_seen, session.closed_at = time.monotonic(), None
                    return session
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return None

    def close(self, viewer: str) -> None:
        """The page is gone: its run stops now, the session is kept a little for a reload."""
        with self._lock:
            session = self._sessions.get(self._by_viewer.pop(viewer, ""))
            if session is not None:
                session.closed_at = time.monotonic()
        if session is not None:
            session.stop()

    def sweep(self) -> int:
        """Forgets sessions that are idle or closed for too long, gives their memory back, and returns how many they were."""
        now, gone = time.monotonic(), []
        with self._lock:
            for token, session in list(self._sessions.items()):
                closed = session.closed_at is not None and now - session.closed_at > self.limits.closed_seconds
                if closed or (now - session.last_seen > self.limits.idle_seconds and not session.running):
                    gone.append(self._sessions.pop(token))
            if gone:
                self._by_viewer = {viewer: token for viewer, token in self._by_viewer.items() if token in self._sessions}
        for session in gone:
            session.forget()
        if gone:
            log.info("forgot sessions=%d left=%d held_mib=%.0f", len(gone), len(self._sessions), self.budget.num_bytes / 2**20)
            trim_heap()
        return len(gone)

    def stop_all(self, sentence: str) -> None:
        """No new run begins; those that go on end after the pass in progress and their pages read `sentence`."""
        with self._lock:
            self.stopping = sentence
            sessions = list(self._sessions.values())
        for session in sessions:
            if session.running:
                session.stop(sentence)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    # ---- inside ---------------------------------------------------------------------------------------

    def _pop_abandoned(self) -> Session:
        """With the lock: takes out the session that was not seen for longest."""
        now = time.monotonic()
        idle = [s for s in self._sessions.values() if not s.running and now - s.last_seen > ABANDONED_SECONDS]
        if not idle:
            raise PagewalkError(f"All {self.limits.max_sessions} places are taken. Try again in some minutes.")
        oldest = min(idle, key=lambda session: session.last_seen)
        self._by_viewer = {viewer: token for viewer, token in self._by_viewer.items() if token != oldest.token}
        return self._sessions.pop(oldest.token)

    def _make_room(self, num_bytes: int, owner: Any) -> None:
        """Idle sessions give up pool and captured vectors, the one not seen for longest first, until `num_bytes` are free."""
        now = time.monotonic()
        with self._lock:
            idle = [s for s in self._sessions.values() if s is not owner and now - s.last_seen > RECENT_SECONDS]
        for session in sorted(idle, key=lambda session: session.last_seen):
            held = self.budget.held(session)
            if held and session.give_up_memory():
                log.info("gave up session=%s mib=%.0f", session.token[:6], held / 2**20)
                num_bytes -= held
                if num_bytes <= 0:
                    break
        trim_heap()


def trim_heap() -> None:
    """Freed memory goes back to the system, where the C library keeps it otherwise (glibc)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
