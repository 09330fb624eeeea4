"""The page: builds it and binds its events. Also the entry point of the Space.

    python app.py [--host 127.0.0.1] [--port 7860]

No cache logic (engine) and no figure logic (viz) here: handlers turn settings into runs, and runs into bus messages.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from engine.config import EngineConfig, SamplingParams
from engine.engine import letters
from engine.errors import PagewalkError
from engine.model_loader import DEFAULT_NAME
from engine.model_shelf import ModelShelf
from engine.session import RunSettings, Session, SessionStore, nonempty
from engine.version import VERSION
from engine.worked_example import worked_example
from viz import deltas
from viz.stage.stage import Stage
from viz.theme import head, header_html, page_css, theme

MAX_SEQUENCES = 7
DEFAULT_MODEL = os.environ.get("PAGEWALK_MODEL") or DEFAULT_NAME
HERE = Path(__file__).parent
PACE = 0.2  # seconds between two updates of a page: each takes some milliseconds from a forward pass on a small machine
EXAMPLES = {
    "The capital of France is": ["The capital of France is"],
    "Two that begin alike": [
        "You are a patient science tutor. Answer in plain words, with one small example. Why is the sky blue?",
        "You are a patient science tutor. Answer in plain words, with one small example. Why does bread rise?",
    ],
    "Emoji and accents": ["Answer with emoji only 🙂: what does a café in Zürich sell?"],
}
log = logging.getLogger("pagewalk")


class Host:
    """What one process shares among its visitors: the weights and the list of sessions. Handlers are its methods."""

    def __init__(self, shelf: ModelShelf | None = None, store: SessionStore | None = None) -> None:
        self.shelf = shelf or ModelShelf()
        self.store = store or SessionStore()

    # ---- the page's own events ------------------------------------------------------------------

    def load(self, token: str, request: gr.Request) -> Iterator[deltas.Message]:
        """A page opens: it comes back to its session, or begins one; meanwhile the model loads."""
        viewer = _viewer(request)
        try:
            session = self.store.readopt(token, viewer) if token else None
            expired = bool(token) and session is None and not self.store.knows(token)
            session = session or self.store.of_viewer(viewer)
        except PagewalkError as error:
            yield deltas.empty(_preview_header(), "", deltas.notice("bad", str(error)))
            return
        said = "This session expired. Press Generate for a new run." if expired else None
        yield self.snapshot(session, said)
        status = self.shelf.request(_model_name(None))
        while not status.ready and status.problem is None and session.trace is None:
            text = f"Loading {DEFAULT_MODEL}, {status.seconds:.0f} s so far: {status.text} Generate works when it is ready."
            yield deltas.empty(_preview_header(), session.token, deltas.notice("info", text))
            time.sleep(1.0)
            status = self.shelf.request(_model_name(None))
        if session.trace is None:
            problem = deltas.notice("bad", status.problem) if status.problem else None
            yield deltas.empty(self._header(session), session.token, problem or (said and deltas.notice("info", said)) or None)

    def generate(self, request: gr.Request, *values: Any) -> Iterator[deltas.Message]:
        """Generate: a new run to its end, or the rest of one begun with Step."""
        session: Session | None = None
        try:
            session = self.store.of_viewer(_viewer(request))
            yield from self._prepare(session, values)
            yield self.snapshot(session)
            session.start()
            for update in session.updates(PACE):
                said = deltas.notice("bad", update.problem) if update.problem else None
                yield deltas.delta(session.run_id, session.num_updates, update.events, update.running, said)
            yield deltas.end(session.run_id, session.num_updates)
        except PagewalkError as error:
            yield self._problem(session, error)

    def step(self, request: gr.Request, *values: Any) -> Iterator[deltas.Message]:
        """Step: exactly one forward pass, of a new run or of the one that waits."""
        session: Session | None = None
        try:
            session = self.store.of_viewer(_viewer(request))
            yield from self._prepare(session, values)
            yield self.snapshot(session)
            update = session.step_once()
            said = deltas.notice("bad", update.problem) if update.problem else None
            yield deltas.delta(session.run_id, session.num_updates, update.events, False, said)
            yield deltas.end(session.run_id, session.num_updates)
        except PagewalkError as error:
            yield self._problem(session, error)

    def stop(self, request: gr.Request) -> None:
        """Stop: at most the pass in progress is finished; the generator that follows the run says the last word."""
        session = self.store.of_viewer(_viewer(request))
        session.stop()

    def after_stop(self, request: gr.Request) -> deltas.Message:
        """A run that waited between two steps has no follower; its end is told here."""
        session = self.store.of_viewer(_viewer(request))
        return self.snapshot(session)

    def resync(self, request: gr.Request) -> deltas.Message:
        """The page lost an update: the whole run so far."""
        return self.snapshot(self.store.of_viewer(_viewer(request)))

    def close(self, request: gr.Request) -> None:
        self.store.close(_viewer(request))

    def stage_lookup(self, data: Any) -> dict[str, Any]:
        """The Stage asks for the numbers of one lookup. Nothing in `data` is trusted."""
        data = data if isinstance(data, dict) else {}
        return self.lookup(
            request_id=str(data.get("request", "")),
            key_position=_int(data.get("key_position")),
            query_position=None if data.get("query_position") is None else _int(data["query_position"]),
            layer=_int(data.get("layer", 0)),
            head=_int(data.get("head", 0)),
            session=str(data.get("session", "")),
        )

    # ---- inside ---------------------------------------------------------------------------------

    def snapshot(self, session: Session, said: str | None = None) -> deltas.Message:
        """Everything a page needs to show the session as it is."""
        message = deltas.notice("info", said) if said else None
        if session.trace is None:
            return deltas.empty(self._header(session), session.token, message)
        events, n = session.events_so_far()
        return deltas.snapshot(session.run_id, n, events, self._header(session), session.token, session.running, message)

    def _prepare(self, session: Session, values: tuple[Any, ...]) -> Iterator[deltas.Message]:
        """Waits for the model, saying so, and begins the run that `values` ask for unless it waits already."""
        name = _model_name(values[0])
        status = self.shelf.request(name)
        while not status.ready and status.problem is None:
            text = f"Loading {name or DEFAULT_MODEL}, {status.seconds:.0f} s so far: {status.text}"
            yield deltas.empty(self._header(session), session.token, deltas.notice("info", text))
            time.sleep(0.5)
            status = self.shelf.request(name)
        model = self.shelf.get(name)
        settings = _settings(values[1 : 1 + MAX_SEQUENCES], values[1 + MAX_SEQUENCES :])
        if not session.can_continue(model, settings):
            session.begin(model, settings)

    def _problem(self, session: Session | None, error: PagewalkError) -> deltas.Message:
        said = deltas.notice("bad", str(error))
        if session is None or session.trace is None:
            return deltas.empty(self._header(session), session.token if session else "", said)
        if session.running:  # the run that was in the way goes on
            return deltas.say(said)
        return deltas.end(session.run_id, session.num_updates, said)

    def _header(self, session: Session | None) -> dict[str, Any]:
        if session is None or session.trace is None:
            return _preview_header()
        return dataclasses.asdict(session.trace.header)

    # ---- the API (also used by scripts) -----------------------------------------------------------

    def api_generate(
        self,
        request: gr.Request,
        prompt: str = "",
        max_tokens: int = 32,
        prompts: list[str] | None = None,
        n: int = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        chat: bool = False,
        block_size: int = 16,
        num_blocks: int = 128,
    ) -> Iterator[dict[str, Any]]:
        """Generate through the paged cache. Streams the state of the run; the last message has every text.

        Args:
            prompt: one prompt. prompts: several, instead. max_tokens: new tokens for each. n: sequences for each prompt.
            temperature: 0 is greedy. top_p, top_k, seed: sampling. chat: use the model's chat template.
            block_size: slots a block. num_blocks: blocks in the pool.
        """
        try:
            session = self.store.of_viewer(_viewer(request))
            model = self.shelf.get(_model_name(None))
            params = SamplingParams(max_tokens=max_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
            config = EngineConfig(block_size=block_size, num_blocks=num_blocks)
            session.begin(model, RunSettings(nonempty(prompts or [prompt]), config, params, chat))
        except PagewalkError as error:
            raise gr.Error(str(error)) from None
        session.start()
        for update in session.updates(PACE):
            yield {**_outputs(session), "running": update.running, "problem": update.problem}

    def api_state(self, session: str = "", step: int = -1, request: gr.Request | None = None) -> dict[str, Any]:
        """The cache after a step of the session's run: tables, reference counts, counts of blocks.

        Args:
            session: the token that the page or /generate gave; empty for the caller's own. step: -1 for the newest.
        """
        try:
            found = self._session(session, request)
            if found.trace is None or found.engine is None:
                raise PagewalkError("This session has no run yet. Generate first.")
            with found.engine.lock:
                state = found.trace.state_at(step if step >= 0 else found.trace.last_step)
        except PagewalkError as error:
            raise gr.Error(str(error)) from None
        return {
            "step": state.step,
            "num_blocks": state.num_blocks,
            "block_size": state.block_size,
            "used": state.num_used_blocks,
            "shared": state.num_shared_blocks,
            "cached": state.num_cached_blocks,
            "ref_cnt": state.ref_cnt,
            "requests": {
                r.request_id: {
                    "status": r.status,
                    "num_tokens": len(r.tokens),
                    "num_computed_tokens": r.num_computed_tokens,
                    "block_table": r.block_table,
                }
                for r in state.requests.values()
            },
        }

    def api_lookup(
        self,
        request: gr.Request,
        session: str = "",
        request_id: str = "A",
        key_position: int = 0,
        query_position: int = -1,
        layer: int = 0,
        head: int = 0,
    ) -> dict[str, Any]:
        """Follow one token to its block, slot, address, key, score and weight, checked against dense attention.

        Args:
            session: the token that the page or /generate gave; empty for the caller's own. request_id: the sequence's letter.
            key_position: the token looked up. query_position: the token that asks; -1 for the newest with a slot.
            layer, head: which query head of which layer.
        """
        query = None if query_position < 0 else query_position
        return self.lookup(request_id, key_position, query, layer, head, session, request)

    def lookup(
        self,
        request_id: str,
        key_position: int,
        query_position: int | None,
        layer: int,
        head: int,
        session: str,
        request: gr.Request | None = None,
    ) -> dict[str, Any]:
        """`Lookup.to_dict()`, or {"ok": False, "reason": ...}."""
        try:
            found = self._session(session, request)
            if found.engine is None:
                raise PagewalkError("This session has no run yet. Press Generate.")
            return found.engine.lookup(request_id, query_position, key_position, layer, head).to_dict()
        except PagewalkError as error:
            return {"ok": False, "reason": str(error)}

    def api_worked_example(self) -> dict[str, Any]:
        """The worked lookup: block table [7, 2, 15], token 20, every number of its six steps."""
        return worked_example().to_dict()

    def _session(self, token: str, request: gr.Request | None) -> Session:
        if token or request is None:
            return self.store.by_token(token)
        return self.store.of_viewer(_viewer(request))


def build(host: Host) -> gr.Blocks:
    """The whole page."""
    with gr.Blocks(title="Pagewalk", fill_width=True) as demo:
        gr.HTML(header_html(), elem_id="pw-header")
        with gr.Tabs(elem_id="pw-tabs"):
            with gr.Tab("Playground", id="playground"):
                _playground(host, demo)
            with gr.Tab("About", id="about"):
                gr.Markdown((HERE / "viz" / "about.md").read_text(encoding="utf-8"), elem_id="pw-about")
        gr.api(host.api_generate, api_name="generate", concurrency_limit=8)
        gr.api(host.api_lookup, api_name="lookup", queue=False)
        gr.api(host.api_state, api_name="state", queue=False)
        gr.api(host.api_worked_example, api_name="worked_example", queue=False)
        demo.unload(host.close)
    return demo


def _playground(host: Host, demo: gr.Blocks) -> None:
    with gr.Row(elem_id="pw-controls", equal_height=False):
        model = gr.Dropdown(
            [(DEFAULT_MODEL.removesuffix("-Instruct"), DEFAULT_MODEL)], value=DEFAULT_MODEL, allow_custom_value=True,
            label="Model", show_label=False, elem_id="model", min_width=176, scale=0,
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
            [("Examples", ""), *((name, name) for name in EXAMPLES)], value="", label="Examples", show_label=False,
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

    stage = Stage(server_functions=[stage_lookup])
    session_box = gr.Textbox(visible=False)

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
    examples.input(_use_example, examples, [examples, count, which, *prompts], show_progress="hidden", api_visibility="private")
    demo.load(host.load, session_box, stage, js="() => [sessionStorage.getItem('pagewalk-session') || '']", **run)


def _settings_inputs() -> list[gr.components.Component]:
    return [
        gr.Number(128, label="Blocks in the pool", precision=0, elem_id="num-blocks", min_width=120),
        gr.Number(16, label="Slots a block", precision=0, elem_id="block-size", min_width=120),
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


def _settings(prompts: tuple[Any, ...], values: tuple[Any, ...]) -> RunSettings:
    """The run that the page's controls ask for. Raises PagewalkError, naming the setting, where one is absurd."""
    num_blocks, block_size, max_tokens, n, temperature, top_p, top_k, seed, chat, prefix_caching, ignore_eos = values
    config = EngineConfig(block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=bool(prefix_caching))
    params = SamplingParams(
        max_tokens=max_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, ignore_eos=bool(ignore_eos)
    )
    return RunSettings(nonempty(prompts), config, params, bool(chat))


