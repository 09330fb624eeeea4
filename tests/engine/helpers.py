"""What the engine's tests share: a scheduler without a model, an engine without a forward pass, a straight replay."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.block_pool import BlockContent, BlockPool
from engine.engine import letters
from engine.errors import BlockPoolError, RequestError
from engine.events import Event, RequestPreempted
from engine.model_loader import LoadedModel
from engine.model_runner import ForwardResult
from engine.request import Request
from engine.scheduler import ScheduledRequest, Scheduler
from engine.trace import CacheState, Trace


class Rehearsal:
    """A scheduler at work without a model: every sampled token is `token`, whatever was asked."""

    def __init__(self, token: int = 7, max_model_len: int = 1 << 20, **settings) -> None:
        defaults = {"watermark": 0.0, "free_order": "ascending", "enable_prefix_caching": False, "max_num_seqs": 64}
        self.config = EngineConfig(**defaults | {"max_num_batched_tokens": 4096} | settings)
        self.events: list[Event] = []
        self.scheduler = Scheduler(self.config, max_model_len, self.events.append)
        self.requests: list[Request] = []
        self.token = token

    def add(self, token_ids: int | Sequence[int], max_tokens: int = 1, n: int = 1) -> Request:
        """A number stands for that many tokens, no two requests alike."""
        if isinstance(token_ids, int):
            token_ids = [1000 * (len(self.requests) + 1) + i for i in range(token_ids)]
        self.scheduler.check_fits(len(token_ids), max_tokens)
        request = self._new_request(list(token_ids), SamplingParams(max_tokens=max_tokens, n=n))
        self.scheduler.add(request)
        return request

    def _new_request(self, token_ids: list[int], params: SamplingParams, parent_id: str | None = None) -> Request:
        name, table = letters(len(self.requests)), self.scheduler.new_table()
        self.requests.append(Request(name, "", token_ids, len(token_ids), params, table, parent_id=parent_id))
        return self.requests[-1]

    def _fork(self, parent: Request) -> list[Request]:
        """As Engine does it: who samples from the parent's logits, the parent included."""
        if parent.params.n == 1 or parent.num_output_tokens:
            return [parent]
        single = dataclasses.replace(parent.params, n=1)
        children = [self._new_request(list(parent.token_ids), single, parent.request_id) for _ in range(1, parent.params.n)]
        return [parent, *children] if self.scheduler.fork(parent, children) else [parent]

    def step(self) -> list[tuple[str, int, int]]:
        """One pass; returns (request, start, number of tokens) of each planned chunk."""
        scheduler = self.scheduler
        scheduler.step += 1
        plan = scheduler.schedule()
        scheduler.commit(plan)
        for item in plan:
            for request in self._fork(item.request) if item.samples else ():
                request.token_ids.append(self.token)
                if request.num_output_tokens >= request.params.max_tokens:
                    scheduler.finish(request, "done")
        return [(item.request.request_id, item.start, item.num_tokens) for item in plan]

    def run(self, limit: int = 1000) -> int:
        """Steps until nothing is left; returns how many."""
        while self.scheduler.num_unfinished:
            assert self.scheduler.step < limit, "the run does not end"
            assert self.step(), "a step planned nothing"
        return self.scheduler.step

    @property
    def num_preemptions(self) -> int:
        return sum(isinstance(event, RequestPreempted) for event in self.events)

    @property
    def num_recomputed_tokens(self) -> int:
        return sum(request.num_recomputed_tokens for request in self.requests)


def without_forward_pass(model: LoadedModel, config: EngineConfig, seed: int = 0) -> Engine:
    """An engine whose forward pass is replaced by random logits: all of its books, none of the arithmetic.

    Capture must be off, since nothing is computed.
    """
    engine = Engine(model, config)
    rng = random.Random(seed)

    def execute(plan: list[ScheduledRequest], capture: bool) -> ForwardResult:
        assert not capture
        num = sum(item.samples for item in plan)
        logits = torch.zeros(num, model.vocab_size)
        for row in range(num):
            logits[row, rng.randrange(model.vocab_size)] = 1.0
        return ForwardResult(logits, None)

    engine.runner.execute = execute  # type: ignore[method-assign]
    return engine


def random_engine(
    model: LoadedModel, seed: int, block_size: int, num_blocks: int, caching: bool, max_num_batched_tokens: int = 32
) -> Engine:
    """An engine without a forward pass, for `random_life`."""
    config = EngineConfig(
        block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=caching, capture=False, seed=seed,
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=4, watermark=0.1,
    )  # fmt: skip
    return without_forward_pass(model, config, seed)


def random_life(
    engine: Engine, rng: random.Random, num_requests: int, check: Callable[[Engine], None], max_steps: int = 10_000
) -> None:
    """Requests that share beginnings and fork, arriving and aborted at any step; `check` after every step."""
    beginnings = [[rng.randrange(200) for _ in range(12)] for _ in range(2)]
    pending = num_requests
    while pending or engine.has_unfinished_requests():
        while pending and rng.random() < 0.5:
            pending -= 1
            prompt = rng.choice(beginnings)[: rng.randint(1, 12)] + [rng.randrange(200) for _ in range(rng.randint(0, 6))]
            params = SamplingParams(
                max_tokens=rng.randint(1, 8), ignore_eos=rng.random() < 0.5, n=rng.choice([1, 1, 1, 2, 3]),
                temperature=rng.choice([0.0, 1.0]),
            )  # fmt: skip
            try:
                engine.add_request(prompt, params)
            except RequestError:
                assert len(prompt) + params.max_tokens - 1 > engine.config.num_slots
        if engine.requests and rng.random() < 0.1:
            engine.abort(rng.choice(list(engine.requests)))
        engine.step()
        check(engine)
        assert engine.step_count < max_steps, "the run does not end"


