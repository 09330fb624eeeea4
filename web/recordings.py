"""What the page is told of a recording, what a link names, and which file of a visitor's is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from gradio.utils import get_upload_folder

from engine.recording_shelf import Recording, RecordingShelf
from engine.run_settings import RunSettings
from engine.scenarios import SCENARIOS


def recording_header(recording: Recording, shelf: RecordingShelf) -> dict[str, Any]:
    """Whose the recording is, what to see, where it opens, whose vectors it ships (None: all), what it is compared with."""
    scenario, capture = recording.scenario, recording.trace.capture
    kept = capture.kept if capture else None
    header: dict[str, Any] = {
        "id": None, "name": recording.name, "sentence": "", "opening": {}, "family": [],
        "layers": list(kept.layers) if kept else None, "heads": list(kept.heads) if kept else None,
    }  # fmt: skip
    if scenario is None:
        return header
    family = [
        {"id": member, "label": str(measured.block_size), "measured": dataclasses.asdict(measured)}
        for member, measured in shelf.measured(scenario).items()
    ]
    opening = dataclasses.asdict(scenario.opening)
    return {**header, "id": scenario.id, "sentence": scenario.sentence, "opening": opening, "family": family}


def link_of(run: RunSettings) -> dict[str, Any]:
    """What a link says of a run: the example whose prompts and settings it has, but for the seed; nothing for any other run."""
    for scenario in SCENARIOS.values():
        params = dataclasses.replace(scenario.run.params, seed=run.params.seed)
        if dataclasses.replace(scenario.run, params=params) == run:
            return {"example": scenario.id, "seed": run.params.seed}
    return {}


def uploaded_file(path: Any) -> Path | None:
    """The path of a file in Gradio's folder for uploads, or None for anything else: `path` is what a visitor's page says."""
    if not isinstance(path, str) or "\0" in path:
        return None
    given, folder = Path(path), Path(get_upload_folder()).resolve()
    inside = given.is_file() and not given.is_symlink() and given.resolve().is_relative_to(folder)
    return given.resolve() if inside else None