def _pool_label(num_blocks: Any, block_size: Any) -> str:
    return f"{num_blocks or 0:,} blocks × {block_size or 0:,}"


def _add_prompt(count: int) -> tuple[int, Any]:
    count = min(count + 1, MAX_SEQUENCES)
    names = [letters(i) for i in range(count)]
    return count, gr.update(choices=names, value=names[-1])


def _use_example(name: str) -> list[Any]:
    """Fills the prompt boxes; the box of examples shows its title again."""
    texts = EXAMPLES.get(name)
    if texts is None:
        return [gr.skip()] * (3 + MAX_SEQUENCES)
    names = [letters(i) for i in range(len(texts))]
    return ["", len(texts), gr.update(choices=names, value="A"), *texts, *[""] * (MAX_SEQUENCES - len(texts))]


def _outputs(session: Session) -> dict[str, Any]:
    engine = session.engine
    assert engine is not None
    with engine.lock:
        outputs = [engine.output(request_id) for request_id in engine.requests]
        return {
            "session": session.token,
            "step": engine.step_count,
            "requests": [o.request_id for o in outputs],
            "texts": [o.text for o in outputs],
            "token_ids": [o.token_ids for o in outputs],
            "finish_reasons": [o.finish_reason for o in outputs],
        }


def _preview_header() -> dict[str, Any]:
    """What is known before there is an engine: the default pool."""
    config = EngineConfig()
    return {
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "model": DEFAULT_MODEL,
        "version": VERSION,
    }


