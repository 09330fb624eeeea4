"""What tour, questions and predict mode say of real runs (in node), held against the engine's own replay of them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.block_table import BlockTable
from engine.events import BlockCopied, PrefixHit, RequestForked, RequestPreempted, to_wire
from tests.viz.example_runs import BLOCK_SIZE, example_runs, header_of

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

APPENDIX = {
    "where", "table-or-mapping", "when-taken", "sampled", "contiguous", "one-table", "why-16", "bigger-block", "waste",
    "small-model", "usage-of-what", "how-many-blocks", "at-100", "text-after", "prefix-or-paging", "only-full", "all-cached",
    "copy-on-write", "collision", "erase", "bit-identical", "cache-or-attention", "kv-heads", "at-a-fork",
}  # fmt: skip


@pytest.fixture(scope="module")
def traces(tiny):
    return example_runs(tiny)


@pytest.fixture(scope="module")
def told(traces):
    runs = {name: {"log": [to_wire(e) for e in t.events], "header": header_of(t)} for name, t in traces.items()}
    done = subprocess.run(
        ["node", str(HERE / "learn_probe.mjs")], input=json.dumps(runs), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def answers(told, question):
    """The question's answer by the run that it names."""
    example = next(q["example"] for q in told["questions"] if q["id"] == question)
    return told["runs"][example]["questions"][question]


def first(trace, kind):
    return next(e for e in trace.events if isinstance(e, kind))


def test_every_question_that_learners_ask_is_there_once(told):
    ids = [q["id"] for q in told["questions"]]
    assert len(ids) == len(set(ids)) == 24
    assert set(ids) == APPENDIX
    for question in told["questions"]:
        assert question["group"] in told["groups"]
        assert question["target"] in told["targets"]
        assert question["question"].endswith("?")
        assert 2 <= len(question["answer"]) <= 4
        assert 40 <= len(" ".join(question["answer"]).split()) <= 90


def test_the_run_that_a_question_names_answers_every_sentence(told):
    for question in told["questions"]:
        answer = answers(told, question["id"])
        assert answer["found"], question["id"]
        for template, sentence in zip(question["answer"], answer["sentences"], strict=True):
            assert sentence is not None, f"{question['id']}: {template}"
            assert "{" not in sentence and "undefined" not in sentence and "NaN" not in sentence


def test_the_tour_has_eight_stops_of_two_sentences_and_its_runs_fill_them(told):
    assert len(told["stops"]) == 8
    for stop in told["stops"]:
        assert stop["target"] in told["targets"] and len(stop["text"]) == 2
        assert all(re.search(r"\{\w+\}", sentence) for sentence in stop["text"][:1]), "live numbers"
        answer = told["runs"][stop["example"]]["stops"][stop["id"]]
        assert answer["found"] and None not in answer["sentences"], stop["id"]


