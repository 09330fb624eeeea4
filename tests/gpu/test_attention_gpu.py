"""The compiled kernels on a card, held to the frozen oracle in float64: the whole list, long contexts, bf16 too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels.dispatch import make_backend, paged_attention
from kernels.prefill_plan import PrefillConfig, loads_in_boxes
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


WIDE = {f"{k}, d 128": replace(v, d=128) for k, v in prefill_cases(3000).items() if v.d == 64 and "scores" not in k}
WIDE = {k: v for k, v in WIDE.items() if loads_in_boxes(128, v.block_size)} | {
    "scores below -5e4": Case((17,), (60,), d=128, all_low=True),
    "chunks of 300 and 77, heads 9/3": Case((300, 77), (1700, 133), n_q=9, n_kv=3, d=128),
    "blocks of 8": Case((300, 77), (700, 133), d=128, block_size=8),
    "blocks of 128": Case((300, 77), (700, 133), d=128, block_size=128),
    "blocks of 256, head_dim 96": Case((300, 77), (1700, 133), d=96, block_size=256),
    "head_dim 80": Case((300, 2, 77), (1700, 40, 133), n_q=32, n_kv=8, d=80),
    "ids past 2 to the 31": Case((40, 1), (700, 33), n_q=32, n_kv=8, d=128, first_block=140_000),
}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives all chunks to the kernel that is named: "plain", or the tile of the one for Hopper, whatever the rule says."""
    import kernels.triton_paged as ours

    limits = ours.device_limits(torch.device("cuda", 0))

    def choose(which: str) -> None:
        def config(longest, context, group, n_kv, *rest):
            return PrefillConfig(128, int(which), 12, 384 // int(which), max(1, limits.sms // n_kv), 0, limits.sms)

        if which == "plain":
            monkeypatch.setattr(ours, "device_limits", lambda device: replace(limits, hopper=False))
        elif not limits.hopper:
            pytest.skip("no Hopper GPU")
        else:
            monkeypatch.setattr(ours, "prefill_config", config)

    return choose


@pytest.mark.parametrize("which, dtype", [("plain", torch.bfloat16), ("128", torch.bfloat16), ("64", torch.float16)], ids=str)
@pytest.mark.parametrize("name", list(WIDE))
def test_both_prefill_kernels_equal_the_float64_oracle(name, which, dtype, chosen):
    chosen(which)
    assert_right(make(WIDE[name].on("cuda", dtype)))


@pytest.mark.parametrize("which", ["plain", "128", "64"])
def test_a_scale_below_zero(which, chosen):
    chosen(which)
    batch = make(Case((300, 5), (300, 40), d=128, dtype=torch.bfloat16, device="cuda"))
    out = paged_attention(batch.query, batch.k_pool, batch.v_pool, batch.metadata, scale=-batch.scale, backend="triton")
    batch.query = -batch.query
    assert float((out.double() - batch.expected(torch.float64)).norm() / out.double().norm()) < 8e-3


def test_pools_that_cannot_be_fetched_in_boxes_are_read_all_the_same():
    batch = make(Case((300, 5), (300, 40), d=128, dtype=torch.bfloat16, device="cuda"))
    for name in ("k_pool", "v_pool"):
        pool = getattr(batch, name)
        wide = torch.full((*pool.shape[:2], 132), float("nan"), dtype=pool.dtype, device="cuda")
        wide[:, :, 4:] = pool
        setattr(batch, name, wide[:, :, 4:])
    assert_right(batch)


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


REPEATED = {k: CASES[k] for k in ("decode: block size 16", "decode: one sequence", "prefill: mixed lengths, block size 16")} | {
    f"prefill: large chunks, context up to {top}": Case((300, 1, 700), (top, 9, 900), n_q=8, n_kv=2, d=128)
    for top in (1800, 5000)
}


@pytest.mark.parametrize("name", list(REPEATED))
def test_a_thousand_repeats_are_bitwise_equal(name):
    batch = make(REPEATED[name].on("cuda", torch.bfloat16))
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
def test_the_kernels_do_not_spill_registers(d, chosen):
    from kernels.paged_decode import decode_kernel
    from kernels.paged_prefill import prefill_kernel

    chosen("plain")
    kind, here = torch.bfloat16, torch.cuda.current_device()
    for kernel in (decode_kernel, prefill_kernel):  # what other tests compiled, odd shapes in float32 among it, is not meant
        kernel.device_caches[here][0].clear()
    attend(make(Case((1,) * 3, (900, 40, 7), n_q=32, n_kv=8, d=d, dtype=kind, device="cuda")))
    attend(make(Case((300,), (300,), n_q=32, n_kv=8, d=d, dtype=kind, device="cuda")))
    for kernel in (decode_kernel, prefill_kernel):
        assert kernel.device_caches[here][0]
        for compiled in kernel.device_caches[here][0].values():
            assert compiled.n_spills == 0, (kernel, compiled.metadata.num_warps, compiled.n_regs, compiled.src.constants)


def test_the_rule_gives_large_chunks_of_a_wide_head_to_the_kernel_for_hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no Hopper GPU")
    from kernels.hopper_prefill import hopper_prefill_kernel

    kernels = hopper_prefill_kernel.device_caches[torch.cuda.current_device()][0]
    kernels.clear()
    for top in (300, 2300):
        assert_right(make(Case((300,), (top,), n_q=32, n_kv=8, d=128, dtype=torch.bfloat16, device="cuda")))
    assert len(kernels) == 2
    for compiled in kernels.values():
        assert compiled.n_spills <= 16, compiled.src.constants  # outside the loops over tiles: tests/kernels/test_compiled.py
