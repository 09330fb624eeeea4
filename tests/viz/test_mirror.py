"""mirror.js, run in node, folds any log to the same states as an independent fold in Python."""

import json
import random
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from engine.events import (
    BlockAllocated,
    BlockCopied,
    PrefixMiss,
    RequestAdded,
    RequestForked,
    SlotsWritten,
    TokenSampled,
    to_wire,
)
from engine.trace import CacheState
from tests.viz.fake_run import fake_run
from tests.viz.fold import fold, random_log

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def node(script: str, data: object) -> dict:
    done = subprocess.run(
        ["node", str(HERE / script)], input=json.dumps(data), capture_output=True, text=True, timeout=60, cwd=HERE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def probe(events, num_blocks, block_size, steps, chunk=7):
    return node(
        "mirror_probe.mjs",
        {
            "log": [to_wire(e) for e in events],
            "num_blocks": num_blocks,
            "block_size": block_size,
            "steps": steps,
            "chunk": chunk,
        },
    )


@pytest.mark.parametrize("seed", range(12))
def test_any_step_of_a_random_run_is_the_same_in_javascript_and_python(seed):
    rng = random.Random(seed)
    log = random_log(rng)
    newest = log[-1].step
    steps = [newest, 0, *(rng.randint(0, newest) for _ in range(12)), newest // 2, newest // 2 + 1, newest]
    result = probe(log, 12, 4, steps, chunk=rng.choice([1, 7, 1000]))
    for step, state in zip(steps, result["states"], strict=True):
        expected = fold([e for e in log if e.step <= step], 12, 4)
        expected["step"] = step
        assert state == expected, f"step {step}"
    assert result["checkpoints"] > 2


def test_the_scripted_run_is_the_same_too():
    log = [e for events in fake_run(steps=72) for e in events]
    result = probe(log, 128, 16, [72, 1, 41])
    for step, state in zip([72, 1, 41], result["states"], strict=True):
        assert state == fold([e for e in log if e.step <= step], 128, 16)
    assert result["states"][0]["counts"] == {"used": 19, "shared": 2, "reserved": 27, "cached": 14, "free": 95}


def test_usage_rows_stand_only_where_the_counts_change():
    log = [e for events in fake_run(steps=72) for e in events]
    usage = probe(log, 128, 16, [72])["usage"]
    for i, step in enumerate(usage["step"]):
        state = fold([e for e in log if e.step <= step], 128, 16)
        assert sum(usage["own"][i]) + sum(usage["shared"][i]) == usage["used"][i] == state["counts"]["used"]
    rows = list(zip(usage["own"], usage["shared"], strict=True))
    assert all(a != b for a, b in pairwise(rows))


def test_the_story_tells_allocations_hits_and_ends():
    log = [e for events in fake_run(steps=40, finish=True) for e in events]
    story = probe(log, 128, 16, [40])["story"]
    kinds = [entry["kind"] for entry in story]
    assert kinds.count("hit") == 1
    assert kinds.count("finish") == 3
    first = next(e for e in story if e["kind"] == "alloc" and e["request"] == "B")
    assert first["what"] == "B takes blocks 31, 104, 58"
    assert [e["step"] for e in story] == sorted(e["step"] for e in story)


def test_a_request_that_runs_again_after_preemption_is_told_as_resumed():
    stories = [probe(random_log(random.Random(s)), 12, 4, [0])["story"] for s in range(4)]
    kinds = [[e["kind"] for e in story] for story in stories]
    assert any("preempt" in k and "resume" in k[k.index("preempt") :] for k in kinds)


@pytest.mark.parametrize("name", ["unit.test.mjs", "views.test.mjs"])
def test_pure_modules_of_the_stage_in_node(name):
    done = subprocess.run(["node", "--test", str(HERE / name)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_the_engines_own_replay_of_a_random_run_is_the_same_too(seed):
    log = random_log(random.Random(seed))
    state = CacheState.empty(12, 4)
    for event in log:
        state.apply(event)
    expected = fold(log, 12, 4)
    assert state.fresh_slots == expected["fresh"]
    for block, ref, owner, filled, name in zip(
        expected["blocks"], state.ref_cnt, state.owner, state.num_filled, state.block_hash, strict=True
    ):
        assert block == {"ref": ref, "owner": owner, "filled": filled, "hashed": name is not None}
    assert list(state.requests) == list(expected["requests"])
    for name, request in expected["requests"].items():
        seen = state.requests[name]
        assert (seen.block_table, seen.status, seen.finish_reason) == (request["table"], request["status"], request["finish"])
        assert len(seen.tokens) == len(request["tokens"])
        assert seen.status == "finished" or seen.num_computed_tokens == request["computed"]


FORKED = [
    RequestAdded(0, "B", "p", tuple(range(20)), ("x",) * 20, 8),
    BlockAllocated(1, "B", 0, 2, "r"),
    BlockAllocated(1, "B", 1, 5, "r"),
    SlotsWritten(1, "B", 0, (*range(32, 48), *range(80, 84))),
    RequestForked(1, "C", "B", (2, 5), "n = 2, both read blocks 2, 5; reference counts rise to 2"),
    TokenSampled(1, "B", 20, 1, "y"),
    TokenSampled(1, "C", 20, 1, "z"),
    BlockCopied(2, "B", 1, 5, 7, 4, "token 20 lands in a part-filled block that C still reads; 4 slots copied"),
    SlotsWritten(2, "B", 20, (116,)),
    SlotsWritten(2, "C", 20, (84,)),
]


def test_the_story_tells_who_forked_from_whom_and_what_was_copied():
    told = [
        (e["kind"], f"{e['what']}: {e['why']}") for e in probe(FORKED, 8, 16, [2])["story"] if e["kind"] in ("fork", "copy")
    ]
    assert told == [
        ("fork", "C forked from B: n = 2, both read blocks 2, 5; reference counts rise to 2"),
        ("copy", "B copies block 5 to 7: token 20 lands in a part-filled block that C still reads; 4 slots copied"),
    ]


def test_a_copied_block_passes_to_the_copier_and_the_source_to_who_still_reads_it():
    blocks = probe(FORKED, 8, 16, [1, 2])["states"]
    assert [(b["ref"], b["owner"], b["filled"]) for i, b in enumerate(blocks[0]["blocks"]) if i in (2, 5, 7)] == [
        (2, "B", 16), (2, "B", 4), (0, None, 0),
    ]  # fmt: skip
    assert [(b["ref"], b["owner"], b["filled"]) for i, b in enumerate(blocks[1]["blocks"]) if i in (2, 5, 7)] == [
        (2, "B", 16), (1, "C", 5), (1, "B", 5),
    ]  # fmt: skip
    assert (blocks[1]["requests"]["B"]["table"], blocks[1]["requests"]["C"]["table"]) == ([2, 7], [2, 5])
    assert blocks[0]["counts"]["shared"] == 2


def test_a_child_that_could_not_fork_waits_with_nothing():
    log = [*FORKED[:4], RequestForked(1, "C", "B", (), "n = 2 wants 1 more blocks of which 0 are free")]
    child = probe(log, 8, 16, [1])["states"][0]["requests"]["C"]
    assert (child["status"], child["table"], child["computed"], len(child["tokens"])) == ("waiting", [], 0, 20)


def test_the_story_tells_a_miss_only_where_it_knows_why():
    log = [
        RequestAdded(0, "A", "p", (1,), ("x",), 8),
        PrefixMiss(1, "A", 0, "no block holds tokens 0 to 15 after the same beginning"),
        PrefixMiss(1, "A", 3, "block 3 differs at token 50: only 2 of 16 tokens shared with block 7", 2),
        PrefixMiss(1, "A", 0, "the block that held tokens 0 to 15 was evicted at step 12", 0, 12),
    ]
    assert [e["why"][:12] for e in probe(log, 8, 16, [1])["story"] if e["kind"] == "miss"] == ["block 3 diff", "the block th"]
