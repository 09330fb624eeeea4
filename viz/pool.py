"""The pool figure: one Plotly `image` trace, in units of blocks (x = column, y = row of the pool).

The browser paints the picture on a canvas and hands it to the trace as its `source`: a heatmap cannot hatch. Block `b`
stands at column `b % columns`, row `b // columns`; the labels say so, block id = row label + column label.
"""

from __future__ import annotations

import math

import plotly.graph_objects as go

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
