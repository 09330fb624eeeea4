"""The weights figure: one bar a position that the query sees, the looked-up key's bar in ink.

Blocks of the sequence are told apart by a line where each begins. The browser puts the theme's colours in.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from viz.palette import STATES, sequence_colour

GRID = "rgba(128, 136, 150, .3)"
HOVER = "position %{x}<br>weight %{y:.4f}<extra></extra>"
HOVER_ALL = "position %{x}, slot %{customdata[0]}<br>score %{customdata[1]:.4f}<br>weight %{y:.4f}<extra></extra>"


def weights_figure(
    weights: Sequence[float],
    position: int,
    block_size: int,
    sequence: int = 0,
    slots: Sequence[int] | None = None,
    scores: Sequence[float] | None = None,
) -> go.Figure:
    """weights [n], summing to 1. The bar of `position` stands out; its value and the largest one are written on.

    slots and scores, [n] each, are told to the pointer where they are given. Raises ValueError: `position` is none of the n.
    """
    n = len(weights)
    if not 0 <= position < n:
        raise ValueError(f"Position {position} has no weight: there are {n} weights.")
    largest = max(range(n), key=weights.__getitem__)
    ink, colour = STATES["light"]["ink"], sequence_colour(sequence)
    figure = go.Figure()
    figure.add_bar(
        x=list(range(n)), y=list(weights), showlegend=False,
        marker={
            "color": [ink if p == position else colour for p in range(n)], "line": {"width": 0},
            "opacity": [1.0 if p == position else float(STATES["light"]["bar"]) for p in range(n)],
        },
        customdata=list(zip(slots, scores, strict=True)) if slots and scores else None,
        hovertemplate=HOVER_ALL if slots and scores else HOVER,
    )  # fmt: skip
    figure.update_layout(
        bargap=0.12 if n < 200 else 0, template=None, dragmode=False, hovermode="closest", font={"size": 11},
        margin={"l": 1, "r": 1, "t": 18, "b": 18, "pad": 0}, paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        shapes=[
            {"type": "line", "x0": p - 0.5, "x1": p - 0.5, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
             "line": {"width": 1, "color": GRID}}
            for p in range(block_size, n, block_size * max(1, n // block_size // 12))
        ],
        annotations=[_value(weights, p, p == position) for p in sorted({largest, position})],
        meta={"position": position, "largest": largest},
    )  # fmt: skip
    quiet = {"showgrid": False, "zeroline": False, "fixedrange": True, "tickfont": {"size": 11}}
    labels = {0: "0", largest: str(largest), n - 1: str(n - 1), position: f"<b>{position}</b>"}
    room = max(1, n // 24)  # a label this close to one that matters more is left out
    kept = [position]
    for p in (largest, n - 1, 0):
        if all(abs(p - other) > room for other in kept):
            kept.append(p)
    kept.sort()
    figure.update_xaxes(
        **quiet, range=[-0.5, n - 0.5], tickvals=kept, ticktext=[labels[p] for p in kept], showline=True, linewidth=1,
        linecolor=GRID, tickangle=0, ticklabeloverflow="allow",
    )  # fmt: skip
    figure.update_yaxes(**quiet, range=[0, max(weights) * 1.01 or 1.0], visible=False)
    return figure


def _value(weights: Sequence[float], position: int, strong: bool) -> dict[str, object]:
    """A bar's value over it. A number: Plotly reads its text as markup."""
    text = f"{weights[position]:.4f}"
    n, anchor = len(weights), "center"
    if position < n * 0.04:
        anchor = "left"
    elif position > n * 0.96:
        anchor = "right"
    return {
        "x": position, "y": weights[position], "text": f"<b>{text}</b>" if strong else text, "showarrow": False,
        "yanchor": "bottom", "xanchor": anchor, "yshift": 1, "font": {"size": 11}, "borderpad": 1,
    }  # fmt: skip
