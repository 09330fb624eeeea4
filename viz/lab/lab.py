"""The kernel lab's board: one gr.HTML that shows what a run of the lab found. `value` is a message, never markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viz.board import Board, defaults_of, plain
from viz.lab.times import times_figure
from viz.lab.words import NAMES, Result, headline, idle, notes, ours, table
from viz.launch_plan import Plan, launch_plan_figure, launch_plan_sentence

HERE = Path(__file__).parent


def idle_view(kind: str, reason: str, plan: Plan) -> dict[str, Any]:
    """Before the first run: what this machine can show, and the launch of the first shape, which needs no run."""
    return {"kind": "idle", "headline": idle(kind, reason), **_planned("an H200", plan)}


def running_view(text: str) -> dict[str, Any]:
    return {"kind": "running", "text": text}


def problem_view(text: str) -> dict[str, Any]:
    return {"kind": "problem", "text": text}


def result_view(result: Result, asked: str, kv_bytes: int, plan: Plan) -> dict[str, Any]:
    """asked: the shape in words. kv_bytes: what must be read once. plan: of the decode kernel for this shape."""
    floor = kv_bytes / result["ceiling"] / 1e6 if result["ceiling"] else None
    return {
        "kind": "result",
        "asked": asked,
        "headline": headline(result),
        "notes": notes(result),
        "table": table(result),
        "times": plain(times_figure(result["paths"], NAMES, ours(result), floor)),
        "measured": dict(result),
        **_planned(result["device"] if result["kind"] == "cuda" else "an H200", plan),
    }


def _planned(card: str, plan: Plan) -> dict[str, Any]:
    title = f"The launch, as planned for {card}"
    return {"plan_title": title, "plan_text": launch_plan_sentence(plan), "plan": plain(launch_plan_figure(plan))}


class LabBoard(Board):
    """value: one of the views above. Gradio calls `cls(**kwargs)` for every property update, so every keyword is taken."""

    def __init__(self, value: Any = None, **kwargs: Any) -> None:
        super().__init__(value, **{**defaults_of(HERE, "lab", "lab-board"), **kwargs})

    def api_info(self) -> dict[str, Any]:
        return {"type": "object", "description": "What the kernel lab found (viz.lab.lab.result_view)."}
