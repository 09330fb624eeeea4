"""Runs whose forward passes happen in another process, which forgets everything between calls (ZeroGPU).

    here                                       there, on a GPU that is lent for the call
    DetachedEngine.step()  --DetachedRun-->    run_passes(model, run): a fresh Engine, its pool, its passes
        trace, capture     <---Passes------    events, captured vectors, outputs: plain data only

Here is the trace, so everything a page asks (state, lookup, recording) is answered as for a run of this process. There, nothing
outlives a call: neither a pool nor a cached prefix, so two visitors on one worker share nothing. A run that paused is repeated
there up to its last step, which the same settings and seeds reach again; different tokens would be noticed.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engine.capture import Capture
from engine.config import EngineConfig, SamplingParams
from engine.detokenizer import TokenPieces
from engine.engine import Engine, RequestOutput, StepOutput, StepTimings, letters
from engine.errors import PagewalkError, RequestError
from engine.events import BlockFreed, Event, RequestAdded, RequestFinished, SlotsWritten, TokenSampled
from engine.lookup import Lookup, look_up
from engine.model_loader import LoadedModel, encode_prompt
from engine.scheduler import Scheduler
from engine.trace import RequestState, Trace, TraceHeader
from engine.version import VERSION
from kernels.dispatch import choose_backend

PACE = 0.1
"""Seconds of passes that travel together: each yield is pickled and crosses a pipe."""


@dataclass(frozen=True, slots=True)
class DetachedRun:
    """What the other process needs. num_events and tokens are of the num_steps done before; max_passes: None, to the end.

    later: prompts that arrive once so many passes are done.
    """

    config: EngineConfig
    params: SamplingParams
    prompts: tuple[str, ...]
    chat: bool
    num_steps: int = 0
    num_events: int = 0
    tokens: tuple[int, ...] = ()
    max_passes: int | None = None
    later: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """A CPU tensor as an array; bfloat16, which NumPy lacks, as its bits."""

    dtype: str
    data: np.ndarray

    @classmethod
    def of(cls, tensor: torch.Tensor) -> PlainTensor:
        cpu = tensor.detach().cpu().contiguous()
        bits = cpu.view(torch.int16) if cpu.dtype is torch.bfloat16 else cpu
        return cls(str(cpu.dtype).removeprefix("torch."), bits.numpy())

    def tensor(self) -> torch.Tensor:
        return torch.from_numpy(self.data).view(getattr(torch, self.dtype))


@dataclass(frozen=True, slots=True)
class Passes:
    """One or more forward passes, as plain data. captured: calls of Capture's methods, in order."""

    header: TraceHeader
    events: list[Event]
    captured: list[tuple[str, tuple[Any, ...]]]
    scales: tuple[float, ...]
    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    problem: str | None = None


class CaptureLog(Capture):
    """Writes down what would be captured, for another process to capture."""

    def __init__(self, num_heads: int, num_kv_heads: int) -> None:
        super().__init__(num_heads, num_kv_heads, 0)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, step: int, rows: torch.Tensor, owners: Sequence[SlotsWritten | int]) -> None:
        self.calls.append(("add", (step, PlainTensor.of(rows), list(owners))))

    def link(self, step: int, request_id: str, positions: Sequence[int], slots: Sequence[int]) -> None:
        self.calls.append(("link", (step, request_id, list(positions), list(slots))))

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.calls.append(("copy_slots", (list(sources), list(targets))))

    def take(self) -> list[tuple[str, tuple[Any, ...]]]:
        calls, self.calls = self.calls, []
        return calls


