"""A launch plan, drawn for the sequences of a run: their names and hues, and the pages of every bar for whoever hovers it."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from viz.chart import dress
from viz.launch_plan import Plan, launch_plan_figure, launch_plan_sentence, pieces
from viz.palette import Mode, sequence_colour
from viz.text import literal


def kernel_pages(plan: Plan, names: Sequence[str], hues: Sequence[int], mode: Mode = "light", where: str = "") -> go.Figure:
    """`names[i]` and `hues[i]` are sequence i of the batch: its name, and its index in the run. where: said after the sentence.

    Each bar's customdata is [words, list of the physical blocks it reads].
    """
    figure, found = launch_plan_figure(plan), pieces(plan)
    lines = list(dict.fromkeys((piece.sequence, piece.rows.start) for piece in found))
    at = {(piece.sequence, piece.rows.start, piece.start): piece for piece in found}
    for bars in figure.data:
        mine = [at[(*lines[line], start)] for line, start in zip(bars.y, bars.base, strict=True)]
        bars.customdata = [
            [words.replace(f"sequence {piece.sequence},", f"{literal(names[piece.sequence])},", 1), list(piece.pages)]
            for words, piece in zip(bars.customdata, mine, strict=True)
        ]
        bars.hovertemplate = "%{customdata[0]}<extra></extra>"
        bars.marker.color = [sequence_colour(hues[piece.sequence]) for piece in mine]
    ticks = []
    for sequence, row in lines[: len(figure.layout.yaxis.tickvals)]:
        rows = f" row {row}" if any(len(piece.rows) > 1 for piece in found) else ""
        ticks.append(f"{literal(names[sequence])}{rows}")
    height, margin = figure.layout.height, 14 + 7 * max(map(len, ticks), default=1)
    dress(figure, mode, "Launch plan of one layer", f"{launch_plan_sentence(plan)} {where}".strip())
    figure.update_layout(height=max(200, height + 60), hovermode="closest", margin={"l": margin, "b": 48})
    figure.update_yaxes(ticktext=ticks, showgrid=False)
    figure.update_xaxes(showgrid=False)
    return figure
