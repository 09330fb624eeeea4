"""Token text in a figure: made visible, and literal.

Plotly reads its texts as a little HTML and, where MathJax is on the page, `$..$` as TeX. Text that people or models wrote goes
through `literal` first, so that it is drawn as it stands: in a notebook, on the page and in an exported file.
"""

from __future__ import annotations

import re
import unicodedata

from engine.events import TokenText

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}
_OVERRIDES = re.compile("[\u202a-\u202e\u2066-\u2069]")


def literal(text: str) -> str:
    """`text` for a Plotly title, tick, annotation or hover: markup, entities and TeX lose their meaning."""
    return re.sub(r"[&<>$]", lambda match: _ENTITIES[match.group()], text)


def visible(text: TokenText) -> str:
    """A token's text as the page shows it (viz/stage/js/dom.js): marks for what cannot be seen, bytes in hexadecimal."""
    if isinstance(text, bytes):
        return text.hex(" ")
    if text == "":
        return "∅"
    if text.strip() and all(unicodedata.category(c)[0] == "M" or unicodedata.category(c) in ("Cf", "Cc") for c in text):
        return " ".join(map(_code, text))
    marked = re.sub(r"\r\n|\r|\n", "⏎", text).replace("\t", "⇥")
    if not text.strip():
        return re.sub(r"\s", "␣", marked)
    return _OVERRIDES.sub(lambda match: _code(match.group()), marked.removeprefix(" "))


def bytes_text(num: float) -> str:
    """A number of bytes for reading: three digits or so, in units of 1,024."""
    value, unit = float(num), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    digits = 0 if unit == "B" or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def count(num: int, thing: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{num:,} {thing}{'' if num == 1 else 's'}"


def _code(char: str) -> str:
    return f"U+{ord(char):04X}"
