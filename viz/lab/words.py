"""What the lab says: table, headline and notes, from the plain data that the lab measured. No figures, no engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viz.text import bytes_text, count

NAMES = {"triton": "Paged, Triton kernels", "gather": "Gather, then SDPA", "contiguous": "Contiguous SDPA"}

Result = Mapping[str, Any]


def ours(result: Result) -> str:
    """The path that the engine takes on this device."""
    return "triton" if result["backend"] == "triton" else "gather"


def idle(kind: str, reason: str) -> str:
    """Before the first run: what this machine can show."""
    if kind == "cuda":
        return (
            f"{reason} Press Run: three ways to the same output, timed in CUDA graphs with the L2 cache flushed, "
            "beside the measured read ceiling of this card."
        )
    return (
        "No GPU here, so the Triton kernels cannot be timed. Press Run: they are interpreted on a small batch, which shows "
        "that they are right, and the two ways that PyTorch has are timed on this machine's CPU."
    )


def headline(result: Result) -> str:
    """The finding in one sentence."""
    ms = {path["name"]: path["ms"] for path in result["paths"]}
    if "triton" in ms:
        return (
            f"Reading through the block table takes {_times(ms['triton'] / ms['contiguous'])} of contiguous SDPA; "
            f"gathering first takes {_times(ms['gather'] / ms['contiguous'])}."
        )
    return (
        f"Timed on this machine's CPU: gathering the pages first takes {_times(ms['gather'] / ms['contiguous'])} of contiguous "
        "SDPA. The Triton kernels read the pages where they are and write no copy; they need a GPU to be timed."
    )


def notes(result: Result) -> list[str]:
    """Device, number format, how it was measured; and what the interpreter did, where there is no GPU."""
    uses = "the Triton kernels" if ours(result) == "triton" else "gather, then SDPA"
    engine = f"The engine runs {uses} here. {result['reason']}"
    where = f"{result['device']}, {result['dtype']}."
    if result["kind"] == "cuda":
        how = f"Median of CUDA-graph replays, L2 flushed before each. Read ceiling of this run: {result['ceiling']:,.0f} GB/s."
    else:
        how = "Median of repeated calls, nothing flushed: a CPU's times vary with what else it does."
    copy = "Gather reads K and V twice and writes them once: in their pages, then as the contiguous copy."
    return [where, how, copy, engine, *([interpreted(result["interpreter"])] if result["interpreter"] else [])]


def interpreted(found: Mapping[str, Any]) -> str:
    """What was interpreted, or why not."""
    if "problem" in found:
        return str(found["problem"])
    shape = found["shape"]
    merged = f", {count(found['merges'], 'merge')}" if found["merges"] else ""
    return (
        f"Interpreted: the same Triton kernels, statement by statement in Python, on a batch of {shape['batch']} × "
        f"{shape['context']} tokens, {shape['n_q']}/{shape['n_kv']} heads, head_dim {shape['head_dim']}, blocks of "
        f"{shape['block_size']}, float32: {count(found['programs'], 'program')}{merged} in {found['seconds']:.1f} s. "
        "That time says nothing about the kernels' speed."
    )


def table(result: Result) -> dict[str, Any]:
    """{"columns": [...], "rows": [{"name", "ours", "cells"}]}: texts, ready to be shown."""
    gpu = result["kind"] == "cuda"
    columns = [
        "Path",
        "Median time",
        "Bytes read",
        "Read speed",
        *(["Of the ceiling"] if gpu else []),
        "Difference from float64",
    ]
    ours = "triton" if result["backend"] == "triton" else "gather"
    rows = []
    for path in result["paths"]:
        cells = [f"{path['ms']:.4g} ms", bytes_text(path["bytes_read"]), f"{path['gb_per_s']:,.4g} GB/s"]
        cells += [f"{path['share']:.0%}"] if gpu else []
        rows.append(
            {"name": NAMES[path["name"]], "ours": path["name"] == ours, "cells": [*cells, f"{path['max_abs_difference']:.1e}"]}
        )
    found = result["interpreter"]
    if found and "problem" not in found:
        cells = ["not timed", "–", "–", f"{found['max_abs_difference']:.1e}"]
        rows.append({"name": "Triton kernels, interpreted", "ours": False, "cells": cells})
    return {"columns": columns, "rows": rows}


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times the time" if ratio < 10 else f"{ratio:.0f} times the time"
