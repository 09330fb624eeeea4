"""The events of a run as a table: when, what, whose, which blocks, and why."""

from __future__ import annotations

import dataclasses

import plotly.graph_objects as go

from engine.events import BlockTouched, SlotsWritten, StepTimed, TokenSampled
from engine.trace import Trace
from viz.chart import dress
from viz.palette import SURFACES, Mode
from viz.text import count, literal

QUIET = (SlotsWritten, StepTimed, TokenSampled, BlockTouched)
"""What happens every step, or says again what the event before it said."""


def events(trace: Trace, first: int = 0, last: int | None = None, mode: Mode = "light") -> go.Figure:
    """Events of steps `first`..`last`, both included, that a person would ask about, oldest first; texts are literal."""
    surface = SURFACES[mode]
    found = [e for e in trace.events_between(first, trace.last_step if last is None else last) if not isinstance(e, QUIET)]
    rows = []
    for event in found:
        told = dataclasses.asdict(event)
        blocks = told.get("block_ids") or ([told["block_id"]] if "block_id" in told else [])
        why = told.get("reason") or (told.get("prompt") or "")
        rows.append([
            f"{event.step:,}", type(event).__name__, literal(str(told.get("request_id", ""))), ", ".join(map(str, blocks)),
            literal(why),
        ])  # fmt: skip
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(5)]
    figure = go.Figure(
        go.Table(
            columnwidth=[8, 22, 10, 20, 90],
            header={"values": ["step", "event", "sequence", "blocks", "reason"], "align": "left", "height": 28,
                    "fill": {"color": surface["secondary"]}, "line": {"color": surface["border"]},
                    "font": {"color": surface["text"], "size": 12}},
            cells={"values": columns, "align": "left", "height": 24, "fill": {"color": surface["primary"]},
                   "line": {"color": surface["border"]}, "font": {"color": surface["text"], "size": 12}},
        )
    )  # fmt: skip
    return dress(figure, mode, "Events", f"{count(len(rows), 'event')} of steps {first:,} to {trace.last_step:,}.")
