"""A whole run as rows over steps, from one replay of its events: what the figures over time are drawn from.

Counts are kept up to date by the blocks an event touches, so that a run costs time by its events, not by its pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.events import (
    AllBlocksCleared,
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRemoved,
    BlockStored,
    BlockTouched,
    Event,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    SlotsWritten,
)
from engine.trace import CacheState, Trace


@dataclass(slots=True)
class PoolHistory:
    """Numbers of blocks after each of `steps`, a row wherever one changed. shared: of the used ones, read by two or more."""

    steps: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)


def pool_history(trace: Trace) -> PoolHistory:
    """Used, shared, cached and free blocks over the run. A block that is cached but in use counts as used."""
    history = PoolHistory()
    last: tuple[int, ...] = ()
    for counts in _replay(trace):
        row = (counts.used, counts.shared, counts.cached, trace.header.num_blocks - counts.used - counts.cached)
        if row == last:
            continue
        last = row
        history.steps.append(counts.state.step)
        for values, value in zip((history.used, history.shared, history.cached, history.free), row, strict=True):
            values.append(value)
    return history


@dataclass(slots=True)
class WasteHistory:
    """Slots after each of `steps`, paged (as it was) and contiguous (as it would have been); see `viz.waste`."""

    steps: list[int] = field(default_factory=list)
    paged_tokens: list[int] = field(default_factory=list)
    paged_reserved: list[int] = field(default_factory=list)
    paged_internal: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    internal: list[int] = field(default_factory=list)
    external: list[int] = field(default_factory=list)

    @property
    def rows(self) -> tuple[list[int], ...]:
        return (
            self.paged_tokens, self.paged_reserved, self.paged_internal,
            self.tokens, self.reserved, self.internal, self.external,
        )  # fmt: skip


def waste_history(trace: Trace) -> WasteHistory:
    """Slots that hold tokens, are kept for later, or are lost, over the run."""
    history, lengths = WasteHistory(), request_lengths(trace)
    last: tuple[int, ...] = ()
    for counts in _replay(trace):
        row = (*_paged_slots(counts, lengths), *_contiguous_slots(counts.state, lengths))
        if row == last:
            continue
        last = row
        history.steps.append(counts.state.step)
        for values, value in zip(history.rows, row, strict=True):
            values.append(value)
    return history


@dataclass(frozen=True, slots=True)
class Lengths:
    """limit: prompt and max_tokens, what a contiguous cache reserves. final: positions written in the end; while the request
    is unfinished, the limit: all of it may still be used.
    """

    limit: int
    final: int


def request_lengths(trace: Trace) -> dict[str, Lengths]:
    """Of every request of the run, read from its whole story."""
    limits: dict[str, int] = {}
    written: dict[str, int] = {}
    finished: set[str] = set()
    for event in trace.events[:]:
        if isinstance(event, RequestAdded):
            limits[event.request_id] = len(event.token_ids) + event.max_tokens
        elif isinstance(event, RequestForked):
            limits[event.request_id] = limits[event.parent_id]
            written[event.request_id] = written.get(event.parent_id, 0) if event.block_ids else 0
        elif isinstance(event, SlotsWritten):
            stop = event.start_position + len(event.slots)
            written[event.request_id] = max(written.get(event.request_id, 0), stop)
        elif isinstance(event, RequestFinished):
            finished.add(event.request_id)
    return {
        name: Lengths(max(limit, written.get(name, 0)), written.get(name, 0) if name in finished else limit)
        for name, limit in limits.items()
    }


@dataclass(frozen=True, slots=True)
class Span:
    """From step `start` to step `stop` (the pass of step s spans s - 1 to s) the request was in this phase."""

    request_id: str
    phase: str
    start: int
    stop: int


PHASES = ("waiting", "prefill", "decode", "preempted", "recompute")


@dataclass(slots=True)
class Life:
    """How one request went on; mutable while the story is read."""

    spans: list[Span] = field(default_factory=list)
    phase: str = "waiting"
    since: int = 0
    most_computed: int = 0
    ended: int | None = None
    finish_reason: str = ""

    def enter(self, request_id: str, phase: str, step: int) -> None:
        if phase == self.phase:
            return
        if step > self.since:
            self.spans.append(Span(request_id, self.phase, self.since, step))
        elif self.spans and self.spans[-1].phase == phase:  # back within one step: it never left
            step = self.spans.pop().start
        self.phase, self.since = phase, step


def request_lives(trace: Trace) -> dict[str, Life]:
    """Every request's phases, in the order of arrival.

    prefill: the pass computes prompt positions; decode: the newest token; recompute: positions that it had computed before it
    was preempted. A running request that a pass left out keeps its phase.
    """
    lives: dict[str, Life] = {}
    num_prompt: dict[str, int] = {}
    last = 0
    for event in trace.events[:]:
        last = event.step
        if isinstance(event, RequestAdded):
            lives[event.request_id] = Life(since=event.step)
            num_prompt[event.request_id] = len(event.token_ids)
        elif isinstance(event, RequestForked):
            parent = lives[event.parent_id]
            computed = parent.most_computed if event.block_ids else 0
            lives[event.request_id] = Life(
                since=event.step, phase="decode" if event.block_ids else "waiting", most_computed=computed
            )
            num_prompt[event.request_id] = num_prompt[event.parent_id]
        elif isinstance(event, SlotsWritten):
            life, start = lives[event.request_id], event.start_position
            prefill = "prefill" if start < num_prompt[event.request_id] else "decode"
            life.enter(event.request_id, "recompute" if start < life.most_computed else prefill, at_step(event.step))
            life.most_computed = max(life.most_computed, start + len(event.slots))
        elif isinstance(event, RequestPreempted):
            lives[event.request_id].enter(event.request_id, "preempted", at_step(event.step))
        elif isinstance(event, RequestFinished):
            life = lives[event.request_id]
            life.enter(event.request_id, "", event.step)
            life.ended, life.finish_reason = event.step, event.finish_reason
    for name, life in lives.items():
        if life.ended is None:
            life.enter(name, "", last)
    return lives


def at_step(step: int) -> int:
    """Where the pass of `step` begins on an axis of steps: it spans step - 1 to step."""
    return max(0, step - 1)


class _Counts:
    """The state after a step, with counts of its blocks. tokens: filled slots of the used ones."""

    def __init__(self, state: CacheState) -> None:
        self.state = state
        self.used = self.shared = self.cached = self.tokens = 0

    def add(self, block_ids: Iterable[int], sign: int) -> None:
        state = self.state
        for block_id in block_ids:
            if state.ref_cnt[block_id]:
                self.used += sign
                self.shared += sign * (state.ref_cnt[block_id] > 1)
                self.tokens += sign * state.num_filled[block_id]
            elif state.block_hash[block_id] is not None:
                self.cached += sign


def _replay(trace: Trace) -> Iterator[_Counts]:
    """The counts after every step of the run; one object, read it before the next."""
    state = CacheState.empty(trace.header.num_blocks, trace.header.block_size)
    counts = _Counts(state)
    for event in trace.events[:]:
        if event.step != state.step:
            yield counts
        touched = _touched(event, state)
        counts.add(touched, -1)
        state.apply(event)
        counts.add(touched, 1)
    yield counts


def _touched(event: Event, state: CacheState) -> Iterable[int]:
    """Blocks whose count, hash or filling the event changes, each once."""
    if isinstance(event, SlotsWritten):
        return {slot // state.block_size for slot in event.slots}
    if isinstance(event, BlockAllocated | BlockTouched):
        return (event.block_id,)
    if isinstance(event, BlockCopied):
        return (event.source_block_id, event.block_id)
    if isinstance(event, BlockFreed | BlockStored | BlockRemoved | RequestForked):
        return set(event.block_ids)
    return range(state.num_blocks) if isinstance(event, AllBlocksCleared) else ()


def _paged_slots(counts: _Counts, lengths: dict[str, Lengths]) -> tuple[int, int, int]:
    """(tokens, reserved, internal) of the blocks in use, a shared block once."""
    state, size = counts.state, counts.state.block_size
    kept: dict[int, int] = {}
    for request in state.requests.values():
        final = lengths[request.request_id].final
        for index in range(request.num_computed_tokens // size, len(request.block_table)):
            block_id = request.block_table[index]
            will_hold = max(0, min(size, final - index * size)) - state.num_filled[block_id]
            kept[block_id] = max(kept.get(block_id, 0), will_hold)
    reserved = sum(kept.values())
    return counts.tokens, reserved, counts.used * size - counts.tokens - reserved


def _contiguous_slots(state: CacheState, lengths: dict[str, Lengths]) -> tuple[int, int, int, int]:
    """(tokens, reserved, internal, external) of one chunk a running request, of its longest possible length."""
    tokens = reserved = internal = external = 0
    for request in state.requests.values():
        if not request.block_table:
            continue
        limit, final = lengths[request.request_id].limit, lengths[request.request_id].final
        computed = request.num_computed_tokens
        tokens += computed
        reserved += max(0, final - computed)
        internal += limit - max(final, computed)
        external += (1 << (limit - 1).bit_length()) - limit
    return tokens, reserved, internal, external
