"""Every architecture on the list really runs with our attention in its layers; the others are refused by name."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

from engine.architectures import SUPPORTED, check_supported, longest_context
from engine.errors import ModelError

SIZES = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


def config(model_type: str, **changes):
    absent = {
        "gpt2": {"num_key_value_heads"},
        "gpt_neox": {"num_key_value_heads"},
        "falcon": {"head_dim"},
        "mpt": set(SIZES),
        "t5": set(SIZES),
    }
    sizes = {name: size for name, size in SIZES.items() if name not in absent.get(model_type, ())}
    return AutoConfig.for_model(model_type, **sizes | changes)


@pytest.mark.parametrize("model_type", sorted(SUPPORTED))
def test_a_supported_architecture_runs_a_packed_batch_with_our_attention(model_type):
    """Two sequences side by side, told apart only by a keyword argument, give what each gives alone."""
    calls = []

    def attention(module, query, key, value, mask, scaling=None, dropout=0.0, lengths=None, **kwargs):
        calls.append((tuple(query.shape), tuple(key.shape), mask, {kwargs.get(name) for name in ("softcap", "s_aux")}))
        parts = zip(*(x.split(lengths, dim=2) for x in (query, key, value)))
        outs = [
            torch.nn.functional.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True, scale=scaling)
            for part in parts
        ]
        return torch.cat(outs, dim=2).transpose(1, 2).contiguous(), None

    AttentionInterface.register("architecture_probe", attention)
    AttentionMaskInterface.register("architecture_probe", lambda *args, **kwargs: None)
    settings = config(model_type, sliding_window=None) if model_type in ("mistral", "mixtral") else config(model_type)
    check_supported(settings, "tiny")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
        a, b = torch.randint(3, 100, (1, 7)), torch.randint(3, 100, (1, 5))
    positions = torch.cat([torch.arange(7), torch.arange(5)])[None]
    with torch.inference_mode():
        alone = torch.cat([model(input_ids=x, use_cache=False).logits for x in (a, b)], dim=1)
        model.set_attn_implementation("architecture_probe")
        packed = model(input_ids=torch.cat([a, b], 1), position_ids=positions, use_cache=False, lengths=[7, 5]).logits
    kv_heads = getattr(settings, "num_key_value_heads", None) or 4
    assert calls == [((1, 4, 12, 16), (1, kv_heads, 12, 16), None, {None})] * 2
    # Sums in another order over 2 layers of float32, logits of order 1.
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "model_type, changes, words",
    [
        ("gemma2", {}, "gemma2.*soft cap of 50 on attention logits"),
        ("gpt_oss", {}, "attention sinks"),
        ("bloom", {}, "ALiBi"),
        ("mpt", {}, "ALiBi"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("mistral", {"sliding_window": 64}, "a sliding window of 64 tokens"),
        ("phi3", {"sliding_window": 64}, "a sliding window of 64 tokens"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, "a sliding window of 64 tokens"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "a sliding window of 64 tokens"),
        ("gemma3_text", {"sliding_window": 64}, "a sliding window of 64 tokens"),
        ("t5", {}, "an encoder"),
    ],
)
def test_an_attention_the_kernels_lack_is_refused_by_its_name(model_type, changes, words):
    with pytest.raises(ModelError, match=words):
        check_supported(config(model_type, **changes), "m")


def test_an_unknown_architecture_is_named_together_with_the_known_ones():
    with pytest.raises(ModelError, match=r"some/bert is a bert model.*Supported: .*Llama, Mistral.*Qwen3.*SmolLM3"):
        check_supported(config("bert"), "some/bert")


@pytest.mark.parametrize(
    "model_type, changes",
    [
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 128}),
        ("phi3", {"sliding_window": 4096}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
        ("smollm3", {}),
    ],
)
def test_a_window_that_is_off_or_never_reached_is_no_reason_to_refuse(model_type, changes):
    check_supported(config(model_type, **changes), "m")


def test_longrope_is_held_to_its_original_context():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    assert longest_context(config("phi3", rope_parameters=rope, original_max_position_embeddings=32)) == 32
    assert longest_context(config("phi3")) == longest_context(config("llama")) == 128
