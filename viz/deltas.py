"""The messages on the Stage's bus (`Stage.value`), made from engine events. Pure functions, plain JSON values.

The log travels as one JSON string: Gradio would otherwise diff and stringify the nested lists several times a message.
Deltas are numbered so that the page notices a gap (a hidden tab loses updates) and asks for a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from engine.events import Event, to_wire

Message = dict[str, Any]
Header = Mapping[str, Any]


def log_text(events: Iterable[Event]) -> str:
    """The events as the JSON text of an array of wire rows."""
    return json.dumps([to_wire(e) for e in events], ensure_ascii=False, separators=(",", ":"))


def notice(level: Literal["bad", "info"], text: str) -> dict[str, str]:
    """The one line above the panes. A bad one is bold up to its first colon."""
    return {"level": level, "text": text}


def say(notice: dict[str, str] | None) -> Message:
    """Changes the notice line and nothing else."""
    return {"kind": "notice", "notice": notice}


def loading(name: str | None, seconds: float = 0.0, text: str = "") -> Message:
    """How far a model is that something waits for; without a name, nothing loads: any message but a delta says so too."""
    return {"kind": "loading", "loading": {"name": name, "seconds": int(seconds), "text": text} if name else None}


def empty(header: Header, session: str, notice: dict[str, str] | None = None) -> Message:
    """Before any run."""
    return {"kind": "empty", "header": dict(header), "session": session, "notice": notice}


def snapshot(
    run: str, n: int, events: Iterable[Event], header: Header, session: str, running: bool, notice: dict[str, str] | None = None
) -> Message:
    """The whole run so far; `n` is the number of the delta that it already contains."""
    return {
        "kind": "snapshot", "run": run, "n": n, "header": dict(header), "log": log_text(events), "session": session,
        "running": running, "notice": notice,
    }  # fmt: skip


def delta(run: str, n: int, events: Iterable[Event], running: bool = True, notice: dict[str, str] | None = None) -> Message:
    """The events since delta `n - 1`: of one step or of several."""
    return {"kind": "delta", "run": run, "n": n, "log": log_text(events), "running": running, "notice": notice}


def end(run: str, n: int, notice: dict[str, str] | None = None) -> Message:
    """The run stands still; `n` is the number of the last delta, so that a lost tail is noticed. Safe to send twice."""
    return {"kind": "end", "run": run, "n": n, "running": False, "notice": notice}
