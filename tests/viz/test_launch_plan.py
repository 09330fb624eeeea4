"""The launch plan figure: every position of every sequence is drawn once, by the programs that the plan names."""

import json
from itertools import pairwise

from kernels.launch_plan import LaunchPlan, launch_plan
from viz.launch_plan import MOST_LINES, launch_plan_figure, launch_plan_sentence, pieces

LONG = launch_plan(16, [list(range(256))], [0, 1], [4096], 32, 8, 128, 2)
MANY = launch_plan(16, [[7, 2]] * 300, list(range(301)), [20] * 300, 8, 4, 64, 2)
RAGGED = launch_plan(16, [list(range(n)) for n in (64, 1, 9)], [0, 1, 2, 3], [1000, 3, 140], 9, 3, 64, 2)
CHUNKS = launch_plan(16, [list(range(40)), [50, 51]], [0, 300, 320], [600, 20], 9, 3, 64, 2)


def bars(figure):
    return [(y, base, base + x) for trace in figure.data for y, base, x in zip(trace.y, trace.base, trace.x, strict=True)]


def test_one_bar_stands_for_one_program_of_every_kv_head():
    for plan, heads in ((LONG, 8), (MANY, 4), (RAGGED, 3), (CHUNKS, 3)):
        found = pieces(plan)
        assert {piece.kv_heads for piece in found} == {heads}
        assert len(found) * heads == len(plan.programs)
        assert sum(piece.bytes_read for piece in found) == plan.bytes_read


def test_the_bars_of_a_sequence_cover_its_context_once():
    figure = launch_plan_figure(RAGGED)
    for line, length in enumerate((1000, 3, 140)):
        own = sorted((start, stop) for y, start, stop in bars(figure) if y == line)
        assert own[0][0] == 0
        assert length - 3 <= own[-1][1] <= length  # a pixel is left between bars
        assert all(stop <= start for (_, stop), (start, _) in pairwise(own))


def test_a_long_sequence_is_one_line_of_its_parts():
    figure = launch_plan_figure(LONG)
    assert len(bars(figure)) == 64
    assert {y for y, _, _ in bars(figure)} == {0}
    sentence = launch_plan_sentence(LONG)
    assert sentence.startswith("512 programs: 64 ranges of tokens × 8 KV heads, which read 256 pages (16.0 MiB of K and V).")
    assert sentence.endswith("1 query row is cut in 64 parts, merged by a second launch.")


def test_lines_past_the_limit_are_counted_not_drawn():
    figure = launch_plan_figure(MANY)
    assert figure.layout.meta["lines"] == MOST_LINES
    assert figure.layout.meta["left_out"] == 300 - MOST_LINES
    assert figure.layout.annotations[0].text == "and 268 more like these"
    assert launch_plan_sentence(MANY).endswith("No sequence is cut, so nothing is merged.")
    assert len(figure.to_json()) < 40_000


def test_a_chunk_has_a_line_for_every_block_of_its_rows():
    figure = launch_plan_figure(CHUNKS)
    starts = {(piece.sequence, piece.rows.start) for piece in pieces(CHUNKS)}
    assert figure.layout.meta["lines"] == len(starts) > 2
    assert "rows" in figure.layout.yaxis.ticktext[0]


def test_what_the_pointer_reads_holds_numbers_only():
    spoken = launch_plan_figure(RAGGED).data[1].customdata[0]
    first = next(piece.first_program for piece in pieces(RAGGED) if piece.sequence == 1)
    assert spoken == (
        "sequence 1, row 1, whole<br>positions 0 to 2<br>1 page: 0<br>3 programs, one a KV head, from number "
        f"{first} on<br>2.25 KiB of K and V"
    )


def test_a_plan_of_nothing_is_a_figure_too():
    figure = launch_plan_figure(LaunchPlan((), ()))
    assert json.loads(figure.to_json())["layout"]["meta"]["sentence"] == "Nothing is launched: no sequence has any context."
