"""The engine on a GPU beside transformers' `generate` and `generate_batch`: same weights, dtype, prompts, one run.

    python -m benchmarks.generate [--shapes SmolLM2-135M Llama-3.1-8B] [--batches 1 8 64 256] [--new-tokens 64] [--repeats 3]
                                  [--continuous 8 64] [--steps 10000]

floor: the time to read weights, and K and V of the sequences, once, at the read ceiling measured in the same run. A row's
share is floor / time of its median decode step; in decode: tokens/s of such steps, without the prompts. Greedy decoding, end
of text ignored. Medians of the repeats; every engine has run once before, so that its graphs are captured.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import random
import resource
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from benchmarks.random_model import random_model
from engine import Engine, EngineConfig, SamplingParams
from engine.attention import register
from engine.model_loader import LoadedModel
from kernels.bandwidth import Timer, read_ceiling

PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds: of the whole run, to the first token of all, and of the median decode step."""

    total: float
    first: float
    step: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=["SmolLM2-135M", "Llama-3.1-8B"])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--continuous", nargs="*", type=int, default=[64], help="batches for generate_batch, which is slow")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="decode steps over which memory is watched")
    args = parser.parse_args()
    ceiling = read_ceiling(Timer()) * 1e9
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, read ceiling {ceiling / 1e9:,.0f} GB/s, bfloat16, "
          f"{PROMPT_TOKENS} prompt tokens, {args.new_tokens} new ones, medians of {args.repeats}", flush=True)  # fmt: skip
    register()
    for name in args.shapes:
        model = random_model(name)
        print(f"\n{model.name}, weights {model.weight_bytes / 1e9:.2f} GB\n")
        columns = {
            "batch": 5, "what": 22, "tokens/s": 10, "first token": 12, "a step": 10, "in decode": 10, "of floor": 11,
            "ours /": 8,
        }  # fmt: skip
        print(*(f"{title:>{width}}" for title, width in columns.items()))
        engines = {"engine": new_engine(model, capture=False), "engine with capture": new_engine(model, capture=True)}
        for batch in args.batches:
            compare(model, engines, batch, args, ceiling)
        if args.steps:
            watch_memory(engines, args.steps)
        del model, engines
        gc.unfreeze()
        gc.collect()
        torch.cuda.empty_cache()


def compare(model: LoadedModel, engines: dict[str, Engine], batch: int, args: argparse.Namespace, ceiling: float) -> None:
    prompts = random_prompts(model, batch)
    positions = batch * (PROMPT_TOKENS + args.new_tokens // 2)
    kv_bytes = positions * 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.dtype.itemsize
    floor = (model.weight_bytes + kv_bytes) / ceiling
    runs: dict[str, Any] = {
        name: functools.partial(run_engine, engine, prompts, args.new_tokens) for name, engine in engines.items()
    }
    runs["generate"] = lambda: run_generate(model, prompts, args.new_tokens)
    if batch in args.continuous:
        runs["generate_batch"] = lambda: run_continuous(model, prompts, args.new_tokens)
    ours = 0.0
    for what, run in runs.items():
        ours_too = what in engines
        try:
            if ours_too:
                run()  # captures the graphs of this size
            measured = [run() for _ in range(args.repeats if ours_too else 1)]
        except Exception as error:  # a peer that does not run here is a row that says so
            print(f"{batch:>5} {what:>22}  {type(error).__name__}: {str(error)[:120]}", flush=True)
            if ours_too:
                raise
            continue
        total, first, step = (statistics.median(getattr(m, name) for m in measured) for name in ("total", "first", "step"))
        speed = batch * args.new_tokens / total
        ours = ours or speed
        told = f"{'-':>12} {'-':>10} {'-':>10} {'-':>11}"
        if step:
            told = f"{first * 1e3:>9.1f} ms {step * 1e3:>7.2f} ms {batch / step:>10,.0f} {floor / step:>11.0%}"
        print(f"{batch:>5} {what:>22} {speed:>10,.0f} {told} {ours / speed:>7.1f}x", flush=True)


def random_prompts(model: LoadedModel, batch: int) -> list[list[int]]:
    """Token ids, the same for the same batch."""
    rng = random.Random(batch)
    return [[rng.randrange(300, model.vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]


def new_engine(model: LoadedModel, capture: bool) -> Engine:
    """Big enough for every row."""
    config = EngineConfig(
        num_blocks=256 * 24, max_num_seqs=256, max_num_batched_tokens=256 * PROMPT_TOKENS, capture=capture,
        enable_prefix_caching=False,
    )  # fmt: skip
    return Engine(model, config)


def run_engine(engine: Engine, prompts: list[list[int]], new_tokens: int) -> Measured:
    engine.model.model.set_attn_implementation("pagewalk")
    engine.reset()
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for prompt in prompts:
        engine.add_request(prompt, params)
    stamps = [started]
    while engine.has_unfinished_requests():
        engine.step()
        stamps.append(time.perf_counter())
    steps = [after - before for before, after in itertools.pairwise(stamps[1:])]
    return Measured(stamps[-1] - started, stamps[1] - started, statistics.median(steps))


@torch.inference_mode()
def run_generate(model: LoadedModel, prompts: list[list[int]], new_tokens: int) -> Measured:
    model.model.set_attn_implementation("sdpa")
    ids = torch.tensor(prompts, device=model.device)
    ends = {"do_sample": False, "pad_token_id": 1, "eos_token_id": None}

    def timed(count: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        model.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, **ends)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    timed(2)
    first, total = timed(1), timed(new_tokens)
    return Measured(total, first, (total - first) / (new_tokens - 1))


def run_continuous(model: LoadedModel, prompts: list[list[int]], new_tokens: int) -> Measured:
    model.model.set_attn_implementation("sdpa")
    config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=1)
    model.model.generate_batch(inputs=prompts[:2], generation_config=config, progress_bar=False)
    torch.cuda.synchronize()
    started = time.perf_counter()
    outs = model.model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
    total = time.perf_counter() - started
    made = sum(len(out.generated_tokens) for out in outs.values())
    if made != len(prompts) * new_tokens:
        raise RuntimeError(f"generate_batch made {made} tokens of {len(prompts) * new_tokens}")
    return Measured(total, 0.0, 0.0)


def watch_memory(engines: dict[str, Engine], steps: int) -> None:
    """Device and host memory over many steps of eight sequences; the trace of a run is dropped with it."""
    engine = engines["engine"]
    model = engine.model
    model.model.set_attn_implementation("pagewalk")
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    prompts = [[300 + i] * 8 for i in range(8)]
    done, readings = 0, []
    while done < steps:
        engine.reset()
        engine.generate(prompts, params)
        done += engine.step_count
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        readings.append((done, torch.cuda.memory_allocated() / 2**20, torch.cuda.memory_reserved() / 2**20, host))
    print(f"\n{'steps':>7} {'allocated':>12} {'reserved':>12} {'host, most':>12}   MiB")
    for row in (readings[0], readings[len(readings) // 2], readings[-1]):
        print(f"{row[0]:>7} {row[1]:>12,.1f} {row[2]:>12,.1f} {row[3]:>12,.0f}")
    pool, weights = sum(e.runner.kv_cache.num_bytes for e in engines.values()) / 2**20, model.weight_bytes / 2**20
    print(f"weights {weights:,.1f}, pool {pool:,.1f}, workspace {readings[-1][1] - weights - pool:,.1f}", flush=True)


if __name__ == "__main__":
    main()
