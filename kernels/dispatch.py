"""Which attention runs, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.metadata import AttentionMetadata
from kernels.reference import paged_attention_reference
from kernels.torch_paged import GatherPlan, slots_of, torch_paged_attention


class AttentionBackend(Protocol):
    """query [T, n_q, d], pools [num_slots, n_kv, d] -> [T, n_q, d]."""

    def __call__(
        self, query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata, scale: float
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class BackendChoice:
    name: str
    reason: str


def choose_backend(requested: str, device: torch.device) -> BackendChoice:
    """The backend to run and a sentence saying why. Raises ValueError if the requested one cannot run here."""
    if requested == "reference":
        return BackendChoice("reference", "The reference path was asked for: slow, exact.")
    if requested == "triton":
        raise ValueError("The Triton kernels are not part of this version; use attention_backend='auto'.")
    if device.type == "cuda":
        return BackendChoice("torch", "Gather and SDPA on the GPU.")
    return BackendChoice("torch", "No GPU: running the reference path on CPU.")


def make_backend(name: str, metadata: AttentionMetadata) -> AttentionBackend:
    """A callable for one forward pass: what depends on the batch alone is prepared here, once for all layers."""
    if name == "reference":
        return _reference
    plan = GatherPlan(metadata)

    def gather_and_sdpa(
        query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata, scale: float
    ) -> torch.Tensor:
        return torch_paged_attention(query, k_pool, v_pool, plan, scale)

    return gather_and_sdpa


def _reference(
    query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata, scale: float
) -> torch.Tensor:
    """The frozen oracle, sequence by sequence."""
    output = torch.zeros_like(query)
    for b in range(metadata.num_sequences):
        rows = slice(metadata.query_start[b], metadata.query_start[b + 1])
        if metadata.query_len(b) and metadata.context_lens[b]:
            chunk = query[rows].transpose(0, 1).unsqueeze(0)
            attended = paged_attention_reference(chunk, k_pool, v_pool, slots_of(metadata, b), scale)
            output[rows] = attended.squeeze(0).transpose(0, 1)
    return output
