"""What a run measured, on events written by hand."""

from __future__ import annotations

import pytest

from engine.comparison import Measured, measure
from engine.events import BlockAllocated, BlockFreed, BlockTouched, RequestAdded, RequestFinished, SlotsWritten, StepTimed
from engine.trace import Trace, TraceHeader

HEADER = TraceHeader(4, 8, "m", "cpu", "float32", "torch", "", 1, 1, 1, 2, 8, 64, "0")


def test_waste_table_hits_and_time_are_those_of_the_events() -> None:
    trace = Trace(HEADER)
    for event in (
        RequestAdded(0, "A", "p", (1, 2, 3, 4, 5), ("a", "b", "c", "d", "e"), 9),
        BlockAllocated(1, "A", 0, 3, ""), BlockAllocated(1, "A", 1, 5, ""), SlotsWritten(1, "A", 0, (12, 13, 14, 15, 20)),
        StepTimed(1, 5, 1, 1.0, 7.0, 2.0),
        RequestAdded(1, "B", "p", (1, 2, 3, 4, 9), ("a", "b", "c", "d", "x"), 9),
        BlockTouched(2, "B", 0, 3), BlockAllocated(2, "B", 1, 6, ""), SlotsWritten(2, "B", 4, (24,)),
        StepTimed(2, 1, 1, 1.0, 2.0, 1.0),
        BlockFreed(2, "A", (5, 3), ""), RequestFinished(2, "A", "length", ""),
        SlotsWritten(3, "B", 5, (25,)), StepTimed(3, 1, 1, 1.0, 4.0, 1.0),
    ):  # fmt: skip
        trace.append(event)
    assert measure(trace) == Measured(
        block_size=4, num_blocks=8, peak_blocks=3, longest_table=2,
        waste_percent=pytest.approx(100 * (3 / 8 + 6 / 12 + 2 / 8) / 3), hit_tokens=4, step_ms=6.0,
    )  # fmt: skip


def test_a_trace_without_a_pass_measures_nothing() -> None:
    assert measure(Trace(HEADER)) == Measured(4, 8, 0, 0, 0.0, 0, 0.0)
