"""One visitor: an engine of their own, the run in progress, and when to forget them. Knows no web framework."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.engine import Engine
from engine.errors import PagewalkError, RequestError
from engine.events import Event
from engine.lookup import Lookup, look_up
from engine.model_loader import LoadedModel
from engine.recording_shelf import Recording
from engine.run_settings import RunSettings
from engine.trace import CacheState, Trace

log = logging.getLogger("pagewalk.session")


@dataclass(frozen=True, slots=True)
class Update:
    """Events since the update before it. `problem` is a sentence if the run broke off."""

    events: list[Event]
    running: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one process's visitors. idle_seconds: forgotten after; closed_seconds: the same once their tab is closed."""

    max_sessions: int = 64
    idle_seconds: float = 1800.0
    closed_seconds: float = 30.0


class Session:
    """Runs prompts on its own engine, in a thread of its own, one forward pass at a time.

    `updates()` follows the run; `stop()` ends it after the pass in progress; `step_once()` does exactly one pass. The engine,
    its pool and its cached blocks live on between runs while the model and the configuration stay the same. A recording may be
    shown in the run's place, until the next one begins.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(18)
        self.engine: Engine | None = None
        self.run_id = ""
        self.settings: RunSettings | None = None
        self.recording: Recording | None = None
        self.last_seen = time.monotonic()
        self.closed_at: float | None = None
        self._stop = threading.Event()
        self._news = threading.Condition()
        self._worker: threading.Thread | None = None
        self._problem: str | None = None
        self._arrivals: deque[tuple[int, str]] = deque()  # (not before this step, prompt)
        self._num_sent = 0
        self.num_updates = 0

    # ---- what the page reads ----------------------------------------------------------------------

    @property
    def trace(self) -> Trace | None:
        """Of the recording that is shown, or else of the run."""
        if self.recording is not None:
            return self.recording.trace
        return self.engine.trace if self.engine else None

    @property
    def running(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    @property
    def paused(self) -> bool:
        """A run begun with Step is waiting for its next pass."""
        return not self.running and self._has_work()

    def state_at(self, step: int | None = None) -> CacheState:
        """The cache after `step`, None: after the newest. Raises PagewalkError where nothing ran and no recording is shown."""
        trace = self.trace
        if trace is None:
            raise PagewalkError("This session has no run yet. Generate first.")
        if self.recording is not None or self.engine is None:
            return trace.state_at(trace.last_step if step is None else step)
        with self.engine.lock:
            return trace.state_at(trace.last_step if step is None else step)

    def lookup(self, request_id: str, query_position: int | None, key_position: int, layer: int, head: int) -> Lookup:
        """In the recording that is shown, or else in the run. Raises PagewalkError, saying why there is nothing to look up."""
        if self.recording is not None:
            return look_up(self.recording.trace, request_id, query_position, key_position, layer, head)
        if self.engine is None:
            raise PagewalkError("This session has no run yet. Press Generate.")
        return self.engine.lookup(request_id, query_position, key_position, layer, head)

    def events_so_far(self) -> tuple[list[Event], int]:
        """Every event of the run that an update has carried, and that update's number: what a reload needs.

        Once the run stands still, what nobody followed (blocks freed after the tab was closed) counts as carried too.
        """
        if self.recording is not None:
            return list(self.recording.trace.events), 0
        if self.engine is not None and not self.running and self._has_news():
            self._next_update(running=False)
        with self._news:
            events = self.engine.trace.events[: self._num_sent] if self.engine else []
            return list(events), self.num_updates

    # ---- runs ---------------------------------------------------------------------------------------

    def show(self, recording: Recording) -> None:
        """Shows a recording in place of the run, which stops if it is in progress."""
        self.stop()
        with self._news:
            self.recording = recording
            self.run_id = secrets.token_urlsafe(6)

    def begin(self, model: LoadedModel, settings: RunSettings) -> None:
        """Queues the prompts of a new run. Raises PagewalkError if one cannot be accepted; the run before it is still there."""
        if self.running:
            raise RequestError("A run is in progress. Stop it first.")
        if not settings.prompts:
            raise RequestError("The prompt is empty. Type some text, or pick an example.")
        same = self.engine is not None and self.engine.model is model and self.engine.config == settings.config
        engine = self.engine if same and self.engine is not None else Engine(model, settings.config)
        engine.check_prompts(settings.prompts, settings.params, settings.chat)
        engine.reset(keep_cache=True)
        with self._news:
            self.engine, self.settings, self.recording = engine, settings, None
            self._arrivals = deque((i * settings.stagger, prompt) for i, prompt in enumerate(settings.prompts))
            self.run_id = secrets.token_urlsafe(6)
            self._num_sent = self.num_updates = 0
            self._problem = None
            self._stop.clear()
        self._add_arrivals()

    def can_continue(self, model: LoadedModel, settings: RunSettings) -> bool:
        """Whether a paused run is the very run that is asked for."""
        return self.paused and self.engine is not None and self.engine.model is model and self.settings == settings

    def start(self, max_steps: int | None = None) -> None:
        """Lets the run go on by itself until it ends, or `stop()`, or after `max_steps` passes (and waits there).

        Every pass runs in a thread that ends with it: OpenMP keeps a team for each thread that ever computed, and with more of
        its threads than cores all of them turn slow.
        """
        self._worker = threading.Thread(target=self._work, args=(max_steps,), name=f"run-{self.run_id}", daemon=True)
        self._worker.start()

    def step_once(self) -> Update:
        """One forward pass."""
        if self.running:
            raise RequestError("A run is in progress. Stop it first.")
        self.start(max_steps=1)
        assert self._worker is not None
        self._worker.join()
        return self._next_update(running=False)

    def stop(self) -> None:
        """Ends the run: at most the pass in progress is finished, then every block is free again."""
        self._stop.set()
        worker = self._worker
        if worker is not None and worker.is_alive() and worker is not threading.current_thread():
            worker.join()
        elif self.engine is not None:
            self._abort_all()

    def _add_arrivals(self) -> None:
        """Queues the prompts that are due; the next one early where the engine has nothing else to do."""
        engine, settings = self.engine, self.settings
        assert engine is not None and settings is not None
        with engine.lock:
            while self._arrivals and (self._arrivals[0][0] <= engine.step_count or not engine.has_unfinished_requests()):
                engine.add_request(self._arrivals.popleft()[1], settings.params, settings.chat)

    def _has_work(self) -> bool:
        return self.engine is not None and (self.engine.has_unfinished_requests() or bool(self._arrivals))

    def updates(self, interval: float = 0.1) -> Iterator[Update]:
        """Follows the run to its end, at most one update every `interval` seconds. Closing this iterator stops the run."""
        try:
            while True:
                began = time.monotonic()
                with self._news:
                    self._news.wait_for(lambda: self._has_news() or not self.running, timeout=1.0)
                running = self.running
                if self._has_news() or not running:
                    yield self._next_update(running)
                if not running:
                    return
                self.last_seen = time.monotonic()
                if (rest := interval - (time.monotonic() - began)) > 0:
                    self._stop.wait(rest)
        finally:
            if self.running:
                self.stop()

    def _has_news(self) -> bool:
        return self.engine is not None and len(self.engine.trace.events) > self._num_sent

    def _next_update(self, running: bool) -> Update:
        assert self.engine is not None
        with self.engine.lock, self._news:
            events = self.engine.trace.events[self._num_sent :]
            self._num_sent += len(events)
            self.num_updates += 1
            return Update(events, running, self._problem)

    def _work(self, max_steps: int | None) -> None:
        engine = self.engine
        assert engine is not None
        steps = 0
        try:
            while self._has_work() and not self._stop.is_set() and steps != max_steps:
                self._add_arrivals()
                engine.step()
                steps += 1
                with self._news:
                    self._news.notify_all()
        except Exception as error:  # whatever broke, the session and the other visitors go on
            self._break_off(error)
        finally:
            if steps != max_steps or self._stop.is_set():
                self._abort_all()
            with self._news:
                self._news.notify_all()

    def _break_off(self, error: Exception) -> None:
        if isinstance(error, PagewalkError):
            self._problem = str(error)
        else:
            log.exception("a run broke off")
            self._problem = f"The run broke off ({type(error).__name__}). Press Generate to try again."
        self._abort_all()

    def _abort_all(self) -> None:
        engine = self.engine
        self._arrivals.clear()
        if engine is not None:
            with engine.lock:
                for request_id in list(engine.requests):
                    engine.abort(request_id)


@dataclass
class SessionStore:
    """Sessions by token, and who is looking at them. Idle and closed ones are forgotten by `sweep()`."""

    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._by_viewer: dict[str, str] = {}
        self._lock = threading.Lock()

    def of_viewer(self, viewer: str) -> Session:
        """The session of one open page, made on first use. Raises PagewalkError when the host is full."""
        self.sweep()
        with self._lock:
            session = self._sessions.get(self._by_viewer.get(viewer, ""))
            if session is None:
                if len(self._sessions) >= self.limits.max_sessions:
                    raise PagewalkError(f"All {self.limits.max_sessions} places are taken. Try again in some minutes.")
                session = Session()
                self._sessions[session.token] = session
                self._by_viewer[viewer] = session.token
            session.last_seen, session.closed_at = time.monotonic(), None
            return session

    def by_token(self, token: str) -> Session:
        """The session an unguessable token names. Raises PagewalkError if it is gone."""
        with self._lock:
            session = self._sessions.get(token)
        if session is None:
            raise PagewalkError("This session expired. Press Generate for a new run.")
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
            session.stop()

    def sweep(self) -> int:
        """Forgets sessions that are idle or closed for too long; returns how many."""
        now, gone = time.monotonic(), []
        with self._lock:
            for token, session in list(self._sessions.items()):
                closed = session.closed_at is not None and now - session.closed_at > self.limits.closed_seconds
                if closed or (now - session.last_seen > self.limits.idle_seconds and not session.running):
                    gone.append(self._sessions.pop(token))
            self._by_viewer = {viewer: token for viewer, token in self._by_viewer.items() if token in self._sessions}
        for session in gone:
            session.stop()
        return len(gone)

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)


def nonempty(prompts: Sequence[str]) -> tuple[str, ...]:
    """The prompts somebody typed something into, in order."""
    return tuple(prompt for prompt in prompts if prompt and prompt.strip())