def _model_name(value: Any) -> str | None:
    """The shelf's name of what the model box says: None is the default, which PAGEWALK_MODEL may replace."""
    name = str(value or "").strip()
    return None if name in ("", DEFAULT_MODEL) else name


def _viewer(request: gr.Request | None) -> str:
    return (request.session_hash if request else None) or "anonymous"


def _int(value: Any) -> int:
    """`value` as an int, or -1, which no lookup accepts."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def queue(demo: gr.Blocks) -> None:
    """Gradio's queue, looking for work 50 times a second instead of 1,000: each look takes the GIL from the forward pass."""
    demo.queue(default_concurrency_limit=8, max_size=64)
    demo._queue.sleep_when_free = 0.02
    demo._queue.progress_update_sleep_when_free = 0.1


def launch(host: Host, server_name: str, server_port: int, block: bool = True) -> gr.Blocks:
    """Starts the server, and the model in the background."""
    host.shelf.request(None)
    sweeper = threading.Thread(target=_sweep_for_ever, args=(host.store,), daemon=True)
    sweeper.start()
    demo = build(host)
    queue(demo)
    demo.launch(
        server_name=server_name,
        server_port=server_port,
        theme=theme(),
        css=page_css(),
        head=head(),
        prevent_thread_lock=not block,
        quiet=True,
        ssr_mode=False,
        show_error=False,  # what goes wrong on purpose is a gr.Error or a notice; the rest goes to the log
    )
    return demo


def _sweep_for_ever(store: SessionStore) -> None:
    while True:
        time.sleep(5.0)
        store.sweep()


def main() -> None:
    parser = argparse.ArgumentParser(description="Pagewalk: watch a model's paged KV cache.")
    parser.add_argument("--host", default=os.environ.get("HOST", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "7860")))
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", datefmt="%H:%M:%S")
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    log.info("Pagewalk %s on http://%s:%d", VERSION, args.host, args.port)
    try:
        launch(Host(), args.host, args.port)
    except OSError as error:
        if "empty port" not in str(error):
            raise
        raise SystemExit(f"Port {args.port} is taken. Stop what uses it, or choose another: --port {args.port + 1}") from None


if __name__ == "__main__":
    main()
