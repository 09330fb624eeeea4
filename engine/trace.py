"""The story of a run, and the cache at any step of it, rebuilt from the story alone."""

from __future__ import annotations

import bisect
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.events import (
    AllBlocksCleared,
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRemoved,
    BlockStored,
    BlockTouched,
    Event,
    PrefixHit,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    SlotsWritten,
    StepTimed,
    TokenSampled,
    TokenText,
)

if TYPE_CHECKING:
    from engine.capture import Capture


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What stays the same over a run. Sizes in bytes; `slot_bytes` is one slot of one layer's K tensor."""

    block_size: int
    num_blocks: int
    model: str
    device: str
    dtype: str
    backend: str
    backend_reason: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    slot_bytes: int
    bytes_per_block: int
    version: str


@dataclass(slots=True)
class RequestState:
    request_id: str
    prompt: str
    num_prompt_tokens: int
    tokens: list[TokenText]
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    status: str = "waiting"
    finish_reason: str | None = None
    parent_id: str | None = None

    def copy(self) -> RequestState:
        return dataclasses.replace(self, tokens=list(self.tokens), block_table=list(self.block_table))


@dataclass(slots=True)
class CacheState:
    """The cache after some step. Lists are indexed by physical block id.

    owner: the request that took the block, kept while its bytes can still be hit; None for a free block and for one cached by
    an earlier run. num_filled: slots of the block that hold K and V. fresh_slots: written in this very step.
    """

    block_size: int
    num_blocks: int
    step: int
    ref_cnt: list[int]
    block_hash: list[str | None]
    owner: list[str | None]
    logical_index: list[int]
    num_filled: list[int]
    requests: dict[str, RequestState]
    fresh_slots: list[int]

    @classmethod
    def empty(cls, num_blocks: int, block_size: int) -> CacheState:
        n = num_blocks
        return cls(block_size, n, 0, [0] * n, [None] * n, [None] * n, [0] * n, [0] * n, {}, [])

    def copy(self) -> CacheState:
        """A state that can go its own way. Finished requests never change again, so both share them."""
        return CacheState(
            self.block_size,
            self.num_blocks,
            self.step,
            list(self.ref_cnt),
            list(self.block_hash),
            list(self.owner),
            list(self.logical_index),
            list(self.num_filled),
            {key: r if r.status == "finished" else r.copy() for key, r in self.requests.items()},
            list(self.fresh_slots),
        )

    @property
    def num_used_blocks(self) -> int:
        return sum(1 for count in self.ref_cnt if count)

    @property
    def num_shared_blocks(self) -> int:
        return sum(1 for count in self.ref_cnt if count > 1)

    @property
    def num_cached_blocks(self) -> int:
        return sum(1 for count, name in zip(self.ref_cnt, self.block_hash, strict=True) if not count and name)

    def apply(self, event: Event) -> None:
        """Folds one event in. The same rules stand in viz/stage/mirror.js; a test holds the two together."""
        if event.step != self.step:
            self.step = event.step
            self.fresh_slots = []
        if isinstance(event, SlotsWritten):
            self.requests[event.request_id].num_computed_tokens = event.start_position + len(event.slots)
            size, filled = self.block_size, self.num_filled
            for slot in event.slots:
                block_id, offset = divmod(slot, size)
                if offset >= filled[block_id]:
                    filled[block_id] = offset + 1
            self.fresh_slots.extend(event.slots)
        elif isinstance(event, TokenSampled):
            self.requests[event.request_id].tokens.append(event.text)
        elif isinstance(event, BlockAllocated):
            self._map(event.request_id, event.block_id)
            self.ref_cnt[event.block_id] = 1
            self._own(event.block_id, event.request_id, event.logical_index)
            self.num_filled[event.block_id] = 0
        elif isinstance(event, BlockTouched):
            self._map(event.request_id, event.block_id)
            if self.ref_cnt[event.block_id] == 0:
                self._own(event.block_id, event.request_id, event.logical_index)
            self.ref_cnt[event.block_id] += 1
        elif isinstance(event, BlockCopied):
            self.requests[event.request_id].block_table[event.logical_index] = event.block_id
            self.ref_cnt[event.block_id] = 1
            self._own(event.block_id, event.request_id, event.logical_index)
            self.num_filled[event.block_id] = event.num_slots
            self._drop(event.request_id, event.source_block_id)
        elif isinstance(event, BlockFreed):
            self.requests[event.request_id].block_table = []
            for block_id in event.block_ids:
                self._drop(event.request_id, block_id)
        elif isinstance(event, BlockStored):
            for block_id, block_hash in zip(event.block_ids, event.block_hashes, strict=True):
                self.block_hash[block_id] = block_hash
                if self.ref_cnt[block_id] == 0:
                    self.num_filled[block_id] = self.block_size
        elif isinstance(event, BlockRemoved):
            for block_id in event.block_ids:
                self._clear(block_id)
        elif isinstance(event, AllBlocksCleared):
            for block_id in range(self.num_blocks):
                self._clear(block_id)
        elif isinstance(event, RequestAdded):
            self.requests[event.request_id] = RequestState(
                event.request_id, event.prompt, len(event.token_texts), list(event.token_texts)
            )
        elif isinstance(event, RequestForked):
            self._fork(event)
        elif isinstance(event, PrefixHit):
            self.requests[event.request_id].num_computed_tokens = event.num_tokens
        elif isinstance(event, RequestPreempted):
            request = self.requests[event.request_id]
            request.status, request.num_computed_tokens = "waiting", 0
        elif isinstance(event, RequestFinished):
            request = self.requests[event.request_id]
            request.status, request.finish_reason = "finished", event.finish_reason

    def _map(self, request_id: str, block_id: int) -> None:
        request = self.requests[request_id]
        request.block_table.append(block_id)
        request.status = "running"

    def _own(self, block_id: int, request_id: str, logical_index: int) -> None:
        self.owner[block_id] = request_id
        self.logical_index[block_id] = logical_index

    def _clear(self, block_id: int) -> None:
        self.block_hash[block_id] = None
        self.owner[block_id] = None
        self.num_filled[block_id] = 0

    def _drop(self, request_id: str, block_id: int) -> None:
        """The request's table names the block no more."""
        self.ref_cnt[block_id] -= 1
        if self.ref_cnt[block_id] == 0:
            if self.block_hash[block_id] is None:
                self._clear(block_id)
        elif self.owner[block_id] == request_id:
            heirs = (r.request_id for r in self.requests.values() if block_id in r.block_table)
            self.owner[block_id] = next(heirs, None)

    def _fork(self, event: RequestForked) -> None:
        parent, num_prompt = self.requests[event.parent_id], self.requests[event.parent_id].num_prompt_tokens
        child = RequestState(event.request_id, parent.prompt, num_prompt, parent.tokens[:num_prompt], parent_id=event.parent_id)
        if event.block_ids:
            child.block_table, child.status = list(event.block_ids), "running"
            child.num_computed_tokens = parent.num_computed_tokens
        for block_id in event.block_ids:
            self.ref_cnt[block_id] += 1
        self.requests[event.request_id] = child


