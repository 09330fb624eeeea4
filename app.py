"""The page: builds it and starts it. Also the entry point of the Space.

    python app.py [--host 127.0.0.1] [--port 7860]

No cache logic (engine), no figure logic (viz), no handlers (web) here.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from pathlib import Path

import gradio as gr

from engine.session import SessionStore
from engine.version import VERSION
from viz.theme import head, header_html, page_css, theme
from web import kernel_lab_tab, worked_tab
from web.api import Api
from web.host import Host
from web.playground import playground

HERE = Path(__file__).parent
log = logging.getLogger("pagewalk")


def build(host: Host) -> gr.Blocks:
    """The whole page."""
    with gr.Blocks(title="Pagewalk", fill_width=True) as demo:
        gr.HTML(header_html(), elem_id="pw-header")
        with gr.Tabs(elem_id="pw-tabs"):
            with gr.Tab("Playground", id="playground"):
                playground(host, demo)
            with gr.Tab("Worked lookup", id="worked"):
                worked_tab.build()
            with gr.Tab("Kernel lab", id="lab"):
                kernel_lab_tab.build()
            with gr.Tab("About", id="about"):
                gr.Markdown((HERE / "viz" / "about.md").read_text(encoding="utf-8"), elem_id="pw-about")
        Api(host).bind()
        demo.unload(host.close)
    return demo


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
