"""Where memory goes: this run's paged cache against a contiguous cache that reserves every request's longest length."""

from __future__ import annotations

import plotly.graph_objects as go

from engine.trace import Trace
from viz.chart import area, dress, pattern, thinned
from viz.history import WasteHistory, waste_history
from viz.palette import STATES, SURFACES, Mode
from viz.text import bytes_text

ABOVE = ("tokens", "reserved", "internal", "external")


def waste(trace: Trace, mode: Mode = "light") -> go.Figure:
    """Bytes of K and V over steps, of all layers. Above zero: contiguous; below zero: paged, as it was.

    The words are those of Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention" (SOSP 2023), section
    3.1, for a cache that gives each running request one contiguous chunk of its longest possible length, prompt + max_tokens:

    - tokens: slots that hold K and V.
    - reserved: slots that this request will still fill. They are used in the end, but nobody else can have them until then.
      A request that is not finished may fill all of its chunk.
    - internal fragmentation: slots of the chunk that it never fills. Known only once it is finished.
    - external fragmentation: what the memory allocator adds. Chunks come from a buddy allocator, as section 6.1 assumes, so
      each is rounded up to a power of two of slots. Known before the request is served.

    Paged, only the last block of a sequence can have empty slots; they are reserved or internal by the same rule, and equal
    blocks leave nothing external. A shared block is counted once; contiguous, every request needs a copy. Cached blocks hold no
    request's memory and are not counted.
    """
    history, header, last = waste_history(trace), trace.header, trace.last_step
    slot = header.bytes_per_block / header.block_size
    rows, every = thinned(len(history.steps))
    steps = [history.steps[i] for i in rows]
    states, surface = STATES[mode], SURFACES[mode]
    ink, edge = states["earlier"], states["reserved"]
    looks = {
        "tokens": (ink, None), "reserved": (surface["primary"], pattern("/", mode)),
        "internal": (surface["primary"], pattern("x", mode)), "external": (surface["primary"], pattern(".", mode, None, ink)),
    }  # fmt: skip
    figure = go.Figure()
    contiguous = (history.tokens, history.reserved, history.internal, history.external)
    paged = (history.paged_tokens, history.paged_reserved, history.paged_internal)
    for side, sign, values in (("contiguous", 1, contiguous), ("paged", -1, paged)):
        for name, column in zip(ABOVE, values, strict=False):
            y = [round(sign * column[i] * slot) for i in rows]
            colour, shape = looks[name]
            band = area(f"{side}: {name}", steps, y, last, side, colour, shape, "%{customdata}", edge)
            band.update(customdata=[bytes_text(abs(v)) for v in (*y, y[-1])], legendgroup=side)
            figure.add_trace(band)
    dress(figure, mode, "Memory for K and V: contiguous above, paged below", _caption(history, slot), "step", "bytes")
    top, bottom = (max((sum(column) for column in zip(*side, strict=True)), default=0) * slot for side in (contiguous, paged))
    ticks = [0.0, top, -bottom] if bottom > 0.15 * top else [0.0, top]  # labels that would touch are left out
    figure.update_layout(
        yaxis={"range": [-1.06 * bottom, 1.06 * top] if top else [0, 1], "tickvals": ticks,
               "ticktext": [bytes_text(abs(v)) for v in ticks], "zeroline": True, "zerolinecolor": surface["text"]},
        meta={**figure.layout.meta, "thinned": every},
    )  # fmt: skip
    figure.update_xaxes(range=[0, max(1, last)], title={"text": "step"})
    figure.update_layout(margin={"b": 112})
    return figure


def _caption(history: WasteHistory, slot: float) -> str:
    sums = [sum(column) for column in zip(*history.rows, strict=True)]
    if not any(sums):
        return "No request has held memory yet."
    at = max(range(len(history.steps)), key=lambda i: (sum(column[i] for column in history.rows[3:]), i))
    chunk, held = sum(column[at] for column in history.rows[3:]), history.tokens[at]
    pages, written = sum(column[at] for column in history.rows[:3]), history.paged_tokens[at]
    saved = history.tokens[at] - history.paged_tokens[at]
    shared = f", {bytes_text(saved * slot)} of them once instead of several times" if saved > 0 else ""
    return (
        f"At step {history.steps[at]:,} the running sequences' tokens take {bytes_text(held * slot)}. Reserving prompt + "
        f"max_tokens for each takes {bytes_text(chunk * slot)}: {1 - held / chunk:.0%} of that is reserved, internal "
        f"or external. Pages take {bytes_text(pages * slot)}{shared}: {1 - written / pages:.0%} is the unwritten "
        "rest of last blocks."
    )