class Trace:
    """Events in order, and `state_at(step)`. Checkpoints are kept on the way, so that a jump replays a bounded number."""

    MIN_INTERVAL = 512
    """Events between checkpoints; more where a copy is larger (many blocks or requests), so that memory stays linear."""

    def __init__(self, header: TraceHeader) -> None:
        self.header = header
        self.events: list[Event] = []
        self.capture: Capture | None = None
        self._latest = CacheState.empty(header.num_blocks, header.block_size)
        self._interval = max(self.MIN_INTERVAL, header.num_blocks // 8)
        self._checkpoints: list[tuple[int, int, CacheState]] = []  # (number of events, step, state), only at ends of steps

    @property
    def last_step(self) -> int:
        return self.events[-1].step if self.events else 0

    @property
    def latest(self) -> CacheState:
        """The state after every event so far. Read it, do not keep or change it."""
        return self._latest

    def append(self, event: Event) -> None:
        """Adds an event; its step never goes back."""
        since = len(self.events) - (self._checkpoints[-1][0] if self._checkpoints else 0)
        if since >= max(self._interval, len(self._latest.requests)) and event.step > self._latest.step:
            self._checkpoints.append((len(self.events), self._latest.step, self._latest.copy()))
        self.events.append(event)
        self._latest.apply(event)

    def state_at(self, step: int) -> CacheState:
        """The cache after `step` (0: before the first pass), as a copy of the caller's own; finished requests are read only."""
        if step >= self._latest.step:
            return self._latest.copy()
        at = bisect.bisect_right(self._checkpoints, step, key=lambda checkpoint: checkpoint[1]) - 1
        if at >= 0:
            first, _, checkpoint = self._checkpoints[at]
            state = checkpoint.copy()
        else:
            first, state = 0, CacheState.empty(self.header.num_blocks, self.header.block_size)
        for index in range(first, len(self.events)):
            if self.events[index].step > step:
                break
            state.apply(self.events[index])
        return state

    def table_in(self, step: int, request_id: str) -> list[int]:
        """The request's block table during the forward pass of `step`: a request that ends in it has let go by its end."""
        state = self.state_at(step - 1)
        for event in self.events_between(step, step):
            if isinstance(event, BlockFreed) and event.request_id == request_id:
                break
            state.apply(event)
        return state.requests[request_id].block_table if request_id in state.requests else []

    def events_between(self, first: int, last: int) -> list[Event]:
        """Events of steps first..last, both included."""
        low = bisect.bisect_left(self.events, first, key=lambda event: event.step)
        high = bisect.bisect_right(self.events, last, key=lambda event: event.step)
        return self.events[low:high]

    def timings(self) -> list[StepTimed]:
        return [event for event in self.events if isinstance(event, StepTimed)]

    def save(self, path: str | Path, include_capture: bool = True) -> None:
        """Writes a .pagewalk recording (see engine.recording)."""
        from engine.recording import save_recording

        save_recording(self, Path(path), include_capture)

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Reads a .pagewalk recording. Raises RecordingError, with a sentence, for anything else."""
        from engine.recording import load_recording

        return load_recording(Path(path))
