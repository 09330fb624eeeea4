"""Random batches in shuffled pages, for the kernel lab and the benchmarks, and the float64 answer they are held to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kernels.metadata import AttentionMetadata


@dataclass(slots=True)
class PagedBatch:
    """query [T, n_q, d]; pools [num_slots, n_kv, d]. tables: physical ids of each sequence, on the host."""

    query: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    metadata: AttentionMetadata
    tables: list[list[int]]

    @property
    def kv_bytes(self) -> int:
        """K and V of the visible positions: what must be read once."""
        n_kv, d = self.k_pool.shape[1:]
        return sum(self.metadata.context_lens) * n_kv * d * 2 * self.k_pool.element_size()

    def slots(self, index: int) -> torch.Tensor:
        """[context_len] int64 on the device."""
        size, length = self.metadata.block_size, self.metadata.context_lens[index]
        table = torch.tensor(self.tables[index], device=self.query.device)
        return (table[:, None] * size + torch.arange(size, device=self.query.device)).flatten()[:length]

    def contiguous(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [B, n_kv, S, d] of a batch of one length."""
        keys, values = (
            torch.stack([pool[self.slots(b)] for b in range(len(self.tables))]).transpose(1, 2).contiguous()
            for pool in (self.k_pool, self.v_pool)
        )
        return keys, values

    def exact(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """[len(rows), n_q, d] float64: dense attention of some rows of the packed batch, all of sequence `index`."""
        n_q, n_kv = self.query.shape[1], self.k_pool.shape[1]
        slots, end = self.slots(index), self.metadata.query_start[index + 1]
        seen = torch.arange(len(slots), device=rows.device) <= (len(slots) - (end - rows))[:, None]
        heads = []
        for head in range(n_kv):  # one at a time: a long context in float64 would not fit
            keys, values = (pool[slots, head].double() for pool in (self.k_pool, self.v_pool))
            group = self.query[rows, head * (n_q // n_kv) : (head + 1) * (n_q // n_kv)].double()
            scores = torch.einsum("tgd,sd->gts", group, keys) * self.query.shape[-1] ** -0.5
            heads.append(torch.einsum("gts,sd->tgd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values))
        return torch.cat(heads, 1)

    def differences(self, out: torch.Tensor, most: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(out - exact, exact) of up to `most` sequences spread over the batch, their last 64 rows: those see the most."""
        starts, count = self.metadata.query_start, len(self.tables)
        for b in sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)}):
            rows = torch.arange(starts[b], starts[b + 1], device=out.device)[-64:]
            exact = self.exact(b, rows)
            yield out[rows].double() - exact, exact

    def error(self, out: torch.Tensor) -> float:
        """Largest |out - exact| / |exact|, vectors of a sequence's rows."""
        return max(float(difference.norm() / exact.norm()) for difference, exact in self.differences(out))

    def largest_difference(self, out: torch.Tensor) -> float:
        """Largest absolute difference of one number of the output from float64."""
        return max(float(difference.abs().max()) for difference, _ in self.differences(out))


def paged_batch(
    query_lens: list[int],
    context_lens: list[int],
    n_q: int,
    n_kv: int,
    d: int,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    num_blocks: int | None = None,
    device: str = "cuda",
) -> PagedBatch:
    """Blocks in random order; slots past a sequence's end hold NaN, padding of the tables garbage."""
    rng = random.Random(seed)
    counts = [-(-n // block_size) for n in context_lens]
    num_blocks = num_blocks or sum(counts) + 1
    order = rng.sample(range(num_blocks), sum(counts))
    tables = [[order.pop() for _ in range(count)] for count in counts]
    width = max(1, *counts)
    padded = torch.tensor([row + [rng.randrange(-(2**31), 2**31) for _ in range(width - len(row))] for row in tables])
    gen = torch.Generator(device).manual_seed(seed)
    shape = (num_blocks * block_size, n_kv, d)
    pools = [torch.randn(shape, generator=gen, device=device, dtype=dtype) for _ in range(2)]
    for row, length in zip(tables, context_lens, strict=True):
        if length % block_size:
            end = row[-1] * block_size
            for pool in pools:
                pool[end + length % block_size : end + block_size] = float("nan")
    starts = [0]
    for length in query_lens:
        starts.append(starts[-1] + length)
    query = torch.randn(starts[-1], n_q, d, generator=gen, device=device, dtype=dtype)
    metadata = AttentionMetadata(
        block_size, torch.full((starts[-1],), -1, device=device), padded.to(device), starts, list(context_lens)
    )
    return PagedBatch(query, pools[0], pools[1], metadata, tables)
