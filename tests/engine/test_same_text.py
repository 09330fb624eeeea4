"""Greedy float32 texts depend on the prompt alone: not on the pool, the blocks, the chunks, the batch, the cache or forks."""

from __future__ import annotations

import functools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Engine, EngineConfig, SamplingParams
from engine.events import RequestForked, RequestPreempted
from tests.conftest import tiny_llama
from tests.engine.helpers import assert_all_free

BEGINNINGS = (tuple(range(60, 72)), tuple(range(90, 99)))
PROMPT = st.builds(
    lambda beginning, length, tail: (*beginning[:length], *tail),
    st.sampled_from(BEGINNINGS),
    st.integers(0, 12),
    st.lists(st.integers(0, 255), min_size=1, max_size=5),
)
REQUEST = st.tuples(PROMPT, st.integers(1, 8), st.integers(1, 3), st.integers(0, 6))
"""prompt, max_tokens, n, and the step before which the request arrives"""


@functools.cache
def model():
    return tiny_llama()


@functools.cache
def alone(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """The text on the frozen oracle, in one block, nothing shared."""
    config = EngineConfig(
        block_size=64, num_blocks=1, enable_prefix_caching=False, attention_backend="reference", capture=False
    )
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Engine(model(), config).generate([list(prompt)], params)[0].token_ids


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=4),
    block_size=st.integers(1, 17),
    spare=st.integers(0, 8),
    chunk=st.sampled_from([1, 2, 5, 64]),
    seats=st.integers(1, 6),
    caching=st.booleans(),
    watermark=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 5),
)
def test_a_greedy_text_depends_on_nothing_but_its_prompt(
    requests, block_size, spare, chunk, seats, caching, watermark, seed
):  # P04, P13, P29
    needed = max(-(-(len(prompt) + max_tokens - 1) // block_size) for prompt, max_tokens, _, _ in requests)
    engine = Engine(
        model(),
        EngineConfig(
            block_size=block_size, num_blocks=needed + spare, max_num_batched_tokens=chunk, max_num_seqs=seats,
            enable_prefix_caching=caching, watermark=watermark, capture=False, seed=seed,
        ),
    )  # fmt: skip
    engine.runner.kv_cache.fill_(float("nan"))
    asked: dict[str, tuple[tuple[int, ...], int, int]] = {}
    pending = sorted(requests, key=lambda request: request[3])
    while pending or engine.has_unfinished_requests():
        assert engine.step_count < 3000, "the run does not end"
        while pending and (pending[0][3] <= engine.step_count or not engine.has_unfinished_requests()):
            prompt, max_tokens, n, _ = pending.pop(0)
            name = engine.add_request(list(prompt), SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True))
            asked[name] = (prompt, max_tokens, n)
        engine.step()
        engine.audit()
    for name, (prompt, max_tokens, n) in asked.items():
        family = [name, *engine.requests[name].child_ids]
        assert [engine.output(member).token_ids for member in family] == [alone(prompt, max_tokens)] * n
    assert_all_free(engine)


def test_such_runs_do_preempt_and_fork():
    """The property above is no empty claim."""
    engine = Engine(model(), EngineConfig(block_size=2, num_blocks=12, capture=False))
    engine.generate([[*BEGINNINGS[0], 1], [*BEGINNINGS[0], 2]], SamplingParams(max_tokens=8, n=3, ignore_eos=True))
    kinds = [type(event) for event in engine.trace.events]
    assert kinds.count(RequestForked) == 4
    assert kinds.count(RequestPreempted) >= 1
