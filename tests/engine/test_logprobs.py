"""Log-probabilities of sampled and top tokens, and the reset of the prefix cache."""

from __future__ import annotations

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import BlockPoolError, ConfigError
from engine.events import AllBlocksCleared, RequestPreempted
from engine.sampler import logprobs_of
from tests.engine.helpers import assert_replay_is_live


def engine_of(model, **settings) -> Engine:
    return Engine(model, EngineConfig(**{"block_size": 4, "num_blocks": 32} | settings))


def dense_logprobs(model, token_ids: list[int]) -> torch.Tensor:
    """[positions, vocab] from one contiguous pass of an engine that never saw the request."""
    engine = engine_of(model, num_blocks=64, attention_backend="reference", enable_prefix_caching=False)
    rows = []
    execute = engine.runner.execute

    def keep(plan, capture):
        result = execute(plan, capture)
        rows.append(result.logits)
        return result

    engine.runner.execute = keep  # type: ignore[method-assign]
    for end in range(1, len(token_ids) + 1):
        engine.generate([token_ids[:end]], SamplingParams(max_tokens=1))
    return torch.cat(rows).log_softmax(dim=-1)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_log_probabilities_are_those_of_the_models_own_distribution(tiny, temperature):
    params = SamplingParams(max_tokens=6, temperature=temperature, top_k=5, seed=1, logprobs=3, ignore_eos=True)
    output = engine_of(tiny).generate(["hello"], params)[0]
    assert len(output.logprobs) == 6
    expected = dense_logprobs(tiny, output.prompt_token_ids + output.token_ids)[len(output.prompt_token_ids) - 1 :]
    for row, token_id, entry in zip(expected, output.token_ids, output.logprobs, strict=False):
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-4)  # the order of float32 sums differs
        assert [t for t, _ in entry.top] == row.topk(3).indices.tolist()
        assert [x for _, x in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)


def test_they_are_log_softmax_in_float32_whatever_the_logits_dtype():
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0], dtype=torch.bfloat16)
    entry = logprobs_of(logits, 3, 2)
    exact = logits.float().log_softmax(0)
    assert entry.logprob == float(exact[3])
    assert entry.top == ((1, float(exact[1])), (2, float(exact[2])))


def test_more_top_tokens_than_the_vocabulary_has_are_all_of_them():
    entry = logprobs_of(torch.zeros(3), 0, 20)
    assert len(entry.top) == 3
    assert sum(torch.tensor([x for _, x in entry.top]).exp()) == pytest.approx(1.0)


def test_nobody_who_did_not_ask_gets_any_and_batch_mates_may_ask_differently(tiny):
    outputs = engine_of(tiny).generate(
        ["abc", "abd"],
        [SamplingParams(max_tokens=3, ignore_eos=True), SamplingParams(max_tokens=3, logprobs=2, ignore_eos=True)],
    )
    assert [len(o.logprobs) for o in outputs] == [0, 3]
    assert {len(entry.top) for entry in outputs[1].logprobs} == {2}


def test_a_preempted_request_and_each_child_have_one_entry_a_token(tiny):
    engine = engine_of(tiny, num_blocks=6)
    params = SamplingParams(max_tokens=8, n=3, temperature=1.0, seed=2, logprobs=1, ignore_eos=True)
    outputs = engine.generate(["abcdef", "uvwxyz"], params)
    assert any(isinstance(e, RequestPreempted) for e in engine.trace.events)
    assert [[entry.token_id for entry in o.logprobs] for o in outputs] == [o.token_ids for o in outputs]


@pytest.mark.parametrize("logprobs", [-1, 21, True, 1.0])
def test_a_number_of_log_probabilities_that_makes_no_sense_is_refused(logprobs):
    with pytest.raises(ConfigError, match=r"logprobs is .*; give a whole number from 0 to 20"):
        SamplingParams(logprobs=logprobs)


# ---- reset_prefix_cache --------------------------------------------------------------------------------


def test_after_a_reset_of_the_prefix_cache_nothing_is_hit_and_the_text_is_the_same(tiny):
    engine = engine_of(tiny)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    first = engine.generate(["abcdefghi"], params)[0]
    engine.reset_prefix_cache()
    engine.audit()
    assert_replay_is_live(engine)
    assert isinstance(engine.trace.events[-1], AllBlocksCleared)
    assert engine.scheduler.pool.cached_blocks() == []
    again, third = (engine.generate(["abcdefghi"], params)[0] for _ in range(2))
    assert [o.num_cached_tokens for o in (first, again, third)] == [0, 0, 8]
    assert again.token_ids == third.token_ids == first.token_ids


def test_the_prefix_cache_is_not_reset_under_a_running_request(tiny):
    engine = engine_of(tiny)
    engine.add_request("abcdefghi", SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    num_events, index = len(engine.trace.events), engine.scheduler.pool.hash_index()
    with pytest.raises(BlockPoolError, match="cannot be reset while 3 blocks are in use; stop the requests first"):
        engine.reset_prefix_cache()
    assert (len(engine.trace.events), engine.scheduler.pool.hash_index()) == (num_events, index)
    engine.abort("A")
    engine.reset_prefix_cache()
    engine.audit()
