"""Every token's rotated query, key, value and attention output, so that a lookup is true for any past step.

Rows stay on the device that computed them: sending them to the host would cost more than the pass. What is asked for is sent.
Who has which row is worked out when somebody asks: in a pass of many sequences it would cost more than the capture itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.events import SlotsWritten


@dataclass(frozen=True, slots=True)
class Kept:
    """What a small recording kept of the vectors: keys and values of these layers; query and output of these query heads too,
    at the positions `queries`, (request, position)."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    queries: frozenset[tuple[str, int]]


@dataclass(slots=True, eq=False)
class CapturedStep:
    """rows: [layers, T, n_q + n_kv + n_kv + n_q, head_dim] (query, key, value, output), or None once the budget dropped it."""

    step: int
    rows: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class CapturedRow:
    """One position of one request: where its vectors are, and since which step of the run the request has had them."""

    captured: CapturedStep
    index: int
    step: int


class Capture:
    """Rows by (request, position), at most `budget_bytes` of them; the oldest steps are dropped first.

    A position that was found in the pool instead of computed is linked to the row that once filled its slot. `scales` holds
    each layer's factor between dot product and score, as the model gave it; empty means 1/sqrt(head_dim). With `kept` the rows
    hold its layers and its query heads only, in its order.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, budget_bytes: int, kept: Kept | None = None) -> None:
        self.num_heads = len(kept.heads) if kept else num_heads
        self.num_kv_heads = num_kv_heads
        self.kept = kept
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self.scales: tuple[float, ...] = ()
        self._steps: deque[CapturedStep] = deque()
        self._positions: dict[str, dict[int, CapturedRow]] = {}
        self._slots: dict[int, CapturedRow] = {}
        self._added: deque[tuple[CapturedStep, Sequence[SlotsWritten | int]]] = deque()  # not in these two yet
        self._adding = threading.Lock()

    def add(self, step: int, rows: torch.Tensor, owners: Sequence[SlotsWritten | int]) -> None:
        """One forward pass. `owners` are whose the rows are, in their order: what was written, or so many rows of nobody."""
        captured = CapturedStep(step, rows)
        self._steps.append(captured)
        self.num_bytes += rows.numel() * rows.element_size()
        self._added.append((captured, owners))
        while self.num_bytes > self.budget_bytes and self._steps:
            oldest = self._steps.popleft()
            assert oldest.rows is not None
            self.num_bytes -= oldest.rows.numel() * oldest.rows.element_size()
            oldest.rows = None

    @property
    def _by_position(self) -> dict[str, dict[int, CapturedRow]]:
        self._settle()
        return self._positions

    @property
    def _by_slot(self) -> dict[int, CapturedRow]:
        self._settle()
        return self._slots

    def _settle(self) -> None:
        with self._adding:
            while self._added:
                captured, owners = self._added.popleft()
                index = 0
                for owner in owners:
                    if isinstance(owner, int):
                        index += owner
                        continue
                    known = self._positions.setdefault(owner.request_id, {})
                    for position, slot in enumerate(owner.slots, owner.start_position):
                        known[position] = self._slots[slot] = CapturedRow(captured, index, captured.step)
                        index += 1

    def place_rows(self, step: int, rows: CapturedStep, owners: Iterable[tuple[str, int, int]]) -> None:
        """From a recording: in `step` each (request, position) got the row of `rows` with this index."""
        if rows not in self._steps:
            self._steps.append(rows)
        by_position = self._by_position
        for request_id, position, index in owners:
            by_position.setdefault(request_id, {})[position] = CapturedRow(rows, index, step)

    def link(self, step: int, request_id: str, positions: Sequence[int], slots: Sequence[int]) -> None:
        """From `step` on the request's positions stand at slots that others computed: same tokens, same vectors."""
        rows = self._by_position.setdefault(request_id, {})
        by_slot = self._by_slot
        for position, slot in zip(positions, slots, strict=True):
            if slot in by_slot:
                row = by_slot[slot]
                rows[position] = CapturedRow(row.captured, row.index, step)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """A block was copied: what is known of each source slot holds for its target too."""
        by_slot = self._by_slot
        for source, target in zip(sources, targets, strict=True):
            if source in by_slot:
                by_slot[target] = by_slot[source]
            else:
                by_slot.pop(target, None)

    def next_run(self, keep_slots: bool) -> Capture:
        """The capture of a run that names its requests afresh; this one stays with the trace of the run before.

        keep_slots: the pool lives on, so what its slots hold stays known, within the same budget.
        """
        capture = Capture(self.num_heads, self.num_kv_heads, self.budget_bytes)
        if keep_slots:
            capture.scales, capture.num_bytes = self.scales, self.num_bytes
            capture._steps, capture._slots = self._steps.copy(), self._by_slot.copy()
        return capture

    def step_of(self, request_id: str, position: int) -> int | None:
        """The step in which the request last computed this position, or found it in the pool; or None."""
        row = self._by_position.get(request_id, {}).get(position)
        return row.step if row else None

    def vectors(self, request_id: str, positions: Sequence[int], layer: int) -> torch.Tensor | None:
        """[len(positions), n_q + 2 n_kv + n_q, head_dim] on the host, or None if any of them is not kept (any more).

        `layer` is the model's number; ValueError where `kept` lacks it.
        """
        at = self.kept.layers.index(layer) if self.kept else layer
        known = self._by_position.get(request_id, {})
        found: list[torch.Tensor] = []
        for position in positions:
            row = known.get(position)
            if row is None or row.captured.rows is None:
                return None
            found.append(row.captured.rows[at, row.index])
        return torch.stack(found).cpu() if found else None

    def row(self, request_id: str, position: int) -> torch.Tensor | None:
        """[layers, heads, head_dim] of one position in every layer, on the host, or None if it is not kept (any more)."""
        row = self._by_position.get(request_id, {}).get(position)
        return None if row is None or row.captured.rows is None else row.captured.rows[:, row.index].cpu()

    def place(self, request_id: str, position: int) -> tuple[int, int] | None:
        """Names the row of one position: positions found in the pool, and forks, have the row of whoever computed it."""
        row = self._by_position.get(request_id, {}).get(position)
        return None if row is None or row.captured.rows is None else (id(row.captured), row.index)

    def split(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key, value, output, each [..., heads, head_dim]."""
        n_q, n_kv = self.num_heads, self.num_kv_heads
        parts = vectors.split([n_q, n_kv, n_kv, n_q], dim=-2)
        return parts[0], parts[1], parts[2], parts[3]

    def positions(self) -> dict[str, list[int]]:
        """Which positions of which request are kept."""
        return {
            request_id: sorted(p for p, row in rows.items() if row.captured.rows is not None)
            for request_id, rows in self._by_position.items()
        }
