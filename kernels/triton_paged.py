"""The Triton kernels behind one call: decode rows and prefill chunks of one batch, checked before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from kernels.decode_launch import DecodePlan
from kernels.decode_plan import DecodeConfig, DeviceLimits, count_pieces, decode_config
from kernels.dispatch import TRITON_DTYPES, TRITON_HEAD_DIM
from kernels.launch_plan import split_sequences
from kernels.metadata import AttentionMetadata
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import PrefillPlan, paged_prefill
from kernels.prefill_plan import plan_blocks, prefill_config


@lru_cache(maxsize=16)
def device_limits(device: torch.device) -> DeviceLimits:
    """What the launch rules ask of the card; interpreted kernels plan as if for a small one, so that small batches are cut."""
    if device.type != "cuda":
        return DeviceLimits(sms=2, shared_per_program=99 * 1024, shared_per_sm=100 * 1024, hopper=False)
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack the shared memory
    return DeviceLimits(
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,
        properties.shared_memory_per_multiprocessor,
        hopper=properties.major == 9,
    )


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a plan depends on besides the batch. in_boxes: see `in_boxes`."""

    n_q: int
    n_kv: int
    head_dim: int
    dtype: torch.dtype
    in_boxes: bool = True


class TritonAttention:
    """Attention of one forward pass. Plans are made at the first call, on the stream, and serve every layer of that shape.

    query [T, n_q, d] and pools [num_slots, n_kv, d] -> [T, n_q, d]. Rows of sequences without context are zeros.
    """

    def __init__(self, metadata: AttentionMetadata) -> None:
        check_metadata(metadata)
        self.decode_sequences, self.chunk_sequences = split_sequences(metadata.query_start)
        self._plans: dict[HeadShape, tuple[DecodePlan | None, PrefillPlan | None]] = {}

    def __call__(
        self, query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata, scale: float
    ) -> torch.Tensor:
        check_tensors(query, k_pool, v_pool, metadata)
        if metadata.block_tables.shape[1] == 0:  # nobody has any context
            return torch.zeros(query.shape, dtype=query.dtype, device=query.device)
        shape = HeadShape(query.shape[1], k_pool.shape[1], query.shape[2], query.dtype, in_boxes(k_pool, v_pool))
        if shape not in self._plans:
            self._plans[shape] = self._plan(metadata, shape, query.device)
        decode, prefill = self._plans[shape]
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        tables, size = metadata.block_tables, metadata.block_size
        if decode is not None:
            paged_decode(query, k_pool, v_pool, tables, size, decode, scale, out)
        if prefill is not None:
            paged_prefill(query, k_pool, v_pool, tables, size, prefill, scale, out)
        return out

    def _plan(
        self, metadata: AttentionMetadata, shape: HeadShape, device: torch.device
    ) -> tuple[DecodePlan | None, PrefillPlan | None]:
        """Both plans; all that the device must be told goes there in one copy."""
        limits, size, group = device_limits(device), metadata.block_size, shape.n_q // shape.n_kv
        itemsize = shape.dtype.itemsize
        decode: DecodePlan | None = None
        arrays: list[np.ndarray] = []
        if self.decode_sequences:
            rows = np.array(self.decode_sequences, dtype=np.int32)
            lens = np.array(metadata.context_lens, dtype=np.int32)[rows]
            count = len(rows)
            config = decode_config(lens, shape.n_kv, shape.head_dim, itemsize, size, limits)
            decode = DecodePlan(config, count, shape.n_q, shape.head_dim, device, count_pieces(lens, config))
            arrays.append(np.stack((rows, np.array(metadata.query_start, dtype=np.int32)[rows], lens)))
        if self.chunk_sequences:
            longest = max(metadata.query_len(b) for b in self.chunk_sequences)
            context = max(metadata.context_lens[b] for b in self.chunk_sequences)
            chunks = prefill_config(longest, context, group, shape.n_kv, shape.head_dim, itemsize, size, limits, shape.in_boxes)
            pieces = plan_blocks(self.chunk_sequences, metadata.query_start, metadata.context_lens, group, chunks)
            arrays += [pieces.rows, pieces.merges]
        sent = _send(arrays, device)
        prefill: PrefillPlan | None = None
        if self.chunk_sequences:
            prefill = PrefillPlan(chunks, pieces, sent[-2], sent[-1], shape.n_q, shape.head_dim)
        if decode is not None:
            decode.update(sent[0], metadata.block_tables, size)
        return decode, prefill


