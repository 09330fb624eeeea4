"""Recordings that are shown without an engine: the shipped ones, read when first asked for and kept, and imported ones."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from engine.comparison import Measured, measure
from engine.errors import PagewalkError, RecordingError
from engine.scenarios import SCENARIOS, Scenario, family
from engine.trace import Trace

FOLDER = Path(__file__).parents[1] / "recordings"


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace that nobody appends to. scenario: what it shows, None for one that a visitor brought; name: its file's.

    num_bytes: about what it takes in memory for one visitor; 0 for a shipped one, which all share.
    """

    trace: Trace
    name: str
    scenario: Scenario | None = None
    num_bytes: int = 0


class RecordingShelf:
    """The shipped recordings by the id of their scenario. Visitors share them: nothing in them changes."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self._kept: dict[str, Recording] = {}
        self._measured: dict[str, Measured] = {}
        self._lock = threading.Lock()

    def get(self, scenario_id: str) -> Recording:
        """Raises PagewalkError for an id that no scenario has, and where the file is missing or damaged."""
        scenario = SCENARIOS.get(scenario_id)
        if scenario is None:
            raise PagewalkError(f"There is no example {scenario_id[:40]!r}. Pick one of: {', '.join(SCENARIOS)}.")
        with self._lock:
            if scenario_id not in self._kept:
                path = self.folder / f"{scenario_id}.pagewalk"
                self._kept[scenario_id] = Recording(Trace.load(path), path.name, scenario)
            return self._kept[scenario_id]

    def measured(self, scenario: Scenario) -> dict[str, Measured]:
        """What each recording of the scenario's family measured, by id; empty for a scenario that stands alone."""
        for member in family(scenario):
            if member.id not in self._measured:
                self._measured[member.id] = measure(self.get(member.id).trace)
        return {member.id: self._measured[member.id] for member in family(scenario)}

    def first(self) -> Recording | None:
        """What a newcomer sees; None where the recordings were not shipped."""
        try:
            return self.get("first")
        except RecordingError:
            return None
