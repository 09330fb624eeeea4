"""The page: builds it and starts it. Also the entry point of the Space.

    python app.py [--host 127.0.0.1] [--port 7860]

No cache logic (engine), no figure logic (viz), no handlers (web) here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
from pathlib import Path

with contextlib.suppress(ImportError):
    import spaces  # noqa: F401  on ZeroGPU it has to come before torch; elsewhere it is not installed

import gradio as gr

from engine.errors import ConfigError, ModelError
from engine.limits import MIB
from engine.version import VERSION
from viz.theme import head, header_html, page_css, theme
from web import kernel_lab_tab, worked_tab
from web.api import Api
from web.folders import use_writable_folders
from web.health import Health
from web.host import Host
from web.playground import playground
from web.process import app_kwargs, listen_for_signals, make_host, run_until, sweep_in_background

HERE = Path(__file__).parent
log = logging.getLogger("pagewalk")


def build(host: Host) -> gr.Blocks:
    """The whole page."""
    health = Health(host)
    with gr.Blocks(title="Pagewalk", fill_width=True, analytics_enabled=False) as demo:
        gr.HTML(header_html(), elem_id="pw-header")
        with gr.Tabs(elem_id="pw-tabs"):
            with gr.Tab("Playground", id="playground"):
                playground(host, demo)
            with gr.Tab("Worked lookup", id="worked"):
                worked_tab.build()
            with gr.Tab("Kernel lab", id="lab"):
                kernel_lab_tab.build()
            with gr.Tab("About", id="about") as about:
                gr.Markdown((HERE / "viz" / "about.md").read_text(encoding="utf-8"), elem_id="pw-about")
                build_line = gr.HTML(health.line(), elem_id="pw-build")
                about.select(health.line, None, build_line, queue=False, show_progress="hidden", api_visibility="private")
        Api(host).bind()
        demo.unload(host.close)
    return demo


def queue(demo: gr.Blocks) -> None:
    """Gradio's queue, looking for work 50 times a second instead of 1,000: each look takes the GIL from the forward pass.

    Who waits, waits in ours (engine.turns), which says the place; Gradio's is only the last bound.
    """
    demo.queue(default_concurrency_limit=None, max_size=1000)
    demo._queue.sleep_when_free = 0.02
    demo._queue.progress_update_sleep_when_free = 0.1


def launch(host: Host, server_name: str, server_port: int | None = None) -> gr.Blocks:
    """Starts the server (port None: the first free one from 7860), and the model in the background. Returns at once."""
    host.shelf.request(None)
    sweep_in_background(host.store)
    demo = build(host)
    queue(demo)
    limits = host.store.limits
    demo.launch(
        server_name=server_name,
        server_port=server_port,
        theme=theme(),
        css=page_css(),
        head=head(),
        prevent_thread_lock=True,
        quiet=True,
        ssr_mode=False,
        show_error=False,  # what goes wrong on purpose is a gr.Error or a notice; the rest goes to the log
        max_threads=2 * limits.max_sessions + 16,  # each page that follows a run keeps one; a lookup must never wait for it
        max_file_size=limits.max_upload_mb * MIB,
        run_history=False,
        footer_links=["api", "settings"],
        mcp_server=importlib.util.find_spec("mcp") is not None,
        app_kwargs=app_kwargs(host, demo),
    )
    return demo


def main() -> None:
    parser = argparse.ArgumentParser(description="Pagewalk: watch a model's paged KV cache.")
    env = os.environ
    parser.add_argument("--host", default=env.get("HOST") or env.get("GRADIO_SERVER_NAME") or "127.0.0.1")
    parser.add_argument("--port", type=int, default=int(env.get("PORT") or env.get("GRADIO_SERVER_PORT") or "7860"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", datefmt="%H:%M:%S")
    for noisy in ("httpx", "httpcore", "asyncio", "mcp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    log.info("Pagewalk %s on http://%s:%d", VERSION, args.host, args.port)
    told = listen_for_signals()
    try:
        use_writable_folders()
        host = make_host()
        demo = launch(host, args.host, args.port)
    except ConfigError as error:
        raise SystemExit(f"A setting in the environment does not work: {error}") from None
    except ModelError as error:
        raise SystemExit(str(error)) from None
    except OSError as error:
        if "empty port" not in str(error):
            raise
        raise SystemExit(f"Port {args.port} is taken. Stop what uses it, or choose another: --port {args.port + 1}") from None
    run_until(told, host, demo)


if __name__ == "__main__":
    main()
