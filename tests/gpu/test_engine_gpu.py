"""The engine on a CUDA device: the compiled kernels under the real scheduler, beside transformers on the same card."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.engine import Engine
from engine.fused_decoder import FusedDecoder
from engine.model_loader import LoadedModel
from tests.conftest import own_attention, tiny_llama

pytestmark = pytest.mark.gpu
PROMPTS = ["The capital of France is", "x", "Once upon a time there was a small dragon. " * 9]


@pytest.fixture(scope="module", params=["fused", "modules"])
def on_card(request: pytest.FixtureRequest) -> LoadedModel:
    """Decode passes of both kinds.

    Random weights in the shape of SmolLM2-135M (9 query heads, 3 KV heads, head_dim 64), 12 layers, float32."""
    model = tiny_llama(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=9, num_key_value_heads=3,
        head_dim=64, max_position_embeddings=2048, initializer_range=0.05,
    )  # fmt: skip
    module = model.model.cuda()
    fused = FusedDecoder(module) if request.param == "fused" else None
    return dataclasses.replace(model, model=module, device=torch.device("cuda", 0), fused_decoder=fused)


@torch.inference_mode()
def test_greedy_text_is_transformers_own_on_the_card(on_card: LoadedModel) -> None:
    expected = []
    with own_attention(on_card):
        for prompt in PROMPTS:
            ids = torch.tensor([on_card.tokenizer(prompt).input_ids], device="cuda")
            out = on_card.model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)
            expected.append(out[0, ids.shape[1] :].tolist())
    for block_size, budget in ((16, 512), (5, 64), (1, 512)):
        engine = Engine(on_card, EngineConfig(block_size=block_size, num_blocks=1024, max_num_batched_tokens=budget))
        on_card.model.set_attn_implementation("pagewalk")
        assert engine.runner.backend.name == "triton"
        engine.runner.kv_cache.fill_(float("nan"))
        outs = engine.generate(PROMPTS, SamplingParams(max_tokens=24))
        assert [out.token_ids for out in outs] == expected
        assert engine.runner.graphs is not None and engine.runner.graphs._passes
        engine.audit()


def test_a_lookup_on_the_card_agrees_with_dense_attention(on_card: LoadedModel) -> None:
    engine = Engine(on_card, EngineConfig(num_blocks=128))
    engine.generate(PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True))
    for head in (0, 8):
        look = engine.lookup("C", None, 17, layer=11, head=head)
        assert look.max_abs_difference < 1e-4  # float32 on the card, sums in another order
        assert look.slot_state in ("captured", "freed")
        assert look.address == engine.runner.kv_cache.k_pool[11].data_ptr() + look.slot * 3 * 64 * 4


def test_bfloat16_runs_and_says_what_it_runs_on(on_card: LoadedModel) -> None:
    module = copy.deepcopy(on_card.model).bfloat16()
    fused = FusedDecoder(module) if on_card.fused_decoder else None
    half = dataclasses.replace(on_card, model=module, dtype=torch.bfloat16, fused_decoder=fused)
    engine = Engine(half, EngineConfig(num_blocks=256))
    outs = engine.generate(PROMPTS, SamplingParams(max_tokens=16, ignore_eos=True))
    assert all(len(out.token_ids) == 16 for out in outs)
    assert "Triton kernels on" in engine.trace.header.backend_reason and engine.trace.header.dtype == "bfloat16"
    assert engine.lookup("A", None, 3, layer=0, head=0).max_abs_difference < 2e-2  # bf16 has 8 bits


def test_drawn_texts_repeat_on_the_card_and_do_not_depend_on_batch_mates(on_card: LoadedModel) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, top_k=40, seed=7, ignore_eos=True)
    texts = []
    for prompts in (PROMPTS, PROMPTS[:1], PROMPTS):
        engine = Engine(on_card, EngineConfig(num_blocks=256))
        on_card.model.set_attn_implementation("pagewalk")
        texts.append(engine.generate(prompts, params)[0].token_ids)
    assert texts[0] == texts[2] and len(set(texts[0])) > 3
    assert texts[1] == texts[0]
