"""What the host tells the device about a decode batch: one buffer of 32-bit words, sent in one copy a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.block_table import BlockTable
from engine.scheduler import ScheduledRequest


class DecodeInputs:
    """Views of one device buffer for up to `size` sequences with tables of up to `width` blocks; they never move.

    token_ids, positions [size] int32; slots [size] int64 (-1: padding, written nowhere); batch [3, size] int32, as
    `DecodeGraphAttention` takes it: row of the table, row of the query, length (0: padding); block_tables [size, width] int32.
    """

    def __init__(self, size: int, width: int, device: torch.device) -> None:
        self.size, self.width = size, width
        words = 2 * size + 5 * size + size * width
        self._host = torch.zeros(words, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(words, dtype=torch.int32, device=device)
        host = self._host.numpy()
        self._slots = host[: 2 * size].view(np.int64)
        self._token_ids, self._positions, rows, queries, self._lengths = host[2 * size : 7 * size].reshape(5, size)
        self._tables = host[7 * size :].reshape(size, width)
        self._slots[:] = -1
        rows[:] = queries[:] = np.arange(size)
        self.slots = self._device[: 2 * size].view(torch.int64)
        small = self._device[2 * size : 7 * size].view(5, size)
        self.token_ids, self.positions, self.batch = small[0], small[1], small[2:]
        self.block_tables = self._device[7 * size :].view(size, width)
        self._shown: list[tuple[BlockTable, int, int] | None] = [None] * size  # table, preemptions, entries that are sent
        self.send()

    def fill(self, plan: Sequence[ScheduledRequest], tables_changed: bool) -> list[int]:
        """One token of each planned request; returns the lengths [size], 0 for padding. tables_changed: not by growth alone."""
        n = len(plan)
        self._token_ids[:n] = [item.request.token_ids[item.start] for item in plan]
        self._positions[:n] = [item.start for item in plan]
        self._slots[:n] = [item.request.block_table.slot(item.start) for item in plan]
        self._slots[n:] = -1
        lengths = [item.stop for item in plan] + [0] * (self.size - n)
        self._lengths[:] = lengths
        for row, item in enumerate(plan):
            table, preempted = item.request.block_table, item.request.num_preemptions
            shown = self._shown[row]
            known = shown[2] if shown and shown[0] is table and shown[1] == preempted and not tables_changed else 0
            if known != len(table):
                self._tables[row, known : len(table)] = table.block_ids[known:]
                self._shown[row] = (table, preempted, len(table))
        self.send()
        return lengths

    def send(self) -> None:
        """The one copy; the host's buffer may change again once the device has answered."""
        self._device.copy_(self._host, non_blocking=True)
