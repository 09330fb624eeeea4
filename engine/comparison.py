"""What a run cost, as numbers to compare runs by. A pure function of its trace."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from engine.events import BlockTouched, StepTimed
from engine.trace import CacheState, Trace


@dataclass(frozen=True, slots=True)
class Measured:
    """waste_percent: of the slots in blocks in use, those without K and V, averaged over the steps. longest_table: entries of
    the longest block table. hit_tokens: found in the pool instead of computed. step_ms: median wall clock of a step.
    """

    block_size: int
    num_blocks: int
    peak_blocks: int
    longest_table: int
    waste_percent: float
    hit_tokens: int
    step_ms: float


def measure(trace: Trace) -> Measured:
    """Replays the trace once; states are taken at the ends of its forward passes."""
    header, state = trace.header, CacheState.empty(trace.header.num_blocks, trace.header.block_size)
    peak = longest = hits = 0
    wastes, times = [], []
    for event in trace.events:
        state.apply(event)
        if isinstance(event, BlockTouched):
            hits += header.block_size
        if isinstance(event, StepTimed):
            times.append(event.schedule_ms + event.forward_ms + event.sample_ms)
            peak = max(peak, state.num_used_blocks)
            longest = max(longest, max((len(r.block_table) for r in state.requests.values()), default=0))
            used = [filled for filled, count in zip(state.num_filled, state.ref_cnt, strict=True) if count]
            if used:
                wastes.append(1 - sum(used) / (len(used) * header.block_size))
    return Measured(
        block_size=header.block_size,
        num_blocks=header.num_blocks,
        peak_blocks=peak,
        longest_table=longest,
        waste_percent=100 * statistics.fmean(wastes) if wastes else 0.0,
        hit_tokens=hits,
        step_ms=statistics.median(times) if times else 0.0,
    )
