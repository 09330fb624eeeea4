"""mirror.js, run in node, folds any log to the same states as an independent fold in Python."""

import json
import random
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from engine.events import to_wire
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


def test_bus_clock_folds_geometry_and_links():
    done = subprocess.run(["node", "--test", str(HERE / "unit.test.mjs")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
