"""What a paged attention call must know about its batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class AttentionMetadata:
    """A packed batch of T tokens of B sequences; sequence b owns rows query_start[b] .. query_start[b + 1] - 1.

    slot_mapping: [T] int64, where each row's K and V go; -1 writes nothing.
    block_tables: [B, W] int64, physical ids; entries past a sequence's last block are padding and may hold anything.
    query_start: B + 1 row offsets. context_lens: [B], positions visible to the sequence's last row, itself included.
    A row's position is context_lens[b] - query_len[b] + its index; it sees positions up to its own (causal).
    """

    block_size: int
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    query_start: list[int]
    context_lens: list[int]

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    def query_len(self, index: int) -> int:
        return self.query_start[index + 1] - self.query_start[index]
