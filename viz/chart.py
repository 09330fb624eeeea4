"""What the figures share: the look of a figure, patterns of states, steps as an x axis, the lane of events.

A figure says what it is in `layout.meta`: `caption`, one or two sentences of plain text (not markup); `axis`, "step" if x is
the step, so that a scrubber can lie over it; `unit` of its numbers. The pass of step s spans s - 1 to s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from engine.events import (
    BlockAllocated,
    BlockCopied,
    BlockRemoved,
    BlockTouched,
    Event,
    PrefixHit,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    RequestRefused,
)
from engine.trace import Trace
from viz.history import at_step
from viz.palette import STATES, SURFACES, Mode
from viz.text import literal
from viz.usage import GLYPHS, LANE

UI_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif"
MONO_FONT = "IBM Plex Mono, ui-monospace, Menlo, Consolas, monospace"
MAX_POINTS = 1500
"""Of one line; a longer history is thinned, and its `meta` says so."""
MAX_MARKS = 400
"""Of one kind of event in the lane."""


def dress(figure: go.Figure, mode: Mode, title: str, caption: str, axis: str | None = None, unit: str = "") -> go.Figure:
    """Fonts, grounds, grid and legend in the page's look. Title and caption are data: they are drawn literally."""
    surface = SURFACES[mode]
    figure.update_layout(
        template=None, title={"text": literal(title), "x": 0.01, "xanchor": "left", "font": {"size": 15}},
        font={"family": UI_FONT, "size": 12, "color": surface["subdued"]},
        paper_bgcolor=surface["primary"], plot_bgcolor=surface["primary"],
        margin={"l": 64, "r": 20, "t": 44, "b": 76, "pad": 0},
        legend={"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom", "traceorder": "normal",
                "font": {"size": 12, "color": surface["text"]}, "bgcolor": "rgba(0,0,0,0)"},
        hoverlabel={"bgcolor": surface["primary"], "bordercolor": surface["border"], "align": "left",
                    "font": {"family": UI_FONT, "size": 12, "color": surface["text"]}},
        bargap=0, barmode="overlay", dragmode=False,
        meta={"caption": caption, "axis": axis, "unit": unit},
    )  # fmt: skip
    quiet = {
        "zeroline": False, "gridcolor": surface["border"], "linecolor": surface["border"], "ticks": "",
        "tickfont": {"family": MONO_FONT, "size": 11}, "title": {"font": {"size": 12}},
    }  # fmt: skip
    figure.update_xaxes(**quiet)
    figure.update_yaxes(**quiet)
    if axis == "step":
        figure.update_layout(hovermode="x unified")
    return figure


def pattern(shape: str, mode: Mode, ground: str | None = None, ink: str | None = None, size: int = 5) -> dict[str, Any]:
    """A Plotly pattern: `ink` lines or dots on `ground`, by default the grey of a reserved slot on the page's own ground."""
    return {
        "shape": shape, "size": size, "solidity": 0.3 if shape != "." else 0.35, "fillmode": "overlay", "fgopacity": 1,
        "fgcolor": ink or STATES[mode]["reserved"], "bgcolor": ground or SURFACES[mode]["primary"],
    }  # fmt: skip


def area(
    name: str, steps: Sequence[int], values: Sequence[float], last: int, stack: str, colour: str,
    shape: dict[str, Any] | None = None, template: str = "%{y:,}", edge: str | None = None,
) -> go.Scatter:  # fmt: skip
    """One band of a stacked chart over steps: `values[i]` holds from step `steps[i]` to the next one, the last to `last`."""
    x = [*(at_step(step) for step in steps), last]
    y = [*values, values[-1] if values else 0]
    return go.Scatter(
        x=x, y=y, name=name, mode="lines", stackgroup=stack, fillcolor=colour, fillpattern=shape or {},
        line={"shape": "hv", "width": 1 if edge else 0, "color": edge or colour}, hovertemplate=f"{template}",
    )  # fmt: skip


def thinned(num: int) -> tuple[list[int], int]:
    """Rows to draw of `num`, at most about MAX_POINTS, the last always; and every how many-th that is."""
    every = max(1, -(-num // MAX_POINTS))
    rows = list(range(0, num, every))
    if rows and rows[-1] != num - 1:
        rows.append(num - 1)
    return rows, every


def add_lane(figure: go.Figure, trace: Trace, mode: Mode) -> None:
    """Events as glyphs on an axis of their own below the chart, as in the page's own chart of blocks in use."""
    marks = lane_marks(trace)
    surface = SURFACES[mode]
    for kind, symbol in GLYPHS.items():
        steps = marks.get(kind, [])
        if not steps:
            continue
        every = max(1, -(-len(steps) // MAX_MARKS))
        bad = kind in ("preempt", "refused")
        colour = surface["error"] if bad else surface["subdued"] if kind == "alloc" else surface["text"]
        figure.add_scatter(
            x=steps[::every], y=[0] * len(steps[::every]), yaxis="y2", mode="markers", name=LANE_NAMES[kind],
            marker={"symbol": symbol, "size": 7, "color": colour, "line": {"width": 1.6, "color": colour}},
            hoverinfo="skip", cliponaxis=False, showlegend=kind != "alloc",
        )  # fmt: skip
    figure.update_xaxes(anchor="y2")
    figure.update_layout(
        yaxis={"domain": [LANE, 1]}, yaxis2={"range": [-1, 1], "domain": [0, LANE], "visible": False, "fixedrange": True}
    )


LANE_NAMES = {
    "alloc": "blocks taken", "finish": "finished", "hit": "prefix hit", "evict": "evicted", "preempt": "preempted",
    "resume": "resumed", "refused": "refused", "copy": "copied on write", "fork": "forked",
}  # fmt: skip


def lane_marks(trace: Trace) -> dict[str, list[int]]:
    """Steps with an event of each kind of `viz.usage.GLYPHS`, each step once."""
    kinds: dict[type[Event], str] = {
        BlockAllocated: "alloc", RequestFinished: "finish", PrefixHit: "hit", BlockRemoved: "evict",
        RequestPreempted: "preempt", RequestRefused: "refused", BlockCopied: "copy", RequestForked: "fork",
    }  # fmt: skip
    marks: dict[str, list[int]] = {}
    preempted: set[str] = set()

    def mark(kind: str, step: int) -> None:
        steps = marks.setdefault(kind, [])
        if not steps or steps[-1] != step:
            steps.append(step)

    for event in trace.events[:]:  # a copy: a live run goes on
        if isinstance(event, BlockAllocated | BlockTouched) and event.request_id in preempted:
            preempted.discard(event.request_id)
            mark("resume", event.step)
        if isinstance(event, RequestPreempted):
            preempted.add(event.request_id)
        if type(event) in kinds:
            mark(kinds[type(event)], event.step)
    return marks
