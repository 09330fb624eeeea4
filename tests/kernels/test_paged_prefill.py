"""Paged prefill in Triton's interpreter: chunks of any length, with and without context, decode rows among them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.dispatch import make_backend
from kernels.metadata import AttentionMetadata
from tests.kernels.interpreter import grid_reversed
from tests.kernels.paged_cases import Batch, Case, make, prefill_cases
from tests.kernels.test_paged_decode import assert_right, attend

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
CASES = prefill_cases(100)


@pytest.mark.parametrize("name", list(CASES))
def test_it_equals_the_oracle(name):
    assert_right(make(CASES[name]))


@pytest.mark.parametrize("name", ["mixed lengths, block size 16", "heads 14/2", "head_dim 128", "scores below -5e4"])
def test_it_equals_the_oracle_in_float16(name):
    assert_right(make(replace(CASES[name], dtype=torch.float16)))


@pytest.mark.parametrize("name", ["mixed lengths, block size 16", "a long context cut in parts"])
def test_the_order_of_the_programs_does_not_matter(name):
    forwards = assert_right(make(CASES[name]))
    with grid_reversed():
        assert torch.equal(attend(make(CASES[name])), forwards)


def test_mixed_query_lengths_equal_each_sequences_own_run():  # K3
    given = make(Case((1, 5, 1, 130), (40, 21, 1, 130)))
    out = attend(given)
    for index in range(4):
        num, context_len = given.metadata.query_len(index), given.metadata.context_lens[index]
        tables = given.metadata.block_tables[index : index + 1]
        own = AttentionMetadata(16, torch.full((num,), -1), tables, [0, num], [context_len])
        query = given.query[given.rows(index)]
        alone = make_backend("triton", own)(query, given.k_pool, given.v_pool, own, given.scale)
        torch.testing.assert_close(out[given.rows(index)], alone, atol=2e-6, rtol=0)


def test_a_row_sees_its_own_position_and_none_after_it():
    batch = make(Case((9,), (40,)))
    before = attend(batch)
    last = int(batch.slots(0)[-1])
    batch.k_pool[last] += 1.0
    batch.v_pool[last] -= 1.0
    after = attend(batch)
    assert torch.equal(after[:-1], before[:-1])
    assert (after[-1] != before[-1]).any(dim=-1).all()


def test_chunks_equal_the_whole_prompt():
    whole = make(Case((70,), (70,)))
    expected = attend(whole)
    for start, stop in ((0, 1), (1, 33), (33, 70)):
        metadata = AttentionMetadata(
            16, torch.full((stop - start,), -1), whole.metadata.block_tables, [0, stop - start], [stop]
        )
        part = Batch(whole.case, whole.query[start:stop], whole.k_pool, whole.v_pool, metadata, whole.tables)
        torch.testing.assert_close(attend(part), expected[start:stop], atol=2e-6, rtol=0)


def test_nan_in_unused_slots_does_not_matter():
    outs = []
    for fill in (float("nan"), 0.0):
        batch = make(Case((5, 3), (13, 3), block_size=4))
        for pool in (batch.k_pool, batch.v_pool):
            pool[pool.isnan()] = fill
        outs.append(attend(batch))
    assert torch.isfinite(outs[0]).all()
    assert torch.equal(*outs)
