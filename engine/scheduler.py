"""Which tokens the next forward pass computes, and which blocks that takes.

No prefill phase and no decode phase (vLLM V1): every request has `num_computed_tokens` catching up with its tokens, at
most `max_num_batched_tokens` a step in all, so chunked prefill falls out. Running requests grow oldest first; when the pool
is dry the youngest gives way and is recomputed later. Waiting requests are admitted in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.block_pool import BlockContent, BlockPool
from engine.block_table import BlockTable
from engine.config import EngineConfig
from engine.errors import RequestError
from engine.events import (
    BlockAllocated,
    BlockFreed,
    BlockRemoved,
    BlockStored,
    BlockTouched,
    Event,
    PrefixHit,
    PrefixMiss,
    RequestPreempted,
    SlotsWritten,
)
from engine.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """Positions start .. start + num_tokens - 1 of `request` are computed in this step."""

    request: Request
    start: int
    num_tokens: int

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the pass reaches the last known token, so that the next one can be sampled."""
        return self.stop == self.request.num_tokens


class Scheduler:
    """Owns the pool, the waiting queue and the running list. `emit` receives every event; `step` is set by the engine."""

    def __init__(self, config: EngineConfig, max_model_len: int, emit: Callable[[Event], None]) -> None:
        self.config = config
        self.max_model_len = min(max_model_len, config.max_model_len or max_model_len)
        self.step = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._emit = emit
        self._needing = ""
        self.pool = BlockPool(config.num_blocks, config.free_order, config.seed, self.on_removed)

    # ---- arrival and departure ------------------------------------------------------------------

    def check_fits(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raises RequestError, with the numbers, if the request could never finish in this pool."""
        size, total = self.config.block_size, num_prompt_tokens + max_tokens
        if total > self.max_model_len:
            raise RequestError(
                f"{num_prompt_tokens:,} prompt tokens and {max_tokens:,} new ones make {total:,}; the model reads at most "
                f"{self.max_model_len:,}. Shorten the prompt or ask for fewer tokens."
            )
        needed = -(-(total - 1) // size)  # the last token is sampled, never written
        if needed > self.config.num_blocks:
            raise RequestError(
                f"{num_prompt_tokens:,} prompt tokens and {max_tokens:,} new ones need {needed:,} blocks of {size}; "
                f"the pool has {self.config.num_blocks:,}. Add blocks, shorten the prompt or ask for fewer tokens."
            )

    def new_table(self) -> BlockTable:
        return BlockTable(self.config.block_size)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def finish(self, request: Request, reason: str) -> None:
        """Takes the request out, wherever it is, and gives its blocks back."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        self._release(request, reason)

    @property
    def num_unfinished(self) -> int:
        return len(self.waiting) + len(self.running)

    # ---- one step -------------------------------------------------------------------------------

    def schedule(self) -> list[ScheduledRequest]:
        """Plans one forward pass and takes the blocks it writes. Never raises for want of blocks."""
        budget = self.config.max_num_batched_tokens
        plan: list[ScheduledRequest] = []
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            while not self._grow(request, request.num_computed_tokens + num_tokens):
                preempted = True
                if self._preempt_youngest(for_request=request) is request:
                    break
            if request.status is not RequestStatus.RUNNING:
                break
            plan.append(ScheduledRequest(request, request.num_computed_tokens, num_tokens))
            budget -= num_tokens
            index += 1
        while self.waiting and budget > 0 and not preempted and len(self.running) < self.config.max_num_seqs:
            scheduled = self._admit(self.waiting[0], budget)
            if scheduled is None:
                break
            plan.append(scheduled)
            budget -= scheduled.num_tokens
        return plan

    def commit(self, plan: list[ScheduledRequest]) -> None:
        """After the forward pass: the planned positions are computed and their full blocks can be hit."""
        for item in plan:
            request = item.request
            self._emit(
                SlotsWritten(self.step, request.request_id, item.start, tuple(request.block_table.slots(item.start, item.stop)))
            )
            request.num_computed_tokens = item.stop
            if self.config.enable_prefix_caching:
                self._store_full_blocks(request)

    # ---- blocks ---------------------------------------------------------------------------------

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Makes the table reach `num_tokens` positions. False, with nothing changed, if the pool lacks the blocks."""
        table, size = request.block_table, self.config.block_size
        missing = -(-num_tokens // size) - len(table)
        if missing <= 0:
            return True
        if missing > self.pool.num_free_blocks:
            return False
        self._needing = request.request_id
        for block_id in self.pool.allocate(missing):
            logical_index = len(table)
            table.append(block_id)
            first = logical_index * size
            reason = f"token {first} starts logical block {logical_index} ({first} % {size} = 0)"
            self._emit(BlockAllocated(self.step, request.request_id, logical_index, block_id, reason))
        return True

    def _admit(self, request: Request, budget: int) -> ScheduledRequest | None:
        """Starts a waiting request, reusing cached blocks. None, with nothing changed, if it must wait."""
        hits, contents = self._cached_prefix(request)
        num_cached = len(hits) * self.config.block_size
        num_tokens = min(request.num_tokens - num_cached, budget)
        needed = -(-(num_cached + num_tokens) // self.config.block_size) - len(hits)
        reserve = self.config.watermark_blocks if self.running else 0
        if needed + reserve > self.pool.num_free_blocks - self.pool.num_free_among(hits):
            return None
        self.waiting.popleft()
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        self._report_prefix(request, hits)
        self.pool.touch(hits)
        for block_id in hits:
            self._emit(BlockTouched(self.step, request.request_id, len(request.block_table), block_id))
            request.block_table.append(block_id)
        request.block_contents = contents
        request.num_computed_tokens = num_cached
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached
        else:
            request.num_recomputed_tokens += request.num_tokens - num_cached
        self._grow(request, num_cached + num_tokens)
        return ScheduledRequest(request, num_cached, num_tokens)

    def _cached_prefix(self, request: Request) -> tuple[list[int], list[BlockContent]]:
        """The longest run of full blocks from the start that the pool still holds, leaving at least one token to compute."""
        hits: list[int] = []
        contents: list[BlockContent] = []
        if self.config.enable_prefix_caching:
            size = self.config.block_size
            for index in range((request.num_tokens - 1) // size):
                parent = contents[-1] if contents else None
                block_id = self.pool.cached_block(parent, request.token_ids[index * size : (index + 1) * size])
                if block_id is None:
                    break
                content = self.pool.content[block_id]
                assert content is not None
                hits.append(block_id)
                contents.append(content)
        return hits, contents

    def _report_prefix(self, request: Request, hits: list[int]) -> None:
        size = self.config.block_size
        lookable = (request.num_tokens - 1) // size if self.config.enable_prefix_caching else 0
        if hits:
            num = len(hits) * size
            reason = f"the first {num} of {request.num_tokens} tokens are in the pool, in {len(hits)} full blocks"
            self._emit(PrefixHit(self.step, request.request_id, num, tuple(hits), reason))
        if len(hits) < lookable:
            first = len(hits) * size
            reason = f"no block holds tokens {first} to {first + size - 1} after the same beginning"
            self._emit(PrefixMiss(self.step, request.request_id, len(hits), reason))

    def _store_full_blocks(self, request: Request) -> None:
        size, first = self.config.block_size, len(request.block_contents)
        full = request.num_computed_tokens // size
        if full <= first:
            return
        parent = request.block_contents[-1] if first else None
        for index in range(first, full):
            tokens = request.token_ids[index * size : (index + 1) * size]
            above = request.block_contents[-1] if request.block_contents else None
            request.block_contents.append(self.pool.store(request.block_table[index], above, tokens))
        self._emit(
            BlockStored(
                self.step,
                tuple(content.block_hash for content in request.block_contents[first:]),
                parent.block_hash if parent else None,
                tuple(request.token_ids[first * size : full * size]),
                size,
                tuple(request.block_table.block_ids[first:full]),
            )
        )

    def _preempt_youngest(self, for_request: Request) -> Request:
        victim = self.running.pop()
        victim.status = RequestStatus.WAITING
        held, first = len(victim.block_table), len(for_request.block_table) * self.config.block_size
        reason = (
            f"the pool is dry: {for_request.request_id} needs a block for token {first}; "
            f"{victim.request_id} is the youngest of {len(self.running) + 1} running and gives {held} blocks back, "
            f"{victim.num_tokens} tokens to recompute"
        )
        self._release(victim, f"{victim.request_id} was preempted")
        victim.num_computed_tokens = 0
        victim.block_contents = []
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        self._emit(RequestPreempted(self.step, victim.request_id, victim.num_tokens, reason))
        return victim

    def _release(self, request: Request, reason: str) -> None:
        block_ids = request.block_table.clear()[::-1]
        if block_ids:
            self.pool.free(block_ids)
            self._emit(BlockFreed(self.step, request.request_id, tuple(block_ids), reason))

    def on_removed(self, block_id: int, block_hash: str) -> None:
        reason = f"least recently used of the cached blocks; {self._needing} needs a block"
        self._emit(BlockRemoved(self.step, (block_hash,), (block_id,), reason))
