"""ZeroGPU: forward passes in a process that the Space lends a GPU to, one call at a time.

`spaces` must be imported before torch, which app.py does; without it, or on other hardware, nothing here is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator

import gradio as gr

from engine.config import EngineConfig
from engine.detached import DetachedEngine, DetachedRun, Passes, run_passes
from engine.errors import PagewalkError
from engine.model_loader import LoadedModel

SECONDS_TO_START, SECONDS_A_PASS, MAX_SECONDS = 15, 0.05, 60


def is_zero_gpu() -> bool:
    """Whether this is a ZeroGPU Space: the variable that `spaces` itself goes by."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def seconds_for(run: DetachedRun) -> int:
    """How long the GPU is asked for: more is charged to the visitor, less cuts the run short."""
    passes = run.max_passes or run.params.max_tokens * (len(run.prompts) + len(run.later))
    return min(MAX_SECONDS, round(SECONDS_TO_START + SECONDS_A_PASS * (passes + run.num_steps)))


def engine_maker(model: LoadedModel) -> Callable[[LoadedModel, EngineConfig], DetachedEngine]:
    """Makes engines whose passes happen in a lent GPU's process. To be called before the page is launched."""
    import spaces

    def passes(run: DetachedRun) -> Generator[Passes, None, None]:
        yield from run_passes(model, run)

    on_gpu = spaces.GPU(duration=seconds_for)(passes)

    def remote(run: DetachedRun) -> Generator[Passes, None, None]:
        try:
            yield from on_gpu(run)
        except gr.Error as error:  # no GPU is free, the visitor's share is used up, the worker died: said in words
            raise PagewalkError(str(error.message)) from None

    return lambda _, config: DetachedEngine(model, config, remote)
