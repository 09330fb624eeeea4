"""The Kernel lab tab: the visitor's numbers to the lab, what it found to the board."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import gradio as gr

from engine.model_loader import choose_device
from kernels.decode_plan import DeviceLimits
from kernels.dispatch import choose_backend
from kernels.lab import BOUNDS, ITEMSIZE, Lab, LabBusy, LabFailed, LabRefused, LabShape, plan_of, presets
from viz.lab.lab import HERE, LabBoard, idle_view, problem_view, result_view, running_view

log = logging.getLogger(__name__)


def build(lab: Lab | None = None) -> None:
    """Inside a tab of the page. One lab serves every visitor."""
    device = choose_device()
    lab = lab or Lab("cuda" if device.type == "cuda" else "cpu")
    choices = presets(lab.kind)
    first = next(iter(choices))
    gr.HTML((HERE / "intro.html").read_text(encoding="utf-8"), elem_id="lab-intro", apply_default_css=False)
    with gr.Row(elem_id="lab-controls"):
        preset = gr.Dropdown(list(choices), value=first, label="Preset", filterable=False, elem_id="lab-preset")
        numbers = [
            gr.Number(
                getattr(choices[first], name), label=label, precision=0, min_width=88, elem_id=f"lab-{name.replace('_', '-')}"
            )
            for name, (label, _, _) in BOUNDS.items()
        ]
        run = gr.Button("Run", variant="primary", elem_id="lab-run", scale=0, min_width=120)
    plan = plan_of(choices[first], ITEMSIZE["cuda"], DeviceLimits())
    board = LabBoard(idle_view(lab.kind, choose_backend("auto", device).reason, plan))

    def fill(name: str) -> list[Any]:
        shape = choices.get(name)
        return [getattr(shape, field) if shape else gr.skip() for field in BOUNDS]

    def press(*values: Any) -> Iterator[dict[str, Any]]:
        yield from runs(lab, dict(zip(BOUNDS, values, strict=True)))

    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    preset.input(fill, preset, numbers, **quiet)
    # every press is answered at once, if only by a sentence: the lab itself lets one run at a time
    run.click(press, numbers, board, concurrency_limit=None, trigger_mode="once", **quiet)


def runs(lab: Lab, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The board's views of one press of Run: running, then a result or a sentence."""
    yield running_view("Running: a process of its own starts, measures and ends. This takes about ten seconds.")
    try:
        shape, result = lab.run(values)
    except (LabRefused, LabBusy, LabFailed) as problem:
        yield problem_view(str(problem))
        return
    plan = plan_of(shape, ITEMSIZE["cuda"], DeviceLimits(**result["limits"]))
    yield result_view(result, asked(shape), shape.kv_bytes(lab.kind), plan)


def asked(shape: LabShape) -> str:
    return (
        f"{shape.batch:,} × {shape.context:,} tokens, {shape.n_q}/{shape.n_kv} heads, head_dim {shape.head_dim}, "
        f"blocks of {shape.block_size}"
    )
