"""The base figures: what the browser may rely on."""

import json
import math

import pytest

from viz.palette import SEQUENCES
from viz.pool import pool_columns, pool_figure, tile_shape
from viz.usage import GLYPHS, usage_figure


@pytest.mark.parametrize("num_blocks", [1, 2, 8, 16, 100, 128, 256, 257, 512, 1000, 1024, 16384])
@pytest.mark.parametrize("block_size", [1, 4, 5, 16, 64])
def test_every_block_and_slot_has_a_place(num_blocks, block_size):
    grid = pool_figure(num_blocks, block_size).layout.meta
    assert grid["columns"] * grid["rows"] >= num_blocks > grid["columns"] * (grid["rows"] - 1)
    assert grid["cell_columns"] * grid["cell_rows"] >= block_size
    assert grid["cell_columns"] <= 8


def test_the_default_pool_is_eight_blocks_wide():
    assert pool_columns(128) == 8
    assert tile_shape(16) == (8, 2)
    assert tile_shape(4) == (4, 1)


def test_a_block_id_is_its_row_label_and_its_column_label():
    figure = pool_figure(128, 16)
    assert list(figure.layout.xaxis.ticktext) == [f"+{i}" for i in range(8)]
    assert list(figure.layout.yaxis.ticktext)[:3] == ["0", "8", "16"]
    assert figure.layout.yaxis.range == (16, 0)


def test_the_pool_is_one_image_trace_that_keeps_its_zoom():
    figure = pool_figure(128, 16)
    assert [t.type for t in figure.data] == ["image"]
    assert figure.layout.uirevision == "pool"
    assert figure.layout.yaxis.scaleanchor is False


def test_usage_has_two_traces_a_colour_and_hatches_the_shared_one():
    figure = usage_figure(128)
    stacked = [t for t in figure.data if t.stackgroup]
    assert len(stacked) == 2 * len(SEQUENCES)
    for colour, shared, own in zip(SEQUENCES, stacked[::2], stacked[1::2], strict=True):
        assert shared.fillpattern.shape == "x"
        assert own.fillpattern.shape is None
        assert shared.fillcolor == own.fillcolor == colour
        assert own.line.shape == "hv"
    assert [t.name for t in figure.data if not t.stackgroup] == list(GLYPHS)


@pytest.mark.parametrize("figure", [pool_figure(16384, 16), usage_figure(16384)])
def test_figures_are_small_json(figure):
    text = figure.to_json()
    assert len(text) < 12_000
    assert not any(isinstance(v, float) and math.isnan(v) for v in json.loads(text)["layout"].values())
