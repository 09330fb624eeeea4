"""Attention through block tables, as transformers' models call it: one function in every layer.

transformers' attention modules look their function up by name; ours is "pagewalk". The packed batch is `[1, T]`, and
`PagedAttentionContext`, handed to the model as a keyword argument, tells each layer where the T tokens belong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from engine.kv_cache import PagedKVCache
from kernels.dispatch import AttentionBackend, CacheWriter
from kernels.metadata import AttentionMetadata

ATTENTION_NAME = "pagewalk"


@dataclass(slots=True)
class PagedAttentionContext:
    """What one forward pass needs in every layer. `captured`: [layers, T, 2 * n_q + 2 * n_kv, head_dim] or None.

    scales: filled during the pass, each layer's factor between dot product and score.
    """

    kv_cache: PagedKVCache
    metadata: AttentionMetadata
    backend: AttentionBackend
    writer: CacheWriter
    captured: torch.Tensor | None = None
    scales: dict[int, float] = field(default_factory=dict)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """query [T, n_q, d], key and value [T, n_kv, d], rotated; returns [T, n_q, d] after writing K and V to their slots."""
        self.scales[layer] = scale
        k_pool, v_pool = self.kv_cache.k_pool[layer], self.kv_cache.v_pool[layer]
        self.writer(key, value, k_pool, v_pool, self.metadata.slot_mapping)
        output = self.backend(query, k_pool, v_pool, self.metadata, scale)
        if self.captured is not None:
            torch.cat((query, key, value, output), dim=1, out=self.captured[layer])
        return output


def pagewalk_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    paged_context: PagedAttentionContext | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature: query [1, n_q, T, d], key and value [1, n_kv, T, d]; returns [1, T, n_q, d], None."""
    if paged_context is None:
        raise RuntimeError("The model was called without a paged context; run it through engine.Engine.")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = [x.squeeze(0).transpose(0, 1) for x in (query, key, value)]
    output = paged_context.attend(int(module.layer_idx), rows[0], rows[1], rows[2], scale)  # type: ignore[arg-type]
    return output.unsqueeze(0), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Which keys a query sees follows from the metadata; the model need not build a mask."""


def register() -> None:
    """Makes the name known to transformers. Safe to call again."""
    AttentionInterface.register(ATTENTION_NAME, pagewalk_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
