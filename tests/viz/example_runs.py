"""Small real runs of the engine, one for each recording that the tour and the questions name: the tiny model, blocks of 4."""

from __future__ import annotations

import dataclasses
from typing import Any

from engine import Engine, EngineConfig, SamplingParams
from engine.model_loader import LoadedModel
from engine.trace import Trace

BEGINNING = "In one small town "
BLOCK_SIZE = 4


def example_runs(model: LoadedModel) -> dict[str, Trace]:
    """Recording id -> the trace of a run that shows what the recording of that name shows."""
    fork = SamplingParams(max_tokens=9, n=3, temperature=1.0, seed=3, ignore_eos=True)
    return {
        "plain": _run(model, ["The capital"], 14),
        "shared-prompt": _run(model, [BEGINNING + "lived a cat", BEGINNING + "grew a tree", BEGINNING + "was"], 12, stagger=3),
        "fork": _run(model, ["six by"], params=fork),
        "preemption": _run(model, ["one one one", "two two", "three"], 16, num_blocks=10),
        "eviction": _run(model, [BEGINNING, BEGINNING, "something else altogether"], 6, num_blocks=9, stagger=8),
        "block-size-16": _run(model, ["The capital of France is"], 14, block_size=16),
        "block-size-64": _run(model, ["The capital of France is"], 60, block_size=64),
    }


def header_of(trace: Trace, recording: str | None = None) -> dict[str, Any]:
    """The header as the page gets it; `recording` makes it that of a shipped recording."""
    header = dataclasses.asdict(trace.header)
    if recording is not None:
        header["recording"] = {"id": recording, "opening": {}, "sentence": "A test's run."}
    return header


def _run(
    model: LoadedModel, prompts: list[str], max_tokens: int = 8, block_size: int = BLOCK_SIZE, num_blocks: int = 64,
    stagger: int = 0, params: SamplingParams | None = None,
) -> Trace:  # fmt: skip
    """All prompts to their end, each `stagger` steps after the one before it."""
    engine = Engine(model, EngineConfig(block_size=block_size, num_blocks=num_blocks, capture=False))
    params = params or SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        while engine.step_count < stagger * i and engine.has_unfinished_requests():
            engine.step()
        engine.add_request(prompt, params)
    while engine.has_unfinished_requests():
        engine.step()
    return engine.trace
