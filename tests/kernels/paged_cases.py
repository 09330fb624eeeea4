"""Batches for the kernels' tests, here and on a GPU: shuffled blocks, NaN in every slot nobody wrote, garbage as padding.

The list is the whole of what must be right; `CASES` names it. Interpreted it runs on short contexts, on a card on long ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kernels.metadata import AttentionMetadata
from kernels.reference import paged_attention_reference

GARBAGE = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Case:
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_size: int = 16
    n_q: int = 4
    n_kv: int = 2
    d: int = 64
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0
    all_low: bool = False  # every score below -5e4
    table_dtype: torch.dtype = torch.int64
    first_block: int = 0  # blocks are taken from here on
    layout: str = "plain"  # "strided": pools, query as views into larger tensors

    def on(self, device: str, dtype: torch.dtype) -> Case:
        return replace(self, device=device, dtype=dtype)


@dataclass
class Batch:
    case: Case
    query: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    metadata: AttentionMetadata
    tables: list[list[int]]

    @property
    def scale(self) -> float:
        return self.case.d**-0.5

    def rows(self, index: int) -> slice:
        return slice(self.metadata.query_start[index], self.metadata.query_start[index + 1])

    def slots(self, index: int) -> torch.Tensor:
        size = self.case.block_size
        table = torch.tensor(self.tables[index], dtype=torch.int64)
        every = (table[:, None] * size + torch.arange(size)).flatten()
        return every[: self.metadata.context_lens[index]].to(self.query.device)

    def expected(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The frozen oracle's answer in `dtype`, computed from the numbers as the pool holds them."""
        out = torch.zeros(self.query.shape, dtype=dtype, device=self.query.device)
        for b, length in enumerate(self.metadata.context_lens):
            chunk = self.query[self.rows(b)].to(dtype)
            unseen = max(0, len(chunk) - length)  # rows before position 0 see nothing
            if len(chunk) - unseen:
                keys, values = (pool[self.slots(b)].to(dtype) for pool in (self.k_pool, self.v_pool))
                own = torch.arange(length, device=keys.device)
                seen = chunk[unseen:].transpose(0, 1)[None]
                out[self.rows(b)][unseen:] = paged_attention_reference(seen, keys, values, own, self.scale)[0].transpose(0, 1)
        return out


def make(case: Case) -> Batch:
    """Everything drawn anew from the case's seed; the tables exactly as wide as the longest sequence needs."""
    gen = torch.Generator().manual_seed(case.seed)
    size, counts = case.block_size, [-(-n // case.block_size) for n in case.context_lens]
    num_blocks = case.first_block + sum(counts) + 2
    order = (torch.randperm(sum(counts) + 2, generator=gen) + case.first_block).tolist()
    tables = [[order.pop() for _ in range(count)] for count in counts]
    width = max(1, *counts)
    filled = torch.randint(*GARBAGE, (len(counts), width), generator=gen)
    for b, row in enumerate(tables):
        filled[b, : len(row)] = torch.tensor(row, dtype=torch.int64)
    shape = (num_blocks * size, case.n_kv, case.d)
    if case.layout == "strided":  # K and V side by side in one tensor, heads before slots
        both = torch.full((case.n_kv, num_blocks * size, 2, case.d), float("nan"), dtype=case.dtype, device=case.device)
        pools = [both[:, :, i].transpose(0, 1) for i in range(2)]
    else:
        pools = [torch.full(shape, float("nan"), dtype=case.dtype, device=case.device) for _ in range(2)]
    starts = [0]
    for length in case.query_lens:
        starts.append(starts[-1] + length)
    query = torch.randn(starts[-1], case.n_q, case.d, generator=gen)
    query = (-1.5e4 * query.abs().clamp(max=4) - 1e3 if case.all_low else query).to(case.device, case.dtype)
    if case.layout == "strided":  # as transformers' attention modules hand it over: heads before rows
        query = query.transpose(0, 1).contiguous().transpose(0, 1)
    metadata = AttentionMetadata(
        size,
        torch.full((starts[-1],), -1, device=case.device),
        filled.to(case.table_dtype).to(case.device),
        starts,
        list(case.context_lens),
    )
    batch = Batch(case, query, pools[0], pools[1], metadata, tables)
    for b, length in enumerate(case.context_lens):
        for pool in pools:
            new = torch.randn(length, case.n_kv, case.d, generator=gen)
            pool[batch.slots(b)] = (new.abs() if case.all_low else new).to(case.device, case.dtype)
    return batch


def decode_cases(top: int) -> dict[str, Case]:
    """One row a sequence; contexts up to `top`."""
    cases = {}
    for size in (1, 5, 12, 16, 32, 64):
        lens = (0, 1, max(size - 1, 0), size, size + 1, top)
        cases[f"block size {size}"] = Case((1,) * 6, lens, block_size=size, seed=size)
    for n_q, n_kv in ((2, 2), (9, 3), (4, 1), (5, 1), (12, 2), (14, 2), (8, 1), (16, 1)):
        cases[f"heads {n_q}/{n_kv}"] = Case((1, 1, 1), (top, 17, 40), n_q=n_q, n_kv=n_kv, seed=n_q)
    for d in (16, 64, 80, 96, 128, 256):
        cases[f"head_dim {d}"] = Case((1, 1), (top, 33), d=d, seed=d)
    cases["head_dim 96, blocks of 5"] = Case((1, 1, 1), (top, 12, 5), block_size=5, d=96)  # P36
    cases["all as long"] = Case((1,) * 4, (top // 2,) * 4)
    cases["one sequence"] = Case((1,), (top,), n_q=9, n_kv=3)
    cases["more pairs than the card holds"] = Case((1,) * 12, (19,) * 12)
    cases["scores below -5e4"] = Case((1, 1), (top, 40), all_low=True)
    cases["int32 table"] = Case((1, 1), (top, 40), table_dtype=torch.int32)
    cases["strided views"] = Case((1, 1, 1), (top, 5, 40), layout="strided")
    return cases


def prefill_cases(top: int) -> dict[str, Case]:
    """Chunks; contexts up to `top`."""
    cases = {
        f"mixed lengths, block size {size}": Case((1, 5, 1, 30), (40, 21, 1, 64), block_size=size, seed=size)
        for size in (1, 5, 12, 16, 32, 64)
    }
    cases["query lengths 1, 5, 1, 130"] = Case((1, 5, 1, 130), (40, 21, 1, 131))  # K3
    for n_q, n_kv in ((2, 2), (9, 3), (4, 1), (5, 1), (12, 2), (14, 2), (8, 1), (16, 1)):
        cases[f"heads {n_q}/{n_kv}"] = Case((20, 1, 3), (37, 9, 3), n_q=n_q, n_kv=n_kv, seed=n_q)
    for d in (16, 64, 80, 96, 128, 256):
        cases[f"head_dim {d}"] = Case((18, 1), (50, 33), d=d, seed=d)
    cases["a whole prompt"] = Case((top // 2,), (top // 2,), n_q=2, n_kv=2)
    cases["a small chunk after a context"] = Case((3,), (top,))
    cases["a long context cut in parts"] = Case((3, 6), (3 * top, 50), n_q=2, n_kv=1)
    cases["rows that see nothing"] = Case((3, 4, 1), (2, 0, 9))  # P71
    cases["no rows"] = Case((2, 0, 5), (8, 9, 6))
    cases["scores below -5e4"] = Case((17,), (60,), all_low=True)
    cases["int32 table"] = Case((17,), (60,), table_dtype=torch.int32)
    cases["strided views"] = Case((17, 1, 6), (60, 9, 6), layout="strided")
    return cases
