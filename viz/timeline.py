"""The life of every request: waiting, prefill, decode, preempted, recompute, finished, one lane each."""

from __future__ import annotations

import plotly.graph_objects as go

from engine.trace import Trace
from viz.chart import dress, pattern
from viz.history import PHASES, request_lives
from viz.palette import SEQUENCES, STATES, SURFACES, Mode, sequence_colour
from viz.text import count, literal

WORDS = {
    "waiting": "in the queue, holds no block", "prefill": "its prompt is computed", "decode": "one token a step",
    "preempted": "gave its blocks back, waits to be recomputed", "recompute": "computes again what it had",
}  # fmt: skip


def timeline(trace: Trace, mode: Mode = "light") -> go.Figure:
    """One lane a request over steps: hue is the sequence, pattern the phase; a ring where it finished."""
    lives, last = request_lives(trace), trace.last_step
    surface = SURFACES[mode]
    index = {name: i for i, name in enumerate(lives)}
    figure = go.Figure()
    for phase in PHASES:
        spans = [span for life in lives.values() for span in life.spans if span.phase == phase]
        hues = sorted({index[span.request_id] % len(SEQUENCES) for span in spans})
        for hue in hues[:1] if phase in ("waiting", "preempted") else hues:
            mine = [s for s in spans if phase in ("waiting", "preempted") or index[s.request_id] % len(SEQUENCES) == hue]
            figure.add_bar(
                orientation="h", name=phase, legendgroup=phase, showlegend=hue == hues[0], marker=_look(phase, hue, mode),
                y=[index[span.request_id] for span in mine], base=[span.start for span in mine],
                x=[span.stop - span.start for span in mine], width=0.62,
                customdata=[[literal(span.request_id), span.start, span.stop, WORDS[phase]] for span in mine],
                hovertemplate=f"%{{customdata[0]}} {phase}, steps %{{customdata[1]}} to %{{customdata[2]}}: "
                              "%{customdata[3]}<extra></extra>",
            )  # fmt: skip
    ended = {name: life for name, life in lives.items() if life.ended is not None}
    figure.add_scatter(
        x=[life.ended for life in ended.values()], y=[index[name] for name in ended], mode="markers", name="finished",
        marker={"symbol": "circle-open", "size": 9, "color": surface["text"], "line": {"width": 2}}, cliponaxis=False,
        customdata=[[literal(name), life.ended, life.finish_reason] for name, life in ended.items()],
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
               "ticktext": [literal(name) for name in list(index)[::every]], "showgrid": False},
    )  # fmt: skip
    figure.update_xaxes(range=[0, max(1, last)], title={"text": "step"})
    return figure


def _look(phase: str, index: int, mode: Mode) -> dict[str, object]:
    """Waiting and preempted requests hold no block, so they have no hue."""
    surface, edge = SURFACES[mode], {"width": 1, "color": STATES[mode]["reserved"]}
    if phase == "waiting":
        return {"color": surface["primary"], "line": edge}
    if phase == "preempted":
        return {"color": surface["primary"], "pattern": pattern("x", mode, None, surface["error"]),
                "line": {"width": 1, "color": surface["error"]}}  # fmt: skip
    hue = sequence_colour(index)
    look: dict[str, object] = {"color": hue, "line": edge}
    if phase != "decode":
        look["pattern"] = pattern("/" if phase == "prefill" else "-", mode, hue, surface["primary"])
    return look
