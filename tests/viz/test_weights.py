"""The weights figure: a bar a position, the key's and the largest one labelled with their own numbers."""

import pytest

from viz.weights import weights_figure

WEIGHTS = [0.01] * 9 + [0.2] + [0.02] * 28


def test_every_position_has_its_bar_and_the_key_stands_out():
    figure = weights_figure(WEIGHTS, 20, 16)
    bars = figure.data[0]
    assert list(bars.x) == list(range(38))
    assert list(bars.y) == WEIGHTS
    assert len({colour for p, colour in enumerate(bars.marker.color) if p != 20}) == 1
    assert bars.marker.color[20] not in bars.marker.color[:20]
    assert figure.layout.meta == {"position": 20, "largest": 9}


def test_the_key_and_the_largest_are_labelled_with_their_weights():
    figure = weights_figure(WEIGHTS, 20, 16)
    assert {(note.x, note.text) for note in figure.layout.annotations} == {(9, "0.2000"), (20, "<b>0.0200</b>")}
    assert list(figure.layout.xaxis.ticktext) == ["0", "9", "<b>20</b>", "37"]


def test_a_line_stands_where_each_block_begins():
    assert [shape.x0 for shape in weights_figure(WEIGHTS, 20, 16).layout.shapes] == [15.5, 31.5]
    assert len(weights_figure([1 / 4096] * 4096, 0, 16).layout.shapes) <= 16


def test_labels_do_not_stand_on_each_other():
    assert list(weights_figure(WEIGHTS, 1, 16).layout.xaxis.tickvals) == [1, 9, 37]
    assert list(weights_figure(WEIGHTS, 9, 16).layout.xaxis.ticktext) == ["0", "<b>9</b>", "37"]
    assert len(weights_figure(WEIGHTS, 9, 16).layout.annotations) == 1


def test_one_position_is_enough_and_none_is_refused():
    assert list(weights_figure([1.0], 0, 16).layout.xaxis.ticktext) == ["<b>0</b>"]
    with pytest.raises(ValueError, match="Position 38 has no weight: there are 38 weights"):
        weights_figure(WEIGHTS, 38, 16)


def test_the_pointer_reads_slot_and_score_where_they_are_known():
    bars = weights_figure([0.5, 0.5], 0, 16, slots=[7, 9], scores=[1.5, 1.5]).data[0]
    assert [list(row) for row in bars.customdata] == [[7, 1.5], [9, 1.5]]
    assert "slot" not in weights_figure([0.5, 0.5], 0, 16).data[0].hovertemplate
