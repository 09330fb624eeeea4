"""Tokens a second of the engine beside transformers' `generate`, in one run, on the same weights and dtype.

    python -m benchmarks.cpu_generate [--dtype float32] [--new-tokens 32] [--repeats 5]

Rows are interleaved repeat by repeat, so that a busy machine slows all alike; medians are printed, and ratios are what counts.
The second table is what recording, capture and streaming to the page cost: the same run with each switched off.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from engine import Engine, EngineConfig, SamplingParams, load_model
from engine.model_loader import LoadedModel

PROMPT = "The history of the city begins long before the first stone of its old bridge was laid across the river, when"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    model = load_model(dtype=args.dtype)
    peer = AutoModelForCausalLM.from_pretrained(model.path, dtype=model.dtype).eval()
    print(
        f"{model.name}, {args.dtype}, {torch.get_num_threads()} threads, {args.new_tokens} new tokens, median of {args.repeats}\n"
    )
    print(
        f"{'batch':>5}  {'transformers':>13}  {'engine':>9}  {'engine, capture off':>20}  {'ratio':>6}  {'capture costs':>13}"
    )
    for batch in (1, 4):
        medians = compare(
            {
                "transformers": lambda: run_transformers(model, peer, batch, args.new_tokens),
                "engine": engine_runner(model, batch, args.new_tokens, capture=True),
                "bare": engine_runner(model, batch, args.new_tokens, capture=False),
            },
            args.repeats,
        )
        speed = {name: batch * args.new_tokens / seconds for name, seconds in medians.items()}
        print(
            f"{batch:>5}  {speed['transformers']:>9.1f} t/s  {speed['engine']:>5.1f} t/s  {speed['bare']:>16.1f} t/s"
            f"  {speed['engine'] / speed['transformers']:>5.2f}x  {medians['engine'] / medians['bare'] - 1:>12.1%}"
        )


def compare(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each, interleaved, after one warm-up of each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def engine_runner(model: LoadedModel, batch: int, new_tokens: int, capture: bool) -> Callable[[], None]:
    engine = Engine(model, EngineConfig(capture=capture, enable_prefix_caching=False))
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)

    def run() -> None:
        engine.generate([PROMPT] * batch, params)
        engine.reset()

    return run


@torch.inference_mode()
def run_transformers(model: LoadedModel, peer: torch.nn.Module, batch: int, new_tokens: int) -> None:
    tokens = model.tokenizer([PROMPT] * batch, return_tensors="pt")
    peer.generate(  # type: ignore[operator]
        **tokens, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0
    )


if __name__ == "__main__":
    main()
