"""The physical pool, in units of blocks: x = column, y = row. `pool` draws one state; `pool_figure` is the page's live base.

Block `b` stands at column `b % columns`, row `b // columns`; the labels say so, block id = row label + column label. Hue is the
sequence, pattern is the state: solid used, hatch reserved, cross hatch shared, dots cached, hollow free.

On the page the picture is painted on a canvas and shown as the source of one `image` trace: a heatmap cannot hatch.
"""

from __future__ import annotations

import math

import plotly.graph_objects as go

from engine.trace import CacheState
from viz.chart import dress, pattern
from viz.palette import STATES, SURFACES, Mode, letter_colour, mix, sequence_colour
from viz.text import count, literal, visible

EMPTY_PICTURE = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
LABEL_TOP = 18
"""Pixels kept for the column labels; the row labels take 7 px a digit."""


def tile_shape(block_size: int) -> tuple[int, int]:
    """(columns, rows) of the cells of one block: 8 cells a line everywhere, fewer only where a block is smaller."""
    columns = min(8, block_size)
    return columns, math.ceil(block_size / columns)


def pool_columns(num_blocks: int) -> int:
    """Blocks in a row of the pool: 8 up to 256 blocks, then about as many as rows, a multiple of 8."""
    if num_blocks <= 256:
        return min(8, num_blocks)
    return max(8, round(math.sqrt(num_blocks * 0.85) / 8) * 8)


def pool_figure(num_blocks: int, block_size: int, columns: int | None = None) -> go.Figure:
    """The empty pool: axes, labels, styling. `meta` tells the browser the grid; columns: blocks in a row."""
    columns = columns or pool_columns(num_blocks)
    rows = math.ceil(num_blocks / columns)
    cell_columns, cell_rows = tile_shape(block_size)
    # one image pixel until the browser paints: x0, dx and y0, dy stretch it over the whole grid
    image = go.Image(
        source=EMPTY_PICTURE, x0=columns / 2, dx=columns, y0=rows / 2, dy=rows, zsmooth="fast", hoverinfo="none",
    )  # fmt: skip
    figure = go.Figure(image)
    figure.update_layout(
        margin={"l": max(31, 11 + 7 * len(f"{(rows - 1) * columns:,}")), "r": 0, "t": LABEL_TOP, "b": 0, "pad": 0},
        uirevision="pool", dragmode=False, hovermode=False, showlegend=False, template=None,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        meta={"num_blocks": num_blocks, "block_size": block_size, "columns": columns, "rows": rows,
              "cell_columns": cell_columns, "cell_rows": cell_rows},
    )  # fmt: skip
    quiet = {"showgrid": False, "zeroline": False, "showline": False, "tickfont": {"size": 11}, "tickmode": "array"}
    step = 1 if columns <= 8 else columns // 8
    figure.update_xaxes(
        **quiet, range=[0, columns], side="top", ticks="", tickvals=[c + 0.5 for c in range(0, columns, step)],
        ticktext=[f"+{c}" for c in range(0, columns, step)],
    )  # fmt: skip
    figure.update_yaxes(
        **quiet, range=[rows, 0], scaleanchor=False, constrain="range",
        ticks="outside", ticklen=4, tickcolor="rgba(0,0,0,0)",
        tickvals=[r + 0.5 for r in range(rows)], ticktext=[f"{r * columns:,}" for r in range(rows)],
    )  # fmt: skip
    return figure


MAX_SLOTS = 4096
"""Slots up to which each gets a mark of its own; in larger pools a block is one mark."""
MAX_FREE = 4096
"""Blocks up to which free ones are drawn; in larger pools they are left blank."""
MAX_BADGES = 256
MARGIN = 0.07
"""Part of a block's pitch that is left free on each side."""


class _Marks:
    """Rectangles of one look, gathered for one bar trace."""

    def __init__(self) -> None:
        self.x: list[float] = []
        self.y: list[float] = []
        self.width: list[float] = []
        self.height: list[float] = []
        self.blocks: list[int] = []
        self.words: list[str] = []

    def add(self, box: tuple[float, float, float, float], block_id: int, words: str) -> None:
        x, y, width, height = box
        self.x.append(x + width / 2)
        self.y.append(y)
        self.width.append(width)
        self.height.append(height)
        self.blocks.append(block_id)
        self.words.append(words)


