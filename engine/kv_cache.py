"""The physical pool: one K and one V tensor a layer, addressed by flat slot."""

from __future__ import annotations

import torch

from kernels.torch_paged import write_kv


class PagedKVCache:
    """`k_pool[layer]` and `v_pool[layer]`: [num_slots, num_kv_heads, head_dim], contiguous.

    Slot = block_id * block_size + offset.

    Heads are stored once per KV head. Slots nobody wrote hold whatever the memory held, NaN perhaps; they must never matter.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_dim)
        self.block_size = block_size
        self.k_pool = torch.empty(shape, dtype=dtype, device=device)
        self.v_pool = torch.empty(shape, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        return 2 * self.k_pool.numel() * self.k_pool.element_size()

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in one layer's K tensor."""
        return self.k_pool.stride(1) * self.k_pool.element_size()

    @property
    def bytes_per_block(self) -> int:
        """2 * layers * block_size * num_kv_heads * head_dim * itemsize."""
        return 2 * self.k_pool.shape[0] * self.block_size * self.slot_bytes

    def fill_(self, value: float) -> None:
        """Overwrites the whole pool: tests poison it with NaN to prove that unwritten slots never matter."""
        self.k_pool.fill_(value)
        self.v_pool.fill_(value)

    def copy_block(self, source: int, target: int, num_slots: int) -> None:
        """Copies K and V of the first `num_slots` slots of block `source` to block `target`, in every layer."""
        first, start = source * self.block_size, target * self.block_size
        for pool in (self.k_pool, self.v_pool):
            pool[:, start : start + num_slots] = pool[:, first : first + num_slots]

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Stores key and value, [T, num_kv_heads, head_dim], at slot_mapping [T] (int64). Slot -1 writes nothing."""
        write_kv(key, value, self.k_pool[layer], self.v_pool[layer], slot_mapping)
