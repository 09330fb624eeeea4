"""Pagewalk's engine: a real model through a paged KV cache, every decision narrated.

    from engine import Engine, SamplingParams, load_model
    engine = Engine(load_model())
    print(engine.generate(["The capital of France is"], SamplingParams(max_tokens=16))[0].text)

The names are looked up when they are first used, so that a view which reads `engine.trace` does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.config import EngineConfig, SamplingParams
    from engine.engine import Engine
    from engine.model_loader import load_model
    from engine.trace import Trace

__all__ = ["Engine", "EngineConfig", "SamplingParams", "Trace", "load_model"]

_HOMES = {
    "Engine": "engine.engine",
    "EngineConfig": "engine.config",
    "SamplingParams": "engine.config",
    "Trace": "engine.trace",
    "load_model": "engine.model_loader",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
