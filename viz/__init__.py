"""Pictures of a run: figures for a notebook, and what the page draws. Reads a trace, never an engine.

    import viz
    viz.pool(trace.state_at(20)).show()

Each figure is a function of a replayed `CacheState`, of a `Trace`, or of plain numbers, and returns a `plotly` Figure;
`mode="dark"` draws it for a dark page.
"""

from viz.allocator import allocator
from viz.attention import attention
from viz.block_tables import block_tables
from viz.events import events
from viz.memory import memory
from viz.pool import pool
from viz.timeline import timeline
from viz.vectors import vectors
from viz.waste import waste

__all__ = ["allocator", "attention", "block_tables", "events", "memory", "pool", "timeline", "vectors", "waste"]
