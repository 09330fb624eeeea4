"""What attention costs where nothing is paged: SDPA over contiguous tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def sdpa_decode_call(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """query [B, n_q, d]; keys and values [B, n_kv, S, d], contiguous. The call gives [B, n_q, d]."""
    if query.device.type == "cpu":  # the group of query heads that shares a KV head becomes the query length, as in torch_paged
        grouped = query.view(len(query), keys.shape[1], -1, query.shape[2])
        return lambda: sdpa(grouped, keys, values).reshape(query.shape)
    q = query[:, :, None]

    def call() -> torch.Tensor:
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            return sdpa(q, keys, values, enable_gqa=True)[:, :, 0]

    return call
