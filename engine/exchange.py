"""Recordings in and out of a session: what a visitor takes home, and what a visitor brings. Sizes are bounded both ways."""

from __future__ import annotations

import re
import zipfile
from contextlib import nullcontext
from pathlib import Path

from engine.capture import Capture, Kept
from engine.errors import PagewalkError, RecordingError
from engine.recorded_vectors import kept_for
from engine.recording import load_recording, take, write
from engine.recording_shelf import Recording
from engine.session import Session
from engine.trace import Trace

MAX_EXPORT_BYTES = 64 << 20  # of captured vectors in one file
IMPORT_LIMITS = {"header.json": 16 << 20, "events.jsonl": 16 << 20, "capture.safetensors": 96 << 20}
BYTES_A_BYTE = 10  # that the events take in memory, for each in the file


def export_recording(session: Session, folder: Path, max_bytes: int) -> tuple[Path, str]:
    """Writes what the session shows, its run so far or a recording, into `folder`. The sentence says what was left out.

    max_bytes: what can be read back. A run may go on meanwhile. Raises PagewalkError where there is nothing to write.
    """
    trace, engine, recording = session.trace, session.engine, session.recording
    if trace is None:
        raise PagewalkError("There is no run to export yet. Press Generate first.")
    with engine.lock if engine is not None and recording is None else nullcontext():
        kept, said = _what_fits(trace, min(MAX_EXPORT_BYTES, max_bytes * 9 // 10))
        taken = take(trace, include_capture=kept != "none", kept=kept if isinstance(kept, Kept) else None)
    name = recording.scenario.id if recording and recording.scenario else f"{trace.header.model}-{trace.last_step}-steps"
    path = folder / f"pagewalk-{safe_name(name)}.pagewalk"
    write(taken, path)
    return path, said


def import_recording(path: Path, name: str, max_bytes: int) -> Recording:
    """Reads a file that a visitor sent. Raises RecordingError, in a sentence, for anything but a recording of bearable size."""
    size = path.stat().st_size
    if size > max_bytes:
        raise RecordingError(f"The file is too large: {size:,} bytes, and at most {max_bytes:,} are read.")
    try:
        trace = load_recording(path, IMPORT_LIMITS)
    except RecordingError as error:
        raise RecordingError(str(error).replace(repr(path.name), repr(name))) from None
    with zipfile.ZipFile(path) as archive:
        num_bytes = BYTES_A_BYTE * archive.getinfo("events.jsonl").file_size
    return Recording(trace, name, None, num_bytes + (trace.capture.budget_bytes if trace.capture else 0))


def safe_name(text: str) -> str:
    """`text` as a part of a file name on any system."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "run"


def _what_fits(trace: Trace, max_bytes: int) -> tuple[Kept | str, str]:
    """ "all", what is kept of the vectors, or "none"; and the sentence about it."""
    capture, header = trace.capture, trace.header
    if capture is None:
        return "all", "It holds no captured vectors: the run kept none."
    num_bytes = _num_bytes(capture, trace)
    if num_bytes <= max_bytes:
        return "all", ""
    if capture.kept is None and num_bytes // header.num_layers <= max_bytes:
        layer = header.num_layers // 2
        kept = kept_for(trace, (layer,), tuple(range(header.num_heads)))
        return (
            kept,
            f"To stay small it holds the vectors of layer {layer} only; all {header.num_layers} are {num_bytes >> 20:,} MiB.",
        )
    return (
        "none",
        f"It holds no captured vectors: they are {num_bytes >> 20:,} MiB, and at most {max_bytes >> 20} go into a file.",
    )


def _num_bytes(capture: Capture, trace: Trace) -> int:
    """Of the vectors that a full export writes: rows that sequences share count once."""
    places = {capture.place(name, position) for name, positions in capture.positions().items() for position in positions}
    header = trace.header
    layers = len(capture.kept.layers) if capture.kept else header.num_layers
    row = next((capture.row(name, positions[0]) for name, positions in capture.positions().items() if positions), None)
    return 0 if row is None else len(places) * layers * row[0].numel() * row.element_size()
