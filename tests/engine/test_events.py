"""Events and their wire form."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import events
from engine.errors import RecordingError
from engine.events import EVENT_TYPES, BlockStored, PrefixMiss, RequestAdded, StepTimed, TokenSampled, from_wire, to_wire

WHOLE = st.integers(0, (1 << 53) - 1)
TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)
VALUES = {
    "int": WHOLE,
    "int | None": st.none() | WHOLE,
    "float": st.floats(0, 1e14),
    "str": TEXT,
    "str | None": st.none() | TEXT,
    "TokenText": TEXT | st.binary(max_size=4),
    "tuple[int, ...]": st.lists(WHOLE, max_size=4).map(tuple),
    "tuple[str, ...]": st.lists(TEXT, max_size=4).map(tuple),
    "tuple[TokenText, ...]": st.lists(TEXT | st.binary(max_size=4), max_size=4).map(tuple),
}
ANY_EVENT = st.one_of(*(
    st.builds(cls, **{field.name: VALUES[str(field.type)] for field in dataclasses.fields(cls)}) for cls in EVENT_TYPES.values()
))  # fmt: skip
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=4), x, max_size=3),
)


@given(ANY_EVENT)
def test_any_event_survives_the_wire(event):
    assert from_wire(json.loads(json.dumps(to_wire(event)))) == event


def test_a_row_is_the_type_name_the_step_and_the_fields_in_order():
    event = RequestAdded(0, "A", "hé", (5, 6), ("h", b"\xc3"), 8)
    assert to_wire(event) == ["RequestAdded", 0, "A", "hé", [5, 6], ["h", {"hex": "c3"}], 8]
    assert to_wire(BlockStored(2, ("ab",), None, (1, 2), 2, (7,))) == ["BlockStored", 2, ["ab"], None, [1, 2], 2, [7]]
    assert to_wire(StepTimed(3, 4, 1, 0.5, 1.0, 2.0)) == ["StepTimed", 3, 4, 1, 0.5, 1.0, 2.0]


def test_a_row_may_leave_out_what_has_a_default_and_nothing_else():
    miss = PrefixMiss(3, "A", 1, "why")
    assert from_wire(["PrefixMiss", 3, "A", 1, "why"]) == from_wire(to_wire(miss)) == miss
    for row in (["PrefixMiss", 3, "A", 1], [*to_wire(miss), 0]):
        with pytest.raises(RecordingError, match="PrefixMiss has"):
            from_wire(row)


def test_the_cache_events_keep_vllms_field_names():
    names = {cls.__name__: [f.name for f in dataclasses.fields(cls)] for cls in EVENT_TYPES.values()}
    assert {"block_hashes", "parent_block_hash", "token_ids", "block_size"} <= set(names["BlockStored"])
    assert "block_hashes" in names["BlockRemoved"]
    assert names["AllBlocksCleared"] == ["step"]


def test_every_event_class_has_a_wire_form_and_is_frozen():
    classes = {
        c for c in vars(events).values() if isinstance(c, type) and issubclass(c, events.Event) and c is not events.Event
    }
    assert set(EVENT_TYPES.values()) == classes
    with pytest.raises(dataclasses.FrozenInstanceError):
        TokenSampled(1, "A", 2, 3, "x").position = 9


@pytest.mark.parametrize(
    "row, words",
    [
        (["NoSuchEvent", 1], "no event of this version"),
        ([], "no event of this version"),
        (None, "no event of this version"),
        ("TokenSampled", "no event of this version"),
        ([["TokenSampled"], 1], "no event of this version"),
        ([{"TokenSampled": 1}, 1], "no event of this version"),
        (["TokenSampled", 1, "A", 2, 3], "TokenSampled has 4 fields, expected 5"),
        (["TokenSampled", 1, "A", 2, 3, "x", 9], "TokenSampled has 6 fields, expected 5"),
        (["TokenSampled", -1, "A", 2, 3, "x"], "TokenSampled.step is -1, out of range"),
        (["TokenSampled", 1 << 53, "A", 2, 3, "x"], "out of range"),
        (["TokenSampled", True, "A", 2, 3, "x"], "TokenSampled.step holds 'True', expected int"),
        (["TokenSampled", 1.0, "A", 2, 3, "x"], "TokenSampled.step holds '1.0', expected int"),
        (["TokenSampled", 1, None, 2, 3, "x"], "TokenSampled.request_id holds 'None', expected str"),
        (["TokenSampled", 1, "A", 2, 3, {"hex": "zz"}], "TokenSampled.text holds bad hexadecimal"),
        (["TokenSampled", 1, "A", 2, 3, {"hex": 5}], "expected TokenText"),
        (["TokenSampled", 1, "A", 2, 3, ["x"]], "expected TokenText"),
        (["SlotsWritten", 1, "A", 0, 5], r"expected tuple"),
        (["SlotsWritten", 1, "A", 0, [5, "6"]], "SlotsWritten.slots holds '6', expected int"),
        (["SlotsWritten", 1, "A", 0, [5, -6]], "SlotsWritten.slots is -6, out of range"),
        (["StepTimed", 1, 1, 1, math.nan, 0, 0], "StepTimed.schedule_ms is nan, out of range"),
        (["StepTimed", 1, 1, 1, math.inf, 0, 0], "out of range"),
        (["StepTimed", 1, 1, 1, 10**400, 0, 0], "out of range"),
    ],
)
def test_a_row_that_is_no_event_is_refused_in_a_sentence(row, words):
    with pytest.raises(RecordingError, match=words):
        from_wire(row)


@given(st.lists(ANY_JSON, max_size=8), st.sampled_from([None, *EVENT_TYPES]))
def test_any_json_is_an_event_or_a_recording_error(values, name):
    try:
        event = from_wire(values if name is None else [name, *values])
    except RecordingError as error:
        message: str | None = str(error)
    else:
        message = None
    if message is not None:
        assert len(message) < 300
    else:
        assert from_wire(json.loads(json.dumps(to_wire(event)))) == event
