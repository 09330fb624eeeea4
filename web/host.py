"""What one process shares among its visitors, and the page's own events: settings become runs, runs become bus messages."""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from engine.config import EngineConfig, SamplingParams
from engine.errors import PagewalkError
from engine.model_loader import DEFAULT_NAME
from engine.model_shelf import ModelShelf
from engine.session import RunSettings, Session, nonempty
from engine.session_store import SessionStore
from engine.version import VERSION
from viz import deltas
from web.models import check_model

MAX_SEQUENCES = 7
DEFAULT_MODEL = os.environ.get("PAGEWALK_MODEL") or DEFAULT_NAME
PACE = 0.2  # seconds between two updates of a page: each takes some milliseconds from a forward pass on a small machine


class Host:
    """What one process shares among its visitors: the weights and the list of sessions. Handlers are its methods."""

    def __init__(
        self, shelf: ModelShelf | None = None, store: SessionStore | None = None, models: tuple[str, ...] | None = None
    ) -> None:
        self.shelf = shelf or ModelShelf()
        self.store = store or SessionStore()
        self.models = models  # what a visitor may choose beside the default; None: any

    # ---- the page's own events ------------------------------------------------------------------

    def load(self, token: str, request: gr.Request) -> Iterator[deltas.Message]:
        """A page opens: it comes back to its session, or begins one; meanwhile the model loads."""
        viewer = viewer_of(request)
        try:
            session = self.store.readopt(token, viewer) if token else None
            expired = bool(token) and session is None and not self.store.knows(token)
            session = session or self.store.of_viewer(viewer)
        except PagewalkError as error:
            yield deltas.empty(preview_header(), "", deltas.notice("bad", str(error)))
            return
        said = "This session expired. Press Generate for a new run." if expired else None
        yield self.snapshot(session, said)
        status = self.shelf.request(model_name(None))
        while not status.ready and status.problem is None and session.trace is None:
            text = f"Loading {DEFAULT_MODEL}, {status.seconds:.0f} s so far: {status.text} Generate works when it is ready."
            yield deltas.empty(preview_header(), session.token, deltas.notice("info", text))
            time.sleep(1.0)
            status = self.shelf.request(model_name(None))
        if session.trace is None:
            problem = deltas.notice("bad", status.problem) if status.problem else None
            yield deltas.empty(self._header(session), session.token, problem or (said and deltas.notice("info", said)) or None)

    def generate(self, request: gr.Request, *values: Any) -> Iterator[deltas.Message]:
        """Generate: a new run to its end, or the rest of one begun with Step."""
        session: Session | None = None
        try:
            session = self.store.of_viewer(viewer_of(request))
            yield from self._prepare(session, values)
            yield self.snapshot(session)
            session.start()
            for update in session.updates(PACE):
                said = deltas.notice("bad", update.problem) if update.problem else None
                if update.place:
                    said = deltas.notice("info", session.turns.sentence(update.place))
                yield deltas.delta(session.run_id, session.num_updates, update.events, update.running, said)
            yield deltas.end(session.run_id, session.num_updates)
        except PagewalkError as error:
            yield self._problem(session, error)

    def step(self, request: gr.Request, *values: Any) -> Iterator[deltas.Message]:
        """Step: exactly one forward pass, of a new run or of the one that waits."""
        session: Session | None = None
        try:
            session = self.store.of_viewer(viewer_of(request))
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
        session = self.store.of_viewer(viewer_of(request))
        session.stop()

    def after_stop(self, request: gr.Request) -> deltas.Message:
        """A run that waited between two steps has no follower; its end is told here."""
        session = self.store.of_viewer(viewer_of(request))
        return self.snapshot(session)

    def resync(self, request: gr.Request) -> deltas.Message:
        """The page lost an update: the whole run so far."""
        return self.snapshot(self.store.of_viewer(viewer_of(request)))

    def close(self, request: gr.Request) -> None:
        self.store.close(viewer_of(request))

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
        name = model_name(values[0])
        check_model(name, self.models, DEFAULT_MODEL)
        status = self.shelf.request(name)
        while not status.ready and status.problem is None:
            text = f"Loading {name or DEFAULT_MODEL}, {status.seconds:.0f} s so far: {status.text}"
            yield deltas.empty(self._header(session), session.token, deltas.notice("info", text))
            time.sleep(0.5)
            status = self.shelf.request(name)
        model = self.shelf.get(name)
        settings = page_settings(values[1 : 1 + MAX_SEQUENCES], values[1 + MAX_SEQUENCES :])
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
            return preview_header()
        return dataclasses.asdict(session.trace.header)

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
            found = self.session_of(session, request)
            return found.engine_for_lookups().lookup(request_id, query_position, key_position, layer, head).to_dict()
        except PagewalkError as error:
            return {"ok": False, "reason": str(error)}

    def session_of(self, token: str, request: gr.Request | None) -> Session:
        if token or request is None:
            return self.store.by_token(token)
        if not _hash_of(request):
            raise PagewalkError("Give the session that /generate answered with.")
        return self.store.of_viewer(viewer_of(request))


def page_settings(prompts: tuple[Any, ...], values: tuple[Any, ...]) -> RunSettings:
    """The run that the page's controls ask for. Raises PagewalkError, naming the setting, where one is absurd."""
    num_blocks, block_size, max_tokens, n, temperature, top_p, top_k, seed, chat, prefix_caching, ignore_eos = values
    config = EngineConfig(block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=bool(prefix_caching))
    params = SamplingParams(
        max_tokens=max_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, ignore_eos=bool(ignore_eos)
    )
    return RunSettings(nonempty(prompts), config, params, bool(chat))


def preview_header() -> dict[str, Any]:
    """What is known before there is an engine: the default pool."""
    config = EngineConfig()
    return {
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "model": DEFAULT_MODEL,
        "version": VERSION,
    }


def model_name(value: Any) -> str | None:
    """The shelf's name of what the model box says: None is the default, which PAGEWALK_MODEL may replace."""
    name = str(value or "").strip()
    return None if name in ("", DEFAULT_MODEL) else name


def viewer_of(request: gr.Request | None) -> str:
    """Who asks: one open page, or one client. A caller without a name of its own is somebody new each time."""
    return _hash_of(request) or f"once-{secrets.token_urlsafe(12)}"


def _hash_of(request: gr.Request | None) -> str | None:
    """Gradio's name of the page or client; None over MCP, where one client of Gradio's own stands for all callers."""
    headers = getattr(request, "headers", None) or {}
    if request is None or headers.get("x-gradio-user") == "mcp":
        return None
    return getattr(request, "session_hash", None)


def _int(value: Any) -> int:
    """`value` as an int, or -1, which no lookup accepts."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
