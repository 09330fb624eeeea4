"""Which model architectures the kernels can run, and why another one is refused.

The kernels know one attention: causal, softmax of scaled dot products, KV heads shared by groups of query heads. Whatever
a model does to queries and keys before that (rotary embedding of any kind, norms) does not matter. Every architecture
listed here is held to that by a test that runs a tiny one of it through a packed batch.
"""

from __future__ import annotations

from typing import Any

from engine.errors import ModelError

SUPPORTED: dict[str, str] = {
    "apertus": "Apertus", "arcee": "Arcee", "cohere": "Cohere", "ernie4_5": "Ernie 4.5", "gemma": "Gemma", "glm": "GLM",
    "glm4": "GLM-4", "gpt2": "GPT-2", "gpt_neox": "GPT-NeoX", "granite": "Granite", "helium": "Helium",
    "hunyuan_v1_dense": "Hunyuan dense", "llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "olmo": "OLMo",
    "olmo2": "OLMo 2", "phi": "Phi", "phi3": "Phi-3", "qwen2": "Qwen2", "qwen2_moe": "Qwen2 MoE", "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3 MoE", "seed_oss": "Seed-OSS", "smollm3": "SmolLM3", "starcoder2": "StarCoder2",
}  # fmt: skip
"""transformers' model_type -> the name people know. SmolLM and SmolLM2 are Llama."""

_ALIBI_ONLY = {"bloom", "mpt"}
_SINKS_ONLY = {"gpt_oss"}
_LAYER_KINDS = {
    "sliding_attention": "sliding-window attention",
    "chunked_attention": "chunked attention",
    "linear_attention": "linear attention",
}


def check_supported(config: Any, name: str) -> None:
    """Raise ModelError, naming the architecture and the reason, unless the kernels compute this model's attention."""
    need = missing_feature(config)
    if need:
        raise ModelError(
            f"{name} ({config.model_type}) needs {need}, which Pagewalk's kernels do not have: it would run wrong, so it is "
            f"refused. Try a model with plain causal attention: {supported_names()}."
        )
    if config.model_type not in SUPPORTED:
        raise ModelError(f"{name} is a {config.model_type} model, which is not supported. Supported: {supported_names()}.")


def supported_names() -> str:
    return ", ".join(SUPPORTED.values())


def missing_feature(config: Any) -> str | None:
    """What this model's attention needs and the kernels lack, in words; None where nothing is known to be missing."""
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder (only decoder-only models have one KV cache that grows)"
    if config.model_type in _SINKS_ONLY:
        return "attention sinks"
    if config.model_type in _ALIBI_ONLY or getattr(config, "alibi", False):
        return "ALiBi position biases"
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap:
        return f"a soft cap of {softcap:g} on attention logits"
    limit = getattr(config, "max_position_embeddings", 0) or 0
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds == {"sliding_attention"} or (not kinds and window):
        # A window at least as long as the model's context hides nothing.
        return None if window and window >= limit > 0 else f"a sliding window{f' of {window} tokens' if window else ''}"
    if kinds:
        return " and ".join(sorted(_LAYER_KINDS.get(kind, f"{kind} layers") for kind in kinds))
    return None


def longest_context(config: Any) -> int:
    """Positions the model can hold, in tokens.

    LongRoPE picks its frequencies by the longest sequence of a batch, so past its original context one request would
    change another's keys: such a model is held to that original context.
    """
    limit = int(config.max_position_embeddings)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        return min(limit, int(original or limit))
    return limit
