"""Contrast and identity of the colours; WCAG 2 ratios: 4.5 for text, 3 for what must be found."""

import pytest

from viz.palette import SEQUENCES, STATES, SURFACES, contrast, css_variables, letter_colour, mix, sequence_colour

MODES = ("light", "dark")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ground", ["primary", "secondary", "body"])
def test_text_can_be_read_on_every_surface(mode, ground):
    assert contrast(SURFACES[mode]["text"], SURFACES[mode][ground]) >= 7
    assert contrast(SURFACES[mode]["subdued"], SURFACES[mode][ground]) >= 4.5
    assert contrast(SURFACES[mode]["error"], SURFACES[mode][ground]) >= 4.5


@pytest.mark.parametrize("mode", MODES)
def test_an_input_a_focus_ring_and_the_ink_can_be_found(mode):
    surface = SURFACES[mode]
    assert contrast(surface["input_border"], surface["primary"]) >= 3
    assert contrast(surface["accent"], surface["primary"]) >= 3
    assert contrast(STATES[mode]["ink"], surface["primary"]) >= 15
    assert contrast(STATES[mode]["reserved"], surface["primary"]) >= 3


@pytest.mark.parametrize("mode", MODES)
def test_white_on_the_action_colour_can_be_read(mode):
    assert contrast("#FFFFFF", SURFACES[mode]["action"]) >= 4.5


@pytest.mark.parametrize("index", range(7))
def test_letters_can_be_read_on_every_sequence_colour(index):
    assert contrast(letter_colour(index), sequence_colour(index)) >= 4.5


@pytest.mark.parametrize(("mode", "other", "part"), [("light", "#000000", 0.38), ("dark", "#FFFFFF", 0.26)])
@pytest.mark.parametrize("colour", SEQUENCES)
def test_the_edge_of_a_block_can_be_found_even_for_yellow(mode, other, part, colour):
    assert contrast(mix(colour, other, part), SURFACES[mode]["primary"]) >= 3


def test_the_eighth_sequence_takes_the_first_colour_again():
    assert sequence_colour(7) == sequence_colour(0)
    assert len(set(SEQUENCES)) == 7


def test_every_variable_of_light_is_declared_for_dark_too():
    assert STATES["light"].keys() == STATES["dark"].keys()
    assert SURFACES["light"].keys() == SURFACES["dark"].keys()
    assert css_variables().count("--pw-ink:") == 2


def test_contrast_of_black_on_white_is_21():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
