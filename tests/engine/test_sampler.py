"""Choosing a token from logits."""

from __future__ import annotations

import math

import pytest
import torch

from engine import SamplingParams
from engine.block_table import BlockTable
from engine.request import Request
from engine.sampler import Sampler, _parts_of, best_tokens


def request(name: str = "A", token_ids=(1,), **params) -> Request:
    return Request(name, "", list(token_ids), len(token_ids), SamplingParams(**params), BlockTable(4))


def draws(num: int, logits: torch.Tensor, **params) -> list[int | None]:
    sampler, one = Sampler(0), request(**params)
    return [sampler.sample(logits, [one])[0] for _ in range(num)]


LOGITS = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))


def test_temperature_zero_takes_the_largest_logit_and_the_first_of_equals():
    assert Sampler(0).sample(torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]]), [request("A"), request("B")]) == [1, 0]


@pytest.mark.parametrize("temperature", [1e-40, 1e-10, 9e-5])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature):
    assert draws(20, LOGITS, temperature=temperature) == [0] * 20


@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 100.0])
def test_the_most_extreme_temperatures_still_draw(temperature):
    assert set(draws(50, LOGITS * 100, temperature=temperature)) <= {0, 1, 2, 3}


def test_draws_follow_the_softmax():
    chosen = draws(4000, LOGITS, temperature=1.0)
    # Standard error of a share is at most sqrt(.25 / 4000) = 0.008; four of them.
    for token, share in enumerate([0.4, 0.3, 0.2, 0.1]):
        assert chosen.count(token) / 4000 == pytest.approx(share, abs=0.032)


def test_temperature_sharpens_and_flattens():
    cold, hot = (draws(500, LOGITS, temperature=t).count(0) for t in (0.2, 10.0))
    assert cold > 350
    assert hot < 200


@pytest.mark.parametrize(
    "params, allowed",
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.65}, {0, 1}),
        ({"min_p": 0.6}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 1.0}, {0}),
    ],
)
def test_a_cut_leaves_only_the_likely_tokens(params, allowed):
    assert set(draws(300, LOGITS, temperature=1.0, **params)) == allowed


def test_a_top_k_beyond_the_vocabulary_cuts_nothing():
    assert set(draws(300, LOGITS, temperature=1.0, top_k=1000)) == {0, 1, 2, 3}


def test_the_repetition_penalty_works_without_temperature_too():
    logits = torch.tensor([[2.0, 1.9, 0.0]])
    assert Sampler(0).sample(logits, [request(token_ids=(0,), repetition_penalty=1.5)]) == [1]
    assert Sampler(0).sample(logits, [request(token_ids=(0,))]) == [0]


def test_one_seed_gives_one_sequence_of_draws():
    a, b, c = (draws(30, LOGITS, temperature=1.0, seed=s) for s in (5, 5, 6))
    assert a == b != c


def test_draws_with_a_seed_of_their_own_depend_on_no_batch_mate_and_on_no_name():
    alone = Sampler(0)
    first, other = request("A", temperature=1.0, seed=3), request("B", temperature=1.0, seed=9)
    expected = [alone.sample(LOGITS, [first])[0] for _ in range(20)]
    together, again = Sampler(77), request("C", temperature=1.0, seed=3)
    assert [together.sample(LOGITS.repeat(2, 1), [other, again])[1] for _ in range(20)] == expected


def test_without_a_seed_requests_draw_differently_and_repeatably():
    def run():
        sampler = Sampler(1)
        pair = [request("A", temperature=1.0), request("B", temperature=1.0)]
        return [tuple(sampler.sample(LOGITS.repeat(2, 1), pair)) for _ in range(30)]

    first = run()
    assert first == run()
    assert [a for a, _ in first] != [b for _, b in first]


def test_the_largest_seed_and_a_long_name_are_no_overflow():
    assert len(draws(3, LOGITS, temperature=1.0, seed=(1 << 63) - 1)) == 3
    sampler = Sampler((1 << 63) - 1)
    assert sampler.sample(LOGITS, [request("ZZZZ", temperature=1.0)])[0] in {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "row",
    [[0.0, math.nan, 1.0], [math.nan] * 3, [0.0, math.inf, 1.0], [-math.inf] * 3],
    ids=["nan", "all nan", "inf", "all -inf"],
)
def test_logits_without_a_finite_best_choose_nothing(row, temperature):
    good = [0.0, 5.0, -math.inf]
    pair = [request("A", temperature=temperature), request("B")]
    assert Sampler(0).sample(torch.tensor([row, good]), pair) == [None, 1]


def one_stage(logits: torch.Tensor) -> torch.Tensor:
    best = logits.argmax(dim=-1)
    return torch.stack((best, logits.gather(1, best[:, None]).flatten().isfinite().long()))


@pytest.mark.parametrize(
    "vocab, parts", [(128_256, 501), (151_936, 128), (49_152, 512), (4096, 64), (259, 1), (5003, 1), (1, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_tokens_found_in_parts_are_those_of_one_search(vocab, parts, dtype):
    assert _parts_of(vocab) == parts
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(12, vocab, generator=generator).to(dtype)
    logits[1] = 0.0  # all equal: the first
    logits[2] = logits[2].round()  # many equals, in many parts
    logits[3, [vocab // 7, vocab // 2, vocab - 1]] = 9.0
    logits[4, [vocab // 3, vocab - 1]] = math.nan
    logits[5] = math.nan
    logits[6, [0, vocab // 2]] = math.inf
    logits[6, vocab - 1] = math.nan  # larger than inf, and later
    logits[7, vocab // 2] = math.inf
    logits[8] = -math.inf
    logits[9] = -math.inf
    logits[9, vocab - 1] = -3.0
    logits[10, : vocab // 2] = -math.inf
    assert torch.equal(best_tokens(logits), one_stage(logits))
    assert torch.equal(best_tokens(logits[:0]), one_stage(logits[:0]))
    assert torch.equal(best_tokens(logits[::3]), one_stage(logits[::3]))


def test_bfloat16_logits_are_sampled_in_float32():
    assert set(draws(200, LOGITS.bfloat16(), temperature=1.0, top_p=0.95)) == {0, 1, 2, 3}


def test_forgetting_a_request_restarts_its_draws():
    sampler, one = Sampler(0), request(temperature=1.0, seed=4)
    first = [sampler.sample(LOGITS, [one])[0] for _ in range(10)]
    sampler.forget("A")
    assert [sampler.sample(LOGITS, [one])[0] for _ in range(10)] == first
    sampler.forget("nobody")