def test_numbers_are_those_of_the_engines_replay(told, traces):
    for name, run in told["runs"].items():
        for told_by in (run["questions"], run["stops"]):
            for what, answer in told_by.items():
                if not answer["found"]:
                    continue
                facts, state = answer["facts"], traces[name].state_at(answer["found"]["step"])
                request = state.requests[answer["found"]["request"]]
                assert facts["used"] == state.num_used_blocks, (name, what)
                assert facts["length"] == len(request.tokens)
                if request.status == "running":
                    assert facts["computed"] == request.num_computed_tokens
                position, table = answer["found"]["position"], BlockTable(state.block_size, request.block_table)
                if position < request.num_computed_tokens and position < table.capacity:
                    assert facts["slot"] == table.slot(position), (name, what)
                    assert facts["block"] == table[position // state.block_size]
                    assert facts["byte_offset"] == table.slot(position) * traces[name].header.slot_bytes
                filled = sum(n for n, ref in zip(state.num_filled, state.ref_cnt, strict=True) if ref)
                assert facts["reserved"] == facts["used"] * state.block_size - filled


def test_a_block_is_said_to_be_taken_where_its_first_position_is_written(told, traces):
    answer = answers(told, "when-taken")
    step, position, block = answer["found"]["step"], answer["found"]["position"], answer["facts"]["block"]
    assert position % BLOCK_SIZE == 0 and answer["facts"]["slot"] == block * BLOCK_SIZE
    before, after = traces["plain"].state_at(step - 1), traces["plain"].state_at(step)
    assert len(before.requests["A"].block_table) == position // BLOCK_SIZE
    assert after.requests["A"].block_table[-1] == block
    assert position >= after.requests["A"].num_prompt_tokens, "taken for a generated token"


def test_the_token_just_sampled_has_a_reserved_slot_that_the_next_step_writes(told, traces):
    answer = answers(told, "sampled")
    found, slot, trace = answer["found"], answer["facts"]["slot"], traces["plain"]
    now, then = trace.state_at(found["step"]).requests["A"], trace.state_at(found["step"] + 1)
    assert now.num_computed_tokens == found["position"] == len(now.tokens) - 1
    assert slot in then.fresh_slots


def test_a_preemption_is_told_with_the_numbers_of_its_event(told, traces):
    preemptions = [e for e in traces["preemption"].events if isinstance(e, RequestPreempted)]
    event = next(e for e in preemptions if e.needed_by != e.request_id)
    facts = answers(told, "at-100")["facts"]
    assert (facts["victim"], facts["needing"], facts["recompute"], facts["given_back"]) == (
        event.request_id, event.needed_by, event.num_tokens, event.num_freed_blocks,
    )  # fmt: skip
    assert answers(told, "at-100")["found"]["step"] == event.step


def test_the_waste_is_shown_where_it_is_largest(told, traces):
    for name in ("plain", "block-size-64", "shared-prompt"):
        answer, trace = told["runs"][name]["questions"]["waste"], traces[name]
        reserved = []
        for step in range(trace.latest.step + 1):
            state = trace.state_at(step)
            held = [n for n, ref in zip(state.num_filled, state.ref_cnt, strict=True) if ref]
            reserved.append(len(held) * state.block_size - sum(held))
        assert answer["facts"]["reserved"] == max(reserved), name


def test_after_a_preemption_the_text_is_the_same_and_its_blocks_are_those_told(told, traces):
    answer, trace = answers(told, "text-after"), traces["preemption"]
    facts, step = answer["facts"], answer["found"]["step"]
    before, now = trace.state_at(facts["preempted_step"] - 1).requests[facts["victim"]], trace.state_at(step)
    again = now.requests[facts["victim"]]
    assert again.num_computed_tokens >= facts["recompute"]
    assert tuple(again.tokens)[: len(before.tokens)] == tuple(before.tokens)
    moved = answer["found"]["position"] // BLOCK_SIZE
    assert (facts["block_before"], facts["block"]) == (before.block_table[moved], again.block_table[moved])
    assert facts["block_before"] != facts["block"]


def test_a_copy_and_a_fork_are_told_with_the_numbers_of_their_events(told, traces):
    copied, forked = first(traces["fork"], BlockCopied), first(traces["fork"], RequestForked)
    facts = answers(told, "copy-on-write")["facts"]
    assert (facts["source"], facts["copy"], facts["copied_slots"]) == (
        copied.source_block_id, copied.block_id, copied.num_slots,
    )  # fmt: skip
    header = traces["fork"].header
    assert facts["copied_bytes"] == f"{2 * header.num_layers * copied.num_slots * header.slot_bytes / 1024:g} KiB"
    assert facts["slot"] == copied.block_id * BLOCK_SIZE + copied.num_slots, "the token written after the copy"
    facts = answers(told, "at-a-fork")["facts"]
    assert (facts["child"], facts["parent"], facts["fork_blocks"]) == (
        forked.request_id, forked.parent_id, len(forked.block_ids),
    )  # fmt: skip


def test_of_a_cached_prompt_at_least_one_token_is_computed(told, traces):
    hits = [e for e in traces["eviction"].events if isinstance(e, PrefixHit)]
    facts = answers(told, "all-cached")["facts"]
    assert facts["hit_tokens"] == max(e.num_tokens for e in hits)
    assert 1 <= facts["rest"] == facts["prompt_tokens"] - facts["hit_tokens"] <= BLOCK_SIZE
    own = answers(told, "only-full")
    assert own["found"]["position"] % BLOCK_SIZE == 0
    assert own["facts"]["readers"] == own["found"]["request"], "a block that it shares with nobody"


def test_the_formula_of_a_block_is_the_caches_own(told, traces, tiny):
    header = traces["plain"].header
    assert answers(told, "kv-heads")["facts"]["group"] == tiny.num_heads / tiny.num_kv_heads
    product = 2 * tiny.num_layers * BLOCK_SIZE * tiny.num_kv_heads * tiny.head_dim * 4
    assert product == header.bytes_per_block
    assert answers(told, "how-many-blocks")["sentences"][0].endswith(f"bytes = {product:,}.")
    usage = answers(told, "usage-of-what")["facts"]
    assert usage["used_percent"] == f"{100 * usage['used'] / usage['num_blocks']:.2g} %"


def test_a_run_that_lacks_a_moment_is_answered_without_numbers(told):
    plain = told["runs"]["plain"]["questions"]["copy-on-write"]
    assert plain["found"] is None
    assert plain["sentences"][1] is None and plain["sentences"][0].startswith("When a sequence is about to write")


def test_predict_mode_accepts_exactly_the_slot_of_the_block_table(told, traces):
    for name, run in told["runs"].items():
        state = traces[name].state_at(run["quiz"]["step"])
        asked = run["quiz"]["judged"]
        for token in asked:
            request = state.requests[token["request"]]
            assert token["position"] < request.num_computed_tokens
            slot = BlockTable(state.block_size, request.block_table).slot(token["position"])
            assert token["right"] == [slot], (name, token)
            assert token["sum"].endswith(f"= {slot:,}.")
        assert len({(t["request"], t["position"]) for t in asked}) == len(asked), "none is asked twice"
