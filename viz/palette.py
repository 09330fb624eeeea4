"""Every colour of the page, in one place: sequences, states, surfaces, in light and dark.

`theme.py` hands them to Gradio, `css_variables()` to the Stage's stylesheet; JavaScript reads them from there.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["light", "dark"]

SEQUENCES: tuple[str, ...] = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's colours for sequences A to G; the eighth sequence takes the first again (its letter tells them apart)."""

INK_ON_COLOUR = "#0B0D12"
WHITE_ON_COLOUR = "#FFFFFF"

SURFACES: dict[Mode, dict[str, str]] = {
    "light": {
        "body": "#F6F7F9", "primary": "#FFFFFF", "secondary": "#F3F4F7", "border": "#E1E4EA", "input_border": "#8A919E",
        "text": "#15181E", "subdued": "#59616E", "accent": "#4F46E5", "accent_soft": "#EEF0FE", "link": "#4338CA",
        "action": "#4F46E5", "action_hover": "#4338CA", "button": "#FFFFFF", "button_hover": "#F3F4F7",
        "button_border": "#CBD0D9", "error": "#B42318", "error_soft": "#FEF4F2", "error_border": "#F2C4BD",
    },
    "dark": {
        "body": "#0C0E12", "primary": "#13161B", "secondary": "#1B1F26", "border": "#2A2F38", "input_border": "#6C7584",
        "text": "#E9EBEF", "subdued": "#9EA7B4", "accent": "#A3A0FF", "accent_soft": "#23233F", "link": "#B4B2FF",
        "action": "#5B54E8", "action_hover": "#6A63F0", "button": "#1B1F26", "button_hover": "#242932",
        "button_border": "#3A414D", "error": "#FF9A8C", "error_soft": "#2A1715", "error_border": "#5C2B25",
    },
}  # fmt: skip

STATES: dict[Mode, dict[str, str]] = {
    "light": {
        "ink": "#0B0D12", "on-ink": "#FFFFFF", "free": "#A9B0BC", "reserved": "#858D9B", "earlier": "#6E7786",
        "cross": "rgba(255, 255, 255, .72)", "fresh": "#FFFFFF", "neg": "#B35806", "pos": "#3B57C4", "bar": ".6",
        "edge-mix": "#000 38%",
    },
    "dark": {
        "ink": "#FFFFFF", "on-ink": "#0B0D12", "free": "#4A5261", "reserved": "#7C8594", "earlier": "#8A93A2",
        "cross": "rgba(12, 14, 18, .72)", "fresh": "#FFFFFF", "neg": "#F0A35C", "pos": "#8FA6FF", "bar": ".95",
        "edge-mix": "#fff 26%",
    },
}  # fmt: skip


def sequence_colour(index: int) -> str:
    """The colour of the `index`-th sequence (0 = A)."""
    return SEQUENCES[index % len(SEQUENCES)]


def letter_colour(index: int) -> str:
    """The colour of text on that sequence's colour: white on A's blue only."""
    return WHITE_ON_COLOUR if index % len(SEQUENCES) == 0 else INK_ON_COLOUR


def css_variables() -> str:
    """`:root` and `.dark` rules that declare every `--pw-*` colour."""
    light = [f"--pw-seq-{i + 1}: {c};" for i, c in enumerate(SEQUENCES)]
    light += [f"--pw-{name}: {value};" for name, value in STATES["light"].items()]
    dark = [f"--pw-{name}: {value};" for name, value in STATES["dark"].items()]
    return f":root {{ {' '.join(light)} }}\n.dark {{ {' '.join(dark)} }}\n"


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two `#rrggbb` colours."""
    hi, lo = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (hi + 0.05) / (lo + 0.05)


def mix(colour: str, other: str, part: float) -> str:
    """`colour` with `part` (0 to 1) of `other` in it."""
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(x * (1 - part) + y * part):02X}" for x, y in pairs)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(colour: str) -> float:
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in _channels(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
