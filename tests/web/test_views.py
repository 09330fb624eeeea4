"""What the dock may ask of the server, and what it is told where there is nothing to show."""

from __future__ import annotations

import json

import pytest

from engine import Engine, EngineConfig, SamplingParams, Trace
from engine.run_settings import RunSettings
from engine.session import Session
from web.views import VIEWS, Source, ViewProblem, recorded, shown_by, source_of, view


@pytest.fixture(scope="module")
def source(tiny) -> Source:
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=16, max_num_batched_tokens=16))
    engine.generate(["Hello <b>", "Hello $x$ and more"], SamplingParams(max_tokens=9, ignore_eos=True))
    return source_of(engine)


def question(**changes):
    return {
        "step": 5,
        "request": "B",
        "position": 3,
        "query": 12,
        "layer": 1,
        "head": 2,
        "width": 700,
        "mode": "light",
    } | changes


@pytest.mark.parametrize("name", list(VIEWS))
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_view_of_a_real_run_is_a_figure_in_plain_json(source, name, mode):
    answer = view(source, question(view=name, mode=mode))
    assert answer["ok"], answer
    json.dumps(answer, allow_nan=False)
    assert answer["figure"]["data"]
    assert answer["caption"] == answer["figure"]["layout"]["meta"]["caption"]


def test_attention_says_what_the_lookup_says(source):
    answer = view(source, question(view="attention"))
    look = source.lookup("B", 12, 3, 1, 2)
    *drawn, columns = answer["figure"]["data"]
    bars = {x: y for t in drawn for x, y in zip(t["x"], t["y"])}
    assert [bars[p] for p in range(13)] == look["weights"]
    assert [row[0] for row in columns["customdata"]] == [look["block_table"][p // 4] for p in range(13)]


def test_the_kernel_view_reads_every_page_of_the_batch(source):
    answer = view(source, question(view="kernel", step=1))
    pages = {page for t in answer["figure"]["data"] for row in t["customdata"] for page in row[1]}
    state = source.trace.state_at(1)
    assert pages == {block for r in state.requests.values() for block in r.block_table}
    assert answer["caption"].endswith(
        "So our Triton kernels would read step 1 on an H200; this run's backend, torch, gathers the same pages."
    )


def test_memory_counts_the_weights_and_the_captured_vectors(source):
    names = {t["name"]: t["meta"]["value"] for t in view(source, question(view="memory"))["figure"]["data"]}
    assert names["weights"] == source.workspace["weights"] > 0
    assert names["captured vectors"] == source.trace.capture.num_bytes > 0
    assert names["KV pool"] == 16 * source.trace.header.bytes_per_block


@pytest.mark.parametrize(
    "asked, reason",
    [
        (None, "There is no such view. Choose one of: allocator, waste"),
        ([], "There is no such view."),
        ({"view": ["pool"]}, "There is no such view."),
        ({"view": "__class__"}, "There is no such view."),
        (question(view="pool", step=99), "Step 99 is not there: this run has steps 0 to "),
        (question(view="pool", step=-1), "This view takes a whole number as its step"),
        (question(view="pool", step=True), "This view takes a whole number as its step"),
        (question(view="pool", step="5"), "This view takes a whole number as its step"),
        (question(view="pool", step=1e300), "This view takes a whole number as its step"),
        (question(view="kernel", step=0), "Step 0 ran no forward pass: nothing was launched."),
        (question(view="attention", request=None), "This view shows one lookup. Click a token first."),
        (question(view="attention", request={"a": 1}), "This view shows one lookup."),
        (question(view="attention", request="<img src=x>"), "There is no sequence <img src=x> in this run."),
        (question(view="attention", position=13), "The query B:12 cannot see B:13"),
        (question(view="attention", width="wide"), "This view takes a whole number as its width"),
        (question(view="vectors", layer=9), "Layer 9 does not exist"),
        (question(view="vectors", query=4000), "B has no token 4000"),
    ],
)
def test_a_bad_question_gets_a_sentence(source, asked, reason):
    answer = view(source, asked)
    assert answer["ok"] is False
    assert answer["reason"].startswith(reason)


@pytest.mark.parametrize("name", list(VIEWS))
def test_a_recording_has_the_same_views_without_an_engine(source, tmp_path, name):
    source.trace.save(tmp_path / "run.pagewalk")
    trace = Trace.load(tmp_path / "run.pagewalk")
    live, answer = view(source, question(view=name)), view(recorded(trace), question(view=name))
    assert answer["ok"], answer
    if name != "memory":  # nobody knows how large the weights were
        assert answer["figure"]["data"] == live["figure"]["data"]


def test_a_session_answers_for_the_run_that_the_page_shows_only(tiny):
    session = Session()
    with pytest.raises(ViewProblem, match="This session has no run yet"):
        shown_by(session, "")
    params = SamplingParams(max_tokens=7, ignore_eos=True)
    session.begin(tiny, RunSettings(["Hello"], EngineConfig(block_size=4, num_blocks=8), params))
    session.start()
    assert list(session.updates(0.0))
    assert view(shown_by(session, session.run_id), question(view="pool"))["ok"]
    for other in ("q", None, ["r"]):
        with pytest.raises(ViewProblem, match="This run is not kept any more"):
            shown_by(session, other)