def run_passes(model: LoadedModel, run: DetachedRun, pace: float = PACE) -> Generator[Passes, None, None]:
    """There: does what `run` asks for on a fresh engine, and yields it about every `pace` seconds."""
    try:
        engine = Engine(model, dataclasses.replace(run.config, capture=False))
        capture = None
        if run.config.capture:
            engine.capture = engine.trace.capture = capture = CaptureLog(model.num_heads, model.num_kv_heads)
        for prompt in run.prompts:
            engine.add_request(prompt, run.params, run.chat)
        for after_step, prompt in run.later:
            engine.add_later(after_step, prompt, run.params, run.chat)
        for _ in range(run.num_steps):
            engine.step()
        if run.tokens != _sampled(engine.trace.events[: run.num_events]) or len(engine.trace.events) < run.num_events:
            raise PagewalkError("The GPU did not repeat the steps before this one alike. Press Generate for a new run.")
        if capture is not None:
            capture.take()
    except PagewalkError as error:
        yield Passes(_header(model, run.config), [], [], (), problem=str(error))
        return
    num_sent, passes, began = run.num_events, 0, time.monotonic()
    while engine.has_unfinished_requests() and passes != run.max_passes:
        engine.step()
        passes += 1
        over = not engine.has_unfinished_requests() or passes == run.max_passes
        if over or time.monotonic() - began >= pace:
            events = engine.trace.events[num_sent:]
            num_sent += len(events)
            outputs = {request_id: engine.output(request_id) for request_id in engine.requests}
            calls, scales = (capture.take(), capture.scales) if capture else ([], ())
            yield Passes(engine.trace.header, events, calls, scales, outputs)
            began = time.monotonic()


Remote = Callable[[DetachedRun], Generator[Passes, None, None]]


