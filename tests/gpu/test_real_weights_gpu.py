"""The default model's real weights on a card, beside transformers there. -s prints where bfloat16 texts part."""

from __future__ import annotations

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.engine import Engine
from engine.model_loader import LoadedModel, load_model
from tests.conftest import own_attention

pytestmark = pytest.mark.gpu
NEW_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "The history of the city begins long before the first stone of its old bridge was laid across the river, when",
    "Water boils at 100 degrees. " * 40,
]


@torch.inference_mode()
def transformers_says(model: LoadedModel) -> list[list[int]]:
    said = []
    with own_attention(model):
        for prompt in PROMPTS:
            ids = torch.tensor([model.tokenizer(prompt).input_ids], device="cuda")
            # no end of text, which min_new_tokens would do by changing the logits
            out = model.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1
            )
            said.append(out[0, ids.shape[1] :].tolist())
    return said


def engine_says(model: LoadedModel, **config: int) -> list[list[int]]:
    engine = Engine(model, EngineConfig(num_blocks=512, **config))
    model.model.set_attn_implementation("pagewalk")
    engine.runner.kv_cache.fill_(float("nan"))
    outs = engine.generate(PROMPTS, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True))
    engine.audit()
    assert engine.runner.graphs is not None and engine.runner.graphs._passes
    return [out.token_ids for out in outs]


def test_greedy_text_in_float32_is_transformers_own() -> None:
    model = load_model(device="cuda", dtype="float32")
    expected = transformers_says(model)
    for config in ({}, {"block_size": 5, "max_num_batched_tokens": 64}, {"max_num_seqs": 3}, {"max_num_seqs": 1}):
        assert engine_says(model, **config) == expected


@pytest.mark.parametrize("side_by_side", [1, 5])
@torch.inference_mode()
def test_bfloat16_parts_from_transformers_only_where_two_tokens_are_within_rounding(side_by_side: int) -> None:
    model = load_model(device="cuda", dtype="bfloat16")
    said = engine_says(model, max_num_seqs=side_by_side)
    for prompt, theirs, ours in zip(PROMPTS, transformers_says(model), said):
        at = next((i for i, pair in enumerate(zip(theirs, ours)) if pair[0] != pair[1]), None)
        if at is None:
            print(f"{prompt[:30]!r}: the same {NEW_TOKENS} tokens")
            continue
        with own_attention(model):
            ids = torch.tensor([[*model.tokenizer(prompt).input_ids, *theirs[:at]]], device="cuda")
            logits = model.model(ids).logits[0, -1].float()
        margin, best = float(logits[theirs[at]] - logits[ours[at]]), float(logits.max())
        print(f"{prompt[:30]!r}: the first difference at new token {at}, margin {margin:.4f} at logits of {best:.2f}")
        assert margin <= 4 * best * 2**-8  # some roundings of a bfloat16 logit of that size
