"""One process from start to end: what its visitors share, what stands around the server, and how it stops."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from engine.limits import MIB, Limits, is_public
from engine.model_shelf import ModelShelf
from engine.session_store import SessionStore
from engine.turns import Turns
from viz import served
from web.calls import KnownCalls
from web.health import Health
from web.host import Host
from web.models import allowed_models
from web.server import AnswerHeaders, BodySize, PlainFaults, RequestRate, ShutRoutes
from web.zero import engine_maker, is_zero_gpu

log = logging.getLogger("pagewalk")

SWEEP_SECONDS = 2.0
LAST_WORDS_SECONDS = 1.0


def make_host() -> Host:
    """The shelf of models and the list of sessions, as the environment wants them. Raises ConfigError for a bad setting."""
    limits, shelf = Limits.from_environment(), ModelShelf(discreet=is_public())
    if not is_zero_gpu():
        return Host(shelf, SessionStore(limits), allowed_models())
    model = shelf.get(None)  # before the page is launched: then `spaces` packs what stands on the GPU
    turns = Turns(1, limits.max_waiting, math.inf, "a GPU")
    return Host(shelf, SessionStore(limits, engine_maker(model), turns), ())


def app_kwargs(host: Host, demo: gr.Blocks) -> dict[str, Any]:
    """Our own routes and middleware, for the server that Gradio makes."""
    limits = host.store.limits
    per_minute = limits.requests_per_minute
    middleware = [Middleware(AnswerHeaders), Middleware(ShutRoutes)]
    middleware.append(Middleware(BodySize, max_bytes=limits.max_upload_mb * MIB * 3 // 2))  # a file may come in base64
    if per_minute:
        middleware.append(Middleware(RequestRate, per_minute=per_minute, behind_proxy=is_public()))
    middleware += [Middleware(PlainFaults), Middleware(KnownCalls, demo=demo)]
    routes = [Health(host).route(), *served.routes()]
    return {"routes": routes, "middleware": middleware, "docs_url": None, "redoc_url": None}


def sweep_in_background(store: SessionStore) -> None:
    """Idle and closed sessions are forgotten within seconds of their time."""

    def sweep() -> None:
        while True:
            time.sleep(SWEEP_SECONDS)
            store.sweep()

    threading.Thread(target=sweep, name="sweeper", daemon=True).start()


def listen_for_signals() -> threading.Event:
    """Set by SIGTERM or Ctrl-C, from now on."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    return told


def run_until(told: threading.Event, host: Host, demo: gr.Blocks) -> None:
    """Waits for it; then every run ends, its page reads why, and the process ends with 0 within seconds."""
    while not told.wait(3600.0):
        pass
    log.info("stopping sessions=%d running=%d", host.store.num_sessions, host.store.turns.num_running)
    host.store.stop_all("The host is restarting. What you see stays; press Generate again in a minute.")
    time.sleep(LAST_WORDS_SECONDS)
    demo.close(verbose=False)
    log.info("stopped")
    logging.shutdown()
    os._exit(0)  # a model that is still being loaded would hold an ordinary exit up
