"""The usage figure: blocks in use over steps, stacked by sequence colour, with a lane of events below.

Two traces a colour: blocks of the sequence alone, and blocks that it shares (cross-hatched). `line.shape = "hv"`: a
count holds until the step that changes it, so only changes need a point.
"""

from __future__ import annotations

import plotly.graph_objects as go

from viz.palette import SEQUENCES, STATES

LANE = 0.16
"""The part of the height that the lane of ticks and glyphs takes."""

GLYPHS: dict[str, str] = {
    "alloc": "line-ns-open", "finish": "circle-open", "hit": "diamond-open", "evict": "x-thin-open", "preempt": "triangle-up",
    "resume": "triangle-right-open", "refused": "square", "copy": "diamond", "fork": "y-down-open",
}  # fmt: skip
"""Plotly marker symbols of the lane, by the kind of event; shape first, colour only for trouble."""


def usage_figure(num_blocks: int) -> go.Figure:
    """The empty chart. Traces 2c and 2c + 1 are the shared and the own blocks of colour c, then one trace a glyph."""
    figure = go.Figure()
    for index, colour in enumerate(SEQUENCES):
        common = {"x": [], "y": [], "mode": "lines", "stackgroup": "blocks", "hoverinfo": "skip"}
        line = {"shape": "hv", "width": 0, "color": colour}
        pattern = {
            "shape": "x",
            "size": 5,
            "solidity": 0.4,
            "fgcolor": STATES["light"]["cross"],
            "bgcolor": colour,
            "fillmode": "overlay",
            "fgopacity": 1,
        }
        figure.add_scatter(**common, name=f"shared {index}", line=line, fillcolor=colour, fillpattern=pattern)
        figure.add_scatter(**common, name=f"own {index}", line=line, fillcolor=colour)
    for kind, symbol in GLYPHS.items():
        marker = {"symbol": symbol, "size": 7, "line": {"width": 1.6}}
        figure.add_scatter(x=[], y=[], mode="markers", yaxis="y2", name=kind, marker=marker, hoverinfo="skip", cliponaxis=False)
    figure.update_layout(
        margin={"l": 34, "r": 8, "t": 14, "b": 18, "pad": 0}, uirevision="usage", showlegend=False, hovermode=False,
        dragmode=False, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", template=None,
        meta={"num_blocks": num_blocks, "glyphs": list(GLYPHS)},
    )  # fmt: skip
    figure.update_xaxes(
        range=[0, 40], showgrid=False, zeroline=False, tickfont={"size": 11}, tickmode="array", anchor="y2", fixedrange=True
    )
    figure.update_yaxes(
        range=[0, 8],
        domain=[LANE, 1],
        zeroline=False,
        tickfont={"size": 11},
        tickmode="array",
        fixedrange=True,
        ticks="outside",
        ticklen=5,
        tickcolor="rgba(0,0,0,0)",
    )
    figure.update_layout(yaxis2={"range": [-1, 1], "domain": [0, LANE], "visible": False, "fixedrange": True})
    return figure
