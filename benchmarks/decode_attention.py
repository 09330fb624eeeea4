"""Paged decode attention beside the same attention over contiguous tensors, and beside other paged kernels.

    python -m benchmarks.decode_attention [--rows 1 5 7] [--flex] [--sweep]

One line a batch: milliseconds (CUDA graph, L2 flushed, median), GB/s of K and V, and their share of the read ceiling of the
same run. "ours" is one layer; "plan" is what a whole forward pass pays once on top, whatever its number of layers; "step" is
one layer in a graph that holds for any lengths (`DecodeGraphAttention`), its plan left out. "host" is the time
Python takes to make the plan from an AttentionMetadata, in microseconds. Peers that cannot be imported are left out.
"""

from __future__ import annotations

import argparse
import math
import random
import time

import numpy as np
import torch
import triton

from benchmarks.peers import Call, fa3_call, flashinfer_decode_calls, flex_decode_call
from kernels.bandwidth import Timer, read_call, read_ceiling
from kernels.contiguous import sdpa_decode_call
from kernels.decode_launch import DecodePlan
from kernels.decode_plan import Cut, DecodeConfig, Shape, count_pieces, pages_per_tile
from kernels.random_batch import PagedBatch, paged_batch
from kernels.triton_paged import DecodeGraphAttention, HeadShape, TritonAttention


def ragged(batch: int, low: int, high: int) -> list[int]:
    """Lengths drawn evenly between low and high, both among them."""
    rng = random.Random(7)
    return [low, high, *(rng.randint(low, high) for _ in range(batch - 2))]


ROWS: list[tuple[str, list[int], int, int, int]] = [
    ("1, 32/8, 128, 4k", [4096], 32, 8, 128),
    ("1, 32/8, 128, 128k", [131072], 32, 8, 128),
    ("8, 32/8, 128, 4k", [4096] * 8, 32, 8, 128),
    ("64, 32/8, 128, 4k", [4096] * 64, 32, 8, 128),
    ("256, 32/8, 128, 1k", [1024] * 256, 32, 8, 128),
    ("64 ragged 64..16k, 32/8, 128", ragged(64, 64, 16384), 32, 8, 128),
    ("1, 9/3, 64, 2k", [2048], 9, 3, 64),
    ("64, 9/3, 64, 2k", [2048] * 64, 9, 3, 64),
    ("256, 9/3, 64, 1k", [1024] * 256, 9, 3, 64),
    ("64, 14/2, 64, 4k", [4096] * 64, 14, 2, 64),
    ("64 ragged 16..2k, 9/3, 64", ragged(64, 16, 2048), 9, 3, 64),
    ("256 ragged ..8k, 9/3, 64", ragged(256, 1, 8192), 9, 3, 64),
]


def ours_call(given: PagedBatch) -> tuple[Call, Call, TritonAttention]:
    """(one layer, the plan's launch, the backend), as an engine runs them."""
    backend = TritonAttention(given.metadata)
    scale = given.query.shape[-1] ** -0.5

    def layer() -> torch.Tensor:
        return backend(given.query, given.k_pool, given.v_pool, given.metadata, scale)

    layer()
    decode = next(iter(backend._plans.values()))[0]
    assert decode is not None
    batch = batch_rows(given)

    def plan() -> torch.Tensor:
        decode.update(batch, given.metadata.block_tables, given.metadata.block_size)
        return decode.pieces

    return layer, plan, backend


def batch_rows(given: PagedBatch) -> torch.Tensor:
    lens = torch.tensor(given.metadata.context_lens, dtype=torch.int32, device="cuda")
    rows = torch.arange(len(lens), dtype=torch.int32, device="cuda")
    return torch.stack((rows, rows, lens))


def graph_call(given: PagedBatch) -> Call:
    """One layer of a graph that holds for any lengths, kept for lengths of this kind."""
    shape = HeadShape(given.query.shape[1], given.k_pool.shape[1], given.query.shape[2], given.query.dtype)
    tables, size = given.metadata.block_tables, given.metadata.block_size
    config = DecodeGraphAttention.config_for(given.metadata.context_lens, shape, size, tables.device)
    backend = DecodeGraphAttention(batch_rows(given), tables, size, shape, config)
    backend.plan()
    scale = given.query.shape[-1] ** -0.5
    return lambda: backend(given.query, given.k_pool, given.v_pool, given.metadata, scale)


