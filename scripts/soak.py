"""Random runs of the engine, audited after every step, and random operations of the block pool; then what was done, in figures.

    python scripts/soak.py --soaks 2000
    python scripts/soak.py --soaks 0 --pool-operations 1000000

A soak: on one engine, up to three runs in which requests with shared beginnings arrive, fork and are aborted at any step, in a
pool from "just fits" up, with blocks of 1 to 64 slots, with and without prefix caching, over resets that keep the cache or drop
it. The model is a tiny random one, its pool full of NaN, so that a read of a wrong slot ends a request with an error. A run
that takes too many steps, or leaves a block held, fails. Needs the packages of the tests.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine import Engine, EngineConfig
from engine.model_loader import LoadedModel
from tests.conftest import tiny_llama
from tests.engine.helpers import PlainPool, assert_all_free, assert_replay_is_live, random_life

OPERATIONS = ("RequestAdded", "RequestRefused", "RequestForked", "RequestPreempted", "RequestFinished", "PrefixHit",
              "PrefixMiss", "BlockAllocated", "BlockTouched", "BlockCopied", "BlockStored", "BlockRemoved", "BlockFreed",
              "SlotsWritten", "TokenSampled")  # fmt: skip


def soak(model: LoadedModel, seed: int, counts: Counter[str]) -> None:
    """Up to three runs on one engine. Raises AuditError or AssertionError at the first thing that is wrong."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 3, 4, 5, 8, 16, rng.randint(1, 64)])
    config = EngineConfig(
        block_size=block_size, num_blocks=-(-20 // block_size) + rng.choice([0, 0, 1, rng.randint(0, 12)]),
        enable_prefix_caching=rng.random() < 0.7, max_num_batched_tokens=rng.choice([1, 3, 16, 64]),
        max_num_seqs=rng.choice([1, 2, 4, 8]), watermark=rng.choice([0.0, 0.1, 0.5]), capture=False, seed=seed,
    )  # fmt: skip
    engine = Engine(model, config)
    engine.runner.kv_cache.fill_(float("nan"))
    for _ in range(rng.randint(1, 3)):
        random_life(engine, rng, num_requests=rng.randint(1, 8), check=Engine.audit)
        assert_replay_is_live(engine)
        assert_all_free(engine)
        assert not any(request.finish_reason == "error" for request in engine.requests.values()), "NaN was read"
        counts["runs"] += 1
        counts["steps"] += engine.step_count
        counts["longest"] = max(counts["longest"], engine.step_count)
        counts.update(type(event).__name__ for event in engine.trace.events)
        engine.reset(keep_cache=rng.random() < 0.5)
        engine.audit()


def run_soaks(num: int, first_seed: int) -> None:
    model, counts, began = tiny_llama(), Counter[str](), time.monotonic()
    for seed in range(first_seed, first_seed + num):
        try:
            soak(model, seed, counts)
        except Exception:
            print(f"Seed {seed} failed; run it alone with --soaks 1 --seed {seed}", file=sys.stderr)
            raise
    print(
        f"{num:,} soaks: {counts['runs']:,} runs, {counts['steps']:,} steps audited, {counts['longest']:,} in the longest run, "
        f"{time.monotonic() - began:.1f} s, no fault"
    )
    print(", ".join(f"{name} {counts[name]:,}" for name in OPERATIONS))


def run_pool_operations(num: int, seed: int) -> None:
    plain, began = PlainPool(random.Random(seed)), time.monotonic()
    done = Counter(plain.operate() for _ in range(num))
    print(f"{num:,} pool operations, each compared with plain lists, {time.monotonic() - began:.1f} s, no fault")
    print(", ".join(f"{name} {count:,}" for name, count in done.most_common()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soaks", type=int, default=200)
    parser.add_argument("--pool-operations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the first soak; each further one counts one up")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.soaks:
        run_soaks(args.soaks, args.seed)
    if args.pool_operations:
        run_pool_operations(args.pool_operations, args.seed)


if __name__ == "__main__":
    main()
