"""The compiled kernels on a card, held to the frozen oracle in float64: the whole list, long contexts, bf16 too."""

from __future__ import annotations

import pytest
import torch

from kernels.dispatch import make_backend, paged_attention
from tests.kernels.paged_cases import Batch, Case, decode_cases, make, prefill_cases

pytestmark = pytest.mark.gpu
CASES = {f"decode: {k}": v for k, v in decode_cases(3000).items()} | {
    f"prefill: {k}": v for k, v in prefill_cases(3000).items()
}
# |out - exact| / |exact|: sums in float32 leave 1e-6; a product's operands are rounded to 11 bits in fp16 and 8 in bf16.
LIMIT = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def attend(batch: Batch) -> torch.Tensor:
    return paged_attention(batch.query, batch.k_pool, batch.v_pool, batch.metadata, backend="triton")


def poison() -> None:
    """Fills what the allocator will hand out next with NaN: outputs and scratch that are not written show."""
    junk = [torch.full((2**22,), float("nan"), device="cuda") for _ in range(8)]
    del junk


def assert_right(batch: Batch) -> None:
    poison()
    out, exact = attend(batch).double(), batch.expected(torch.float64)
    assert torch.isfinite(out).all()
    assert not out[(exact == 0).all(-1).all(-1)].any()
    error = float((out - exact).norm() / exact.norm())
    # scores of 1e5 are themselves rounded to 1e-2 in float32, and so is what exp makes of them
    assert error < max(LIMIT[batch.case.dtype], 2e-2 * batch.case.all_low), error


@pytest.mark.parametrize("dtype", list(LIMIT), ids=str)
@pytest.mark.parametrize("name", list(CASES))
def test_it_equals_the_float64_oracle(name, dtype):
    assert_right(make(CASES[name].on("cuda", dtype)))


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_block_ids_whose_offsets_pass_2_to_the_31(kind):  # P35
    lens = (1, 1) if kind == "decode" else (40, 1)
    case = Case(lens, (700, 33), n_q=32, n_kv=8, d=128, first_block=140_000, dtype=torch.bfloat16, device="cuda")
    batch = make(case)
    assert min(min(table) for table in batch.tables) * 16 * 8 * 128 > 2**31
    assert_right(batch)


def test_slots_whose_offsets_pass_2_to_the_31_are_written():
    from kernels.cache_write import write_kv

    pools = [torch.zeros(2_200_000, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    key, value = (torch.randn(3, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    slots = torch.tensor([2_199_999, -1, 2_100_000], device="cuda")
    write_kv(key, value, *pools, slots)
    for pool, new in zip(pools, (key, value)):
        assert torch.equal(pool[slots[[0, 2]]], new[[0, 2]])
        assert int(pool.any(-1).any(-1).sum()) == 2


@pytest.mark.parametrize("name", ["decode: block size 16", "decode: one sequence", "prefill: mixed lengths, block size 16"])
def test_a_thousand_repeats_are_bitwise_equal(name):
    batch = make(CASES[name].on("cuda", torch.bfloat16))
    first = attend(batch)
    backend = make_backend("triton", batch.metadata)
    for i in range(1000):
        if i % 100 == 0:
            poison()
        assert torch.equal(backend(batch.query, batch.k_pool, batch.v_pool, batch.metadata, batch.scale), first)


def test_a_captured_step_follows_its_buffers():
    from kernels.triton_paged import DecodeGraphAttention, HeadShape

    lens = (900, 33, 50, 2100)
    batch = make(Case((1,) * 4, lens, n_q=9, n_kv=3, dtype=torch.bfloat16, device="cuda"))
    rows = torch.arange(4, dtype=torch.int32, device="cuda")
    buffer = torch.stack((rows, rows, torch.zeros_like(rows)))
    for kind in ([2000] * 4, [2000, 9, 900, 0]):  # what it is kept for; it is right for any lengths
        shape = HeadShape(9, 3, 64, torch.bfloat16)
        config = DecodeGraphAttention.config_for(kind, shape, 16, buffer.device)
        backend = DecodeGraphAttention(buffer, batch.metadata.block_tables, 16, shape, config)

        def step(backend=backend):
            backend.plan()
            return backend(batch.query, batch.k_pool, batch.v_pool, batch.metadata, batch.scale)

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        for now in (lens, (1, 33, 7, 16), (0, 0, 0, 0), (900, 0, 50, 5), lens):
            buffer[2] = torch.tensor(now, device="cuda", dtype=torch.int32)
            out.fill_(float("nan"))
            graph.replay()
            exact = Batch(batch.case, batch.query, batch.k_pool, batch.v_pool, batch.metadata, batch.tables)
            exact.metadata.context_lens = list(now)
            expected = exact.expected(torch.float64)
            assert float((out.double() - expected).norm()) <= 8e-3 * float(expected.norm())
        batch.metadata.context_lens = list(lens)


@pytest.mark.parametrize("d", [64, 128])
def test_the_kernels_do_not_spill_registers(d):
    from kernels.paged_decode import decode_kernel
    from kernels.paged_prefill import prefill_kernel

    kind, here = torch.bfloat16, torch.cuda.current_device()
    for kernel in (decode_kernel, prefill_kernel):  # what other tests compiled, odd shapes in float32 among it, is not meant
        kernel.device_caches[here][0].clear()
    attend(make(Case((1,) * 3, (900, 40, 7), n_q=32, n_kv=8, d=d, dtype=kind, device="cuda")))
    attend(make(Case((300,), (300,), n_q=32, n_kv=8, d=d, dtype=kind, device="cuda")))
    for kernel in (decode_kernel, prefill_kernel):
        assert kernel.device_caches[here][0]
        for compiled in kernel.device_caches[here][0].values():
            assert compiled.n_spills == 0, (kernel, compiled.metadata.num_warps, compiled.n_regs, compiled.src.constants)
