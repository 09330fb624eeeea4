"""Every sequence's block table as a row: which physical block each logical block is, shared and copied ones marked."""

from __future__ import annotations

from collections.abc import Iterable

import plotly.graph_objects as go

from engine.events import BlockCopied, Event
from engine.trace import CacheState
from viz.chart import dress, pattern
from viz.palette import SEQUENCES, STATES, SURFACES, Mode, letter_colour, sequence_colour
from viz.text import count, literal

MAX_IDS = 400
"""Entries up to which each shows the id of its block."""


def block_tables(state: CacheState, events: Iterable[Event] = (), mode: Mode = "light") -> go.Figure:
    """x: logical block; a row a sequence; in each entry the physical block id.

    Solid: read by this sequence alone. Cross hatch: shared, with its reference count on hover. A diamond: copied on write,
    from the BlockCopied events among `events` (pass `trace.events_between(0, state.step)`).
    """
    surface, states = SURFACES[mode], STATES[mode]
    rows = [request for request in state.requests.values() if request.block_table]
    index = {name: i for i, name in enumerate(state.requests)}
    line = {request.request_id: i for i, request in enumerate(rows)}
    entries = [(r.request_id, logical, block) for r in rows for logical, block in enumerate(r.block_table)]
    figure = go.Figure()
    for shared in (False, True):
        of_kind = [entry for entry in entries if (state.ref_cnt[entry[2]] > 1) == shared]
        hues = sorted({index[name] % len(SEQUENCES) for name, _, _ in of_kind})
        for hue in hues:
            mine = [entry for entry in of_kind if index[entry[0]] % len(SEQUENCES) == hue]
            colour, kind = sequence_colour(hue), "shared" if shared else "read by one"
            figure.add_bar(
                orientation="h", name=kind, legendgroup=kind, showlegend=hue == hues[0], y=[line[name] for name, _, _ in mine],
                base=[logical - 0.46 for _, logical, _ in mine], x=[0.92] * len(mine), width=0.7,
                marker={"color": colour, "line": {"width": 0},
                        "pattern": pattern("x", mode, colour, surface["primary"]) if shared else None},
                customdata=[
                    [block, literal(name), at, state.ref_cnt[block], state.num_filled[block]] for name, at, block in mine
                ],
                hovertemplate="%{customdata[1]}[%{customdata[2]}] is block %{customdata[0]}: reference count %{customdata[3]}, "
                              f"%{{customdata[4]}} of {state.block_size} slots written<extra></extra>",
            )  # fmt: skip
    if len(entries) <= MAX_IDS:
        figure.add_scatter(
            x=[logical for _, logical, _ in entries], y=[line[name] for name, _, _ in entries], mode="text", hoverinfo="skip",
            text=[f"<b>{block}</b>" for _, _, block in entries], showlegend=False,
            textfont={"size": 11, "color": [
                surface["text"] if state.ref_cnt[block] > 1 else letter_colour(index[name]) for name, _, block in entries
            ]},
        )  # fmt: skip
        # a quiet ground under an id: text never stands on a cross hatch
        grounds = [(logical, line[name], 0.04 * len(str(b)) + 0.06) for name, logical, b in entries if state.ref_cnt[b] > 1]
        figure.update_layout(shapes=[
            {"type": "rect", "x0": x - half, "x1": x + half, "y0": y - 0.2, "y1": y + 0.2, "layer": "between",
             "fillcolor": surface["primary"], "line": {"width": 0}}
            for x, y, half in grounds
        ])  # fmt: skip
    copies = [e for e in events if isinstance(e, BlockCopied) and e.step <= state.step and e.request_id in line]
    still = [e for e in copies if (e.request_id, e.logical_index, e.block_id) in entries]
    if still:
        figure.add_scatter(
            x=[e.logical_index + 0.4 for e in still], y=[line[e.request_id] - 0.28 for e in still], mode="markers",
            name="copied on write", marker={"symbol": "diamond", "size": 9, "color": states["ink"]},
            hovertext=[f"block {e.block_id} is a copy of block {e.source_block_id}, made in step {e.step}" for e in still],
            hoverinfo="text",
        )  # fmt: skip
    longest = max((len(r.block_table) for r in rows), default=0)
    named = {block for _, _, block in entries}
    num_shared = sum(state.ref_cnt[block] > 1 for block in named)
    num_entries = f"{len(entries):,} {'entry names' if len(entries) == 1 else 'entries name'}"
    caption = (
        f"Step {state.step:,}: {num_entries} {count(len(named), 'block')}, {num_shared:,} of them shared. "
        "One table serves all layers."
    )
    dress(figure, mode, f"Block tables, step {state.step:,}", caption)
    figure.update_xaxes(range=[-0.6, max(1, longest) - 0.4], title={"text": "logical block"}, tickformat="d", showgrid=False)
    figure.update_layout(
        hovermode="closest",
        yaxis={"range": [max(1, len(rows)) - 0.5, -0.5], "tickvals": list(line.values()),
               "ticktext": [literal(name) for name in line], "showgrid": False},
    )  # fmt: skip
    return figure