def host_microseconds(given: PagedBatch, repeats: int = 20) -> float:
    """From an AttentionMetadata to a plan being made on the device: what Python adds to a pass that is not captured."""
    scale = given.query.shape[-1] ** -0.5
    samples = []
    for _ in range(repeats):
        backend = TritonAttention(given.metadata)
        torch.cuda.synchronize()
        start = time.perf_counter()
        backend = TritonAttention(given.metadata)
        backend(given.query, given.k_pool, given.v_pool, given.metadata, scale)
        first = time.perf_counter()
        backend(given.query, given.k_pool, given.v_pool, given.metadata, scale)
        samples.append(2 * first - start - time.perf_counter())  # the first call less what every call costs
    return sorted(samples)[repeats // 2] * 1e6


def measure(name: str, given: PagedBatch, timer: Timer, ceiling: float, flex: bool) -> dict[str, float]:
    """Prints one line and returns its numbers; NaN where a column has none."""
    lens, even = given.metadata.context_lens, len(set(given.metadata.context_lens)) == 1
    layer, plan, _ = ours_call(given)
    found: dict[str, float] = {"read": timer(read_call(given.kv_bytes))}
    found |= dict.fromkeys(("sdpa", "flex", "fi", "fa3"), math.nan)
    if even:
        keys, values = given.contiguous()
        found["sdpa"] = timer(sdpa_decode_call(given.query, keys, values))
        if flex:
            found["flex"] = timer(flex_decode_call(given.query, keys, values))
        fa3 = fa3_call(given.query, keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous(), None)
        if fa3 is not None:
            found["fa3"] = timer(fa3)
        del keys, values
    peers = flashinfer_decode_calls(given.query, (given.k_pool, given.v_pool), given.tables, lens, given.metadata.block_size)
    if peers:
        found["fi"] = min(timer(call) for call in peers.values())
    found["ours"] = timer(layer)
    found["again"] = timer(layer)
    found["plan"] = timer(plan)
    found["step"] = timer(graph_call(given))
    found["host"] = host_microseconds(given)
    found["error"] = given.error(layer())
    speed = given.kv_bytes / found["ours"] / 1e6
    print(
        f"{name:<30}" + "".join(f"{found[key]:>8.4f}" for key in ("read", "sdpa", "flex", "fa3", "fi", "ours", "again", "step"))
        + f"{found['plan']:>8.4f}{found['host']:>6.0f}{given.kv_bytes / 2**20:>8.0f}{speed:>7.0f}{speed / ceiling:>6.0%}"
        + f"{found['sdpa'] / found['ours']:>7.3f}{found['fi'] / found['ours']:>7.3f}{found['error']:>9.1e}",
        flush=True,
    )  # fmt: skip
    return found


def sweep(name: str, given: PagedBatch, timer: Timer) -> None:
    """Other launch shapes for one batch, to see whether the rule still picks well."""
    layer, _, backend = ours_call(given)
    plan = next(iter(backend._plans.values()))[0]
    assert plan is not None
    chosen, count = plan.config, len(given.tables)
    n_q, d = given.query.shape[1:]
    print(f"sweep {name}: rule {chosen} {timer(layer):.4f}")
    lens = np.array(given.metadata.context_lens)
    for config in variants(chosen, count, given.metadata.block_size):
        other = DecodePlan(config, count, n_q, d, given.query.device, count_pieces(lens, config))
        other.update(batch_rows(given), given.metadata.block_tables, given.metadata.block_size)
        for key in backend._plans:
            backend._plans[key] = (other, None)
        try:
            ms = timer(layer, repeats=30)
        except triton.OutOfResources:
            continue
        s = config.shape
        print(f"  {config.cut.name:<6} {s.warps}/{s.tile}/{s.stages} programs {config.programs:>4} {ms:.4f}", flush=True)


def variants(config: DecodeConfig, count: int, block_size: int) -> list[DecodeConfig]:
    """Other shapes and numbers of pieces; for batches of one length also cut in 2, 3, 4, 6 parts a sequence."""
    found = []
    for shape in [Shape(1, 32, 3), Shape(2, 32, 3), Shape(2, 64, 2), Shape(2, 64, 3), Shape(4, 64, 2), Shape(4, 128, 2)]:
        pages = pages_per_tile(shape.tile, block_size)
        if config.cut is Cut.WHOLE:
            found.append(DecodeConfig(Cut.WHOLE, shape, config.programs, count, pages))
        cut = Cut.RAGGED if config.cut is Cut.RAGGED else Cut.EVEN
        wanted = (
            [round(config.programs * f) for f in (0.67, 1, 1.5, 2)] if cut is Cut.RAGGED else [count * n for n in (2, 3, 4, 6)]
        )
        found += [DecodeConfig(cut, shape, n, n * 4 // 3 + 2 * count, pages) for n in wanted]
    return found


def geomean(values: list[float]) -> float:
    kept = [math.log(value) for value in values if not math.isnan(value)]
    return math.exp(sum(kept) / len(kept)) if kept else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", help="which rows, counted from 1; all without it")
    parser.add_argument("--flex", action="store_true", help="torch's flex attention too: it compiles for a while")
    parser.add_argument("--sweep", action="store_true", help="other launch shapes for each row, instead of peers")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark measures a CUDA device, and there is none here.")

    timer = Timer()
    ceiling = read_ceiling(timer)
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}; read ceiling {ceiling:.0f} GB/s; bf16, blocks of 16\n")
    chosen = [row for i, row in enumerate(ROWS, 1) if not args.rows or i in args.rows]
    if not args.sweep:
        print(
            f"{'batch, q/kv heads, d, context':<30}" + "".join(f"{x:>8}" for x in ("read", "SDPA", "flex", "FA3", "FlashI"))
            + "".join(f"{x:>8}" for x in ("ours", "again", "step", "plan"))
            + f"{'host':>6}{'MiB':>8}{'GB/s':>7}{'ceil':>6}{'/SDPA':>7}{'/FI':>7}{'error':>9}"
        )  # fmt: skip
    table = []
    for name, lens, n_q, n_kv, d in chosen:
        given = paged_batch([1] * len(lens), lens, n_q, n_kv, d)
        if args.sweep:
            sweep(name, given, timer)
        else:
            table.append(measure(name, given, timer, ceiling, args.flex))
        del given
        torch.cuda.empty_cache()
    if table:
        print(
            f"\ngeomean: {geomean([r['sdpa'] / r['ours'] for r in table]):.3f}x contiguous SDPA, "
            f"{geomean([r['fi'] / r['ours'] for r in table]):.3f}x FlashInfer, "
            f"{geomean([r['fa3'] / r['ours'] for r in table]):.3f}x FA3"
        )


if __name__ == "__main__":
    main()
