"""The Playground tab: prompts, buttons, settings and the Stage, bound to the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from engine.engine import letters
from engine.limits import MIB
from engine.run_settings import RunSettings
from engine.scenarios import SCENARIOS, Scenario, family, listed
from viz.stage.stage import Stage
from web.host import DEFAULT_MODEL, MAX_SEQUENCES, Host, control_values

# The session of a reloaded tab, the example that a link names, and whether the tab was reloaded.
ON_LOAD = """() => [
  sessionStorage.getItem('pagewalk-session') || '', new URLSearchParams(location.search).get('example') || '',
  performance.getEntriesByType('navigation')[0]?.type === 'reload' ? 'yes' : '',
]"""
ON_LINK = "() => ['example', 'seed'].map(name => new URLSearchParams(location.search).get(name) || '')"
DOWNLOAD = """file => {
  if (!file) return;
  const link = Object.assign(document.createElement('a'), { href: file.url, download: file.orig_name });
  link.click();
}"""


def playground(host: Host, demo: gr.Blocks) -> None:
    """Inside a tab of `demo`."""
    with gr.Row(elem_id="pw-controls", equal_height=False):
        model = gr.Dropdown(
            [(DEFAULT_MODEL.removesuffix("-Instruct"), DEFAULT_MODEL), *(host.models or ())], value=DEFAULT_MODEL,
            allow_custom_value=True, label="Model", show_label=False, elem_id="model", min_width=176, scale=0,
        )  # fmt: skip
        with gr.Row(elem_id="pw-prompt", scale=1):
            which = gr.Radio(
                ["A"], value="A", label="Prompt of sequence", show_label=False, container=False, elem_id="prompt-of"
            )
            add = gr.Button("+", elem_id="prompt-add", min_width=28, scale=0)
            prompts = [
                gr.Textbox(
                    value="The capital of France is" if i == 0 else "",
                    placeholder="Type a prompt, or pick an example",
                    label=f"Prompt {letters(i)}",
                    show_label=False,
                    container=False,
                    max_lines=1,
                    elem_id="prompt" if i == 0 else f"prompt-{letters(i)}",
                    elem_classes=["pw-prompt-box"],
                )
                for i in range(MAX_SEQUENCES)
            ]
        examples = gr.Dropdown(
            [("Examples", ""), *((_title(s), s.id) for s in listed())], value="", label="Examples", show_label=False,
            filterable=False, elem_id="examples", min_width=116, scale=0,
        )  # fmt: skip
        generate = gr.Button("Generate", variant="primary", elem_id="generate", scale=0, min_width=120)
        stop = gr.Button("Stop", elem_id="stop", scale=0, min_width=84)
        step = gr.Button("Step", elem_id="step", scale=0, min_width=84)
    with gr.Row(elem_id="pw-status-row"):
        gr.HTML('<div class="pw-status" role="status"></div>', elem_id="status")
        settings_toggle = gr.Button("128 blocks × 16", elem_id="settings-toggle", scale=0, min_width=120)
    with gr.Row(elem_id="settings"):
        settings = _settings_inputs()

    def stage_lookup(question: Any) -> dict[str, Any]:
        return host.stage_lookup(question)

    def stage_view(question: Any) -> dict[str, Any]:
        return host.stage_view(question)

    stage = Stage(
        server_functions=[stage_lookup, stage_view],
        actions=["export", "import", "link"],
        max_import_bytes=host.store.limits.max_upload_mb * MIB,
    )
    export_file = gr.File(visible="hidden", elem_id="export-file")
    session_box, example_box, reload_box, seed_box = (gr.Textbox(visible=False) for _ in range(4))

    def open_recording(event: gr.EventData, request: gr.Request) -> list[Any]:
        return open_example(event._data.get("example") if isinstance(event._data, dict) else None, request)

    def open_example(example: Any, request: gr.Request) -> list[Any]:
        """The recording into the Stage, and into the controls what makes Generate run it again."""
        message, recording = host.open_recording(example, request)
        if recording is None or recording.scenario is None:
            return [message, *[gr.skip()] * len(opened[1:])]
        return [message, "", *_controls(recording.scenario.run)]

    def link_controls(example: str, seed: str) -> list[Any]:
        """A link to an example: Generate runs it, with the link's seed."""
        scenario = SCENARIOS.get(example)
        if scenario is None:
            return [gr.skip()] * len(opened[1:])
        params = scenario.run.params
        if seed.isdecimal() and len(seed) < 10:
            params = replace(params, seed=int(seed))
        return ["", *_controls(replace(scenario.run, params=params))]

    def import_run(event: gr.EventData, request: gr.Request) -> Any:
        return host.import_file(event._data, request)

    inputs = [model, *prompts, *settings]
    run: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}
    for trigger in (generate.click, *(box.submit for box in prompts)):
        trigger(host.generate, inputs, stage, trigger_mode="once", api_name="page_generate", **run)
    step.click(host.step, inputs, stage, trigger_mode="once", **run)
    stop.click(host.stop, None, None, queue=False, api_visibility="private").then(host.after_stop, None, stage, **run)
    stage.resync(host.resync, None, stage, trigger_mode="always_last", **run)
    settings_toggle.click(None, None, None, js="() => document.getElementById('settings').classList.toggle('open')")
    settings[0].change(_pool_label, settings[:2], settings_toggle, show_progress="hidden", api_visibility="private")
    settings[1].change(_pool_label, settings[:2], settings_toggle, show_progress="hidden", api_visibility="private")
    which.change(None, which, None, js="(letter) => { document.getElementById('pw-prompt').dataset.letter = letter }")
    count = gr.State(1)
    add.click(_add_prompt, count, [count, which], show_progress="hidden", api_visibility="private")
    opened = [stage, examples, count, which, *prompts, *settings]
    examples.input(open_example, examples, opened, **run)
    stage.open_recording(open_recording, None, opened, trigger_mode="always_last", **run)
    exported = stage.export_run(host.export, None, [stage, export_file], **run)
    exported.then(None, export_file, None, js=DOWNLOAD)
    stage.import_run(import_run, None, stage, **run)
    demo.load(host.load, [session_box, example_box, reload_box], stage, js=ON_LOAD, **run)
    demo.load(link_controls, [example_box, seed_box], opened[1:], js=ON_LINK, **run)


