"""Which models a visitor may ask for: any on a computer of one's own, those of a list on a public host."""

from __future__ import annotations

import os
from collections.abc import Mapping

from engine.errors import RequestError
from engine.limits import is_public

SMALL_MODELS = ("HuggingFaceTB/SmolLM2-360M-Instruct",)
"""Beside the default one, where PAGEWALK_MODELS does not say otherwise: each that is asked for stays in memory."""


def allowed_models(environment: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Names a visitor may choose beside the default model; None: any. PAGEWALK_MODELS: names with commas between them."""
    environment = os.environ if environment is None else environment
    listed = environment.get("PAGEWALK_MODELS")
    if listed is not None:
        return tuple(name for name in (part.strip() for part in listed.split(",")) if name)
    return SMALL_MODELS if is_public(environment) else None


def check_model(name: str | None, allowed: tuple[str, ...] | None, default: str) -> None:
    """`name`: None is the default. Raises RequestError, which names those that are allowed."""
    if allowed is not None and name is not None and name not in allowed:
        raise RequestError(
            f"This host runs {', '.join((default, *allowed))}. Choose one of them; on a computer of your own Pagewalk runs any "
            "supported model."
        )