def pool(state: CacheState, mode: Mode = "light") -> go.Figure:
    """Every block of the pool after `state.step`, slot by slot up to MAX_SLOTS slots, beyond one mark a block.

    Hovering says block, slot, sequence and token. A badge is the reference count of a shared block. In pools of more than
    MAX_FREE blocks free ones are left blank.
    """
    columns, names = pool_columns(state.num_blocks), list(state.requests)
    marks: dict[tuple[str, str | None], _Marks] = {}
    by_slot = state.num_blocks * state.block_size <= MAX_SLOTS
    fresh = {slot for slot in state.fresh_slots if state.ref_cnt[slot // state.block_size]}
    for block_id in range(state.num_blocks):
        owner, box = state.owner[block_id], (*_corner(block_id, columns), 1 - 2 * MARGIN, 1 - 2 * MARGIN)
        if not state.ref_cnt[block_id]:
            kind = "cached" if state.block_hash[block_id] is not None else "free"
            if kind == "cached" or state.num_blocks <= MAX_FREE:
                who = f"cached from {literal(owner)}" if owner else "cached by an earlier run"
                words = f"block {block_id}: {who if kind == 'cached' else 'free, no sequence maps to it'}"
                marks.setdefault((kind, owner if kind == "cached" else None), _Marks()).add(box, block_id, words)
            continue
        used = "shared" if state.ref_cnt[block_id] > 1 else "used"
        where = f"block {block_id}, {literal(owner or '?')}[{state.logical_index[block_id]}]"
        if state.ref_cnt[block_id] > 1:
            where += f", read by {state.ref_cnt[block_id]}"
        if not by_slot:
            words = f"{where}: {state.num_filled[block_id]} of {count(state.block_size, 'slot')} written"
            marks.setdefault((used, owner), _Marks()).add(box, block_id, words)
            continue
        tokens = state.requests[owner].tokens if owner in state.requests else []
        look: tuple[str, str | None]
        for offset in range(state.block_size):
            position, slot = state.logical_index[block_id] * state.block_size + offset, block_id * state.block_size + offset
            if offset >= state.num_filled[block_id]:
                look, words = ("reserved", None), f"{where}, slot {slot}: reserved, not written yet"
            else:
                token = f" “{literal(visible(tokens[position]))}”" if position < len(tokens) else ""
                look, words = (used, owner), f"{where}, slot {slot}: {literal(owner or '?')}:{position}{token}"
            cell = _cell(block_id, offset, columns, state.block_size)
            marks.setdefault(look, _Marks()).add(cell, block_id, words)
            if slot in fresh:
                marks.setdefault(("fresh", None), _Marks()).add(cell, block_id, words)
    figure = go.Figure()
    order = ("free", "cached", "reserved", "used", "shared", "fresh")
    for kind, owner in sorted(marks, key=lambda k: (order.index(k[0]), names.index(k[1]) if k[1] in names else -1)):
        found, index = marks[(kind, owner)], names.index(owner) if owner in names else None
        figure.add_bar(
            name=LOOKS[kind] if owner is None else f"{literal(owner)} {LOOKS[kind]}".rstrip(), x=found.x, width=found.width,
            base=found.y, y=found.height, marker=_look(kind, index, mode), customdata=found.blocks, hovertext=found.words,
            hoverinfo="skip" if kind == "fresh" else "text", showlegend=kind != "fresh",
        )  # fmt: skip
    caption = (
        f"Step {state.step:,}: {state.num_used_blocks:,} of {count(state.num_blocks, 'block')} of "
        f"{count(state.block_size, 'slot')} in use, {state.num_shared_blocks:,} of them shared; "
        f"{state.num_cached_blocks:,} cached."
    )
    if state.num_blocks > MAX_FREE:
        caption += " Free blocks are left blank."
    return _axes(dress(figure, mode, f"Physical pool, step {state.step:,}", caption, None, "blocks"), state, mode)


LOOKS = {"free": "free", "cached": "cached", "reserved": "reserved", "used": "", "shared": "shared", "fresh": "just written"}


def _corner(block_id: int, columns: int) -> tuple[float, float]:
    return block_id % columns + MARGIN, block_id // columns + MARGIN


def _cell(block_id: int, offset: int, columns: int, block_size: int) -> tuple[float, float, float, float]:
    """A slot's rectangle in its block, with a hairline around it."""
    across, down = tile_shape(block_size)
    x, y = _corner(block_id, columns)
    width, height = (1 - 2 * MARGIN) / across, (1 - 2 * MARGIN) / down
    return x + offset % across * width, y + offset // across * height, width * 0.9, height * 0.9


def _look(kind: str, index: int | None, mode: Mode) -> dict[str, object]:
    surface, states = SURFACES[mode], STATES[mode]
    hue = states["earlier"] if index is None else sequence_colour(index)
    if kind == "free":
        return {"color": "rgba(0,0,0,0)", "line": {"color": states["free"], "width": 1}}
    if kind == "cached":
        ground = mix(hue, surface["primary"], 0.88)
        return {"color": ground, "pattern": pattern(".", mode, ground, mix(hue, surface["primary"], 0.3), 4),
                "line": {"color": mix(hue, surface["primary"], 0.45), "width": 1}}  # fmt: skip
    if kind == "reserved":
        return {"color": surface["primary"], "pattern": pattern("/", mode, size=4), "line": {"width": 0}}
    if kind == "fresh":
        return {"color": "rgba(0,0,0,0)", "line": {"color": states["fresh"], "width": 2}}
    look: dict[str, object] = {"color": hue, "line": {"width": 0}}
    if kind == "shared":
        look["pattern"] = pattern("x", mode, hue, surface["primary"], 6)
    return look


def _axes(figure: go.Figure, state: CacheState, mode: Mode) -> go.Figure:
    columns = pool_columns(state.num_blocks)
    rows = math.ceil(state.num_blocks / columns)
    step_x, step_y = max(1, columns // 8), max(1, -(-rows // 16))
    shared = [b for b, num in enumerate(state.ref_cnt) if num > 1]
    if columns <= 32:
        corners = {block_id: _corner(block_id, columns) for block_id in shared[:MAX_BADGES]}
        figure.update_layout(annotations=[
            {"x": x + 1 - 2 * MARGIN, "y": y, "text": f"{state.ref_cnt[block_id]}", "showarrow": False, "borderpad": 1,
             "bgcolor": STATES[mode]["ink"], "font": {"size": 11, "color": STATES[mode]["on-ink"]}}
            for block_id, (x, y) in corners.items()
        ])  # fmt: skip
    if state.num_blocks * state.block_size > MAX_SLOTS and columns <= 32:
        _letters(figure, state, columns)
    figure.update_layout(hovermode="closest", height=max(420, min(900, 120 + 26 * rows)))
    figure.update_xaxes(
        range=[0, columns], side="bottom", showgrid=False, tickvals=[c + 0.5 for c in range(0, columns, step_x)],
        ticktext=[f"+{c}" for c in range(0, columns, step_x)],
    )  # fmt: skip
    figure.update_yaxes(
        range=[rows, 0], showgrid=False, tickvals=[r + 0.5 for r in range(0, rows, step_y)],
        ticktext=[f"{r * columns:,}" for r in range(0, rows, step_y)],
    )  # fmt: skip
    return figure


def _letters(figure: go.Figure, state: CacheState, columns: int) -> None:
    """The sequence's letter on each block in use, where a block is one mark."""
    names = list(state.requests)
    used = [b for b, num in enumerate(state.ref_cnt) if num and state.owner[b] in names]
    figure.add_scatter(
        x=[b % columns + 0.5 for b in used], y=[b // columns + 0.5 for b in used], mode="text", hoverinfo="skip",
        showlegend=False, text=[literal(str(state.owner[b])) for b in used],
        textfont={"size": 11, "color": [letter_colour(names.index(str(state.owner[b]))) for b in used]},
    )  # fmt: skip
