"""Where a sequence's positions live: logical block index -> physical block id."""

from __future__ import annotations

from collections.abc import Sequence


class BlockTable:
    """The physical blocks of one sequence, in logical order. Append-only but for copy-on-write; one table serves every layer.

        position 0..3   4..7   8..11          block_size 4
        table    [  7,     2,     15 ]        position 5 -> table[1] = 2, offset 1 -> slot 2 * 4 + 1 = 9

    (Kwon et al. 2023, "Efficient Memory Management for LLM Serving with PagedAttention", section 4.1.)
    """

    def __init__(self, block_size: int, block_ids: Sequence[int] = ()) -> None:
        self.block_size = block_size
        self.block_ids: list[int] = list(block_ids)

    def __len__(self) -> int:
        return len(self.block_ids)

    def __getitem__(self, logical_index: int) -> int:
        return self.block_ids[logical_index]

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self.block_ids) * self.block_size

    def append(self, block_id: int) -> None:
        self.block_ids.append(block_id)

    def replace(self, logical_index: int, block_id: int) -> int:
        """Maps a logical block elsewhere and returns the block that it was mapped to."""
        before, self.block_ids[logical_index] = self.block_ids[logical_index], block_id
        return before

    def clear(self) -> list[int]:
        """Empties the table and returns what it held, in logical order."""
        block_ids, self.block_ids = self.block_ids, []
        return block_ids

    def slot(self, position: int) -> int:
        """The flat slot of `position`. Raises IndexError beyond the capacity: such a position has no slot."""
        if not 0 <= position < self.capacity:
            raise IndexError(f"Position {position} has no slot: the table maps {self.capacity} positions.")
        logical_index, offset = divmod(position, self.block_size)
        return self.block_ids[logical_index] * self.block_size + offset

    def slots(self, start: int, stop: int) -> list[int]:
        """The flat slots of positions start..stop-1."""
        if start >= stop:
            return []
        if not (start >= 0 and stop <= self.capacity):
            raise IndexError(f"Positions {start}..{stop - 1} have no slots: the table maps {self.capacity} positions.")
        size = self.block_size
        if stop == start + 1:
            return [self.block_ids[start // size] * size + start % size]
        out: list[int] = []
        for logical_index in range(start // size, (stop - 1) // size + 1):
            base = self.block_ids[logical_index] * size
            low = max(start - logical_index * size, 0)
            high = min(stop - logical_index * size, size)
            out.extend(range(base + low, base + high))
        return out