class DetachedEngine:
    """What a Session and its readers use of an Engine, with the passes done by `remote(run)`.

    `remote` may be called from any thread; it runs in the context (contextvars) of whoever announced the run.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig, remote: Remote) -> None:
        self.model, self.config = model, config
        self.lock = threading.RLock()
        self._pieces = TokenPieces(model.tokenizer)
        self.capture = Capture(model.num_heads, model.num_kv_heads, config.capture_bytes) if config.capture else None
        self._remote = remote
        self._fits = Scheduler(config, model.max_model_len, lambda event: None)
        self._max_passes: int | None = None
        self._context = contextvars.copy_context()
        self._begin()

    def _begin(self) -> None:
        self._prompts: list[str] = []
        self._later: list[tuple[int, str]] = []
        self._params, self._chat = SamplingParams(), False
        self._outputs: dict[str, RequestOutput] = {}
        self._passes: Generator[Passes, None, None] | None = None
        self.trace = Trace(_header(self.model, self.config))
        self.trace.capture = self.capture

    # ---- requests -------------------------------------------------------------------------------

    def check_prompts(self, prompts: Sequence[str], params: SamplingParams, chat: bool = False) -> list[int]:
        """As Engine.check_prompts."""
        lengths = [len(encode_prompt(self.model.tokenizer, prompt, chat)) for prompt in prompts]
        for length in lengths:
            self._fits.check_fits(length, params.max_tokens)
        return lengths

    def add_request(self, prompt: str, params: SamplingParams, chat: bool = False) -> str:
        """Queues a text. All requests of a run have the same parameters."""
        if self._prompts and (params, chat) != (self._params, self._chat):
            raise RequestError("All prompts of a run on a lent GPU have the same settings.")
        ids = encode_prompt(self.model.tokenizer, prompt, chat)
        self._fits.check_fits(len(ids), params.max_tokens)
        request_id = letters(len(self._prompts))
        texts = self._pieces.texts(ids)
        with self.lock:
            self._prompts.append(prompt)
            self._params, self._chat = params, chat
            self.trace.append(RequestAdded(0, request_id, prompt, tuple(ids), texts, params.max_tokens))
        return request_id

    def add_later(self, after_step: int, prompt: str, params: SamplingParams, chat: bool = False) -> None:
        """As Engine.add_later. The other process says when it has arrived."""
        self.check_prompts([prompt], params, chat)
        self._later.append((after_step, prompt))

    @property
    def requests(self) -> dict[str, RequestState]:
        return self.trace.latest.requests

    @property
    def step_count(self) -> int:
        return self.trace.last_step

    def has_unfinished_requests(self) -> bool:
        unfinished = any(request.status != "finished" for request in self.requests.values())
        return unfinished or self._num_arrived < len(self._prompts) + len(self._later)

    @property
    def _num_arrived(self) -> int:
        return sum(1 for request in self.requests.values() if request.parent_id is None)

    def abort_all(self) -> None:
        """As Engine.abort_all."""
        self._hang_up()
        del self._later[self._num_arrived - len(self._prompts) :]
        for request_id in list(self.requests):
            self.abort(request_id)

    def abort(self, request_id: str) -> None:
        """Ends a request; the other process stops at its next yield, and its pool is gone then."""
        self._hang_up()
        request = self.requests.get(request_id)
        if request is not None and request.status != "finished":
            with self.lock:
                step = self.step_count
                if request.block_table:
                    blocks = tuple(reversed(request.block_table))
                    self.trace.append(BlockFreed(step, request_id, blocks, f"{request_id} was stopped"))
                self.trace.append(RequestFinished(step, request_id, "abort", f"{request_id} was stopped"))

    def output(self, request_id: str) -> RequestOutput:
        """As Engine.output."""
        if request_id not in self.requests:
            raise RequestError(f"There is no request {request_id!r} in this run.")
        state = self.requests[request_id]
        known = self._outputs.get(request_id) or RequestOutput(
            request_id, state.prompt, [], [], "", None, 0, 0, 0, parent_id=state.parent_id
        )
        return dataclasses.replace(known, finish_reason=state.finish_reason)

    # ---- passes ---------------------------------------------------------------------------------

    def will_run(self, max_steps: int | None) -> None:
        """What follows is a run of so many passes (None: to its end), asked for by the caller of this."""
        self._hang_up()
        self._max_passes, self._context = max_steps, contextvars.copy_context()

    def step(self) -> StepOutput:
        """The next passes that the other process tells of: at least one. Raises PagewalkError where it ended too early."""
        if self._passes is None:
            run = DetachedRun(
                self.config, self._params, tuple(self._prompts), self._chat, self.step_count, len(self.trace.events),
                _sampled(self.trace.events), self._max_passes, tuple(self._later),
            )  # fmt: skip
            self._passes = self._context.run(self._remote, run)
        passes = self._context.run(next, self._passes, None)
        if passes is None:
            self._passes = None
            raise PagewalkError("The GPU was taken back before the run was over. Press Generate to try again.")
        if passes.problem is not None:
            raise PagewalkError(passes.problem)
        with self.lock:
            self.trace.header = passes.header
            if self.capture is not None:
                self.capture.scales = passes.scales or self.capture.scales
                for name, arguments in passes.captured:
                    plain = [a.tensor() if isinstance(a, PlainTensor) else a for a in arguments]
                    getattr(self.capture, name)(*plain)
            self._outputs.update(passes.outputs)
            for event in passes.events:
                self.trace.append(event)
        return StepOutput(self.step_count, passes.events, {}, {}, StepTimings(0.0, 0.0, 0.0))

    def lookup(
        self,
        request_id: str,
        query_position: int | None = None,
        key_position: int = 0,
        layer: int = 0,
        head: int = 0,
        as_of: int | None = None,
    ) -> Lookup:
        """As Engine.lookup, over what was captured: the pool is gone."""
        with self.lock:
            return look_up(self.trace, request_id, query_position, key_position, layer, head, None, as_of)

    def reset(self, keep_cache: bool = False) -> None:
        """Begins a new trace. Nothing can be kept: the pool was gone with the call."""
        self._hang_up()
        if self.capture is not None:
            self.capture = self.capture.next_run(keep_slots=False)
        self._begin()

    def close(self) -> None:
        self._hang_up()
        with self.lock:
            self.capture = self.trace.capture = None

    def _hang_up(self) -> None:
        passes, self._passes = self._passes, None
        if passes is not None:
            with contextlib.suppress(PagewalkError):
                self._context.run(passes.close)


def _sampled(events: Iterable[Event]) -> tuple[int, ...]:
    return tuple(event.token_id for event in events if isinstance(event, TokenSampled))


def _header(model: LoadedModel, config: EngineConfig) -> TraceHeader:
    """What is known of a run before its first pass; nothing is launched for it."""
    choice = choose_backend(config.attention_backend, model.device, model.dtype, model.head_dim)
    slot_bytes = model.num_kv_heads * model.head_dim * model.dtype.itemsize
    return TraceHeader(
        block_size=config.block_size, num_blocks=config.num_blocks, model=model.name, device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."), backend=choice.name, backend_reason=choice.reason,
        num_layers=model.num_layers, num_heads=model.num_heads, num_kv_heads=model.num_kv_heads, head_dim=model.head_dim,
        slot_bytes=slot_bytes, bytes_per_block=2 * model.num_layers * config.block_size * slot_bytes, version=VERSION,
    )  # fmt: skip
