"""The lab's times: a bar a path, and the least that reading K and V once could take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from viz.palette import STATES

BAR_HEIGHT = 34


def times_figure(paths: Sequence[Mapping[str, Any]], names: Mapping[str, str], ours: str, floor: float | None) -> go.Figure:
    """paths: {"name", "ms"} each, drawn downwards. `ours`: the path in ink. floor: ms, a dotted line where there is one.

    `layout.meta` tells the browser which bar is whose ("roles"), so that it can put the theme's colours in, and the largest
    time ("most"), so that it can leave room for its label.
    """
    ms = [path["ms"] for path in paths]
    roles = ["ours" if path["name"] == ours else "peer" for path in paths]
    colours = {"ours": STATES["light"]["ink"], "peer": STATES["light"]["earlier"]}
    figure = go.Figure()
    figure.add_bar(
        orientation="h", x=ms, y=list(range(len(ms))), width=0.62, marker={"color": [colours[role] for role in roles]},
        text=[f"{value:.4g} ms" for value in ms], textposition="outside", cliponaxis=False, constraintext="none",
        textfont={"size": 12}, hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    most = max([*ms, floor or 0.0], default=1.0) or 1.0
    figure.update_layout(
        height=30 + BAR_HEIGHT * max(1, len(ms)) + (18 if floor else 0), template=None, dragmode=False, hovermode=False,
        margin={"l": 12 + 7 * max((len(names[path["name"]]) for path in paths), default=1), "r": 12, "t": 18 if floor else 4,
                "b": 26, "pad": 0},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font={"size": 11}, meta={"roles": roles, "most": most},
    )  # fmt: skip
    if floor:
        line = {
            "type": "line",
            "x0": floor,
            "x1": floor,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {"width": 1.5, "dash": "dot"},
        }
        figure.add_shape(line)
        figure.add_annotation(
            text=f"K and V once, at the read ceiling: {floor:.4g} ms", x=floor, y=1, yref="paper", yanchor="bottom",
            xanchor="left" if floor < most * 0.5 else "right", showarrow=False, font={"size": 11},
        )  # fmt: skip
    quiet = {"showgrid": False, "zeroline": False, "fixedrange": True, "tickfont": {"size": 11}}
    figure.update_xaxes(**quiet, range=[0, most * 1.22], nticks=6, ticksuffix=" ms", rangemode="tozero")
    figure.update_yaxes(
        **quiet,
        ticks="outside",
        ticklen=5,
        tickcolor="rgba(0,0,0,0)",
        range=[len(ms) - 0.5, -0.5],
        tickvals=list(range(len(ms))),
        ticktext=[names[path["name"]] for path in paths],
    )
    return figure
