"""Paged decode in Triton's interpreter, held to the frozen oracle: every unused slot NaN, every output and scratch poisoned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.decode_plan import Cut
from kernels.dispatch import make_backend, paged_attention
from tests.kernels.interpreter import grid_reversed
from tests.kernels.paged_cases import Batch, Case, decode_cases, make

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
CASES = decode_cases(150)  # long enough to be cut
# float32: sums of 150 products in another order, values of order 1; float16 rounds the weights and the result to 11 bits
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}


def attend(batch: Batch) -> torch.Tensor:
    return paged_attention(batch.query, batch.k_pool, batch.v_pool, batch.metadata, backend="triton")


def assert_right(batch: Batch) -> torch.Tensor:
    out = attend(batch)
    assert out.dtype == batch.query.dtype
    torch.testing.assert_close(out.float(), batch.expected(), atol=TOLERANCE[out.dtype], rtol=0)
    return out


@pytest.mark.parametrize("name", list(CASES))
def test_it_equals_the_oracle(name):
    assert_right(make(CASES[name]))


@pytest.mark.parametrize("name", ["block size 12", "heads 14/2", "head_dim 128", "scores below -5e4", "all as long"])
def test_it_equals_the_oracle_in_float16(name):
    assert_right(make(replace(CASES[name], dtype=torch.float16)))


@pytest.mark.parametrize("name", ["block size 16", "all as long", "one sequence"])
def test_the_order_of_the_programs_does_not_matter(name):
    forwards = assert_right(make(CASES[name]))
    with grid_reversed():
        assert torch.equal(attend(make(CASES[name])), forwards)


def test_a_sequence_without_context_gets_zeros_and_disturbs_nobody():  # K1
    both = make(Case((1, 1), (3, 0)))
    out = assert_right(both)
    assert not out[1].any()
    assert not attend(make(Case((1, 1), (0, 0)))).any()


def test_nan_in_the_unused_slots_of_the_last_block_does_not_matter():  # K2, P24
    outs = []
    for fill in (float("nan"), 0.0, float("inf"), -1e30):
        batch = make(Case((1,), (13,), block_size=4))
        for pool in (batch.k_pool, batch.v_pool):
            pool[pool.isnan()] = fill
        outs.append(attend(batch))
    assert torch.isfinite(outs[0]).all()
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_a_context_of_whole_blocks_reads_no_block_beyond():  # E22
    batch = make(Case((1,), (32,), block_size=16))
    assert batch.metadata.block_tables.shape[1] == 2
    assert_right(batch)


def test_other_sequences_do_not_see_a_changed_position():
    batch = make(Case((1, 1, 1), (9, 70, 7)))
    before = attend(batch)
    batch.v_pool[batch.slots(1)] += 1.0
    after = attend(batch)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.equal(after[1], before[1])


def test_the_scale_is_applied():
    batch = make(Case((1,), (9,)))
    flat = make_backend("triton", batch.metadata)(batch.query, batch.k_pool, batch.v_pool, batch.metadata, 0.0)
    mean = batch.v_pool[batch.slots(0)].mean(dim=0).repeat_interleave(2, dim=0)
    torch.testing.assert_close(flat[0], mean, atol=2e-6, rtol=0)


def test_a_plan_for_any_lengths_follows_its_buffers():
    from kernels.triton_paged import DecodeGraphAttention, HeadShape

    batch = make(Case((1, 1, 1), (190, 33, 16)))
    rows = torch.arange(3, dtype=torch.int32)
    buffer = torch.stack((rows, rows, rows))
    cuts = []
    for kind in ([90, 9, 0], [190, 0, 0], [190, 9, 0]):  # what it is kept for; it is right for any lengths
        shape = HeadShape(4, 2, 64, torch.float32)
        config = DecodeGraphAttention.config_for(kind, shape, 16, buffer.device)
        cuts.append(config.cut)
        attend_step = DecodeGraphAttention(buffer, batch.metadata.block_tables, 16, shape, config)
        for lens in ([190, 33, 16], [1, 0, 16], [0, 0, 0]):
            buffer[2] = torch.tensor(lens)
            batch.metadata.context_lens = lens
            attend_step.plan()
            out = attend_step(batch.query, batch.k_pool, batch.v_pool, batch.metadata, batch.scale)
            torch.testing.assert_close(out, batch.expected(), atol=2e-6, rtol=0)
    assert cuts == list(Cut)
