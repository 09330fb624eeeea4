"""The worked lookup, stepped by hand: one gr.HTML that shows the numbers of engine.worked_example, and knows none itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from viz.board import Board, defaults_of, plain
from viz.pool import pool_figure
from viz.weights import weights_figure

HERE = Path(__file__).parent
JS, CSS = HERE / "js", HERE / "worked.css"
TEXT_CELL = 16
"""px: from this width on a cell of the pool shows its token; a position has two digits."""


def captioned_pool(num_blocks: int, block_size: int) -> go.Figure:
    """A small pool, two blocks a row: each block has its caption, so the axes need no labels."""
    figure = pool_figure(num_blocks, block_size, columns=2)
    figure.update_layout(margin={"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0}, meta={**figure.layout.meta, "text_cell": TEXT_CELL})
    figure.update_xaxes(showticklabels=False)
    figure.update_yaxes(showticklabels=False, ticks="")
    return figure


def worked_view(example: dict[str, Any]) -> dict[str, Any]:
    """What the browser gets: the example (`WorkedExample.to_dict()`) and the base figures for it."""
    pool = captioned_pool(example["num_blocks"], example["block_size"])
    weights = weights_figure(
        example["weights"], example["key_position"], example["block_size"], slots=example["slots"], scores=example["scores"]
    )
    return {"example": example, "figures": {"pool": plain(pool), "weights": plain(weights)}}


class WorkedLookup(Board):
    """value: `worked_view(example)`. Gradio calls `cls(**kwargs)` for every property update, so every keyword is taken."""

    def __init__(self, value: Any = None, **kwargs: Any) -> None:
        super().__init__(value, **{**defaults_of(HERE, "worked", "worked"), **kwargs})

    def api_info(self) -> dict[str, Any]:
        return {"type": "object", "description": "The worked example and its figures (viz.worked.worked.worked_view)."}
