"""The vectors of one lookup, a row each: query, key, their products, value. Up is positive, down is negative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from viz.chart import dress
from viz.palette import STATES, SURFACES, Mode


def vectors(lookup: Mapping[str, Any], mode: Mode = "light") -> go.Figure:
    """lookup: `engine.lookup.Lookup.to_dict()`. Each row has a scale of its own; the products add up to the raw dot."""
    query, key, value = (list(lookup[name]) for name in ("query", "key", "value"))
    rows = {"q": query, "k": key, "q × k": [a * b for a, b in zip(query, key, strict=True)], "v": value}
    states, surface = STATES[mode], SURFACES[mode]
    figure, gap, axes = go.Figure(), 0.05, {}
    height = (1 - gap * (len(rows) - 1)) / len(rows)
    for i, (name, numbers) in enumerate(rows.items()):
        axis, top = "" if i == 0 else str(i + 1), 1 - i * (height + gap)
        most = max(map(abs, numbers), default=0.0) or 1.0
        figure.add_bar(
            x=list(range(len(numbers))), y=numbers, name=name, yaxis=f"y{axis}", showlegend=False,
            marker={"color": [states["pos"] if v >= 0 else states["neg"] for v in numbers], "line": {"width": 0}},
            hovertemplate=f"{name}[%{{x}}] = %{{y:.4f}}<extra></extra>",
        )  # fmt: skip
        axes[f"yaxis{axis}"] = {
            "domain": [max(0.0, top - height), top], "range": [-most * 1.08, most * 1.08], "tickvals": [0],
            "ticktext": [f"{name} ±{most:.3g}"], "zeroline": True, "zerolinecolor": surface["border"], "showgrid": False,
        }  # fmt: skip
    figure.update_layout(axes)
    scale = lookup["scale"]
    caption = (
        f"Layer {lookup['layer']}, head {lookup['head']}: query of {lookup['request_id']}:{lookup['query_position']}, "
        f"key and value of {lookup['request_id']}:{lookup['key_position']}, {len(query)} numbers each. "
        f"The products q × k add up to {lookup['raw_dot']:.4f}; times {scale:.4g} that is the score {lookup['score']:.4f}, "
        "and after softmax the weight "
        f"{lookup['weight']:.4f}, by which v is multiplied."
    )
    dress(figure, mode, "Query, key and value", caption, None, "")
    figure.update_layout(axes | {"bargap": 0.15, "hovermode": "closest"})
    figure.update_xaxes(range=[-0.5, len(query) - 0.5], title={"text": "dimension"}, showgrid=False)
    figure.update_xaxes(anchor=f"y{len(rows)}")
    figure.update_layout(margin={"l": 96})
    return figure
