"""/health for whatever watches the process, and the line that says what runs where."""

from __future__ import annotations

import html
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from engine.version import VERSION
from kernels.dispatch import choose_backend
from web.host import DEFAULT_MODEL, Host


class Health:
    """Answers without the queue, the model or a session."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.began = time.monotonic()

    def route(self) -> Route:
        return Route("/health", self.answer, methods=["GET"])

    async def answer(self, request: Request) -> JSONResponse:
        facts = self.facts()
        return JSONResponse(facts, 200 if facts["status"] in ("ok", "loading") else 503, {"cache-control": "no-store"})

    def facts(self) -> dict[str, Any]:
        """status: "ok"; "loading", the model; "failed", it cannot be loaded; "stopping", the process ends."""
        store, loading = self.host.store, self.host.shelf.request(None)
        status = "ok" if loading.ready else "failed" if loading.problem else "loading"
        return {
            "status": "stopping" if store.stopping else status,
            "version": VERSION,
            "model": DEFAULT_MODEL,
            "model_ready": loading.ready,
            "backend": self.backend(),
            "sessions": store.num_sessions,
            "running": store.turns.num_running,
            "waiting": store.turns.num_waiting,
            "held_mib": round(store.budget.num_bytes / 2**20),
            "budget_mib": round(store.budget.total / 2**20),
            "uptime_s": round(time.monotonic() - self.began, 1),
        }

    def backend(self) -> dict[str, str] | None:
        """Device, dtype, attention and the reason for it; None until the model is there."""
        if not self.host.shelf.request(None).ready:
            return None
        model = self.host.shelf.get(None)
        choice = choose_backend("auto", model.device, model.dtype, model.head_dim)
        dtype = str(model.dtype).removeprefix("torch.")
        return {"device": str(model.device), "dtype": dtype, "attention": choice.name, "reason": choice.reason}

    def line(self) -> str:
        """One paragraph of HTML for the page: version, model, device, backend and why."""
        backend = self.backend()
        said = f"Pagewalk {VERSION} · {DEFAULT_MODEL}"
        if backend is None:
            said += " · the model is still loading"
        else:
            said += f" in {backend['dtype']} on {backend['device']} · attention: {backend['attention']}. {backend['reason']}"
        return f'<p class="pw-build">{html.escape(said)}</p>'
