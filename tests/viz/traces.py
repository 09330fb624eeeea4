"""Traces without an engine for the figures' tests: the scripted run, a random one, and one small enough to count by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from engine.events import (
    BlockAllocated,
    BlockFreed,
    BlockStored,
    BlockTouched,
    Event,
    PrefixHit,
    RequestAdded,
    RequestFinished,
    SlotsWritten,
    StepTimed,
    TokenSampled,
)
from engine.trace import Trace, TraceHeader
from tests.viz.fake_run import HEADER, fake_run
from tests.viz.fold import random_log


def trace_of(events: Iterable[Event], **header: Any) -> Trace:
    trace = Trace(TraceHeader(**{**HEADER, **header}))
    for event in events:
        trace.append(event)
    return trace


def scripted_trace(**options: Any) -> Trace:
    return trace_of((event for step in fake_run(**options) for event in step), num_blocks=options.get("num_blocks", 128))


def random_trace(seed: int) -> Trace:
    return trace_of(random_log(random.Random(seed)), num_blocks=12, block_size=4, bytes_per_block=4 * 100)


def small_trace() -> Trace:
    """Pool 6 x 4, 10 bytes a slot. A: prompt of 5, at most 6 new, has 7 written when it ends in step 3; table [3, 1]. B: prompt
    of 6 whose first 4 tokens are A's, at most 2 new, from step 2 on, unfinished; table [3, 5].
    """
    events: list[Event] = [
        RequestAdded(0, "A", "abcde", (1, 2, 3, 4, 5), ("<b>", "$x^2$", "c", b"\xe2", "e"), 6),
        BlockAllocated(1, "A", 0, 3, "5 prompt tokens"),
        BlockAllocated(1, "A", 1, 1, "5 prompt tokens"),
        SlotsWritten(1, "A", 0, (12, 13, 14, 15, 4)),
        BlockStored(1, ("h3",), None, (1, 2, 3, 4), 4, (3,)),
        TokenSampled(1, "A", 5, 6, "f"),
        StepTimed(1, 5, 1, 0.1, 1.0, 0.1),
        RequestAdded(1, "B", "abcdxy", (1, 2, 3, 4, 8, 9), ("<b>", "$x^2$", "c", b"\xe2", "x", "y"), 2),
        SlotsWritten(2, "A", 5, (5,)),
        TokenSampled(2, "A", 6, 7, "g"),
        PrefixHit(2, "B", 4, (3,), "the first 4 tokens are A's"),
        BlockTouched(2, "B", 0, 3),
        BlockAllocated(2, "B", 1, 5, "token 4 starts logical block 1"),
        SlotsWritten(2, "B", 4, (20, 21)),
        TokenSampled(2, "B", 6, 3, "z"),
        StepTimed(2, 3, 2, 0.1, 1.0, 0.1),
        SlotsWritten(3, "A", 6, (6,)),
        RequestFinished(3, "A", "stop", "end of text"),
        BlockFreed(3, "A", (1, 3), "finished"),
        StepTimed(3, 1, 1, 0.1, 1.0, 0.1),
    ]
    return trace_of(events, num_blocks=6, block_size=4, bytes_per_block=40)


def lookup_of(trace: Trace, request: str, query: int, key: int) -> dict[str, Any]:
    """A lookup as `Lookup.to_dict()` gives it, with weights that say their position: n + 1 over their sum."""
    table = trace.latest.requests[request].block_table or trace.table_in(trace.last_step, request)
    size, total = trace.header.block_size, sum(range(1, query + 2))
    return {
        "request_id": request, "query_position": query, "key_position": key, "layer": 0, "head": 1, "kv_head": 0,
        "block_size": size, "block_table": table, "physical_block": table[key // size],
        "weights": [(n + 1) / total for n in range(query + 1)], "weight": (key + 1) / total, "query": [1.0, -2.0, 0.5],
        "key": [0.5, 0.25, 4.0], "value": [3.0, 0.0, -1.0], "raw_dot": 2.0, "scale": 0.5, "score": 1.0,
    }  # fmt: skip