class DecodeGraphAttention:
    """Attention of decode steps inside a CUDA graph: fixed buffers, a fixed grid, no host work between replays.

    batch [3, B] int32 and block_tables [B, W] are the caller's, on the device, and stay where they are; before each replay the
    caller copies into them the step's rows: row of the table, row of the query, length (0: padding, comes out as zeros).
    `plan` belongs at the head of the captured pass; the layers then call the object as any backend. It is right for any
    lengths, and fast for those of one kind: keep a graph for each `config` that `config_for` names.
    """

    def __init__(
        self, batch: torch.Tensor, block_tables: torch.Tensor, block_size: int, shape: HeadShape, config: DecodeConfig
    ) -> None:
        self.batch, self.block_tables, self.block_size = batch, block_tables, block_size
        self.decode = DecodePlan(config, batch.shape[1], shape.n_q, shape.head_dim, batch.device)

    @staticmethod
    def config_for(lens: list[int], shape: HeadShape, block_size: int, device: torch.device) -> DecodeConfig:
        """lens: [B], padding rows as 0. One of at most a few for a batch size."""
        return decode_config(
            np.array(lens), shape.n_kv, shape.head_dim, shape.dtype.itemsize, block_size, device_limits(device)
        )

    def plan(self) -> None:
        self.decode.update(self.batch, self.block_tables, self.block_size)

    def __call__(
        self, query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata, scale: float
    ) -> torch.Tensor:
        """metadata is not looked at: what counts is in the buffers."""
        return self.into(torch.empty(query.shape, dtype=query.dtype, device=query.device), query, k_pool, v_pool, scale)

    def into(
        self, out: torch.Tensor, query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Writes out [T, n_q, d], whose heads may be rows of something larger, and returns it."""
        paged_decode(query, k_pool, v_pool, self.block_tables, self.block_size, self.decode, scale, out)
        return out


def in_boxes(k_pool: torch.Tensor, v_pool: torch.Tensor) -> bool:
    """Whether Hopper's copy engine can fetch from pools [num_slots, n_kv, d] of one layout: all starts at 16 bytes."""
    apart = (k_pool.stride(0) | k_pool.stride(1)) * k_pool.element_size()
    return (k_pool.data_ptr() | v_pool.data_ptr() | apart) % 16 == 0


def check_metadata(metadata: AttentionMetadata) -> None:
    """Raises ValueError or TypeError for a batch that the kernels would misread."""
    tables, size = metadata.block_tables, metadata.block_size
    if size < 1:
        raise ValueError(f"block_size must be at least 1, got {size}.")
    if tables.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"block_tables must be int32 or int64, got {tables.dtype}.")
    if tables.dim() != 2 or tables.shape[0] != metadata.num_sequences or (tables.numel() and tables.stride(1) != 1):
        raise ValueError(
            f"block_tables must be [{metadata.num_sequences}, W] with contiguous rows, got {list(tables.shape)} "
            f"with strides {tables.stride()}."
        )
    if len(metadata.query_start) != metadata.num_sequences + 1 or metadata.query_start[0] != 0:
        raise ValueError(f"query_start must be {metadata.num_sequences + 1} offsets from 0, got {metadata.query_start}.")
    room = tables.shape[1] * size
    for b, length in enumerate(metadata.context_lens):
        if length < 0 or metadata.query_len(b) < 0:
            raise ValueError(f"Sequence {b} has context length {length} and {metadata.query_len(b)} rows; neither is below 0.")
        if length > room:
            raise ValueError(
                f"Sequence {b} has {length} positions, but a table of {tables.shape[1]} blocks of {size} holds {room}."
            )


def check_tensors(query: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, metadata: AttentionMetadata) -> None:
    """Raises ValueError or TypeError for tensors that the kernels would misread. Looks at shapes only, never at values."""
    if query.dim() != 3 or query.shape[0] != metadata.query_start[-1]:
        raise ValueError(f"query must be [{metadata.query_start[-1]}, n_q, d], got {list(query.shape)}.")
    if k_pool.dim() != 3 or k_pool.shape != v_pool.shape:
        raise ValueError(
            f"k_pool and v_pool must both be [num_slots, n_kv, d], got {list(k_pool.shape)} and {list(v_pool.shape)}."
        )
    n_q, d = query.shape[1:]
    n_kv = k_pool.shape[1]
    if d != k_pool.shape[2]:
        raise ValueError(f"head_dim differs: query has {d}, the pools have {k_pool.shape[2]}.")
    if n_kv == 0 or n_q % n_kv:
        raise ValueError(f"{n_q} query heads cannot share {n_kv} KV heads: the first must be a multiple of the second.")
    if d > TRITON_HEAD_DIM:
        raise ValueError(
            f"head_dim {d} is past {TRITON_HEAD_DIM}, the largest these kernels take; use attention_backend='torch'."
        )
    if n_q // n_kv > 64:
        raise ValueError(f"{n_q // n_kv} query heads a KV head is past 64; use attention_backend='torch'.")
    if not query.dtype == k_pool.dtype == v_pool.dtype or query.dtype not in TRITON_DTYPES:
        raise TypeError(
            "query and pools need one dtype of float16, bfloat16 and float32, "
            f"got {query.dtype}, {k_pool.dtype} and {v_pool.dtype}."
        )
    if k_pool.stride() != v_pool.stride() or k_pool.stride(2) != 1 or query.stride(2) != 1:
        raise ValueError(
            "The last dimension must be contiguous and both pools need the same strides: "
            f"query {query.stride()}, k_pool {k_pool.stride()}, v_pool {v_pool.stride()}."
        )
    devices = [tensor.device for tensor in (query, k_pool, v_pool, metadata.block_tables)]
    if len(set(devices)) != 1:
        raise ValueError(f"query, pools and block_tables must share a device: {', '.join(map(str, devices))}.")


def _send(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """int32 arrays, copied to the device as one; views of it, 16-byte aligned, come back."""
    if not arrays:
        return []
    sizes = [-(-array.size // 4) * 4 for array in arrays]
    packed = torch.zeros(max(1, sum(sizes)), dtype=torch.int32, pin_memory=device.type == "cuda")
    buffer, at = packed.numpy(), 0
    for array, size in zip(arrays, sizes, strict=True):
        buffer[at : at + array.size] = array.ravel()
        at += size
    moved = packed.to(device, non_blocking=True)
    views, at = [], 0
    for array, size in zip(arrays, sizes, strict=True):
        views.append(moved[at : at + array.size].view(array.shape))
        at += size
    return views
