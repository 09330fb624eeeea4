"""The captured vectors of a recording: which go in, how they lie in the file, and what is checked when they come back.

header.json           "captured": [[request, position, step], ...], "row_of": [the row of each], "scales": [one a layer]
capture.safetensors   "rows" [layers, rows, n_q + 2 n_kv + n_q, head_dim] (query, key, value, output)

A small recording keeps some layers and query heads only, and queries only where somebody may look from. Its header says
"kept": {"layers": [...], "heads": [...], "queries": [rows]}, and capture.safetensors holds
"keys_values" [layers, rows, 2 n_kv, head_dim] and "queries" [layers, queries, 2 heads, head_dim] (query, output).
Without "row_of" each captured position has a row of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from engine.capture import Capture, CapturedStep, Kept
from engine.errors import RecordingError
from engine.events import SlotsWritten
from engine.trace import Trace, TraceHeader

MAX_KEPT_BYTES = 256 << 20  # of a small recording's vectors once unpacked


@dataclass(frozen=True, slots=True)
class Vectors:
    """Captured vectors taken at one moment. rows: [layers, heads, head_dim] each; kept: what of them is written, None: all.

    rows_kept: the rows come from a small recording, and hold nothing but what `kept` says.
    """

    captured: list[tuple[str, int, int]]
    row_of: list[int]
    rows: list[torch.Tensor]
    scales: tuple[float, ...]
    num_heads: int
    num_kv_heads: int
    kept: Kept | None
    rows_kept: bool

    def head(self) -> dict[str, Any]:
        """Their part of header.json."""
        head: dict[str, Any] = {"captured": self.captured, "row_of": self.row_of, "scales": list(self.scales)}
        if self.rows and self.kept is not None:
            head["kept"] = {"layers": self.kept.layers, "heads": self.kept.heads, "queries": self._query_rows()}
        return head

    def tensors(self) -> dict[str, torch.Tensor]:
        """What goes into capture.safetensors; empty where nothing was captured."""
        if not self.rows:
            return {}
        rows = torch.stack(self.rows, dim=1)
        if self.kept is None:
            return {"rows": rows}
        n_q, n_kv = self.num_heads, self.num_kv_heads
        layers = list(range(len(self.kept.layers)) if self.rows_kept else self.kept.layers)
        heads = list(range(n_q) if self.rows_kept else self.kept.heads)
        outputs = [n_q + 2 * n_kv + head for head in heads]
        rows = rows[layers]
        return {
            "keys_values": rows[:, :, n_q : n_q + 2 * n_kv].contiguous(),
            "queries": rows[:, self._query_rows()][:, :, heads + outputs].contiguous(),
        }

    def _query_rows(self) -> list[int]:
        assert self.kept is not None
        pairs = zip(self.captured, self.row_of, strict=True)
        return sorted({row for (name, position, _), row in pairs if (name, position) in self.kept.queries})


def take_vectors(capture: Capture | None, kept: Kept | None = None) -> Vectors:
    """Whatever is still captured, each row once. A capture that kept some gives just those."""
    if capture is None:
        return Vectors([], [], [], (), 0, 0, None, False)
    captured: list[tuple[str, int, int]] = []
    row_of: list[int] = []
    rows: list[torch.Tensor] = []
    numbers: dict[tuple[int, int], int] = {}
    for request_id, positions in capture.positions().items():
        for position in positions:
            row, place = capture.row(request_id, position), capture.place(request_id, position)
            step = capture.step_of(request_id, position)
            if row is None or place is None or step is None:
                continue
            if place not in numbers:
                numbers[place] = len(rows)
                rows.append(row)
            captured.append((request_id, position, step))
            row_of.append(numbers[place])
    sizes = (capture.num_heads, capture.num_kv_heads)
    return Vectors(captured, row_of, rows, capture.scales, *sizes, capture.kept or kept, capture.kept is not None)


def kept_for(trace: Trace, layers: tuple[int, ...], heads: tuple[int, ...]) -> Kept:
    """These layers and heads, and the queries that the page asks for: the newest computed token after each step."""
    written = (event for event in trace.events if isinstance(event, SlotsWritten))
    return Kept(layers, heads, frozenset((e.request_id, e.start_position + len(e.slots) - 1) for e in written))


def read_vectors(header: TraceHeader, data: bytes, head: dict[str, Any]) -> Capture:
    """The capture of a recording, from its capture.safetensors and its header.json. RecordingError says what is wrong."""
    index = head.get("captured")
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError):
        raise RecordingError("The recording's captured vectors are damaged.") from None
    well_formed = isinstance(index, list) and all(
        isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str)
        and all(type(n) is int and 0 <= n < 1 << 53 for n in entry[1:]) for entry in index
    )  # fmt: skip
    if not well_formed or not isinstance(index, list):
        raise RecordingError("The recording's index of captured vectors is damaged.")
    scales = head.get("scales")
    if (
        not isinstance(scales, list)
        or len(scales) not in (0, header.num_layers)
        or not all(type(x) is float and math.isfinite(x) for x in scales)
    ):
        raise RecordingError("The recording's scales, one a layer, are damaged.")
    row_of = head.get("row_of", list(range(len(index))))
    if not isinstance(row_of, list) or len(row_of) != len(index) or not _numbers(row_of, len(index)):
        raise RecordingError("The recording's rows of captured vectors are damaged.")
    names = {(entry[0], entry[1]): row for entry, row in zip(index, row_of, strict=True)}
    num_rows = max(row_of, default=-1) + 1
    kept = _kept(head["kept"], header, names, num_rows) if "kept" in head else None
    rows = _rows(tensors, header, num_rows, kept, head)
    capture = Capture(header.num_heads, header.num_kv_heads, rows.numel() * rows.element_size(), kept)
    capture.scales = tuple(scales)
    by_step: dict[int, list[int]] = {}
    for number, (_, _, step) in enumerate(index):
        by_step.setdefault(step, []).append(number)
    shared = CapturedStep(0, rows)
    for step, numbers in sorted(by_step.items()):
        capture.place_rows(step, shared, [(index[n][0], index[n][1], row_of[n]) for n in numbers])
    return capture


def _rows(
    tensors: dict[str, torch.Tensor], header: TraceHeader, num_rows: int, kept: Kept | None, head: dict[str, Any]
) -> torch.Tensor:
    """[layers, rows, query, key, value and output heads, head_dim], whatever form the file has them in."""
    n_q, n_kv = (len(kept.heads) if kept else header.num_heads), header.num_kv_heads
    num_layers, size = (len(kept.layers) if kept else header.num_layers), header.head_dim
    expected = {"rows": (num_layers, num_rows, 2 * n_q + 2 * n_kv, size)}
    if kept:
        num_queries = len(head["kept"]["queries"])
        expected = {
            "keys_values": (num_layers, num_rows, 2 * n_kv, size),
            "queries": (num_layers, num_queries, 2 * n_q, size),
        }
    if set(tensors) != set(expected):
        raise RecordingError("The recording's captured vectors are damaged.")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise RecordingError("The recording's captured vectors have the wrong shape.")
        dtype = tensors[name].dtype
        if str(dtype) != f"torch.{header.dtype}" or not dtype.is_floating_point:
            raise RecordingError(f"The recording's captured vectors are {dtype}; its header says {header.dtype[:20]}.")
    if not kept:
        return tensors["rows"]
    num_bytes = num_layers * num_rows * (2 * n_q + 2 * n_kv) * size * tensors["queries"].element_size()
    if num_bytes > MAX_KEPT_BYTES:
        raise RecordingError(
            f"The recording's captured vectors unpack to {num_bytes:,} bytes; at most {MAX_KEPT_BYTES:,} are read."
        )
    rows = torch.full((num_layers, num_rows, 2 * n_q + 2 * n_kv, size), math.nan, dtype=tensors["queries"].dtype)
    rows[:, :, n_q : n_q + 2 * n_kv] = tensors["keys_values"]
    queries = head["kept"]["queries"]
    rows[:, queries, :n_q] = tensors["queries"][:, :, :n_q]
    rows[:, queries, n_q + 2 * n_kv :] = tensors["queries"][:, :, n_q:]
    return rows


def _kept(given: Any, header: TraceHeader, names: dict[tuple[str, int], int], num_rows: int) -> Kept:
    if not isinstance(given, dict) or set(given) != {"layers", "heads", "queries"}:
        raise RecordingError("The recording does not say which vectors it keeps.")
    for name, limit in (("layers", header.num_layers), ("heads", header.num_heads), ("queries", num_rows)):
        values = given[name]
        fits = isinstance(values, list) and _numbers(values, limit) and len(set(values)) == len(values)
        if not fits or (name != "queries" and not values):
            raise RecordingError(f"The recording's list of kept {name} is damaged.")
    rows = set(given["queries"])
    queries = frozenset(name for name, row in names.items() if row in rows)
    return Kept(tuple(given["layers"]), tuple(given["heads"]), queries)


def _numbers(values: list[Any], limit: int) -> bool:
    return all(type(n) is int and 0 <= n < limit for n in values)
