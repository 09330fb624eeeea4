"""One query's softmax weights over all positions that it sees, each bar in the look of its key's physical block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from engine.trace import CacheState
from viz.chart import dress, pattern
from viz.palette import STATES, SURFACES, Mode, mix, sequence_colour
from viz.text import literal, visible

MAX_BARS = 2048
"""Positions that get a bar each; beyond, a bar is the sum over a block."""
LABEL = 34
"""Pixels that the id of a block needs."""


def attention(lookup: Mapping[str, Any], state: CacheState | None = None, mode: Mode = "light", width: int = 900) -> go.Figure:
    """lookup: `engine.lookup.Lookup.to_dict()`. Neighbouring blocks alternate in tone, with their ids above and a line between.

    state: says which blocks are shared (cross hatch), whose hue they have, and the tokens' texts. width: of the drawing, in px.
    """
    size, table, weights = int(lookup["block_size"]), list(lookup["block_table"]), list(lookup["weights"])
    request_id, key, query = str(lookup["request_id"]), int(lookup["key_position"]), int(lookup["query_position"])
    by_block = len(weights) > MAX_BARS
    step = size if by_block else 1
    values = [sum(weights[i : i + step]) for i in range(0, len(weights), step)]
    surface, states = SURFACES[mode], STATES[mode]
    tokens = state.requests[request_id].tokens if state is not None and request_id in state.requests else []

    groups: dict[tuple[str, bool], list[int]] = {}
    for i in range(len(values)):
        logical = i * step // size
        is_key = (key // size == logical) if by_block else i == key
        owner, shared = _reader(request_id, table[logical], state)
        hue = sequence_colour(owner)
        colour = states["ink"] if is_key else mix(hue, surface["primary"], 0.5) if logical % 2 else hue
        groups.setdefault((colour, shared and not is_key), []).append(i)
    figure = go.Figure()
    for (colour, shared), bars in groups.items():
        figure.add_bar(
            x=[i * step + (step - 1) / 2 for i in bars], y=[values[i] for i in bars], width=[0.86 * step] * len(bars),
            marker={"color": colour, "line": {"width": 0},
                    "pattern": pattern("x", mode, colour, surface["primary"]) if shared else None},
            name="pinned key" if colour == states["ink"] else "shared block" if shared else f"blocks of {literal(request_id)}",
            hoverinfo="skip", showlegend=False,
        )  # fmt: skip
    top = (max(values, default=1.0) or 1.0) * 1.04
    figure.add_bar(  # clear columns over the full height: a small weight can be pointed at as well as a large one
        x=[i * step + (step - 1) / 2 for i in range(len(values))], y=[top] * len(values), width=[step] * len(values),
        marker={"color": "rgba(0,0,0,0)", "line": {"width": 0}}, name="columns", showlegend=False,
        customdata=[
            [table[i * step // size], i * step, _words(tokens, i * step, by_block), f"{value:.4f}"]
            for i, value in enumerate(values)
        ],
        hovertemplate=f"{literal(request_id)}:%{{customdata[1]}} %{{customdata[2]}}<br>block %{{customdata[0]}}, "
                      "weight %{customdata[3]}<extra></extra>",
    )  # fmt: skip
    starts = list(range(0, len(weights), size))
    lines = "".join(f"M{start - 0.5},0V1" for start in starts[1:])  # one path: a shape each costs Plotly quadratic time
    shapes = [
        {"type": "path", "path": lines, "yref": "paper", "layer": "below", "line": {"color": surface["border"], "width": 1}}
    ]
    every = max(1, -(-len(starts) * LABEL // max(width, LABEL)))
    labels = [
        {
            "text": f"{'block ' if start == 0 else ''}{table[start // size]}", "y": 1, "yref": "paper", "yanchor": "bottom",
            "x": (start + min(start + size, len(weights)) - 1) / 2, "showarrow": False,
            "font": {"size": 11, "color": surface["text"]},
        }
        for start in starts[::every]
    ]  # fmt: skip
    figure.update_layout(shapes=shapes if lines else [], annotations=labels)
    dress(figure, mode, f"Attention of {request_id}:{query}", _caption(lookup, weights, by_block), None, "")
    figure.update_xaxes(range=[-0.5, len(weights) - 0.5], title={"text": "position"}, showgrid=False)
    figure.update_layout(hovermode="closest", yaxis={"range": [0, top], "nticks": 4, "tickformat": ".2~f"})
    return figure


def _reader(request_id: str, block_id: int, state: CacheState | None) -> tuple[int, bool]:
    """(index of the sequence whose hue the block has in the pool, whether it is shared)."""
    if state is None or request_id not in state.requests:
        return letter_index(request_id), False
    names = list(state.requests)
    mine = block_id in state.requests[request_id].block_table
    owner = state.owner[block_id] if mine else None
    return names.index(owner if owner in state.requests else request_id), mine and state.ref_cnt[block_id] > 1


def letter_index(request_id: str) -> int:
    """A is 0, Z is 25, AA is 26; 0 for any other name."""
    if not (request_id.isascii() and request_id.isalpha() and request_id.isupper() and len(request_id) < 5):
        return 0
    index = 0
    for letter in request_id:
        index = index * 26 + ord(letter) - ord("A") + 1
    return index - 1


def _words(tokens: list[Any], position: int, by_block: bool) -> str:
    if by_block:
        return "and the rest of its block"
    return f"“{literal(visible(tokens[position]))}”" if position < len(tokens) else ""


def _caption(lookup: Mapping[str, Any], weights: list[float], by_block: bool) -> str:
    size, table = int(lookup["block_size"]), lookup["block_table"]
    name, query = lookup["request_id"], lookup["query_position"]
    blocks = [(sum(weights[start : start + size]), table[start // size]) for start in range(0, len(weights), size)]
    share, most = max(blocks)
    each = "block" if by_block else "position"
    return (
        f"Query {name}:{query}, layer {lookup['layer']}, head {lookup['head']} (KV head {lookup['kv_head']}): {len(weights):,} "
        f"positions in {len(blocks):,} blocks, a bar a {each}. Block {most} takes {share:.0%} of the weight; the key of "
        f"{name}:{lookup['key_position']}, in block {lookup['physical_block']}, {lookup['weight']:.4f}."
    )
