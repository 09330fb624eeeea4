"""The figures of a run: exact numbers for small traces, a pattern for every state, literal texts."""

from __future__ import annotations

import json
import re

import pytest

import viz
from tests.viz.traces import lookup_of, random_trace, scripted_trace, small_trace, trace_of
from viz.attention import MAX_BARS, letter_index
from viz.kernel_pages import kernel_pages
from viz.memory import block_formula
from viz.palette import SEQUENCES, SURFACES, contrast, sequence_colour
from viz.pool import MAX_FREE, MAX_SLOTS
from viz.text import bytes_text, literal, visible
from web.views import batch_of

HOSTILE = re.compile(r"<(?!/?(?:b|br|extra)>)|<b>(?!\d+</b>)|\$")


def named(figure, name):
    found = [trace for trace in figure.data if trace.name == name]
    assert found, [trace.name for trace in figure.data]
    return found[0]


def every_figure(trace, mode="light"):
    state = trace.state_at(max(1, trace.last_step - 1))
    request = next(r for r in state.requests.values() if r.block_table)
    lookup = lookup_of(trace, request.request_id, request.num_computed_tokens - 1, 0)
    lookup["block_table"] = request.block_table
    return {
        "pool": viz.pool(state, mode), "block_tables": viz.block_tables(state, trace.events, mode),
        "allocator": viz.allocator(trace, mode), "waste": viz.waste(trace, mode), "timeline": viz.timeline(trace, mode),
        "attention": viz.attention(lookup, state, mode),
        "vectors": viz.vectors(lookup, mode), "memory": viz.memory(trace.header, {"weights": 1000}, state, mode),
        "events": viz.events(trace, mode=mode),
    }  # fmt: skip


# ---- the pool --------------------------------------------------------------------------------------------------------


def test_every_slot_of_the_pool_has_one_mark_with_the_pattern_of_its_state():
    figure = viz.pool(small_trace().state_at(2))
    marks = {trace.name: trace for trace in figure.data}
    assert sorted(marks) == ["A", "A shared", "B", "free", "just written", "reserved"]
    assert {name: len(trace.x) for name, trace in marks.items()} == {
        "free": 3, "reserved": 2 + 2, "A": 2, "A shared": 4, "B": 2, "just written": 3,
    }  # fmt: skip
    assert {name: trace.marker.pattern.shape for name, trace in marks.items()} == {
        "free": None, "reserved": "/", "A": None, "A shared": "x", "B": None, "just written": None,
    }  # fmt: skip
    assert marks["A"].marker.color == sequence_colour(0)
    assert marks["B"].marker.color == sequence_colour(1)
    assert [a.text for a in figure.layout.annotations] == ["2"]
    assert set(marks["A shared"].customdata) == {3}


def test_a_slots_words_name_block_slot_sequence_and_token():
    words = list(named(viz.pool(small_trace().state_at(2)), "A shared").hovertext)
    assert words[0] == "block 3, A[0], read by 2, slot 12: A:0 “&lt;b&gt;”"
    assert words[1].endswith("A:1 “&#36;x^2&#36;”")
    assert words[3].endswith("A:3 “e2”")


def test_cached_blocks_are_dotted_and_say_whose_they_were():
    cached = named(viz.pool(scripted_trace().state_at(60)), "cached")
    assert cached.marker.pattern.shape == "."
    assert cached.hovertext[0] == "block 9: cached by an earlier run"


