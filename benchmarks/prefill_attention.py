"""Paged prefill attention: chunks, with and without context before them, beside FlashInfer's paged prefill and contiguous SDPA.

    python -m benchmarks.prefill_attention [--sweep]

Milliseconds (CUDA graph, L2 flushed, median) of one layer, and TFLOP/s of the products that causal attention needs. SDPA runs
contiguous and only where a batch is one sequence from its start: what it takes is the bound, not a peer.
"""

from __future__ import annotations

import argparse
import dataclasses
import math

import torch

from benchmarks.decode_attention import geomean
from benchmarks.peers import Call, flashinfer_prefill_calls, sdpa_prefill_call
from kernels.bandwidth import Timer
from kernels.paged_prefill import PrefillPlan
from kernels.prefill_plan import PrefillConfig, pages_per_tile, plan_blocks
from kernels.random_batch import PagedBatch, paged_batch
from kernels.triton_paged import TritonAttention

ROWS: list[tuple[str, list[int], list[int], int, int, int]] = [
    ("512, 9/3, 64", [512], [512], 9, 3, 64),
    ("4k, 9/3, 64", [4096], [4096], 9, 3, 64),
    ("8 x 1k, 9/3, 64", [1024] * 8, [1024] * 8, 9, 3, 64),
    ("512, 32/8, 128", [512], [512], 32, 8, 128),
    ("2k, 32/8, 128", [2048], [2048], 32, 8, 128),
    ("8k, 32/8, 128", [8192], [8192], 32, 8, 128),
    ("8 x 1k, 32/8, 128", [1024] * 8, [1024] * 8, 32, 8, 128),
    ("512 after 16k, 32/8, 128", [512], [16896], 32, 8, 128),
    ("64 after 32k, 32/8, 128", [64], [32832], 32, 8, 128),
    ("700 after 16k, 32/8, 128", [700], [17084], 32, 8, 128),
    ("100, 700, 33, 1.2k, 32/8, 128", [100, 700, 33, 1200], [900, 700, 2033, 1200], 32, 8, 128),
    ("448 and 64 rows at 2k, 32/8, 128", [448] + [1] * 64, [448] + [2048] * 64, 32, 8, 128),
]


def flops(given: PagedBatch) -> float:
    """Multiplications and additions of both products, causal."""
    starts, total = given.metadata.query_start, 0
    for b, context in enumerate(given.metadata.context_lens):
        length = starts[b + 1] - starts[b]
        total += length * context - length * (length - 1) // 2
    return 4.0 * total * given.query.shape[1] * given.query.shape[2]


def ours_call(given: PagedBatch) -> tuple[Call, TritonAttention]:
    backend = TritonAttention(given.metadata)
    scale = given.query.shape[-1] ** -0.5

    def layer() -> torch.Tensor:
        return backend(given.query, given.k_pool, given.v_pool, given.metadata, scale)

    layer()
    return layer, backend


def measure(name: str, given: PagedBatch, timer: Timer) -> dict[str, float]:
    layer, _ = ours_call(given)
    found = dict.fromkeys(("sdpa", "fa2", "fa3", "fi"), math.nan)
    metadata = given.metadata
    if len(given.tables) == 1 and metadata.query_start[-1] == metadata.context_lens[0]:
        slots = given.slots(0)
        found["sdpa"] = timer(sdpa_prefill_call(given.query, given.k_pool[slots], given.v_pool[slots]))
    peers = flashinfer_prefill_calls(
        given.query,
        metadata.query_start,
        (given.k_pool, given.v_pool),
        given.tables,
        metadata.context_lens,
        metadata.block_size,
    )
    found |= {key: timer(call) for key, call in peers.items()}
    found["fi"] = min((found[key] for key in peers), default=math.nan)
    found["ours"] = timer(layer)
    found["error"] = given.error(layer())
    print(
        f"{name:<34}" + "".join(f"{found[key]:>9.4f}" for key in ("sdpa", "fa2", "fa3", "ours"))
        + f"{flops(given) / found['ours'] / 1e9:>9.0f}{found['sdpa'] / found['ours']:>7.3f}{found['fi'] / found['ours']:>7.3f}"
        + f"{found['error']:>9.1e}",
        flush=True,
    )  # fmt: skip
    return found


def sweep(name: str, given: PagedBatch, timer: Timer) -> None:
    """Other launch shapes for one batch."""
    layer, backend = ours_call(given)
    (shape, (decode, plan)) = next(iter(backend._plans.items()))
    assert plan is not None
    print(f"sweep {name}: rule {plan.config} {timer(layer):.4f}")
    device, size = given.query.device, given.metadata.block_size
    for block_m, tile, warps, stages, per_sm, scalars in [
        (128, 64, 8, 3, 1, True), (128, 64, 8, 3, 1, False), (128, 128, 8, 2, 1, True), (64, 64, 4, 3, 2, True),
        (64, 32, 4, 3, 2, True), (64, 64, 4, 4, 2, True), (64, 32, 4, 4, 3, True), (64, 128, 4, 2, 2, True),
    ]:  # fmt: skip
        pages = pages_per_tile(tile, size) if scalars else 0
        config = PrefillConfig(block_m, tile, warps, stages, max(1, 132 * per_sm // shape.n_kv), pages)
        pieces = plan_blocks(
            backend.chunk_sequences,
            given.metadata.query_start,
            given.metadata.context_lens,
            shape.n_q // shape.n_kv,
            config,
        )
        rows, merges = (torch.from_numpy(x).to(device) for x in (pieces.rows, pieces.merges))
        backend._plans[shape] = (decode, PrefillPlan(config, pieces, rows, merges, shape.n_q, shape.head_dim))
        try:
            ms = timer(layer, repeats=15)
        except Exception as error:
            print(f"  {dataclasses.astuple(config)}: {type(error).__name__}")
            continue
        ids = "scalar" if pages else "vector"
        print(f"  {block_m}/{tile}/{warps}/{stages} x{per_sm} {ids} {ms:.4f} {flops(given) / ms / 1e9:.0f} TFLOP/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", help="which rows, counted from 1; all without it")
    parser.add_argument("--sweep", action="store_true", help="other launch shapes for each row, instead of peers")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark measures a CUDA device, and there is none here.")
    timer = Timer(repeats=25)
    print(
        f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}; bf16, blocks of 16; rows seen after a context as named\n"
    )
    if not args.sweep:
        head = (
            f"{'rows, q/kv heads, d':<34}{'SDPA':>9}{'FI fa2':>9}{'FI fa3':>9}{'ours':>9}{'TFLOP/s':>9}{'/SDPA':>7}{'/FI':>7}"
        )
        print(head + f"{'error':>9}")
    table = []
    for name, query_lens, context_lens, n_q, n_kv, d in [r for i, r in enumerate(ROWS, 1) if not args.rows or i in args.rows]:
        given = paged_batch(query_lens, context_lens, n_q, n_kv, d)
        if args.sweep:
            sweep(name, given, timer)
        else:
            table.append(measure(name, given, timer))
    if table:
        print(f"\ngeomean: {geomean([row['fi'] / row['ours'] for row in table]):.3f}x the better FlashInfer")


if __name__ == "__main__":
    main()
