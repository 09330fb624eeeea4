"""What one process shares among its visitors, and the page's own events: settings become runs, runs become bus messages."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from engine.config import EngineConfig, SamplingParams
from engine.errors import PagewalkError
from engine.model_loader import DEFAULT_NAME
from engine.model_shelf import ModelShelf
from engine.recording_shelf import Recording, RecordingShelf
from engine.run_settings import RunSettings
from engine.session import Session, SessionStore, nonempty
from engine.version import VERSION
from viz import deltas

MAX_SEQUENCES = 7
DEFAULT_MODEL = os.environ.get("PAGEWALK_MODEL") or DEFAULT_NAME
PACE = 0.2  # seconds between two updates of a page: each takes some milliseconds from a forward pass on a small machine


class Host:
    """What one process shares among its visitors: weights, recordings and the list of sessions. Handlers are its methods."""

    def __init__(
        self, shelf: ModelShelf | None = None, store: SessionStore | None = None, recordings: RecordingShelf | None = None
    ) -> None:
        self.shelf = shelf or ModelShelf()
        self.store = store or SessionStore()
        self.recordings = recordings or RecordingShelf()

    # ---- the page's own events ------------------------------------------------------------------

    def load(self, token: str, example: str, request: gr.Request) -> Iterator[deltas.Message]:
        """A page opens: it comes back to its session, or plays a recording; meanwhile the model loads."""
        viewer = viewer_of(request)
        try:
            session = self.store.readopt(token, viewer) if token else None
            expired = bool(token) and session is None and not self.store.knows(token)
            session = session or self.store.of_viewer(viewer)
        except PagewalkError as error:
            yield deltas.empty(preview_header(), "", deltas.notice("bad", str(error)))
            return
        yield self.snapshot(session, self._welcome(session, example, expired))
        yield from self._loading(None)

    def _welcome(self, session: Session, example: str, expired: bool) -> dict[str, str] | None:
        """Shows a session that has nothing to show yet the recording of a link, or the first one; says what went wrong."""
        said = deltas.notice("info", "This session expired. Press Generate for a new run.") if expired else None
        if session.trace is None:
            try:
                session.show(self.recordings.get(example or "first"))
            except PagewalkError as error:
                if example:
                    said = deltas.notice("bad", str(error))
                    if first := self.recordings.first():
                        session.show(first)
        return said

    def _loading(self, name: str | None) -> Iterator[deltas.Message]:
        """How far the model is, once a second until it is there. What the page shows stays."""
        status = self.shelf.request(name)
        while not status.ready and status.problem is None:
            yield deltas.loading(name or DEFAULT_MODEL, status.seconds, status.text)
            time.sleep(1.0)
            status = self.shelf.request(name)
        yield deltas.loading(None)
        if status.problem:
            yield deltas.say(deltas.notice("bad", status.problem))

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
            run_id = session.run_id
            session.start()
            for update in session.updates(PACE):
                if session.run_id != run_id:  # a recording was opened meanwhile
                    return
                said = deltas.notice("bad", update.problem) if update.problem else None
                yield deltas.delta(run_id, session.num_updates, update.events, update.running, said)
            yield deltas.end(run_id, session.num_updates)
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

    def snapshot(self, session: Session, notice: dict[str, str] | None = None) -> deltas.Message:
        """Everything a page needs to show the session as it is."""
        if session.trace is None:
            return deltas.empty(self._header(session), session.token, notice)
        events, n = session.events_so_far()
        return deltas.snapshot(session.run_id, n, events, self._header(session), session.token, session.running, notice)

    def _prepare(self, session: Session, values: tuple[Any, ...]) -> Iterator[deltas.Message]:
        """Waits for the model, saying so, and begins the run that `values` ask for unless it waits already."""
        name = model_name(values[0])
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
            header["recording"] = recording_header(session.recording)
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


def recording_header(recording: Recording) -> dict[str, Any]:
    """What the page says of a recording: whose it is, what to see, where it opens, whose vectors it ships."""
    scenario, capture = recording.scenario, recording.trace.capture
    kept = capture.kept if capture else None
    return {
        "id": scenario.id if scenario else None,
        "name": recording.name,
        "title": scenario.title if scenario else recording.name,
        "sentence": scenario.sentence if scenario else "",
        "opening": dataclasses.asdict(scenario.opening) if scenario else {},
        "layers": list(kept.layers) if kept else None,
        "heads": list(kept.heads) if kept else None,
    }


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
    return (request.session_hash if request else None) or "anonymous"


def _int(value: Any) -> int:
    """`value` as an int, or -1, which no lookup accepts."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