class PlainPool:
    """A block pool in plain lists, slow and obvious, beside the real one; every operation is done on both and compared."""

    NUM_BLOCKS = 12

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.removed: list[int] = []
        self.pool = BlockPool(self.NUM_BLOCKS, on_removed=lambda block_id, block_hash: self.removed.append(block_id))
        self.queue = list(range(self.NUM_BLOCKS))
        self.held: list[int] = []  # one entry a reference
        self.content: dict[int, tuple[BlockContent | None, tuple[int, ...]]] = {}

    def operate(self) -> str:
        """One random operation, then the whole audit. Returns its name."""
        names = ("allocate", "allocate_too_many", "touch", "free", "free_twice", "store", "look_up", "clear")
        name = self.rng.choices(names, weights=(20, 2, 15, 35, 2, 15, 10, 1))[0]
        getattr(self, f"_{name}")()
        self.audit()
        return name

    def audit(self) -> None:
        pool = self.pool
        assert pool.free_block_ids() == self.queue
        assert pool.num_free_blocks == len(self.queue)
        counts = [0] * self.NUM_BLOCKS
        for block_id in self.held:
            counts[block_id] += 1
        assert pool.ref_cnt == counts
        for block_id, content in enumerate(pool.content):
            assert (content and (content.parent, content.token_ids)) == self.content.get(block_id)
            if content is not None:
                assert block_id in pool._by_hash[content.block_hash]
                assert block_id in pool._after[content.parent]
        filed = sum(len(holders) for holders in pool._by_hash.values())
        after = sum(len(followers) for followers in pool._after.values())
        assert filed == after == len(self.content)

    def _allocate(self) -> None:
        num = self.rng.randint(0, min(3, len(self.queue)))
        expected, self.queue = self.queue[:num], self.queue[num:]
        self.removed.clear()
        assert self.pool.allocate(num) == expected
        assert self.removed == [block_id for block_id in expected if self.content.pop(block_id, None)]
        self.held += expected

    def _allocate_too_many(self) -> None:
        with pytest.raises(BlockPoolError):
            self.pool.allocate(len(self.queue) + 1)

    def _touch(self) -> None:
        block_id = self.rng.randrange(self.NUM_BLOCKS)
        self.pool.touch([block_id])
        self.held.append(block_id)
        if block_id in self.queue:
            self.queue.remove(block_id)

    def _free(self) -> None:
        self.rng.shuffle(self.held)
        gone = [self.held.pop() for _ in range(min(self.rng.randint(1, 3), len(self.held)))]
        self.pool.free(gone)
        for at, block_id in enumerate(gone):
            if block_id not in self.held and block_id not in gone[at + 1 :]:
                self.queue.append(block_id)

    def _free_twice(self) -> None:
        if self.queue:
            with pytest.raises(BlockPoolError):
                self.pool.free([*self.held, self.rng.choice(self.queue)])

    def _store(self) -> None:
        bare = [block_id for block_id in self.held if block_id not in self.content]
        if bare:
            block_id, parent, tokens = self.rng.choice(bare), self._any_parent(), self._any_tokens()
            content = self.pool.store(block_id, parent, tokens)
            twins = [b for b, known in self.content.items() if known[0] is parent and known[1] == tokens]
            assert all(self.pool.content[twin] is content for twin in twins)
            self.content[block_id] = (parent, tokens)

    def _look_up(self) -> None:
        parent, tokens = self._any_parent(), self._any_tokens()
        siblings = {block_id: known[1] for block_id, known in self.content.items() if known[0] is parent}
        hit = self.pool.cached_block(parent, tokens)
        assert (hit is not None) == (tokens in siblings.values())
        assert hit is None or siblings[hit] == tokens
        closest = self.pool.closest_block(parent, tokens)
        lengths = [2 if known == tokens else int(known[0] == tokens[0]) for known in siblings.values()]
        assert (closest[1] if closest else None) == max(lengths, default=None)

    def _clear(self) -> None:
        if self.held:
            with pytest.raises(BlockPoolError):
                self.pool.clear_cache()
        else:
            self.pool.clear_cache()
            self.content.clear()

    def _any_parent(self) -> BlockContent | None:
        return self.rng.choice([None, None, *self.pool.content])

    def _any_tokens(self) -> tuple[int, int]:
        return self.rng.randrange(3), self.rng.randrange(3)


def replayed(trace: Trace, step: int | None = None) -> CacheState:
    """Every event folded in from the beginning, without checkpoints; up to and including `step`."""
    state = CacheState.empty(trace.header.num_blocks, trace.header.block_size)
    for event in trace.events:
        if step is not None and event.step > step:
            break
        state.apply(event)
    return state


def assert_replay_is_live(engine: Engine) -> None:
    """Pool, tables, hashes, tokens and progress, from the events alone, against the live engine; independent of the audit."""
    state, pool = replayed(engine.trace), engine.scheduler.pool
    assert state.ref_cnt == pool.ref_cnt
    assert state.block_hash == [content.block_hash if content else None for content in pool.content]
    assert list(state.requests) == list(engine.requests)
    for request_id, request in engine.requests.items():
        seen = state.requests[request_id]
        assert seen.block_table == request.block_table.block_ids
        assert seen.tokens == request.token_texts
        assert seen.status == request.status.value
        assert seen.finish_reason == request.finish_reason
        if seen.status != "finished":
            assert seen.num_computed_tokens == request.num_computed_tokens


def assert_all_free(engine: Engine) -> None:
    """No block is held, and each of them stands once in the free queue."""
    pool = engine.scheduler.pool
    assert pool.ref_cnt == [0] * pool.num_blocks
    assert sorted(pool.free_block_ids()) == list(range(pool.num_blocks))
