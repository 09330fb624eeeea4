"""One visitor: an engine of their own, the run in progress, and what of it an update has told. Knows no web framework."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from engine.budget import Budget
from engine.config import EngineConfig
from engine.detached import DetachedEngine
from engine.engine import Engine
from engine.errors import PagewalkError, RequestError
from engine.events import Event, TokenSampled
from engine.limits import MIB, Limits
from engine.lookup import Lookup, look_up
from engine.model_loader import LoadedModel
from engine.recording_shelf import Recording
from engine.run_settings import RunSettings
from engine.trace import CacheState, Trace
from engine.turns import Turn, Turns

log = logging.getLogger("pagewalk.session")

AnyEngine = Engine | DetachedEngine
EngineMaker = Callable[[LoadedModel, EngineConfig], AnyEngine]
EXPIRED = "This session expired. Press Generate for a new run."


@dataclass(frozen=True, slots=True)
class Update:
    """Events since the update before it. `problem` is a sentence if the run broke off.

    place: in the queue for a turn, from 1, while the run waits there.
    """

    events: list[Event]
    running: bool
    problem: str | None = None
    place: int = 0


class Session:
    """Runs prompts on its own engine, in turn with other sessions, one forward pass at a time.

    `updates()` follows the run; `stop()` ends it after the pass in progress; `step_once()` does exactly one pass. The engine,
    its pool and its cached blocks live on between runs while the model and the configuration stay the same, and as long as
    nobody needs the memory more. A recording may be shown in the run's place, until the next one begins.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        turns: Turns | None = None,
        budget: Budget | None = None,
        make_engine: EngineMaker = Engine,
    ) -> None:
        self.token = secrets.token_urlsafe(18)
        self.engine: AnyEngine | None = None
        self.run_id = ""
        self.settings: RunSettings | None = None
        self.recording: Recording | None = None
        self.last_seen = time.monotonic()
        self.closed_at: float | None = None
        self.limits = limits or Limits()
        self.turns = turns or Turns()
        self.budget = budget or Budget(self.limits.memory_bytes)
        self._make_engine = make_engine
        self._trace: Trace | None = None
        self._life = threading.RLock()  # held while a run begins, and while its memory is given up
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._turn: Turn | None = None
        self._running = False
        self._began = 0.0
        self._steps, self._max_steps = 0, -1
        self._problem: str | None = None
        self._num_sent = 0
        self.num_updates = 0

    # ---- what the page reads ----------------------------------------------------------------------

    @property
    def trace(self) -> Trace | None:
        """Of the recording that is shown, or else of the run."""
        return self._trace if self.recording is None else self.recording.trace

    @property
    def running(self) -> bool:
        return self._running

    @property
    def paused(self) -> bool:
        """A run begun with Step is waiting for its next pass."""
        return not self.running and self.engine is not None and self.engine.has_unfinished_requests()

    @property
    def place(self) -> int:
        """In the queue for a turn, from 1; 0 for a run that has turns, or no run."""
        return self.turns.place(self._turn) if self._turn and self.running else 0

    def events_so_far(self) -> tuple[list[Event], int]:
        """Every event of the run that an update has carried, and that update's number: what a reload needs.

        Once the run stands still, what nobody followed (blocks freed after the tab was closed) counts as carried too.
        """
        if self.recording is not None:
            return list(self.recording.trace.events), 0
        if not self.running and self._has_news():
            self._next_update(running=False)
        with self._news:
            events = self._trace.events[: self._num_sent] if self._trace else []
            return list(events), self.num_updates

    def state_at(self, step: int | None = None) -> CacheState:
        """The cache after `step`, None: after the newest. Raises PagewalkError where nothing ran and no recording is shown."""
        trace, engine = self.trace, self.engine
        if trace is None:
            raise PagewalkError("This session has no run yet. Generate first.")
        with engine.lock if engine is not None else nullcontext():
            return trace.state_at(trace.last_step if step is None else step)

    def lookup(
        self, request_id: str, query_position: int | None, key_position: int, layer: int, head: int, as_of: int | None = None
    ) -> Lookup:
        """In the recording that is shown, or else in the run. Raises PagewalkError, saying why there is nothing to look up."""
        engine, recording = self.engine, self.recording
        if recording is not None:
            return look_up(recording.trace, request_id, query_position, key_position, layer, head, None, as_of)
        if engine is not None:
            return engine.lookup(request_id, query_position, key_position, layer, head, as_of)
        if self._trace is not None:
            raise PagewalkError("The memory of this run was needed for other visitors. Press Generate for a new run.")
        raise PagewalkError("This session has no run yet. Press Generate.")

    # ---- runs ---------------------------------------------------------------------------------------

    def show(self, recording: Recording) -> None:
        """Shows a recording in place of the run, which stops if it is in progress.

        One that a visitor brought takes memory from the budget, and the run's is given back for it. Raises RequestError, with
        nothing changed, where the others hold too much.
        """
        own = recording.num_bytes
        with self._life:
            before = self.budget.held(self)
            if own:
                self.budget.hold(self, before + own)
            self.stop()
            if own and not self.running:
                self._let_go()
                self.budget.hold(self, own)
            with self._news:
                self.recording = recording
                self.run_id = secrets.token_urlsafe(6)

    def begin(self, model: LoadedModel, settings: RunSettings) -> None:
        """Queues the prompts of a new run. Raises PagewalkError if one cannot be accepted; the run before it is still there."""
        with self._life:
            if self.running:
                raise RequestError("A run is in progress. Stop it first.")
            if not settings.prompts:
                raise RequestError("The prompt is empty. Type some text, or pick an example.")
            self.last_seen = time.monotonic()
            config = self._granted(settings.config)
            self.limits.check_run(settings.prompts, settings.params)
            engine = self._engine_for(model, config, settings)
            engine.reset(keep_cache=True)
            old = self.engine
            with self._news:
                self.engine, self.settings, self._trace = engine, settings, engine.trace
                self.recording = None
                self.run_id = secrets.token_urlsafe(6)
                self._num_sent = self.num_updates = 0
                self._problem = None
                self._stop.clear()
                self._began, self._steps = time.monotonic(), 0
            if old is not None and old is not engine:
                old.close()
            for i, prompt in enumerate(settings.prompts):
                if i * settings.stagger:
                    engine.add_later(i * settings.stagger, prompt, settings.params, settings.chat)
                else:
                    engine.add_request(prompt, settings.params, settings.chat)

    def can_continue(self, model: LoadedModel, settings: RunSettings) -> bool:
        """Whether a paused run is the very run that is asked for."""
        return self.paused and self.engine is not None and self.engine.model is model and self.settings == settings

    def start(self, max_steps: int | None = None) -> None:
        """Lets the run go on, in turn with others, until it ends, or `stop()`, or after `max_steps` passes (and waits there).

        Raises RequestError if the queue for a turn is full; the run is over then.
        """
        with self._life:
            if self.engine is None:
                raise RequestError(EXPIRED)
            turn = Turn(self._advance, self._ended)
            with self._news:
                self._turn, self._running = turn, True
                self._max_steps = -1 if max_steps is None else self._steps + max_steps
            self.engine.will_run(max_steps)
            try:
                self.turns.join(turn, queue=max_steps is None or self.turns.max_running == 1)
            except PagewalkError:
                self._stop.set()
                self._ended()
                turn.done.set()
                raise

    def step_once(self) -> Update:
        """One forward pass."""
        if self.running:
            raise RequestError("A run is in progress. Stop it first.")
        self.start(max_steps=1)
        assert self._turn is not None
        self._turn.done.wait()
        return self._next_update(running=False)

    def stop(self, problem: str | None = None) -> None:
        """Ends the run: at most the pass in progress is finished, then every block is free. `problem`: why, for a page."""
        self._stop.set()
        if problem is not None and self.running:
            self._problem = problem
        if self._turn is not None and self.running:
            self.turns.leave(self._turn)
        else:
            with self._life:
                self._abort_all()

    def updates(self, interval: float = 0.1) -> Iterator[Update]:
        """Follows the run to its end, at most one update every `interval` seconds. Closing this iterator stops the run."""
        told = 0
        try:
            while True:
                began = time.monotonic()
                with self._news:
                    self._news.wait_for(
                        lambda: self._has_news() or not self.running, timeout=0.0 if self.place != told else 1.0
                    )
                running, place = self.running, self.place
                if self._has_news() or not running or place != told:
                    told = place
                    yield self._next_update(running, place)
                if not running:
                    return
                self.last_seen = time.monotonic()
                if (rest := interval - (time.monotonic() - began)) > 0:
                    self._stop.wait(rest)
        finally:
            if self.running:
                self.stop()

    # ---- memory ---------------------------------------------------------------------------------------

    def give_up_memory(self) -> bool:
        """Lets go of pool and captured vectors for somebody else; the story of the run stays. False while a run needs them."""
        if not self._life.acquire(blocking=False):
            return False
        try:
            if self.running or not self.budget.held(self):
                return False
            self._abort_all()
            self._let_go()
            return True
        finally:
            self._life.release()

    def forget(self) -> None:
        """Ends the run and lets go of everything."""
        self.stop()
        with self._life:
            self._let_go()
            self._trace = self.settings = self.recording = None

    def _let_go(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()
        if self._trace is not None:
            self._trace.capture = None
        if self.recording is not None and self.recording.num_bytes:
            self.recording.trace.capture = None
        self.budget.hold(self, 0)

    def _granted(self, config: EngineConfig) -> EngineConfig:
        return dataclasses.replace(config, capture_bytes=min(config.capture_bytes, self.limits.max_capture_mb * MIB))

    def _engine_for(self, model: LoadedModel, config: EngineConfig, settings: RunSettings) -> AnyEngine:
        """The engine of before, if it fits the settings, or a new one; its memory is taken from the budget."""
        slot_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.dtype.itemsize
        row_bytes = slot_bytes * (model.num_heads + model.num_kv_heads) // model.num_kv_heads  # q, k, v, output
        pool_bytes, before = self.limits.check_pool(config, slot_bytes), self.budget.held(self)
        same = self.engine is not None and self.engine.model is model and self.engine.config == config
        try:
            self.budget.hold(self, max(before, pool_bytes))
            engine = self.engine if same and self.engine is not None else self._make_engine(model, config)
            num_tokens = engine.check_prompts(settings.prompts, settings.params, settings.chat)
            for num in num_tokens:
                self.limits.check_prompt_tokens(num)
            allowance = 0
            if engine.capture is not None:
                rows = sum(num_tokens) + len(num_tokens) * settings.params.n * settings.params.max_tokens
                # what the runs before left in the pool may be looked up too, and what is preempted is computed twice
                allowance = min(config.capture_bytes, engine.capture.num_bytes + 2 * rows * row_bytes)
            self.budget.hold(self, pool_bytes + allowance)
        except PagewalkError:
            self.budget.hold(self, before)
            raise
        if engine.capture is not None:
            engine.capture.budget_bytes = allowance
        return engine

    # ---- inside ---------------------------------------------------------------------------------------

    def _has_news(self) -> bool:
        return self._trace is not None and len(self._trace.events) > self._num_sent

    def _next_update(self, running: bool, place: int = 0) -> Update:
        if self._trace is None:
            return Update([], False, EXPIRED)
        with self._news:
            events = self._trace.events[self._num_sent :]
            self._num_sent += len(events)
            self.num_updates += 1
            return Update(events, running, self._problem, place)

    def _advance(self) -> bool:
        """One forward pass; whether there is more to do."""
        engine = self.engine
        assert engine is not None
        if self._stop.is_set() or not engine.has_unfinished_requests():
            return False
        try:
            engine.step()
        except Exception as error:  # whatever broke, the session and the other visitors go on
            self._break_off(error)
            return False
        self._steps += 1
        with self._news:
            self._news.notify_all()
        return engine.has_unfinished_requests() and not self._stop.is_set() and self._steps != self._max_steps

    def _ended(self) -> None:
        """After the last pass: the run is over, or waits for the next Step."""
        if self._steps != self._max_steps or self._stop.is_set():
            self._abort_all()
        if self.engine is not None and not self.engine.has_unfinished_requests():
            self._log_run(self.engine)
        with self._news:
            self._running = False
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
        if engine is not None:
            with engine.lock:
                engine.abort_all()

    def _log_run(self, engine: AnyEngine) -> None:
        """One line a run, nothing of what the visitor wrote."""
        tokens = sum(isinstance(event, TokenSampled) for event in engine.trace.events)
        finish = ",".join(sorted({str(request.finish_reason) for request in engine.requests.values()}))
        log.info(
            "run session=%s tokens=%d steps=%d compute_ms=%.0f wall_ms=%.0f sequences=%d finish=%s",
            self.token[:6], tokens, engine.step_count, 1e3 * (self._turn.seconds if self._turn else 0.0),
            1e3 * (time.monotonic() - self._began), len(engine.requests), finish,
        )  # fmt: skip


def nonempty(prompts: Sequence[str]) -> tuple[str, ...]:
    """The prompts somebody typed something into, in order."""
    return tuple(prompt for prompt in prompts if prompt and prompt.strip())
