"""The allocator over time: how many blocks are used, shared, cached and free after every step, with its events below."""

from __future__ import annotations

import plotly.graph_objects as go

from engine.trace import Trace
from viz.chart import add_lane, area, dress, pattern, thinned
from viz.history import pool_history
from viz.palette import STATES, SURFACES, Mode
from viz.text import count


def allocator(trace: Trace, mode: Mode = "light") -> go.Figure:
    """Stacked blocks of the pool over steps; the four bands always add up to `num_blocks`.

    used: named by one block table. shared: by two or more. cached: by none, but the bytes can still be hit. free: by none, with
    nothing to be hit. `layout.meta` carries a caption; ticks and glyphs of the lane are events.
    """
    history, num_blocks, last = pool_history(trace), trace.header.num_blocks, trace.last_step
    rows, every = thinned(len(history.steps))
    steps = [history.steps[i] for i in rows]
    states, surface = STATES[mode], SURFACES[mode]
    ink = states["earlier"]
    bands = {
        "used by one": ([history.used[i] - history.shared[i] for i in rows], ink, None),
        "shared": ([history.shared[i] for i in rows], ink, pattern("x", mode, ink, surface["primary"])),
        "cached": ([history.cached[i] for i in rows], surface["primary"], pattern(".", mode, None, ink)),
        "free": ([history.free[i] for i in rows], surface["primary"], None),
    }
    figure = go.Figure()
    for name, (values, colour, shape) in bands.items():
        figure.add_trace(area(name, steps, values, last, "blocks", colour, shape, edge=states["reserved"]))
    peak = max(history.used, default=0)
    at = history.steps[history.used.index(peak)] if history.used else 0
    caption = (
        f"At most {peak:,} of {count(num_blocks, 'block')} were in use at once ({peak / num_blocks:.0%}), at step {at:,}. "
        "A cached block is given back, but its bytes stay and can be hit until it is reused."
    )
    dress(figure, mode, "Blocks of the pool over steps", caption, "step", "blocks")
    add_lane(figure, trace, mode)
    figure.update_layout(meta={**figure.layout.meta, "thinned": every})
    figure.update_xaxes(range=[0, max(1, last)], title={"text": "step"})
    ticks = sorted({0, num_blocks // 2, num_blocks})
    figure.update_layout(
        yaxis={"range": [0, num_blocks], "title": {"text": "blocks"}, "tickformat": ",d", "tickvals": ticks}, margin={"b": 112}
    )
    return figure
