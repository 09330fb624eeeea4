"""The real model, in float32: our greedy text is transformers' own, token for token, however the cache is cut."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.events import RequestPreempted

NEW_TOKENS = 12
STORY = (
    "Once upon a time there was a small village at the foot of a mountain, and in it lived a clockmaker who could not sleep. "
    "Every night he climbed the tower, counted the stars, and wrote their number into a book bound in green leather. "
)
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Grüße aus München! 🎉 日本語のテキスト. List three fruits, three rivers and three mountains, in order of size:",
    STORY * 2 + "The next morning",
    STORY * 9,
]


@dataclass(frozen=True)
class Expected:
    prompts: list[list[int]]
    outputs: list[list[int]]


@pytest.fixture(scope="module")
def expected(smollm) -> Expected:
    """transformers' `generate` with its own attention and its own cache, on a second instance of the weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm.path, dtype=torch.float32, attn_implementation="sdpa").eval()
    prompts = [smollm.tokenizer(text).input_ids for text in PROMPTS]
    prompts[-1] = prompts[-1][:400]
    outputs = []
    for ids in prompts:
        rows = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64), do_sample=False,
            max_new_tokens=NEW_TOKENS, eos_token_id=sorted(smollm.eos_token_ids), pad_token_id=0,
        )  # fmt: skip
        outputs.append(rows[0, len(ids) :].tolist())
    return Expected(prompts, outputs)


def test_the_prompts_have_5_to_400_tokens(expected):
    shortest, *between, longest = (len(ids) for ids in expected.prompts)
    assert (shortest, longest) == (5, 400)
    assert all(10 < num < 400 for num in between)
    assert all(output for output in expected.outputs)


@pytest.mark.parametrize("block_size, budget", [(1, 1024), (5, 1024), (16, 100)])
def test_greedy_text_is_transformers_own(smollm, expected, block_size, budget):
    config = EngineConfig(
        block_size=block_size,
        num_blocks=1024 // block_size,
        max_num_batched_tokens=budget,
        free_order="shuffled",
        capture=False,
    )
    engine = Engine(smollm, config)
    engine.runner.kv_cache.fill_(float("nan"))
    outputs = engine.generate(expected.prompts, SamplingParams(max_tokens=NEW_TOKENS))
    assert [output.token_ids for output in outputs] == expected.outputs
    engine.audit()


def test_greedy_text_is_transformers_own_after_preemption_and_from_cached_blocks(smollm, expected):
    """The two short prompts, eight tokens each, in a pool that just holds the longer one; twice."""
    just_fits = -(-(len(expected.prompts[1]) + 7) // 4)
    engine = Engine(smollm, EngineConfig(block_size=4, num_blocks=just_fits, watermark=0.0))
    engine.runner.kv_cache.fill_(float("nan"))
    for _ in range(2):
        outputs = engine.generate(expected.prompts[:2], SamplingParams(max_tokens=8))
        assert [output.token_ids for output in outputs] == [output[:8] for output in expected.outputs[:2]]
        engine.audit()
    assert any(isinstance(event, RequestPreempted) for event in engine.trace.events)
    assert sum(output.num_cached_tokens for output in outputs) > 0


def test_a_lookup_in_the_real_model_agrees_with_dense_attention_in_every_layer(smollm):
    engine = Engine(smollm, EngineConfig(block_size=16, num_blocks=16))
    engine.runner.kv_cache.fill_(float("nan"))
    engine.generate([PROMPTS[0]], SamplingParams(max_tokens=3))
    for layer in range(smollm.num_layers):
        for head in (0, 4, 8):
            found = engine.lookup("A", None, 2, layer, head)
            assert found.kv_head == head // 3
            # float32: 64 products a score, values up to order 10.
            assert found.max_abs_difference < 1e-4
            assert float(found.weights.sum()) == pytest.approx(1.0, abs=1e-5)
