"""Which attention runs, and why."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.metadata import AttentionMetadata
from kernels.reference import paged_attention_reference
from kernels.torch_paged import GatherPlan, slots_of, torch_paged_attention, write_kv

TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TRITON_HEAD_DIM = 256  # the largest whose tiles have a shape in the launch rules


class AttentionBackend(Protocol):
    """query [T, n_q, d], pools [num_slots, n_kv, d] -> [T, n_q, d]."""

    def __call__(
        self, query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata, scale: float
    ) -> torch.Tensor: ...


class CacheWriter(Protocol):
    """key and value [T, n_kv, d] to slots [T] of the pools [num_slots, n_kv, d], in place; -1 writes nothing."""

    def __call__(
        self, key: torch.Tensor, value: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class BackendChoice:
    name: str
    reason: str


def choose_backend(
    requested: str, device: torch.device, dtype: torch.dtype | None = None, head_dim: int | None = None
) -> BackendChoice:
    """The backend to run and a sentence saying why. Raises ValueError if the requested one cannot run here.

    requested: "auto", "triton", "torch" or "reference". dtype and head_dim, where known, are held against what the Triton
    kernels take.
    """
    if requested == "reference":
        return BackendChoice("reference", "The reference path was asked for: slow, exact.")
    if requested == "torch":
        where = "on the GPU" if device.type == "cuda" else "on the CPU"
        return BackendChoice("torch", f"The torch path was asked for: gather and SDPA {where}.")
    if requested not in ("auto", "triton"):
        raise ValueError(f"No attention backend is called {requested!r}; there are auto, triton, torch and reference.")
    obstacle = triton_obstacle(device, dtype, head_dim)
    if requested == "triton":
        if obstacle:
            raise ValueError(f"The Triton kernels cannot run here: {obstacle} Use attention_backend='auto'.")
        how = f"on {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "in Triton's interpreter, for tests"
        return BackendChoice("triton", f"The Triton kernels were asked for: they run {how}.")
    if device.type != "cuda":
        return BackendChoice("torch", "No GPU: running the reference path on CPU.")
    if obstacle:
        return BackendChoice("torch", f"Gather and SDPA on the GPU. {obstacle}")
    return BackendChoice("triton", f"Triton kernels on {torch.cuda.get_device_name(device)}.")


def triton_obstacle(device: torch.device, dtype: torch.dtype | None = None, head_dim: int | None = None) -> str:
    """A sentence saying what keeps the Triton kernels from running, or nothing."""
    if device.type != "cuda" and not (device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return f"They need a CUDA device, and this is {device.type} (TRITON_INTERPRET=1 interprets them on a CPU, for tests)."
    if importlib.util.find_spec("triton") is None:
        return "The triton package is not installed."
    if device.type == "cuda":
        if torch.version.cuda is None:
            return "They were written for NVIDIA GPUs, and this torch is built for another maker's."
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "They need compute capability 8.0 or later."
        if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang", "cc")))):
            return "Triton found no C compiler to build its launcher with."
    if dtype is not None and dtype not in TRITON_DTYPES:
        return f"They take float16, bfloat16 and float32, not {str(dtype).removeprefix('torch.')}."
    if head_dim is not None and head_dim > TRITON_HEAD_DIM:
        return f"They take a head_dim up to {TRITON_HEAD_DIM}, not {head_dim}."
    return ""


def make_backend(name: str, metadata: AttentionMetadata) -> AttentionBackend:
    """A callable for one forward pass: what depends on the batch alone is prepared once, for all layers."""
    if name == "reference":
        return _reference
    if name == "triton":
        from kernels.triton_paged import TritonAttention

        return TritonAttention(metadata)
    plan = GatherPlan(metadata)

    def gather_and_sdpa(
        query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata, scale: float
    ) -> torch.Tensor:
        return torch_paged_attention(query, k_pool, v_pool, plan, scale)

    return gather_and_sdpa


def make_writer(name: str) -> CacheWriter:
    """What stores new keys and values for the backend of that name."""
    if name == "triton":
        from kernels.cache_write import write_kv as triton_write_kv

        return triton_write_kv
    return write_kv


def paged_attention(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Attention of a packed batch over its pages: query [T, n_q, d], pools [num_slots, n_kv, d] -> [T, n_q, d].

    `scale` is 1/sqrt(d) unless given. One call, for one layer; an engine makes its backend once a pass (`make_backend`).
    Raises ValueError or TypeError before it computes anything.
    """
    choice = choose_backend(backend, query.device, query.dtype, query.shape[-1])
    attend = make_backend(choice.name, metadata)
    return attend(query, k_pool, v_pool, metadata, query.shape[-1] ** -0.5 if scale is None else scale)


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
