"""What one process shares among its visitors, and the page's own events: settings become runs, runs become bus messages."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from engine.config import EngineConfig, SamplingParams
from engine.errors import PagewalkError
from engine.exchange import export_recording, import_recording
from engine.limits import MIB
from engine.lookup import look_up
from engine.model_loader import DEFAULT_NAME
from engine.model_shelf import ModelShelf
from engine.recording_shelf import Recording, RecordingShelf
from engine.run_settings import RunSettings
from engine.session import EXPIRED as SESSION_EXPIRED
from engine.session import Session, nonempty
from engine.session_store import SessionStore
from engine.trace import Trace
from engine.version import VERSION
from viz import deltas
from web.models import check_model
from web.recordings import link_of, recording_header, uploaded_file
from web.views import recorded, shown_by, view

MAX_SEQUENCES = 7
DEFAULT_MODEL = os.environ.get("PAGEWALK_MODEL") or DEFAULT_NAME
EXPIRED = "This session expired. The recording is still here; press Generate for a new run."
PACE = 0.2  # seconds between two updates of a page: each takes some milliseconds from a forward pass on a small machine


class Host:
    """What one process shares among its visitors: weights, recordings and the list of sessions. Handlers are its methods."""

    def __init__(
        self,
        shelf: ModelShelf | None = None,
        store: SessionStore | None = None,
        models: tuple[str, ...] | None = None,
        recordings: RecordingShelf | None = None,
    ) -> None:
        self.shelf = shelf or ModelShelf()
        self.store = store or SessionStore()
        self.models = models  # what a visitor may choose beside the default; None: any
        self.recordings = recordings or RecordingShelf()

    # ---- the page's own events ------------------------------------------------------------------

    def load(self, token: str, example: str, reloaded: str, request: gr.Request) -> Iterator[deltas.Message]:
        """A page opens: it comes back to its session, or plays a recording; meanwhile the model loads."""
        viewer = viewer_of(request)
        try:
            session = self.store.readopt(token, viewer) if token else None
            expired = bool(token) and session is None and not self.store.knows(token)
            session = session or self.store.of_viewer(viewer)
        except PagewalkError as error:
            yield deltas.empty(preview_header(), "", deltas.notice("bad", str(error)))
            return
        said = deltas.notice("info", SESSION_EXPIRED) if expired else None
        if session.trace is None or (example and not reloaded):
            said = self._show(session, example) or said
        yield self.snapshot(session, said)
        yield from self._loading(None)

    def _show(self, session: Session, example: str) -> dict[str, str] | None:
        """The recording that a link names, or the first one. A bad notice where there is no such recording."""
        try:
            session.show(self.recordings.get(example or "first"))
        except PagewalkError as error:
            first = self.recordings.first()
            if first is not None and session.trace is None:
                session.show(first)
            return deltas.notice("bad", str(error)) if example else None
        return None

    def export(self, request: gr.Request) -> Iterator[tuple[deltas.Message, str | None]]:
        """What the session shows, as a file to download; Gradio has its own copy by the time this goes on and removes ours."""
        folder = Path(tempfile.mkdtemp(prefix="pagewalk-export-"))
        try:
            path, said = export_recording(
                self.store.of_viewer(viewer_of(request)), folder, self.store.limits.max_upload_mb * MIB
            )
            size = path.stat().st_size / 2**20
            yield deltas.say(deltas.notice("info", f"{path.name}, {size:,.1f} MiB. {said}") if said else None), str(path)
        except PagewalkError as error:
            yield deltas.say(deltas.notice("bad", str(error))), None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def import_file(self, data: Any, request: gr.Request) -> deltas.Message:
        """Shows the recording that a visitor has sent; one that is none leaves what is shown. Nothing in `data` is trusted."""
        data = data if isinstance(data, dict) else {}
        path = uploaded_file(data.get("path"))
        if path is None:
            return deltas.say(deltas.notice("bad", "The file did not arrive: try again."))
        try:
            session = self.store.of_viewer(viewer_of(request))
            name = str(data.get("name") or "the file")[:80]
            session.show(import_recording(path, name, self.store.limits.max_upload_mb * MIB))
            return self.snapshot(session)
        except PagewalkError as error:
            return deltas.say(deltas.notice("bad", str(error)))
        finally:
            path.unlink(missing_ok=True)

    def _loading(self, name: str | None) -> Iterator[deltas.Message]:
        """How far the model is, once a second until it is there. What the page shows stays."""
        status, waited = self.shelf.request(name), False
        while not status.ready and status.problem is None:
            waited = True
            yield deltas.loading(name or DEFAULT_MODEL, status.seconds, status.text)
            time.sleep(1.0)
            status = self.shelf.request(name)
        if status.problem:
            yield deltas.say(deltas.notice("bad", status.problem))
        elif waited:
            yield deltas.loading(None)

    def open_recording(self, example: Any, request: gr.Request) -> tuple[deltas.Message, Recording | None]:
        """Shows a shipped recording in place of the run. Nothing in `example` is trusted."""
        try:
            session = self.store.of_viewer(viewer_of(request))
            recording = self.recordings.get(str(example))
            session.show(recording)
        except PagewalkError as error:
            return {**deltas.say(deltas.notice("bad", str(error))), "refused": True}, None
        return self.snapshot(session), recording

    def generate(self, request: gr.Request, *values: Any) -> Iterator[deltas.Message]:
        """Generate: a new run to its end, or the rest of one begun with Step."""
        session: Session | None = None
        try:
            session = self.store.of_viewer(viewer_of(request))
            yield from self._prepare(session, values)
            yield self.snapshot(session)
            run_id, said = session.run_id, None
            session.start()
            for update in session.updates(PACE):
                if session.run_id != run_id:  # a recording was opened meanwhile
                    return
                said = deltas.notice("bad", update.problem) if update.problem else None
                if update.place:
                    said = deltas.notice("info", session.turns.sentence(update.place))
                yield deltas.delta(run_id, session.num_updates, update.events, update.running, said)
            yield deltas.end(run_id, session.num_updates, said)
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
            yield deltas.end(session.run_id, session.num_updates, said)
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
        session = self.store.of_viewer(viewer_of(request))
        return deltas.say(deltas.notice("info", EXPIRED)) if session.trace is None else self.snapshot(session)

    def close(self, request: gr.Request) -> None:
        self.store.close(viewer_of(request))

    def stage_lookup(self, data: Any) -> dict[str, Any]:
        """The Stage asks for the numbers of one lookup. Nothing in `data` is trusted.

        A shipped recording answers even where the session that showed it has expired.
        """
        data = data if isinstance(data, dict) else {}
        request, query = str(data.get("request", "")), data.get("query_position")
        query = None if query is None else _int(query)
        as_of = data.get("step")
        as_of = None if as_of is None else _int(as_of)
        key, layer, head = (_int(data.get(name, 0)) for name in ("key_position", "layer", "head"))
        return self._of_what_is_shown(
            data,
            lambda session: session.lookup(request, query, key, layer, head, as_of).to_dict(),
            lambda trace: look_up(trace, request, query, key, layer, head, None, as_of).to_dict(),
        )

    def stage_view(self, data: Any) -> dict[str, Any]:
        """The Stage's dock asks for one view of what the session shows. Nothing in `data` is trusted."""
        data = data if isinstance(data, dict) else {}
        return self._of_what_is_shown(
            data, lambda session: view(shown_by(session, data.get("run")), data), lambda trace: view(recorded(trace), data)
        )

    # ---- inside ---------------------------------------------------------------------------------

    def _of_what_is_shown(
        self,
        data: dict[str, Any],
        of_session: Callable[[Session], dict[str, Any]],
        of_recording: Callable[[Trace], dict[str, Any]],
    ) -> dict[str, Any]:
        """The session answers, or the shipped recording that it showed where it has expired."""
        token, shipped = str(data.get("session", "")), data.get("recording")
        try:
            if self.store.knows(token):
                return of_session(self.store.by_token(token))
            if shipped:
                return of_recording(self.recordings.get(str(shipped)).trace)
        except PagewalkError as error:
            return {"ok": False, "reason": str(error)}
        return {"ok": False, "reason": EXPIRED}

    def snapshot(self, session: Session, notice: dict[str, str] | None = None) -> deltas.Message:
        """Everything a page needs to show the session as it is."""
        if session.trace is None:
            return deltas.empty(self._header(session), session.token, notice)
        events, n = session.events_so_far()
        return deltas.snapshot(
            session.run_id,
            n,
            events,
            self._header(session),
            session.token,
            session.running and session.recording is None,
            notice,
        )

    def _prepare(self, session: Session, values: tuple[Any, ...]) -> Iterator[deltas.Message]:
        """Waits for the model, saying so, and begins the run that `values` ask for unless it waits already."""
        name = model_name(values[0])
        check_model(name, self.models, DEFAULT_MODEL)
        settings = page_settings(values[1 : 1 + MAX_SEQUENCES], values[1 + MAX_SEQUENCES :])
        yield from self._loading(name)
        model = self.shelf.get(name)
        if not session.can_continue(model, settings):
            session.begin(model, settings)

    def _problem(self, session: Session | None, error: PagewalkError) -> deltas.Message:
        said = deltas.notice("bad", str(error))
        if session is None or session.trace is None:
            return deltas.empty(self._header(session), session.token if session else "", said)
        if session.running or session.recording is not None:  # what is shown stays
            return deltas.say(said)
        return deltas.end(session.run_id, session.num_updates, said)

    def _header(self, session: Session | None) -> dict[str, Any]:
        if session is None or session.trace is None:
            return preview_header()
        header = dataclasses.asdict(session.trace.header)
        if session.recording is not None:
            header["recording"] = recording_header(session.recording, self.recordings)
        scenario = session.recording.scenario if session.recording else None
        run = scenario.run if scenario else None if session.recording else session.settings
        header["link"] = link_of(run) if run else {}
        return header

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
            return found.lookup(request_id, query_position, key_position, layer, head).to_dict()
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
    num_blocks, block_size, batched, stagger, max_tokens, n, temperature, top_p, top_k, seed, chat, caching, ignore_eos = values
    config = EngineConfig(
        block_size=block_size, num_blocks=num_blocks, max_num_batched_tokens=batched, enable_prefix_caching=bool(caching)
    )
    params = SamplingParams(
        max_tokens=max_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, ignore_eos=bool(ignore_eos)
    )
    return RunSettings(nonempty(prompts), config, params, bool(chat), stagger)


def control_values(run: RunSettings) -> tuple[list[str], list[Any]]:
    """What the prompt boxes and the settings must say for Generate to do this run: the inverse of `page_settings`."""
    config, params = run.config, run.params
    return list(run.prompts), [
        config.num_blocks, config.block_size, config.max_num_batched_tokens, run.stagger, params.max_tokens, params.n,
        params.temperature, params.top_p, params.top_k, params.seed or 0, run.chat, config.enable_prefix_caching,
        params.ignore_eos,
    ]  # fmt: skip


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
