"""Tokens a second of the engine beside transformers' `generate`, in one run, on the same weights and dtype.

    python -m benchmarks.cpu_generate [--dtype float32] [--new-tokens 32] [--repeats 5]

Rows are interleaved repeat by repeat, so that a busy machine slows all alike; medians are printed, and ratios are what counts.
Every row computes in a thread of its own that ends with it, as a session's run does: OpenMP keeps a team for each thread that
ever computed, and once there are more of its threads than cores, every barrier sleeps instead of spinning (about +50 % a step).

The second table is what capture, recording and streaming to the page cost: the same run bare, with capture, and as the page
does it, with a client in another process that reads every message of the bus.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import torch
from transformers import AutoModelForCausalLM

from engine import Engine, EngineConfig, SamplingParams, load_model
from engine.model_loader import LoadedModel

PROMPT = "The history of the city begins long before the first stone of its old bridge was laid across the river, when"
Run = Callable[[], float]
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    model = in_thread(lambda: load_model(dtype=args.dtype))
    peer = in_thread(lambda: AutoModelForCausalLM.from_pretrained(model.path, dtype=model.dtype).eval())
    print(
        f"{model.name}, {args.dtype}, {torch.get_num_threads()} threads, {args.new_tokens} new tokens, {args.repeats} repeats\n"
    )
    print(f"{'batch':>5}  {'transformers':>13}  {'engine':>10}  {'ratio':>6}")
    for batch in (1, 4):
        medians, ratios = compare(
            {
                "engine": engine_run(model, batch, args.new_tokens),
                "transformers": transformers_run(model, peer, batch, args.new_tokens),
            },
            args.repeats,
        )
        speed = {name: batch * args.new_tokens / seconds for name, seconds in medians.items()}
        row = f"{batch:>5}  {speed['transformers']:>9.1f} t/s  {speed['engine']:>6.1f} t/s  {ratios['transformers']:>5.2f}x"
        print(row, flush=True)
    del peer

    print("\nWhat telling the story costs, batch 4\n")
    runs = {
        "bare engine": engine_run(model, 4, args.new_tokens, capture=False),
        "with capture": engine_run(model, 4, args.new_tokens),
        "capture and page": page_run(model, 4, args.new_tokens),
    }
    medians, ratios = compare(runs, args.repeats)
    for name, seconds in medians.items():
        print(f"{name:>17}  {seconds / args.new_tokens * 1e3:>7.1f} ms a step  {ratios[name] - 1:>+7.1%}")


def compare(runs: dict[str, Run], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Interleaved, after one warm-up of each: median seconds, and the median over repeats of the ratio to the first one."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            took = in_thread(run)
            if repeat:
                seconds[name].append(took)
    first = next(iter(seconds.values()))
    ratios = {name: statistics.median(v / f for v, f in zip(values, first, strict=True)) for name, values in seconds.items()}
    return {name: statistics.median(values) for name, values in seconds.items()}, ratios


def in_thread(work: Callable[[], T]) -> T:
    """The result of `work`, done in a thread that is gone afterwards."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def engine_run(model: LoadedModel, batch: int, new_tokens: int, capture: bool = True) -> Run:
    """Seconds of all steps of one run."""
    engine = Engine(model, EngineConfig(capture=capture, enable_prefix_caching=False))
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)

    def run() -> float:
        started = time.perf_counter()
        engine.generate([PROMPT] * batch, params)
        took = time.perf_counter() - started
        engine.reset()
        return took

    return run


def transformers_run(model: LoadedModel, peer: Any, batch: int, new_tokens: int) -> Run:
    tokens = model.tokenizer([PROMPT] * batch, return_tensors="pt")

    def run() -> float:
        started = time.perf_counter()
        peer.generate(**tokens, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
        return time.perf_counter() - started

    return run


def page_run(model: LoadedModel, batch: int, new_tokens: int) -> Run:
    """Seconds from the first to the last step of a run that the page's own Generate began, streamed to another process."""
    from app import launch
    from engine.model_shelf import ModelShelf
    from web.host import MAX_SEQUENCES, Host

    host = Host(ModelShelf.of(model))
    demo = launch(host, "127.0.0.1")
    index = next(d["id"] for d in demo.get_config_file()["dependencies"] if d["api_name"] == "page_generate")
    prompts = [PROMPT] * batch + [""] * (MAX_SEQUENCES - batch)
    values = ["", *prompts, 128, 16, 512, 0, new_tokens, 1, 0.0, 1.0, 0, 0, False, False, True]
    stamps: list[float] = []
    step = Engine.step

    def stamped(self: Engine) -> Any:
        stamps.append(time.perf_counter())
        out = step(self)
        stamps.append(time.perf_counter())
        return out

    def run() -> float:
        stamps.clear()
        Engine.step = stamped  # type: ignore[method-assign]
        reader = multiprocessing.get_context("spawn").Process(target=follow, args=(demo.local_url, index, values, "benchmark"))
        reader.start()
        reader.join()
        Engine.step = step  # type: ignore[method-assign]
        if reader.exitcode or len(stamps) != 2 * new_tokens:
            raise RuntimeError(f"The page's run was not followed to its end: {len(stamps) // 2} steps of {new_tokens}.")
        return stamps[-1] - stamps[0]

    return run


def follow(url: str, index: int, values: list[Any], session_hash: str) -> None:
    """Presses Generate as a browser does, and reads the stream to its end."""
    join = {"data": values, "fn_index": index, "session_hash": session_hash}
    with httpx.Client(base_url=url, timeout=600) as client:
        client.post("gradio_api/queue/join", json=join).raise_for_status()
        with client.stream("GET", "gradio_api/queue/data", params={"session_hash": session_hash}) as answer:
            tail = b""
            for chunk in answer.iter_raw():
                tail = tail[-64:] + chunk
                if b'"msg":"process_completed"' in tail:
                    return


if __name__ == "__main__":
    main()
