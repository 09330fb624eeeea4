"""The bus messages are plain JSON, numbered, and carry the log as one string."""

import json

from engine.events import BlockAllocated, RequestAdded, from_wire
from tests.viz.fake_run import HEADER, fake_run
from viz import deltas


def test_a_snapshot_carries_the_whole_log():
    events = [e for step in fake_run(steps=5) for e in step]
    message = deltas.snapshot("r1", 5, events, HEADER, "token", True)
    assert message["kind"] == "snapshot"
    assert (message["run"], message["n"], message["running"], message["session"]) == ("r1", 5, True, "token")
    assert [from_wire(row) for row in json.loads(message["log"])] == events


def test_a_delta_may_hold_several_steps():
    steps = list(fake_run(steps=3))
    message = deltas.delta("r1", 1, [*steps[1], *steps[2]])
    assert [row[1] for row in json.loads(message["log"])][-1] == 2
    assert message["running"] is True


def test_an_end_carries_the_count_and_nothing_else_to_fold():
    assert deltas.end("r1", 7) == {"kind": "end", "run": "r1", "n": 7, "running": False, "notice": None}


def test_every_key_is_a_string_because_an_int_key_freezes_gradio():
    def keys(value):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from keys(inner)

    for message in (
        deltas.empty(HEADER, "s"),
        deltas.snapshot("r", 0, [], HEADER, "s", False),
        deltas.delta("r", 1, []),
        deltas.end("r", 1),
    ):
        assert all(isinstance(k, str) for k in keys(message))
        assert json.loads(json.dumps(message)) == message


def test_bytes_and_hostile_text_travel_exactly():
    event = RequestAdded(0, "A", "</script>`${x}", (1, 2), ("<b>", b"\xe2\x80"), 4)
    row = json.loads(deltas.log_text([event, BlockAllocated(0, "A", 0, 3, "why")]))[0]
    assert row[3] == "</script>`${x}"
    assert row[5] == ["<b>", {"hex": "e280"}]


def test_a_notice_is_level_and_text():
    assert deltas.empty(HEADER, "s", deltas.notice("bad", "Pool full: ..."))["notice"] == {
        "level": "bad",
        "text": "Pool full: ...",
    }
