"""The Worked lookup tab: one lookup by hand, stepped, from the numbers that `/worked_example` and the console page give."""

from __future__ import annotations

from engine.worked_example import worked_example
from viz.worked.worked import WorkedLookup, worked_view


def build() -> None:
    """Inside a tab of the page."""
    WorkedLookup(worked_view(worked_example().to_dict()))
