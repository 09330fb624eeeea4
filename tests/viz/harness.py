"""A small Gradio app around the Stage, fed by the scripted run: to look at, and for the browser tests.

python -m tests.viz.harness            # PORT=7870
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import gradio as gr

from engine.trace import Trace, TraceHeader
from tests.viz.fake_run import HEADER, fake_run, hostile_texts, lookup_answer
from viz import deltas, served
from viz.stage.stage import Stage
from viz.theme import head, header_html, page_css, theme
from web.views import Source, view


class Script:
    """The run that the harness plays; one for all visitors."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.n = 0
        self.run = ""
        self.header = dict(HEADER)
        self.tables: dict[str, list[int]] = {}
        self.lock = threading.Lock()

    def begin(self, run: str, **header: Any) -> None:
        self.steps, self.n, self.run, self.tables = [], 0, run, {}
        self.header = {**HEADER, **header}

    def add(self, events: list[Any]) -> None:
        self.steps.append(events)
        for e in events:
            if hasattr(e, "logical_index") and hasattr(e, "block_id"):
                self.tables.setdefault(e.request_id, []).append(e.block_id)

    def log(self) -> list[Any]:
        return [e for step in self.steps for e in step]


SCRIPT = Script()


def play(scenario: str, rate: float):
    """Snapshot first, then a delta a step at `rate` steps a second; the last word is `end`."""
    name, _, number = scenario.partition(":")
    options: dict[str, Any] = {"steps": int(number or 72)}
    header: dict[str, Any] = {}
    if name == "hostile":
        options |= {"texts": hostile_texts(), "prompt_lengths": {"A": 40, "B": 5}}
    if name == "long":
        words = {"A": [f" a{i}" for i in range(4000)], "B": [f" b{i}" for i in range(4000)]}
        options |= {"texts": words, "prompt_lengths": {"A": 5, "B": 30}, "num_blocks": 512}
        header = {"num_blocks": 512}
    if name == "big":
        words = {"A": [f" a{i}" for i in range(4000)], "B": [f" b{i}" for i in range(60000)]}
        options |= {"texts": words, "prompt_lengths": {"A": 5, "B": 50000}, "num_blocks": 16384}
        header = {"num_blocks": 16384}
    if name == "finished":
        options["finish"] = True
    run = f"{scenario}-{time.monotonic()}"
    SCRIPT.begin(run, **header)
    running = rate > 0
    for i, events in enumerate(fake_run(**options)):
        SCRIPT.add(events)
        if i == 0 and running:
            yield deltas.snapshot(run, 0, SCRIPT.log(), SCRIPT.header, "session", True)
        elif running:
            SCRIPT.n += 1
            yield deltas.delta(run, SCRIPT.n, events)
            time.sleep(1 / rate)
    if not running:
        SCRIPT.n = len(SCRIPT.steps) - 1
        yield deltas.snapshot(run, SCRIPT.n, SCRIPT.log(), SCRIPT.header, "session", name != "finished")
    else:
        yield deltas.end(run, SCRIPT.n)


def say(level: str, text: str):
    return {"kind": "notice", "notice": {"level": level, "text": text} if text else None}


def no_recording():
    return {**say("bad", "There are no recordings here."), "refused": True}


def resync():
    return deltas.snapshot(SCRIPT.run, SCRIPT.n, SCRIPT.log(), SCRIPT.header, "session", False)


def stage_lookup(question: dict[str, Any]) -> dict[str, Any]:
    if question["request"] not in SCRIPT.tables:
        return {"ok": False, "reason": "This session expired. The recording is still here; press Generate for a new run."}
    time.sleep(0.05)
    return lookup_answer(
        question["request"], question["query_position"], question["key_position"], question["layer"], question["head"],
        SCRIPT.tables[question["request"]],
    )  # fmt: skip


def stage_view(question: dict[str, Any]) -> dict[str, Any]:
    """The real views of the scripted run, from a real trace of its events."""
    if question.get("run") != SCRIPT.run:
        return {"ok": False, "reason": "This run is not kept any more. Press Generate for a new one."}
    trace = Trace(TraceHeader(**SCRIPT.header))
    for event in SCRIPT.log():
        trace.append(event)

    def lookup(request: str, query: int, key: int, layer: int, head: int) -> dict[str, Any]:
        return lookup_answer(request, query, key, layer, head, SCRIPT.tables[request])

    return view(Source(trace, lookup, {"weights": 538_060_800, "captured vectors": 31_457_280}), question)


def build() -> gr.Blocks:
    with gr.Blocks(title="Pagewalk harness", fill_width=True) as demo:
        gr.HTML(header_html(), elem_id="pw-header")
        with gr.Tabs(elem_id="pw-tabs", selected=os.environ.get("TAB", "playground")):
            with gr.Tab("Playground", id="playground"):
                with gr.Row(elem_id="pw-controls"):
                    gr.Dropdown(
                        ["SmolLM2-135M"], value="SmolLM2-135M", show_label=False, container=False, elem_id="model", scale=0
                    )
                    prompt = gr.Textbox(
                        "The capital of France is", show_label=False, container=False, elem_id="prompt", scale=1
                    )
                    scenario = gr.Textbox("mid:72", show_label=False, container=False, elem_id="examples", scale=0)
                    go = gr.Button("Generate", variant="primary", elem_id="generate", scale=0)
                    gr.Button("Stop", elem_id="stop", scale=0, interactive=False)
                    gr.Button("Step", elem_id="step", scale=0)
                gr.HTML('<div class="pw-status" role="status"></div>', elem_id="status")
                stage = Stage(
                    deltas.empty(HEADER, "session"), server_functions=[stage_lookup, stage_view],
                    actions=["export", "import", "link"],
                )  # fmt: skip
                rate = gr.Number(0, elem_id="rate", visible="hidden")
            with gr.Tab("About", id="about"):
                gr.Markdown("A second tab, so that the Stage can be hidden first.")
        go.click(play, [scenario, rate], stage, show_progress="hidden", api_name="play", concurrency_limit=4)
        gr.api(say, api_name="say_api")
        prompt.submit(lambda text: say(*text.split("|", 1)), prompt, stage, show_progress="hidden", api_name="say")
        stage.open_recording(no_recording, None, stage, show_progress="hidden", concurrency_limit=None)
        stage.resync(resync, None, stage, show_progress="hidden", concurrency_limit=None, trigger_mode="always_last")
    return demo


if __name__ == "__main__":
    build().queue().launch(
        server_port=int(os.environ.get("PORT", 7870)), theme=theme(), css=page_css(), head=head(), quiet=True,
        app_kwargs={"routes": served.routes()},
    )  # fmt: skip
