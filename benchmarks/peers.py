"""Other people's attention kernels, beside which ours are measured. Optional: what cannot be imported is left out.

Each `..._call` returns a function that can be captured in a CUDA graph and returns its output, or None. What a peer prepares
for a batch (`plan`) happens here, outside the timed call.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

Call = Callable[[], torch.Tensor]


def have(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def sdpa_prefill_call(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Call:
    """query [T, n_q, d], keys and values [T, n_kv, d] of one sequence, causal from its first position."""
    q, k, v = (x.transpose(0, 1)[None].contiguous() for x in (query, keys, values))

    def call() -> torch.Tensor:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
            return sdpa(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    return call


def flex_decode_call(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Call:
    """torch's flex attention, compiled, over the same contiguous tensors as `sdpa_decode_call`."""
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()  # every shape is compiled anew, and past the eighth it would run uncompiled
    compiled = torch.compile(flex_attention, dynamic=False)
    q = query[:, :, None]
    return lambda: compiled(q, keys, values, enable_gqa=True)[:, :, 0]


def fa3_call(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lens: torch.Tensor | None) -> Call | None:
    """FlashAttention 3 where its forward is installed: query [B, n_q, d], keys and values [B, S, n_kv, d], contiguous."""
    name = next(filter(have, ("flash_attn_interface", "fa3_fwd_interface")), None)
    if name is None:
        return None
    attend = importlib.import_module(name).flash_attn_with_kvcache
    q = query[:, None]

    def call() -> torch.Tensor:
        out = attend(q, keys, values, cache_seqlens=lens, causal=True)
        return (out[0] if isinstance(out, tuple) else out)[:, 0]

    return call


def flashinfer_decode_calls(
    query: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor], tables: list[list[int]], lens: list[int], block_size: int
) -> dict[str, Call]:
    """FlashInfer's paged decode, with tensor cores and without: query [B, n_q, d], pools [num_slots, n_kv, d]."""
    if not have("flashinfer"):
        return {}
    import flashinfer  # type: ignore[import-not-found]

    n_kv, d = pools[0].shape[1:]
    paged = tuple(pool.view(-1, block_size, n_kv, d) for pool in pools)
    indptr, indices, last = _flat_tables(tables, lens, block_size)
    calls: dict[str, Call] = {}
    for tensor_cores in (True, False):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda"),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=tensor_cores,
            paged_kv_indptr_buffer=torch.empty(len(lens) + 1, dtype=torch.int32, device="cuda"),
            paged_kv_indices_buffer=torch.empty(len(indices), dtype=torch.int32, device="cuda"),
            paged_kv_last_page_len_buffer=torch.empty(len(lens), dtype=torch.int32, device="cuda"),
        )
        try:
            wrapper.plan(
                indptr, indices, last, query.shape[1], n_kv, d, block_size, q_data_type=query.dtype, kv_data_type=query.dtype
            )
        except RuntimeError as error:  # some head groups it has no kernel for
            if "Unsupported" not in str(error):
                raise
            continue
        calls["tc" if tensor_cores else "simt"] = lambda wrapper=wrapper: wrapper.run(query, paged)
    return calls


def flashinfer_prefill_calls(
    query: torch.Tensor,
    query_start: list[int],
    pools: tuple[torch.Tensor, torch.Tensor],
    tables: list[list[int]],
    lens: list[int],
    block_size: int,
    backends: tuple[str, ...] = ("fa2", "fa3"),
) -> dict[str, Call]:
    """FlashInfer's paged prefill, causal with offset: query [T, n_q, d]."""
    if not have("flashinfer"):
        return {}
    import flashinfer

    n_kv, d = pools[0].shape[1:]
    paged = tuple(pool.view(-1, block_size, n_kv, d) for pool in pools)
    indptr, indices, last = _flat_tables(tables, lens, block_size)
    starts = torch.tensor(query_start, dtype=torch.int32, device="cuda")
    calls: dict[str, Call] = {}
    for backend in backends:
        try:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda"), "NHD", backend=backend
            )
            wrapper.plan(
                starts, indptr.cuda(), indices.cuda(), last.cuda(), query.shape[1], n_kv, d, block_size, causal=True,
                q_data_type=query.dtype, kv_data_type=query.dtype,
            )  # fmt: skip
            wrapper.run(query, paged)
        except Exception as error:  # a peer that does not build here is a missing column, not a failed benchmark
            print(f"(FlashInfer {backend}: {type(error).__name__}: {str(error)[:200]})")
            continue
        calls[backend] = lambda wrapper=wrapper: wrapper.run(query, paged)
    return calls


def _flat_tables(tables: list[list[int]], lens: list[int], block_size: int) -> tuple[torch.Tensor, ...]:
    counts = torch.tensor([0] + [-(-n // block_size) for n in lens], dtype=torch.int32)
    indices = torch.tensor(
        [page for row, n in zip(tables, lens, strict=True) for page in row[: -(-n // block_size)]], dtype=torch.int32
    )
    last = torch.tensor([(n - 1) % block_size + 1 for n in lens], dtype=torch.int32)
    return counts.cumsum(0).int(), indices, last
