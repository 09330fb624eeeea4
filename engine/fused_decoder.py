"""A decode pass in a tenth of the launches: transformers' weights, merged and run through kernels.fused_ops and kernels.gemv.

transformers' own modules stay the model's definition: they run every pass that is not pure decode, and the tests hold this
one to them. It exists because a decode step of a small model is bound by launches: some 45 a layer there, 9 here, and 6 or 7
where the batch is one sequence, whose products take norm, SwiGLU and addition into their own launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

FUSABLE = ("llama", "mistral", "qwen2")
"""Architectures whose layers are exactly: RMSNorm, q/k/v, rotation, attention, o, RMSNorm, SwiGLU."""
FIXED_ROPES = ("default", "linear", "llama3", "yarn")

Attend = Callable[[int, torch.Tensor, torch.Tensor], None]
"""(layer, query [B, n_q, d], out [B, n_q, d]): writes the attention output."""


@dataclass(slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    scale: float


class _Rows:
    """The residual stream [B, n] of a pass, grown in place. What is added to it waits for the norm that reads it next."""

    def __init__(self, stream: torch.Tensor, eps: float) -> None:
        self.stream, self.eps = stream, eps
        self.waiting: torch.Tensor | None = None

    def linear(self, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """norm [n], weight [m, n] -> [B, m]: a product of the normed stream."""
        return functional.linear(self._normed(norm), weight, bias)

    def swiglu(self, norm: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """norm [n], gate_up [2 m, n] -> [B, m]: silu(gate) * up of the normed stream."""
        from kernels.fused_ops import silu_mul

        return silu_mul(functional.linear(self._normed(norm), gate_up))

    def add(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """x [B, k], weight [n, k]: the stream grows by their product. Once between two reads."""
        self.waiting = functional.linear(x, weight, bias)

    def _normed(self, norm: torch.Tensor) -> torch.Tensor:
        from kernels.fused_ops import rms_norm

        x, self.waiting = self.waiting, None
        return rms_norm(self.stream, norm, self.eps) if x is None else rms_norm(x, norm, self.eps, self.stream)


class _OneRow:
    """`_Rows` of one row: a launch for each product, and none besides."""

    def __init__(self, stream: torch.Tensor, eps: float) -> None:
        self.stream, self.eps = stream, eps

    def linear(self, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        from kernels.gemv import norm_linear

        return norm_linear(self.stream, norm, self.eps, weight, bias)

    def swiglu(self, norm: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        from kernels.gemv import norm_swiglu

        return norm_swiglu(self.stream, norm, self.eps, gate_up)

    def add(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        from kernels.gemv import linear_add

        linear_add(x, weight, bias, self.stream)


class FusedDecoder:
    """Merged weights of one model, shared by every engine. The modules' own weights become views of the merged ones.

    Raises ValueError where the model is not of a kind that `obstacle` passes.
    """

    def __init__(self, model: Any) -> None:
        reason = obstacle(model)
        if reason:
            raise ValueError(reason)
        self.model = model
        self.eps: float = model.config.rms_norm_eps
        self.layers = [_merged(layer) for layer in model.model.layers]

    @torch.no_grad()
    def rotations(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [num_positions, d], in the model's dtype, as its rotary embedding computes them."""
        weight = self.layers[0].qkv
        positions = torch.arange(num_positions, device=weight.device)[None]
        cos, sin = self.model.model.rotary_emb(torch.empty(1, dtype=weight.dtype, device=weight.device), positions)
        return cos[0].contiguous(), sin[0].contiguous()

    @torch.inference_mode()
    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        rotations: tuple[torch.Tensor, torch.Tensor],
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        rows: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        """One token of each of B sequences; returns logits [B, vocab].

        token_ids, positions [B] int32; slots [B] int64. Pools [layers, num_slots, n_kv, d]. rows [layers or 1, B,
        2 n_q + 2 n_kv, d] receives query, key, value and output of every layer, one over the other where it has one layer.
        """
        from kernels.fused_ops import rope_and_write

        n_q, n_kv = self.model.config.num_attention_heads, k_pool.shape[2]
        embedded = functional.embedding(token_ids, self.model.model.embed_tokens.weight)
        stream = (_OneRow if len(token_ids) == 1 else _Rows)(embedded, self.eps)
        for i, layer in enumerate(self.layers):
            kept = rows[i if len(rows) > 1 else 0]
            query, kv, out = kept[:, :n_q], kept[:, n_q : n_q + 2 * n_kv], kept[:, n_q + 2 * n_kv :]
            qkv = stream.linear(layer.input_norm, layer.qkv, layer.qkv_bias)
            rope_and_write(qkv, *rotations, positions, slots, k_pool[i], v_pool[i], query, kv)
            attend(i, query, out)
            stream.add(out.flatten(1), layer.o, layer.o_bias)
            stream.add(stream.swiglu(layer.post_norm, layer.gate_up), layer.down)
        return stream.linear(self.model.model.norm.weight, self.model.lm_head.weight)


def obstacle(model: Any) -> str:
    """Why this model's decode passes cannot be fused, as a sentence; empty where they can."""
    config = model.config
    if config.model_type not in FUSABLE:
        return f"Decode passes of {config.model_type} models run through transformers' own modules."
    if config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
        return "The MLP is not a plain SwiGLU."
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FIXED_ROPES:
        return f"Its rotary embedding ({rope}) changes with the length of the batch."
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim % 2:
        return "Its head_dim is odd."
    return ""


def _merged(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = _merge([attention.q_proj, attention.k_proj, attention.v_proj])
    gate_up, _ = _merge([mlp.gate_proj, mlp.up_proj])
    return _Layer(
        layer.input_layernorm.weight, qkv, qkv_bias, attention.o_proj.weight, attention.o_proj.bias,
        layer.post_attention_layernorm.weight, gate_up, mlp.down_proj.weight, attention.scaling,
    )  # fmt: skip


@torch.no_grad()
def _merge(linears: list[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One weight [sum of outs, in] of several; each module keeps its part of it, as a view, so that nothing is held twice."""
    weight = torch.cat([linear.weight for linear in linears])
    at = 0
    for linear in linears:
        linear.weight.data = weight[at : at + linear.out_features]
        at += linear.out_features
    biases = [linear.bias for linear in linears]
    return weight, torch.cat(biases) if biases[0] is not None else None
