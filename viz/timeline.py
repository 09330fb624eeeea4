"""The life of every request: waiting, prefill, decode, preempted, recompute, finished, one lane each."""

from __future__ import annotations

import plotly.graph_objects as go

from engine.trace import Trace
from viz.chart import dress, pattern
from viz.history import PHASES, request_lives
from viz.palette import STATES, SURFACES, Mode, sequence_colour
from viz.text import count

WORDS = {
    "waiting": "in the queue, holds no block", "prefill": "its prompt is computed", "decode": "one token a step",
    "preempted": "gave its blocks back, waits to be recomputed", "recompute": "computes again what it had",
}  # fmt: skip


def timeline(trace: Trace, mode: Mode = "light") -> go.Figure:
    """One lane a request over steps: hue is the sequence, pattern the phase; a ring where it finished."""
    lives, last = request_lives(trace), trace.last_step
    surface, states = SURFACES[mode], STATES[mode]
    index = {name: i for i, name in enumerate(lives)}
    figure = go.Figure()
    for phase in PHASES:
        spans = [span for life in lives.values() for span in life.spans if span.phase == phase]
        if not spans and phase in ("preempted", "recompute"):
            continue
        hues = [sequence_colour(index[span.request_id]) for span in spans]
        colour: list[str] | str = hues
        look: dict[str, object] = {}
        if phase == "waiting":
            colour = surface["primary"]
        elif phase == "preempted":
            colour, look = surface["primary"], pattern("x", mode, None, surface["error"])
        elif phase in ("prefill", "recompute"):
            look = {**pattern("/" if phase == "prefill" else "-", mode, ink=surface["primary"]), "bgcolor": None}
        figure.add_bar(
            orientation="h", name=phase, y=[index[span.request_id] for span in spans], base=[span.start for span in spans],
            x=[span.stop - span.start for span in spans], width=0.62,
            marker={"color": colour, "pattern": look or None,
                    "line": {"width": 1, "color": surface["error"] if phase == "preempted" else states["reserved"]}},
            customdata=[[span.request_id, span.start, span.stop, WORDS[phase]] for span in spans],
            hovertemplate=f"%{{customdata[0]}} {phase}, steps %{{customdata[1]}} to %{{customdata[2]}}: %{{customdata[3]}}"
                          "<extra></extra>",
        )  # fmt: skip
    ended = {name: life for name, life in lives.items() if life.ended is not None}
    figure.add_scatter(
        x=[life.ended for life in ended.values()], y=[index[name] for name in ended], mode="markers", name="finished",
        marker={"symbol": "circle-open", "size": 9, "color": surface["text"], "line": {"width": 2}}, cliponaxis=False,
        customdata=[[name, life.ended, life.finish_reason] for name, life in ended.items()],
        hovertemplate="%{customdata[0]} finished at step %{customdata[1]}: %{customdata[2]}<extra></extra>",
    )  # fmt: skip
    waited = sum(span.stop - span.start for life in lives.values() for span in life.spans if span.phase == "preempted")
    preempted = sum(any(span.phase == "preempted" for span in life.spans) for life in lives.values())
    trouble = (
        f"{count(preempted, 'sequence')} {'was' if preempted == 1 else 'were'} preempted and waited "
        f"{count(waited, 'step')} in all; recomputing says the same text again."
        if preempted
        else "None was preempted: the pool had a block whenever one was needed."
    )
    caption = f"{count(len(lives), 'sequence')}, {len(ended):,} finished by step {last:,}. {trouble}"
    dress(figure, mode, "Life of the requests", caption, "step", "")
    every = max(1, -(-len(lives) // 24))
    figure.update_layout(
        hovermode="closest",
        yaxis={"range": [max(1, len(lives)) - 0.5, -0.5], "tickvals": list(index.values())[::every],
               "ticktext": list(index)[::every], "showgrid": False},
    )  # fmt: skip
    figure.update_xaxes(range=[0, max(1, last)], title={"text": "step"})
    return figure