def _settings_inputs() -> list[gr.components.Component]:
    return [
        gr.Number(128, label="Blocks in the pool", precision=0, elem_id="num-blocks", min_width=120),
        gr.Number(16, label="Slots a block", precision=0, elem_id="block-size", min_width=120),
        gr.Number(512, label="Tokens a step", precision=0, elem_id="max-num-batched-tokens", min_width=120),
        gr.Number(0, label="Steps between prompts", precision=0, elem_id="stagger", min_width=120),
        gr.Number(64, label="New tokens", precision=0, elem_id="max-tokens", min_width=120),
        gr.Number(1, label="Sequences a prompt", precision=0, elem_id="n", min_width=120),
        gr.Number(0.0, label="Temperature", elem_id="temperature", min_width=120),
        gr.Number(1.0, label="Top p", elem_id="top-p", min_width=120),
        gr.Number(0, label="Top k", precision=0, elem_id="top-k", min_width=120),
        gr.Number(0, label="Seed", precision=0, elem_id="seed", min_width=120),
        gr.Checkbox(False, label="Chat template", elem_id="chat", min_width=120),
        gr.Checkbox(True, label="Prefix caching", elem_id="prefix-caching", min_width=120),
        gr.Checkbox(False, label="Go on past end of text", elem_id="ignore-eos", min_width=120),
    ]


def _pool_label(num_blocks: Any, block_size: Any) -> str:
    return f"{num_blocks or 0:,} blocks × {block_size or 0:,}"


def _add_prompt(count: int) -> tuple[int, Any]:
    count = min(count + 1, MAX_SEQUENCES)
    names = [letters(i) for i in range(count)]
    return count, gr.update(choices=names, value=names[-1])


def _controls(run: RunSettings) -> list[Any]:
    """Number of prompts, their chooser, their boxes, then the settings."""
    texts, values = control_values(run)
    names = [letters(i) for i in range(len(texts))]
    return [len(texts), gr.update(choices=names, value="A"), *texts, *[""] * (MAX_SEQUENCES - len(texts)), *values]


def _title(scenario: Scenario) -> str:
    sizes = [str(s.run.config.block_size) for s in family(scenario)]
    return f"Block size: {', '.join(sizes[:-1])} or {sizes[-1]}" if sizes else scenario.title
