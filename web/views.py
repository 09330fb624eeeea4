"""What the Stage's dock asks for: one view of the visitor's own run, as a Plotly figure and a caption.

Nothing in a question is trusted. An answer is {"ok": True, "figure", "caption"} or {"ok": False, "reason"}, plain JSON both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

import viz
from engine.engine import Engine
from engine.errors import PagewalkError
from engine.events import SlotsWritten
from engine.lookup import look_up
from engine.session import AnyEngine, Session
from engine.trace import CacheState, Trace
from kernels.decode_plan import DeviceLimits
from kernels.launch_plan import launch_plan
from viz.board import plain
from viz.kernel_pages import kernel_pages
from viz.palette import Mode

H200 = DeviceLimits()
MOST_WIDTH = 4000


@dataclass(frozen=True)
class Source:
    """One run, and what must be asked of its engine. `lookup(request, query, key, layer, head)` is Lookup.to_dict().

    limits and card: the GPU that a launch is planned for. workspace: bytes by name, the weights first. lock: held while the
    state is read.
    """

    trace: Trace
    lookup: Callable[[str, int, int, int, int], Mapping[str, Any]]
    workspace: Mapping[str, int] = field(default_factory=dict)
    limits: DeviceLimits = H200
    card: str = "an H200"
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)


class ViewProblem(PagewalkError):
    """Why there is no such view, as a sentence for the visitor."""


def view(source: Source, question: Any) -> dict[str, Any]:
    """Answers {"view", "step", "request", "position", "query", "layer", "head", "mode", "width"}; what a view has no use for is
    not looked at.
    """
    question = question if isinstance(question, dict) else {}
    make = VIEWS.get(question.get("view", "")) if isinstance(question.get("view"), str) else None
    try:
        if make is None:
            raise ViewProblem(f"There is no such view. Choose one of: {', '.join(VIEWS)}.")
        figure = make(source, question, "dark" if question.get("mode") == "dark" else "light")
    except PagewalkError as error:
        return {"ok": False, "reason": str(error)}
    return {"ok": True, "figure": plain(figure), "caption": figure.layout.meta["caption"]}


def shown_by(session: Session, run: Any) -> Source:
    """What the session shows, if that is `run`: a recording, or its own run. Raises PagewalkError where there is nothing."""
    if session.trace is None:
        raise ViewProblem("This session has no run yet. Press Generate.")
    if run != session.run_id:
        raise ViewProblem("This run is not kept any more. Press Generate for a new one.")
    if session.recording is not None:
        return recorded(session.recording.trace)
    if session.engine is None:
        raise ViewProblem("The run is not in memory (any more). Press Generate for a new one.")
    return source_of(session.engine)


def recorded(trace: Trace) -> Source:
    """A run that no engine goes on with."""
    return Source(trace, lambda *question: look_up(trace, *question).to_dict())


def source_of(engine: AnyEngine) -> Source:
    """The run of a live engine."""
    limits, card = H200, "an H200"
    if engine.model.device.type == "cuda" and isinstance(engine, Engine):
        import torch

        from kernels.triton_paged import device_limits

        limits, card = device_limits(engine.model.device), torch.cuda.get_device_name(engine.model.device)

    def lookup(request_id: str, query: int, key: int, layer: int, head: int) -> Mapping[str, Any]:
        return engine.lookup(request_id, query, key, layer, head).to_dict()

    return Source(engine.trace, lookup, workspace_of(engine), limits, card, engine.lock)


def workspace_of(engine: AnyEngine) -> dict[str, int]:
    """Bytes that the run takes besides its pool."""
    parts = {"weights": engine.model.weight_bytes}
    if engine.model.packed_bytes:
        parts["weights, packed for the CPU"] = engine.model.packed_bytes
    if engine.trace.capture is not None:
        parts["captured vectors"] = engine.trace.capture.num_bytes
    return parts


def _allocator(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    return viz.allocator(source.trace, mode)


def _waste(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    return viz.waste(source.trace, mode)


def _timeline(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    return viz.timeline(source.trace, mode)


def _pool(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    return viz.pool(_state(source, question), mode)


def _memory(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    return viz.memory(source.trace.header, source.workspace, _state(source, question), mode)


def _attention(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    state = _state(source, question)
    width = min(MOST_WIDTH, max(200, _whole(question, "width", 900)))
    return viz.attention(_lookup(source, question), state, mode, width)


def _vectors(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    return viz.vectors(_lookup(source, question), mode)


def _kernel(source: Source, question: Mapping[str, Any], mode: Mode) -> go.Figure:
    header, step = source.trace.header, _step(source, question)
    with source.lock:
        batch = batch_of(source.trace, step)
        names = list(source.trace.latest.requests)
    if not batch.names:
        raise ViewProblem(f"Step {step:,} ran no forward pass: nothing was launched. Choose another step.")
    itemsize = header.slot_bytes // (header.num_kv_heads * header.head_dim)
    plan = launch_plan(
        header.block_size, batch.tables, batch.query_start, batch.context_lens, header.num_heads, header.num_kv_heads,
        header.head_dim, itemsize, source.limits,
    )  # fmt: skip
    ran = header.backend == "triton"
    where = (
        f"Step {step:,} on {source.card}, each layer alike."
        if ran
        else f"So our Triton kernels would read step {step:,} on {source.card}; this run's backend, {header.backend}, gathers "
        "the same pages."
    )
    return kernel_pages(plan, batch.names, [names.index(name) for name in batch.names], mode, where)


VIEWS: Mapping[str, Callable[[Source, Mapping[str, Any], Mode], go.Figure]] = {
    "allocator": _allocator, "waste": _waste, "timeline": _timeline, "memory": _memory, "attention": _attention,
    "vectors": _vectors, "kernel": _kernel, "pool": _pool,
}  # fmt: skip


@dataclass(slots=True)
class Batch:
    """The sequences of one forward pass, as in kernels.metadata.AttentionMetadata."""

    names: list[str] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)
    query_start: list[int] = field(default_factory=lambda: [0])
    context_lens: list[int] = field(default_factory=list)


def batch_of(trace: Trace, step: int) -> Batch:
    """What the pass of `step` computed, from the events: rows of each sequence and the table it read them with."""
    batch, header = Batch(), trace.header
    state = trace.state_at(step - 1) if step else CacheState.empty(header.num_blocks, header.block_size)
    for event in trace.events_between(step, step):
        state.apply(event)
        if isinstance(event, SlotsWritten):
            batch.names.append(event.request_id)
            batch.tables.append(list(state.requests[event.request_id].block_table))
            batch.query_start.append(batch.query_start[-1] + len(event.slots))
            batch.context_lens.append(event.start_position + len(event.slots))
    return batch


def _whole(question: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = question.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise ViewProblem(f"This view takes a whole number as its {name}, from 0 on. Click a token, or choose a step.")
    return value


def _step(source: Source, question: Mapping[str, Any]) -> int:
    step, last = _whole(question, "step"), source.trace.last_step
    if step > last:
        raise ViewProblem(f"Step {step:,} is not there: this run has steps 0 to {last:,}.")
    return step


def _state(source: Source, question: Mapping[str, Any]) -> CacheState:
    step = _step(source, question)
    with source.lock:
        return source.trace.state_at(step)


def _lookup(source: Source, question: Mapping[str, Any]) -> Mapping[str, Any]:
    request_id = question.get("request")
    if not isinstance(request_id, str):
        raise ViewProblem("This view shows one lookup. Click a token first.")
    numbers = [_whole(question, name) for name in ("query", "position", "layer", "head")]
    return source.lookup(request_id, *numbers)
