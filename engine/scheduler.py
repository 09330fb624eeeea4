"""Which tokens the next forward pass computes, and which blocks that takes.

No prefill phase and no decode phase (vLLM V1): every request has `num_computed_tokens` catching up with its tokens, at
most `max_num_batched_tokens` a step in all, so chunked prefill falls out. Running requests grow oldest first; when the pool
is dry the youngest gives way and is recomputed later. Waiting requests are admitted in order of arrival.

    add -> waiting --_admit--> running --schedule, forward pass, commit--> ... --finish-->
              ^                   |   '-fork-> running: its children
              +---- preempted ----+

Sequences share full blocks by a prefix hit and any block by a fork; who is about to write into a block that others read copies
it first (copy-on-write: Kwon et al. 2023, section 4.4), so that the last one left writes in place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine import reasons
from engine.block_pool import BlockContent, BlockPool, hash_block
from engine.block_table import BlockTable
from engine.config import EngineConfig
from engine.errors import RequestError
from engine.events import (
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRemoved,
    BlockStored,
    BlockTouched,
    Event,
    PrefixHit,
    PrefixMiss,
    RequestForked,
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
    """Owns the pool, the waiting queue and the running list. `emit` receives every event; `step` is set by the engine.

    copies: what the plan of this step wants copied before the forward pass, in this order.
    """

    def __init__(self, config: EngineConfig, max_model_len: int, emit: Callable[[Event], None]) -> None:
        self.config = config
        self.max_model_len = min(max_model_len, config.max_model_len or max_model_len)
        self.step = 0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.copies: list[BlockCopied] = []
        self._emit = emit
        self._needing = ""
        self._evicted: OrderedDict[str, int] = OrderedDict()  # block hash -> the step it was reused in; the newest only
        self.pool = BlockPool(config.num_blocks, config.free_order, config.seed, self.on_removed)

    # ---- arrival and departure ------------------------------------------------------------------

    def check_fits(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raises RequestError, with the numbers, if the request could never finish in this pool.

        That holds for any `n`: sequences of one prompt need not run at the same time.
        """
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
        self.copies = []
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

    def commit(self, plan: list[ScheduledRequest]) -> list[SlotsWritten]:
        """After the forward pass: the planned positions are computed and their full blocks can be hit. An event of each."""
        written = []
        for item in plan:
            request = item.request
            slots = tuple(request.block_table.slots(item.start, item.stop))
            written.append(SlotsWritten(self.step, request.request_id, item.start, slots))
            self._emit(written[-1])
            request.num_computed_tokens = item.stop
            if self.config.enable_prefix_caching:
                self._store_full_blocks(request)
        return written

    def fork(self, parent: Request, children: Sequence[Request]) -> bool:
        """After the pass that computed the parent's last prompt token: all its children read its blocks, or none of them does.

        They can if each finds a seat and, for the first token it writes, a block: the copy of a part-filled last block, or
        the next one. Otherwise, with no block touched, they wait at the head of the queue. Returns whether they forked.
        """
        num, shared = len(children), parent.block_table.block_ids
        needed = num if parent.params.max_tokens > 1 else 0  # a token that ends its sequence is never written
        seats, free = self.config.max_num_seqs - len(self.running), self.pool.num_free_blocks
        forks = num <= seats and needed <= free
        for child in children:
            if forks:
                self.pool.touch(shared)
                child.block_table = BlockTable(self.config.block_size, shared)
                child.block_contents = list(parent.block_contents)
                child.num_computed_tokens = child.num_cached_tokens = parent.num_computed_tokens
                child.status = RequestStatus.RUNNING
                self.running.append(child)
                reason = reasons.forked(num + 1, shared, {self.pool.ref_cnt[block_id] for block_id in shared})
            else:
                reason = reasons.fork_waits(child.request_id, num + 1, (num, seats), (needed, free))
            self._emit(RequestForked(self.step, child.request_id, parent.request_id, tuple(shared) if forks else (), reason))
        if not forks:
            self.waiting.extendleft(reversed(children))
        return forks

    # ---- blocks ---------------------------------------------------------------------------------

    def _grow(self, request: Request, num_tokens: int) -> bool:
        """Makes the table reach `num_tokens` positions, all from `num_computed_tokens` on in blocks of the request's own.

        False, with nothing changed, if the pool lacks the blocks.
        """
        table, size = request.block_table, self.config.block_size
        missing = max(-(-num_tokens // size) - len(table), 0)
        copies = self._must_copy(request)
        if missing + copies > self.pool.num_free_blocks:
            return False
        self._needing = request.request_id
        if copies:
            self._copy_on_write(request)
        for block_id in self.pool.allocate(missing):
            logical_index = len(table)
            table.append(block_id)
            reason = reasons.block_starts(logical_index * size, size)
            self._emit(BlockAllocated(self.step, request.request_id, logical_index, block_id, reason))
        return True

    def _must_copy(self, request: Request) -> bool:
        """Whether the next position lands in a part-filled block that another table names too."""
        index, offset = divmod(request.num_computed_tokens, self.config.block_size)
        return offset > 0 and self.pool.ref_cnt[request.block_table[index]] > 1

    def _copy_on_write(self, request: Request) -> None:
        index, num_slots = divmod(request.num_computed_tokens, self.config.block_size)
        (block_id,) = self.pool.allocate(1)
        source = request.block_table.replace(index, block_id)
        self.pool.free([source])
        readers = [r.request_id for r in self.running if len(r.block_table) > index and r.block_table[index] == source]
        reason = reasons.block_copied(request.num_computed_tokens, readers, num_slots)
        copied = BlockCopied(self.step, request.request_id, index, source, block_id, num_slots, reason)
        self.copies.append(copied)
        self._emit(copied)

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
        self._report_prefix(request, hits, contents)
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

    def _report_prefix(self, request: Request, hits: list[int], contents: list[BlockContent]) -> None:
        size = self.config.block_size
        lookable = (request.num_tokens - 1) // size if self.config.enable_prefix_caching else 0
        if hits:
            num = len(hits) * size
            reason = reasons.prefix_hit(num, request.num_tokens, len(hits))
            self._emit(PrefixHit(self.step, request.request_id, num, tuple(hits), reason))
        if len(hits) < lookable:
            self._report_miss(request, len(hits), contents[-1] if contents else None)

    def _report_miss(self, request: Request, index: int, parent: BlockContent | None) -> None:
        """Says why no block was hit, as far as the pool still knows."""
        size = self.config.block_size
        tokens = request.token_ids[index * size : (index + 1) * size]
        closest, num_shared = self.pool.closest_block(parent, tokens) or (None, 0)
        evicted = self._evicted.get(hash_block(parent.block_hash if parent else None, tokens))
        reason = reasons.prefix_miss(index, size, closest, num_shared, evicted)
        self._emit(PrefixMiss(self.step, request.request_id, index, reason, num_shared, evicted))

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
        copies = self._must_copy(for_request)
        position = for_request.num_computed_tokens if copies else for_request.block_table.capacity
        shared = sum(self.pool.ref_cnt[block_id] > 1 for block_id in victim.block_table.block_ids)
        freed = len(victim.block_table) - shared
        reason = reasons.preempted(
            victim.request_id, len(self.running) + 1, freed, shared, victim.num_tokens, for_request.request_id, position, copies
        )  # fmt: skip
        self._release(victim, f"{victim.request_id} was preempted")
        victim.num_computed_tokens = 0
        victim.block_contents = []
        victim.num_preemptions += 1
        self.waiting.appendleft(victim)
        self._emit(RequestPreempted(self.step, victim.request_id, victim.num_tokens, reason, for_request.request_id, freed))
        return victim

    def _release(self, request: Request, reason: str) -> None:
        block_ids = request.block_table.clear()[::-1]
        if block_ids:
            self.pool.free(block_ids)
            self._emit(BlockFreed(self.step, request.request_id, tuple(block_ids), reason))

    def on_removed(self, block_id: int, block_hash: str) -> None:
        """The pool is about to reuse a cached block."""
        self._emit(BlockRemoved(self.step, (block_hash,), (block_id,), reasons.block_evicted(self._needing)))
        self._evicted[block_hash] = self.step
        self._evicted.move_to_end(block_hash)
        if len(self._evicted) > self.config.num_blocks:
            self._evicted.popitem(last=False)
