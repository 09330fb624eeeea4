"""The launch plan figure: which program reads which positions of which sequence, and which parts are merged afterwards.

One line a block of query rows (in decode: a sequence), one bar a range of its context; a bar stands for one program of every
KV head. A sequence's colour is its hue everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import plotly.graph_objects as go

from viz.palette import sequence_colour
from viz.text import bytes_text, count

MOST_LINES = 32
"""Lines that are drawn; the figure says how many are left out."""
LINE_HEIGHT = 15
PAGES_NAMED = 6


class Tile(Protocol):
    """Positions start .. stop - 1 and the physical blocks (pages) that hold them."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def pages(self) -> Sequence[int]: ...


class Program(Protocol):
    """One program of a launch, as kernels.launch_plan.Program."""

    @property
    def kernel(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def kv_head(self) -> int: ...
    @property
    def rows(self) -> range: ...
    @property
    def part(self) -> int: ...
    @property
    def parts(self) -> int: ...
    @property
    def tiles(self) -> Sequence[Tile]: ...
    @property
    def bytes_read(self) -> int: ...


class Plan(Protocol):
    """What kernels.launch_plan.launch_plan gives; this package does not import the kernels."""

    @property
    def programs(self) -> Sequence[Program]: ...
    @property
    def merges(self) -> Sequence[object]: ...
    @property
    def bytes_read(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one sequence's context for some of its query rows: one program of each of `kv_heads` KV heads reads it."""

    kernel: str
    first_program: int
    sequence: int
    rows: range
    part: int
    parts: int
    start: int
    stop: int
    pages: tuple[int, ...]
    kv_heads: int
    bytes_read: int


def pieces(plan: Plan) -> list[Piece]:
    """The plan without its repetition over the KV heads: by sequence, query rows, position."""
    heads: dict[tuple[str, int, int, int], list[Program]] = {}
    for program in plan.programs:
        heads.setdefault((program.kernel, program.sequence, program.rows.start, program.part), []).append(program)
    return sorted(map(_piece, heads.values()), key=lambda p: (p.sequence, p.rows.start, p.start))


def _piece(programs: list[Program]) -> Piece:
    """What the programs of all KV heads that read the same range have in common."""
    one = programs[0]
    return Piece(
        kernel=one.kernel,
        first_program=min(p.index for p in programs),
        sequence=one.sequence,
        rows=one.rows,
        part=one.part,
        parts=one.parts,
        start=one.tiles[0].start if one.tiles else 0,
        stop=one.tiles[-1].stop if one.tiles else 0,
        pages=tuple(dict.fromkeys(page for tile in one.tiles for page in tile.pages)),
        kv_heads=len(programs),
        bytes_read=sum(p.bytes_read for p in programs),
    )


def launch_plan_sentence(plan: Plan) -> str:
    """The plan in numbers: programs, how they come about, what is merged, bytes."""
    found = pieces(plan)
    if not found:
        return "Nothing is launched: no sequence has any context."
    heads = max(piece.kv_heads for piece in found)
    most = max(piece.parts for piece in found)
    pages = sum(len(piece.pages) for piece in found)
    text = (
        f"{count(len(plan.programs), 'program')}: {count(len(found), 'range')} of tokens × {count(heads, 'KV head')}, "
        f"which read {count(pages, 'page')} ({bytes_text(plan.bytes_read)} of K and V)."
    )
    if plan.merges:
        cut = f"up to {most} parts" if len({p.parts for p in found}) > 1 else f"{most} parts"
        verb = "is" if len(plan.merges) == 1 else "are"
        return f"{text} {count(len(plan.merges), 'query row')} {verb} cut in {cut}, merged by a second launch."
    return f"{text} No sequence is cut, so nothing is merged."


def launch_plan_figure(plan: Plan) -> go.Figure:
    """Bars over positions, a line a block of query rows. `layout.meta`: {"lines", "left_out", "sentence"}."""
    found = pieces(plan)
    keys = list(dict.fromkeys((p.sequence, p.rows.start) for p in found))
    line = {key: i for i, key in enumerate(keys[:MOST_LINES])}
    longest = max((p.stop for p in found), default=1)
    gap = longest * 0.0025  # between bars: about a pixel
    figure = go.Figure()
    for colour in sorted({sequence % 7 for sequence, _ in line}):
        bars = [p for p in found if (p.sequence, p.rows.start) in line and p.sequence % 7 == colour]
        figure.add_bar(
            orientation="h", y=[line[p.sequence, p.rows.start] for p in bars], base=[p.start for p in bars],
            x=[max(p.stop - p.start - gap, gap) if p.parts > 1 else p.stop - p.start for p in bars], width=0.72,
            marker={"color": sequence_colour(colour), "opacity": [1.0 if p.part % 2 == 0 else 0.62 for p in bars]},
            customdata=[_spoken(p) for p in bars], hovertemplate="%{customdata}<extra></extra>", showlegend=False,
        )  # fmt: skip
    left_out = len(keys) - len(line)
    several_rows = any(len(p.rows) > 1 for p in found)
    names = [f"sequence {sequence}" + (f", rows {start}+" if several_rows else "") for sequence, start in line]
    figure.update_layout(
        height=46 + LINE_HEIGHT * max(1, len(line)) + (16 if left_out else 0), barmode="overlay", bargap=0, template=None,
        margin={"l": 10 + 7 * max(map(len, names), default=1), "r": 12, "t": 6, "b": 40 + (16 if left_out else 0), "pad": 0},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", dragmode=False, font={"size": 11},
        meta={"lines": len(line), "left_out": left_out, "sentence": launch_plan_sentence(plan)},
    )  # fmt: skip
    quiet = {"showgrid": False, "zeroline": False, "fixedrange": True, "tickfont": {"size": 11}}
    figure.update_xaxes(
        **quiet, range=[0, longest], tickformat=",d", nticks=7, title={"text": "position", "font": {"size": 11}, "standoff": 4}
    )
    figure.update_yaxes(
        **quiet,
        ticks="outside",
        ticklen=5,
        tickcolor="rgba(0,0,0,0)",
        range=[max(1, len(line)) - 0.5, -0.5],
        tickvals=list(line.values()),
        ticktext=names,
    )
    if left_out:
        figure.add_annotation(
            text=f"and {left_out:,} more like these", x=0, y=0, xref="paper", yref="paper", xanchor="left", yanchor="top",
            yshift=-38, showarrow=False, font={"size": 11},
        )  # fmt: skip
    return figure


def _spoken(piece: Piece) -> str:
    """A piece for the pointer. Numbers only: Plotly reads it as markup."""
    pages = ", ".join(map(str, piece.pages[:PAGES_NAMED])) + (", …" if len(piece.pages) > PAGES_NAMED else "")
    part = f"part {piece.part + 1} of {piece.parts}" if piece.parts > 1 else "whole"
    rows = f"row {piece.rows.start}" if len(piece.rows) == 1 else f"rows {piece.rows.start} to {piece.rows.stop - 1}"
    return (
        f"sequence {piece.sequence}, {rows}, {part}<br>positions {piece.start:,} to {piece.stop - 1:,}<br>"
        f"{count(len(piece.pages), 'page')}: {pages}<br>"
        f"{count(piece.kv_heads, 'program')}, one a KV head, from number {piece.first_program:,} on<br>"
        f"{bytes_text(piece.bytes_read)} of K and V"
    )
