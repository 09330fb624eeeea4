"""The memory bar: weights, pool and the rest; the pool enlarged below it; and the bytes of one block as a product."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from engine.trace import CacheState, TraceHeader
from viz.chart import dress, pattern
from viz.palette import INK_ON_COLOUR, STATES, SURFACES, WHITE_ON_COLOUR, Mode, contrast, mix
from viz.text import bytes_text, count, literal


def block_formula(header: TraceHeader) -> str:
    """The bytes of one block with this run's numbers: 2 x layers x KV heads x head_dim x itemsize x block_size."""
    itemsize = header.slot_bytes // (header.num_kv_heads * header.head_dim)
    return (
        f"2 (K and V) × {count(header.num_layers, 'layer')} × {count(header.num_kv_heads, 'KV head')} × "
        f"{header.head_dim} numbers × {count(itemsize, 'byte')} × {count(header.block_size, 'slot')} = "
        f"{header.bytes_per_block:,} bytes a block"
    )


def memory(
    header: TraceHeader, workspace: Mapping[str, int], state: CacheState | None = None, mode: Mode = "light"
) -> go.Figure:
    """Two bars in bytes. Above: `workspace`, by name ("weights", ..), the pool after the first. Below: the pool by its blocks.

    state: what of the pool is used and cached; without one the lower bar is left out. Names are drawn literally.
    """
    surface, states = SURFACES[mode], STATES[mode]
    pool = header.num_blocks * header.bytes_per_block
    parts = list(workspace.items())
    parts.insert(1, ("KV pool", pool))
    total = sum(size for _, size in parts)
    tones = [mix(states["earlier"], surface["primary"], part) for part in (0.0, 0.45, 0.65, 0.8)]
    figure, at, pool_at = go.Figure(), 0, 0
    for i, (name, size) in enumerate(parts):
        is_pool = name == "KV pool"
        pool_at = at if is_pool else pool_at
        tone = tones[min(i, len(tones) - 1)]
        _segment(figure, literal(name), 1.0, at / total, size / total, tone, None, size, mode)
        at += size
    used = cached = 0
    if state is not None:
        used, cached = state.num_used_blocks, state.num_cached_blocks
        ink = states["earlier"]
        looks = (
            ("used", used, ink, None),
            ("cached", cached, surface["primary"], pattern(".", mode, None, ink)),
            ("free", header.num_blocks - used - cached, surface["primary"], None),
        )
        left = 0
        for name, blocks, colour, look in looks:
            size = blocks * header.bytes_per_block
            start, width = left / header.num_blocks, blocks / header.num_blocks
            _segment(figure, f"pool: {name}", 0.0, start, width, colour, look, size, mode)
            left += blocks
        for edge, to in ((pool_at / total, 0), ((pool_at + pool) / total, 1)):
            figure.add_shape(
                type="line", x0=edge, x1=to, y0=0.66, y1=0.34, line={"color": states["reserved"], "width": 1, "dash": "dot"}
            )
    share = used / header.num_blocks
    usage = (
        f" {used:,} of {count(header.num_blocks, 'block')} are in use: KV usage is {share:.1%} of the pool's "
        f"{bytes_text(pool)}, {share * pool / total:.1%} of all {bytes_text(total)}."
        if state is not None
        else ""
    )
    dress(figure, mode, "Memory", f"{block_formula(header)}.{usage}", None, "bytes")
    figure.update_xaxes(range=[0, 1], visible=False)
    figure.update_layout(
        yaxis={"range": [-0.5 if state is not None else 0.5, 1.5], "tickvals": [1.0, 0.0], "ticktext": ["all", "pool"],
               "showgrid": False},
        hovermode="closest", uniformtext={"mode": "hide", "minsize": 11},
    )  # fmt: skip
    figure.update_layout(margin={"b": 92})
    figure.add_annotation(
        text=block_formula(header), x=0, y=0, xref="paper", yref="paper", yshift=-12, yanchor="top", xanchor="left",
        showarrow=False,
    )  # fmt: skip
    return figure


def _segment(
    figure: go.Figure, name: str, y: float, start: float, width: float, colour: str, look: Mapping[str, object] | None,
    size: int, mode: Mode,
) -> None:  # fmt: skip
    figure.add_bar(
        orientation="h", name=name, y=[y], base=[start], x=[width], width=0.6, customdata=[[size]], meta={"value": size},
        hovertemplate=f"{name}: {bytes_text(size)}<extra></extra>",
        marker={"color": colour, "pattern": dict(look) if look else None,
                "line": {"width": 1, "color": STATES[mode]["reserved"]}},
        text=[f" {name} {bytes_text(size)}"], textposition="inside", insidetextanchor="start", textangle=0,
        textfont={"size": 12, "color": _readable(colour)} if not look else {"color": "rgba(0,0,0,0)"},
    )  # fmt: skip


def _readable(colour: str) -> str:
    return max((INK_ON_COLOUR, WHITE_ON_COLOUR), key=lambda ink: contrast(ink, colour))
