"""Random runs of the engine's books, audited after every step, until the time is up; then what was done, in figures.

    python scripts/soak.py --seconds 300 --seed 0

Requests with shared beginnings arrive and are aborted at any step, in pools that hardly hold them, with block sizes 1 to 16,
with and without prefix caching, over resets that keep the cache or drop it. The forward pass is replaced by random logits.
Needs the packages of the tests.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine import Engine
from engine.model_loader import LoadedModel
from tests.conftest import tiny_llama
from tests.engine.helpers import assert_all_free, assert_replay_is_live, random_engine, random_life

OPERATIONS = ("BlockAllocated", "BlockTouched", "BlockStored", "BlockRemoved", "BlockFreed", "SlotsWritten", "TokenSampled",
              "RequestAdded", "RequestRefused", "RequestPreempted", "RequestFinished", "PrefixHit", "PrefixMiss")  # fmt: skip


def one_life(model: LoadedModel, seed: int, counts: Counter[str]) -> None:
    """Up to three runs on one engine. Raises AuditError or AssertionError at the first thing that is wrong."""
    rng = random.Random(seed)
    block_size = rng.randint(1, 16)
    engine = random_engine(
        model, seed, block_size, -(-20 // block_size) + rng.randint(0, 12), rng.random() < 0.7, rng.choice([1, 3, 16, 64])
    )
    for _ in range(rng.randint(1, 3)):
        random_life(engine, rng, num_requests=rng.randint(1, 10), check=Engine.audit)
        assert_replay_is_live(engine)
        assert_all_free(engine)
        counts["runs"] += 1
        counts["steps"] += engine.step_count
        counts.update(type(event).__name__ for event in engine.trace.events)
        engine.reset(keep_cache=rng.random() < 0.5)
        engine.audit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first life; each further life counts one up")
    args = parser.parse_args()
    model, counts, seed = tiny_llama(), Counter[str](), args.seed
    began = time.monotonic()
    while time.monotonic() - began < args.seconds:
        try:
            one_life(model, seed, counts)
        except Exception:
            print(f"Seed {seed} failed; run it alone with --seed {seed} --seconds 0.01", file=sys.stderr)
            raise
        seed += 1
    seconds = time.monotonic() - began
    operations = sum(counts[name] for name in OPERATIONS)
    print(f"{counts['runs']:,} runs, {counts['steps']:,} steps audited, {operations:,} operations, {seconds:.1f} s, no fault")
    print(", ".join(f"{name} {counts[name]:,}" for name in OPERATIONS))


if __name__ == "__main__":
    main()
