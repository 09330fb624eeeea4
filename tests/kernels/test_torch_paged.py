"""Gather and SDPA through block tables, held to the frozen oracle; every slot nobody wrote is NaN."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels.dispatch import make_backend
from kernels.metadata import AttentionMetadata
from kernels.reference import paged_attention_reference
from kernels.torch_paged import GatherPlan, slots_of

# float32 sums of up to 200 products in another order, values of order 1; bfloat16 keeps 8 bits.
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass
class Batch:
    query: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    metadata: AttentionMetadata

    def run(self, backend: str = "torch") -> torch.Tensor:
        scale = self.query.shape[-1] ** -0.5
        return make_backend(backend, self.metadata)(self.query, self.k_pool, self.v_pool, self.metadata, scale)

    def rows(self, index: int) -> slice:
        return slice(self.metadata.query_start[index], self.metadata.query_start[index + 1])

    def oracle(self, index: int) -> torch.Tensor:
        chunk = self.query[self.rows(index)].transpose(0, 1)[None]
        return paged_attention_reference(chunk, self.k_pool, self.v_pool, slots_of(self.metadata, index))[0].transpose(0, 1)


def batch(
    query_lens, context_lens, block_size=4, n_q=4, n_kv=2, d=16, dtype=torch.float32, seed=0, unused=float("nan")
) -> Batch:
    """Blocks in random order; unused slots of the last blocks and of all other blocks hold `unused`; tables padded with -1."""
    gen = torch.Generator().manual_seed(seed)
    blocks = [-(-n // block_size) for n in context_lens]
    num_blocks = sum(blocks) + 5
    order = torch.randperm(num_blocks, generator=gen).tolist()
    width = max(*blocks, 1) + 1
    tables, pools = [], [torch.full((num_blocks * block_size, n_kv, d), unused, dtype=dtype) for _ in range(2)]
    for num, context_len in zip(blocks, context_lens):
        table = [order.pop() for _ in range(num)]
        tables.append(table + [-1] * (width - num))
        for position in range(context_len):
            slot = table[position // block_size] * block_size + position % block_size
            for pool in pools:
                pool[slot] = torch.randn(n_kv, d, generator=gen).to(dtype)
    starts = [0]
    for num in query_lens:
        starts.append(starts[-1] + num)
    query = torch.randn(starts[-1], n_q, d, generator=gen).to(dtype)
    metadata = AttentionMetadata(block_size, torch.full((starts[-1],), -1), torch.tensor(tables), starts, list(context_lens))
    return Batch(query, pools[0], pools[1], metadata)


def assert_equals_the_oracle(given: Batch) -> None:
    out = given.run()
    assert out.shape == given.query.shape
    assert out.dtype == given.query.dtype
    assert torch.isfinite(out).all()
    for index, context_len in enumerate(given.metadata.context_lens):
        expected = given.oracle(index) if context_len else torch.zeros_like(given.query[given.rows(index)])
        torch.testing.assert_close(out[given.rows(index)], expected, atol=TOLERANCE[given.query.dtype], rtol=0)


@pytest.mark.parametrize("block_size", [1, 4, 5, 16])
@pytest.mark.parametrize(
    "query_lens, context_lens",
    [
        ([1], [1]), ([1], [38]), ([38], [38]), ([5], [38]), ([1, 1, 1], [7, 7, 7]), ([1, 1, 1], [1, 20, 13]),
        ([3, 1, 4, 1], [3, 9, 30, 16]), ([16, 1], [16, 17]), ([1, 16], [16, 16]),
    ],
)  # fmt: skip
def test_it_equals_the_oracle_over_a_pool_full_of_nan(query_lens, context_lens, block_size):
    assert_equals_the_oracle(batch(query_lens, context_lens, block_size))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("n_q, n_kv", [(4, 4), (9, 3), (8, 1), (6, 2)])
def test_every_grouping_of_heads_and_every_dtype(n_q, n_kv, dtype):
    assert_equals_the_oracle(batch([1, 6, 1], [21, 9, 4], n_q=n_q, n_kv=n_kv, dtype=dtype))


def test_head_dim_96_with_blocks_of_5():  # P36
    assert_equals_the_oracle(batch([1, 7, 1], [33, 12, 5], block_size=5, d=96))


@pytest.mark.parametrize("d", [1, 8, 80, 128, 256])
def test_other_head_dims(d):
    assert_equals_the_oracle(batch([1, 4], [11, 9], d=d))


def test_a_sequence_without_context_gets_zeros_and_disturbs_nobody():  # K1
    given = batch([1, 1], [3, 0])
    out = given.run()
    torch.testing.assert_close(out[:1], given.oracle(0), atol=2e-6, rtol=0)
    assert not out[1].any()
    assert_equals_the_oracle(batch([2, 3, 1], [0, 7, 0]))
    assert not batch([1, 2], [0, 0]).run().any()


def test_a_row_that_sees_nothing_is_no_nan():  # P71
    given = batch([3], [2])  # its first row would stand at position -1
    out = given.run()
    assert torch.isfinite(out).all()
    assert not out[0].any()
    seen = paged_attention_reference(
        given.query[1:].transpose(0, 1)[None], given.k_pool, given.v_pool, slots_of(given.metadata, 0)
    )
    torch.testing.assert_close(out[1:], seen[0].transpose(0, 1), atol=2e-6, rtol=0)


def test_a_sequence_without_rows_is_skipped():
    assert_equals_the_oracle(batch([1, 0, 4, 0], [5, 9, 6, 0]))


def test_nan_in_the_unused_slots_of_the_last_block_does_not_matter():  # K2
    outs = [batch([1], [13], unused=fill).run() for fill in (float("nan"), 0.0, float("inf"), -1e30)]
    assert torch.isfinite(outs[0]).all()
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_padding_to_the_longest_does_not_let_nan_in():  # K2, batched
    outs = [batch([1, 1, 1], [13, 1, 6], unused=fill).run() for fill in (float("nan"), 0.0)]
    assert torch.equal(outs[0], outs[1])


def test_mixed_query_lengths_equal_each_sequences_own_run():  # K3
    given = batch([1, 5, 1, 130], [40, 21, 1, 130], block_size=16)
    out = given.run()
    for index in range(4):
        num, context_len = given.metadata.query_len(index), given.metadata.context_lens[index]
        own = AttentionMetadata(
            16, torch.full((num,), -1), given.metadata.block_tables[index : index + 1], [0, num], [context_len]
        )
        alone = Batch(given.query[given.rows(index)], given.k_pool, given.v_pool, own).run()
        torch.testing.assert_close(out[given.rows(index)], alone, atol=2e-6, rtol=0)
    assert_equals_the_oracle(given)


def test_a_context_of_whole_blocks_reads_no_block_beyond():  # E22
    given = batch([1, 8], [16, 8])
    assert len(slots_of(given.metadata, 0)) == 16
    assert_equals_the_oracle(given)


def test_what_the_padding_of_a_block_table_holds_does_not_matter():
    given = batch([1, 5], [9, 5])
    before = given.run()
    tables = given.metadata.block_tables
    tables[tables == -1] = 10**12
    assert torch.equal(given.run(), before)


def test_changing_the_last_position_moves_the_last_row_and_no_other():
    given = batch([9], [21])
    before = given.run()
    last = int(slots_of(given.metadata, 0)[-1])
    given.k_pool[last] += 1.0
    given.v_pool[last] -= 1.0
    after = given.run()
    assert torch.equal(after[:-1], before[:-1])
    assert (after[-1] != before[-1]).any(dim=-1).all()


def test_other_sequences_do_not_see_a_changed_position():
    given = batch([1, 1, 3], [9, 14, 7])
    before = given.run()
    given.v_pool[slots_of(given.metadata, 1)] += 1.0
    after = given.run()
    assert torch.equal(after[[0, 2, 3, 4]], before[[0, 2, 3, 4]])
    assert not torch.equal(after[1], before[1])


def test_the_scale_is_applied():
    given = batch([1], [9])
    flat = make_backend("torch", given.metadata)(given.query, given.k_pool, given.v_pool, given.metadata, 0.0)
    mean = given.v_pool[slots_of(given.metadata, 0)].mean(dim=0).repeat_interleave(2, dim=0)
    torch.testing.assert_close(flat[0], mean, atol=2e-6, rtol=0)


def test_the_slots_of_a_sequence_are_int64_and_in_order():
    metadata = AttentionMetadata(4, torch.zeros(1), torch.tensor([[7, 2, -1], [300_000_000, 1, 0]]), [0, 1, 2], [6, 5])
    assert slots_of(metadata, 0).tolist() == [28, 29, 30, 31, 8, 9]
    assert slots_of(metadata, 1).tolist() == [1_200_000_000, 1_200_000_001, 1_200_000_002, 1_200_000_003, 4]
    assert slots_of(metadata, 1).dtype == torch.int64


def test_a_batch_of_single_rows_is_one_call_without_a_mask_if_all_are_as_long():
    assert GatherPlan(batch([1, 1], [8, 8]).metadata).decode_mask is None
    plan = GatherPlan(batch([1, 1], [8, 5]).metadata)
    assert plan.all_decode
    assert plan.decode_mask.tolist() == [[[[True] * 8]], [[[True] * 5 + [False] * 3]]]


@pytest.mark.parametrize("seed", range(20))
def test_random_batches_equal_the_oracle(seed):
    import random

    rng = random.Random(seed)
    num = rng.randint(1, 5)
    context_lens = [rng.randint(0, 40) for _ in range(num)]
    query_lens = [rng.choice([0, 1, 1, rng.randint(0, n)]) if n else rng.randint(0, 2) for n in context_lens]
    if sum(query_lens):
        assert_equals_the_oracle(batch(query_lens, context_lens, rng.choice([1, 2, 4, 7, 16]), seed=seed))