def test_marks_stand_in_their_blocks_place():
    figure = viz.pool(scripted_trace().state_at(60))
    for trace in figure.data:
        for x, y, height, block in zip(trace.x, trace.base, trace.y, trace.customdata):
            assert (int(x), int(y + height / 2)) == (block % 8, block // 8)


def test_beyond_some_thousand_slots_a_block_is_one_mark_with_its_letter():
    words = {"A": [" a"] * 900, "B": [" b"] * 900}
    state = scripted_trace(texts=words, prompt_lengths={"A": 300, "B": 310}, steps=4, num_blocks=512).state_at(3)
    assert state.num_blocks * state.block_size > MAX_SLOTS
    figure = viz.pool(state)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert sum(len(trace.x) for trace in bars) == state.num_blocks
    letters = next(trace for trace in figure.data if trace.type == "scatter")
    assert sorted(letters.text) == ["A"] * 19 + ["B"] * 20


def test_a_huge_pool_leaves_its_free_blocks_blank():
    state = scripted_trace(texts={"A": ["a"] * 99}, prompt_lengths={"A": 20}, steps=3, num_blocks=60_000).state_at(2)
    figure = viz.pool(state)
    assert state.num_blocks > MAX_FREE
    assert sum(len(trace.x) for trace in figure.data) < 100
    assert figure.layout.meta["caption"].endswith("Free blocks are left blank.")


# ---- tables, time ----------------------------------------------------------------------------------------------------


def test_block_tables_hatch_what_is_shared():
    figure = viz.block_tables(small_trace().state_at(2))
    shared = [trace for trace in figure.data if trace.name == "shared"]
    assert [list(trace.customdata[0])[:3] for trace in shared] == [[3, "A", 0], [3, "B", 0]]
    assert {trace.marker.pattern.shape for trace in shared} == {"x"}
    own = [list(row)[:3] for trace in figure.data if trace.name == "read by one" for row in trace.customdata]
    assert own == [[1, "A", 1], [5, "B", 1]]
    assert figure.layout.meta["caption"] == "Step 2: 4 entries name 3 blocks, 1 of them shared. One table serves all layers."


def test_a_copied_block_says_what_it_was_copied_from():
    for seed in range(20):
        trace = random_trace(seed)
        for step in range(trace.last_step):
            copies = [e for e in trace.events_between(step, step) if type(e).__name__ == "BlockCopied"]
            if copies and copies[-1].block_id in trace.state_at(step).requests[copies[-1].request_id].block_table:
                figure = viz.block_tables(trace.state_at(step), trace.events)
                source, target = copies[-1].source_block_id, copies[-1].block_id
                text = f"block {target} is a copy of block {source}, made in step {step}"
                assert text in named(figure, "copied on write").hovertext
                return
    pytest.fail("no random run copied a block")


def test_the_allocators_bands_add_up_to_the_pool_and_carry_patterns():
    figure = viz.allocator(small_trace())
    bands = [trace for trace in figure.data if trace.stackgroup]
    assert [(t.name, list(t.y), t.fillpattern.shape) for t in bands] == [
        ("used by one", [0, 2, 2, 2, 2], None), ("shared", [0, 0, 1, 0, 0], "x"), ("cached", [0, 0, 0, 0, 0], "."),
        ("free", [6, 4, 3, 4, 4], None),
    ]  # fmt: skip
    assert list(bands[0].x) == [0, 0, 1, 2, 3]  # the pass of step s spans s - 1 to s
    assert {trace.name: list(trace.x) for trace in figure.data if not trace.stackgroup} == {
        "blocks taken": [1, 2], "prefix hit": [2], "finished": [3],
    }  # fmt: skip
    assert "At most 3 of 6 blocks were in use at once (50%), at step 2." in figure.layout.meta["caption"]


def test_waste_is_in_bytes_with_contiguous_above_and_paged_below():
    figure = viz.waste(small_trace())
    rows = {trace.name: list(trace.y) for trace in figure.data}
    assert rows == {
        "contiguous: tokens": [0, 50, 120, 60, 60], "contiguous: reserved": [0, 20, 30, 20, 20],
        "contiguous: internal": [0, 40, 40, 0, 0], "contiguous: external": [0, 50, 50, 0, 0],
        "paged: tokens": [0, -50, -80, -60, -60], "paged: reserved": [0, -20, -30, -20, -20],
        "paged: internal": [0, -10, -10, 0, 0],
    }  # fmt: skip
    shapes = {trace.name.split(": ")[1]: trace.fillpattern.shape for trace in figure.data}
    assert shapes == {"tokens": None, "reserved": "/", "internal": "x", "external": "."}
    assert named(figure, "paged: tokens").customdata[2] == "80 B"
    assert figure.layout.meta["caption"] == (
        "At step 2 the running sequences' tokens take 120 B. Reserving prompt + max_tokens for each takes 240 B: 50% of that "
        "is reserved, internal or external. Pages take 120 B, 40 B of them once instead of several times: 33% is the unwritten "
        "rest of last blocks."
    )


def test_the_timeline_has_a_lane_a_request_and_a_pattern_a_phase():
    figure = viz.timeline(small_trace())
    assert list(figure.layout.yaxis.ticktext) == ["A", "B"]
    bars = [(t.name, t.y[i], t.base[i], t.x[i]) for t in figure.data if t.type == "bar" for i in range(len(t.x))]
    assert sorted(bars) == [("decode", 0, 1, 2), ("prefill", 0, 0, 1), ("prefill", 1, 1, 2)]
    assert {t.name: t.marker.pattern.shape for t in figure.data if t.type == "bar"} == {"prefill": "/", "decode": None}
    assert list(named(figure, "finished").x) == [3]


def test_a_preempted_request_is_crossed_out_until_it_is_recomputed():
    figure = viz.timeline(random_trace(5))
    shapes = {trace.name: trace.marker.pattern.shape for trace in figure.data if trace.type == "bar"}
    assert (shapes["preempted"], shapes["recompute"]) == ("x", "-")
    assert "were preempted and waited" in figure.layout.meta["caption"]


# ---- one step --------------------------------------------------------------------------------------------------------


def test_attention_colours_every_position_by_its_block_and_names_the_blocks():
    trace = small_trace()
    state, lookup = trace.state_at(2), {**lookup_of(trace, "B", 5, 5), "block_table": [3, 5]}
    figure = viz.attention(lookup, state)
    *drawn, columns = figure.data
    bars = {t.x[i]: (t.y[i], t.marker.color, t.marker.pattern.shape) for t in drawn for i in range(len(t.x))}
    assert [bars[p][0] for p in range(6)] == pytest.approx([n / 21 for n in range(1, 7)])
    assert [row[:2] for row in columns.customdata] == [[3, 0], [3, 1], [3, 2], [3, 3], [5, 4], [5, 5]]
    assert columns.customdata[1][2:] == ["“&#36;x^2&#36;”", "0.0952"]
    assert bars[0][1:] == (sequence_colour(0), "x")  # as in the pool: A's hue, and shared
    assert bars[4][2] is None
    assert bars[5][1] == "#0B0D12"  # the pinned key is ink
    assert [a.text for a in figure.layout.annotations] == ["block 3", "5"]
    assert [shape.path for shape in figure.layout.shapes] == ["M3.5,0V1"]
    assert "Block 5 takes 52% of the weight" in figure.layout.meta["caption"]


def test_attention_over_a_long_context_draws_a_bar_a_block():
    n = MAX_BARS + 9
    lookup = {
        **lookup_of(small_trace(), "B", 5, 5),
        "weights": [1 / n] * n,
        "block_table": list(range(-(-n // 4))),
        "query_position": n - 1,
    }
    figure = viz.attention(lookup, width=400)
    assert sum(len(t.x) for t in figure.data[:-1]) == len(figure.data[-1].x) == -(-n // 4)
    assert sum(sum(t.y) for t in figure.data[:-1]) == pytest.approx(1)
    assert len(figure.layout.annotations) == 12


def test_vectors_up_is_positive_and_the_products_add_up():
    figure = viz.vectors(lookup_of(small_trace(), "A", 4, 1))
    rows = {trace.name: list(trace.y) for trace in figure.data}
    assert rows == {"q": [1.0, -2.0, 0.5], "k": [0.5, 0.25, 4.0], "q × k": [0.5, -0.5, 2.0], "v": [3.0, 0.0, -1.0]}
    assert sum(rows["q × k"]) == 2.0
    assert figure.layout.yaxis.range == (-2.16, 2.16)
    assert figure.layout.yaxis4.ticktext == ("v ±3",)


def test_the_memory_bar_adds_up_and_the_formula_has_the_runs_numbers():
    trace = scripted_trace()
    header, state = trace.header, trace.state_at(60)
    figure = viz.memory(header, {"weights": 9_437_184, "captured <vectors>": 5}, state)
    sizes = {t.name: t.meta["value"] for t in figure.data}
    pool = 128 * 737_280
    assert sizes["weights"] == 9_437_184
    assert sizes["KV pool"] == pool == sizes["pool: used"] + sizes["pool: cached"] + sizes["pool: free"]
    assert sizes["captured &lt;vectors&gt;"] == 5
    assert sum(t.x[0] for t in figure.data if t.y[0] == 1.0) == pytest.approx(1)
    assert sum(t.x[0] for t in figure.data if t.y[0] == 0.0) == pytest.approx(1)
    formula = "2 (K and V) × 30 layers × 3 KV heads × 64 numbers × 4 bytes × 16 slots = 737,280 bytes a block"
    assert block_formula(header) == formula
    assert figure.layout.meta["caption"].startswith(
        f"{formula}. 16 of 128 blocks are in use: KV usage is 12.5% of the pool's 90.0 MiB"
    )
    assert 2 * header.num_layers * header.num_kv_heads * header.head_dim * 4 * header.block_size == header.bytes_per_block
    assert len(viz.memory(header, {"weights": 1}).data) == 2


def test_events_are_a_table_without_what_happens_every_step():
    cells = viz.events(small_trace()).data[0].cells["values"]
    assert list(cells[1]) == [
        "RequestAdded", "BlockAllocated", "BlockAllocated", "BlockStored", "RequestAdded", "PrefixHit", "BlockAllocated",
        "RequestFinished", "BlockFreed",
    ]  # fmt: skip
    assert list(viz.events(small_trace(), 3).data[0].cells["values"][0]) == ["3", "3"]
    assert cells[4][5] == "the first 4 tokens are A's"


def test_the_kernels_bars_name_the_sequences_and_their_pages():
    from kernels.launch_plan import launch_plan

    trace = small_trace()
    batch = batch_of(trace, 2)
    assert (batch.names, batch.tables) == (["A", "B"], [[3, 1], [3, 5]])
    assert (batch.query_start, batch.context_lens) == ([0, 1, 3], [6, 6])
    plan = launch_plan(4, batch.tables, batch.query_start, batch.context_lens, 4, 2, 16, 4)
    figure = kernel_pages(plan, batch.names, [0, 1], where="On a card.")
    read = {figure.layout.yaxis.ticktext[int(t.y[i])]: t.customdata[i][1] for t in figure.data for i in range(len(t.y))}
    assert read == {"A row 0": [3, 1], "B row 1": [3, 5]}
    colours = [colour for t in figure.data for colour in t.marker.color]
    assert colours == [sequence_colour(0), sequence_colour(1)]
    assert figure.layout.meta["caption"].endswith("On a card.")


def test_the_batch_of_a_step_has_the_table_it_read_even_where_it_was_freed_in_it():
    batch = batch_of(small_trace(), 3)
    assert (batch.names, batch.tables, batch.context_lens) == (["A"], [[3, 1]], [7])
    assert batch_of(small_trace(), 0).names == []


# ---- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize(
    "trace", [small_trace(), scripted_trace(finish=True), random_trace(5)], ids=["small", "scripted", "random"]
)
def test_no_text_of_a_figure_is_markup_or_tex(trace, mode):
    def texts(value, key=""):
        if isinstance(value, dict):
            if value is not value.get("meta"):
                for k, v in value.items():
                    if k not in ("meta", "hovertemplate"):
                        yield from texts(v, k)
        elif isinstance(value, list):
            for v in value:
                yield from texts(v, key)
        elif isinstance(value, str):
            yield value

    for name, figure in every_figure(trace, mode).items():
        plain = json.loads(figure.to_json())
        bad = [text for text in texts(plain) if HOSTILE.search(text)]
        assert not bad, (name, bad[:3])
        caption = figure.layout.meta["caption"]
        assert caption.endswith(".") and "nan" not in caption.lower(), caption


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_figures_stand_on_the_pages_ground_and_can_be_read_on_it(mode):
    for name, figure in every_figure(scripted_trace(), mode).items():
        assert figure.layout.paper_bgcolor == SURFACES[mode]["primary"], name
        assert contrast(figure.layout.font.color, figure.layout.paper_bgcolor) >= 4.5, name
        assert min(figure.layout.font.size, figure.layout.xaxis.tickfont.size or 11) >= 11


def test_a_run_that_did_nothing_yet_has_figures_too():
    empty = trace_of([], num_blocks=4)
    state = empty.state_at(0)
    figures = [view(empty) for view in (viz.allocator, viz.waste, viz.timeline, viz.events)]
    for figure in (*figures, viz.pool(state), viz.block_tables(state), viz.memory(empty.header, {"weights": 7}, state)):
        assert figure.to_json()
    assert viz.waste(empty).layout.meta["caption"] == "No request has held memory yet."


def test_literal_and_visible_texts():
    assert literal("<b>$x$&amp;") == "&lt;b&gt;&#36;x&#36;&amp;amp;"
    assert [visible(t) for t in ("", "\n", " ", "\t", " the", "a\nb", b"\xe2\x80", "\u202e", "\u200b", "a\u202eb")] == [
        "∅", "⏎", "␣", "⇥", "the", "a⏎b", "e2 80", "U+202E", "U+200B", "aU+202Eb",
    ]  # fmt: skip
    assert [bytes_text(n) for n in (0, 999, 1024, 10_240, 737_280, 94_371_840, 3 << 40)] == [
        "0 B", "999 B", "1.00 KiB", "10.0 KiB", "720 KiB", "90.0 MiB", "3.00 TiB",
    ]  # fmt: skip


def test_letters_tell_the_hue_of_a_sequence():
    assert [letter_index(name) for name in ("A", "B", "Z", "AA", "AB", "<b>", "")] == [0, 1, 25, 26, 27, 0, 0]
    assert sequence_colour(7) == SEQUENCES[0]
