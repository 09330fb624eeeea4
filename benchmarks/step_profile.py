"""Where a decode step's time goes on a GPU: the kernels of the captured graph, by name.

    python -m benchmarks.step_profile [--shape Llama-3.1-8B] [--batches 1 64] [--steps 8] [--capture] [--host]

calls and us: of one step, means over the steps that were watched. gap: the median step's wall time less that of its kernels;
below 0 where kernels come early and wait for the one in front, which counts as their own time.
--host: the Python functions of the host too, with cProfile, whose own cost is in them.
"""

from __future__ import annotations

import argparse
import collections
import cProfile
import pstats
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.generate import new_engine, random_prompts
from benchmarks.random_model import SHAPES, random_model
from engine import SamplingParams
from engine.attention import register


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="Llama-3.1-8B", choices=sorted(SHAPES))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 64])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--capture", action="store_true")
    parser.add_argument("--host", action="store_true")
    args = parser.parse_args()
    register()
    model = random_model(args.shape)
    model.model.set_attn_implementation("pagewalk")
    engine = new_engine(model, capture=args.capture)
    for batch in args.batches:
        for _turn in range(2):  # the first captures the graphs
            engine.reset()
            for prompt in random_prompts(model, batch):
                engine.add_request(prompt, SamplingParams(max_tokens=6 * args.steps, ignore_eos=True))
            for _ in range(args.steps):
                engine.step()
        walls = []
        for _ in range(args.steps):
            started = time.perf_counter()
            engine.step()
            walls.append((time.perf_counter() - started) * 1e6)
        wall = statistics.median(walls)
        with profile(activities=[ProfilerActivity.CUDA]) as watched:
            for _ in range(args.steps):
                engine.step()
            torch.cuda.synchronize()
        calls: collections.Counter[str] = collections.Counter()
        spent: collections.Counter[str] = collections.Counter()
        for event in watched.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                calls[event.name] += 1
                spent[event.name] += event.device_time
        busy = sum(spent.values()) / args.steps
        print(f"\n{model.name}, batch {batch}: {wall:,.0f} us a step, kernels {busy:,.0f} us, gap {wall - busy:,.0f} us\n")
        print(f"{'calls':>7} {'us':>9} {'us each':>9}  kernel")
        for name, us in spent.most_common(16):
            print(f"{calls[name] / args.steps:>7.1f} {us / args.steps:>9.1f} {us / calls[name]:>9.2f}  {name[:100]}")
        if args.host:
            with cProfile.Profile() as watched_host:
                for _ in range(args.steps):
                    engine.step()
            pstats.Stats(watched_host).sort_stats("tottime").print_stats(24)


if __name__ == "__main__":
    main()
