"""The oracle against contiguous attention, against an independent one, and against what must not matter."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.reference import gqa_attention, paged_attention_reference

BLOCK_SIZE = 4
NUM_BLOCKS = 32


def draw(n_q: int, n_kv: int, seq_q: int, seq_total: int, d: int = 16, dtype: torch.dtype = torch.float32, seed: int = 0):
    gen = torch.Generator().manual_seed(seed)
    query = torch.randn(1, n_q, seq_q, d, generator=gen).to(dtype)
    key = torch.randn(1, n_kv, seq_total, d, generator=gen).to(dtype)
    value = torch.randn(1, n_kv, seq_total, d, generator=gen).to(dtype)
    return query, key, value


def scatter(key: torch.Tensor, value: torch.Tensor, seed: int, fill: float = float("nan")):
    """Pools in which the sequence lies in blocks of a random order, everything else being `fill`."""
    _, n_kv, seq_total, d = key.shape
    table = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(seq_total)
    slots = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    pools = []
    for dense in (key, value):
        pool = torch.full((NUM_BLOCKS * BLOCK_SIZE, n_kv, d), fill, dtype=dense.dtype)
        pool[slots] = dense[0].transpose(0, 1)
        pools.append(pool)
    return pools[0], pools[1], slots


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("groups", [1, 3, 4, 7])
@pytest.mark.parametrize("seq_q, seq_total", [(1, 1), (1, 38), (38, 38), (5, 38), (4, 8)])
def test_the_paged_read_equals_contiguous_attention_bit_for_bit_in_any_block_order(groups, seq_q, seq_total, dtype):
    query, key, value = draw(2 * groups, 2, seq_q, seq_total, dtype=dtype)
    dense = gqa_attention(query, key, value)
    assert dense.shape == query.shape and dense.dtype == dtype
    for seed in range(5):
        k_pool, v_pool, slots = scatter(key, value, seed)
        assert torch.equal(paged_attention_reference(query, k_pool, v_pool, slots), dense)


@pytest.mark.parametrize("groups", [1, 3, 4, 7])
def test_it_agrees_with_pytorchs_own_attention(groups):
    query, key, value = draw(3 * groups, 3, 38, 38, dtype=torch.float64)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    # The softmax runs in float32 here, in float64 there: 24 bits of mantissa, values of order 1.
    torch.testing.assert_close(gqa_attention(query, key, value), theirs, atol=1e-6, rtol=0)


def test_one_query_is_the_weighted_sum_written_out_by_hand():
    query, key, value = draw(2, 1, 1, 3, d=4, dtype=torch.float64)
    k_pool, v_pool, slots = scatter(key, value, seed=1)
    out = paged_attention_reference(query, k_pool, v_pool, slots)
    for head in range(2):
        scores = [sum(float(a) * float(b) for a, b in zip(query[0, head, 0], key[0, 0, p])) / math.sqrt(4) for p in range(3)]
        total = sum(math.exp(s) for s in scores)
        for i in range(4):
            expected = sum(math.exp(s) / total * float(value[0, 0, p, i]) for p, s in enumerate(scores))
            assert float(out[0, head, 0, i]) == pytest.approx(expected, abs=1e-6)


def test_changing_the_last_position_moves_the_last_query_and_no_other():
    query, key, value = draw(6, 2, 9, 21)
    k_pool, v_pool, slots = scatter(key, value, seed=3)
    before = paged_attention_reference(query, k_pool, v_pool, slots)
    k_pool[slots[-1]] += 1.0
    v_pool[slots[-1]] -= 1.0
    after = paged_attention_reference(query, k_pool, v_pool, slots)
    assert torch.equal(after[:, :, :-1], before[:, :, :-1])
    assert (after[:, :, -1] != before[:, :, -1]).any(dim=-1).all()


def test_what_unused_slots_hold_does_not_matter():
    query, key, value = draw(4, 2, 3, 10)
    outputs = [
        paged_attention_reference(query, *scatter(key, value, 7, fill)) for fill in (0.0, float("nan"), float("inf"), 1e30)
    ]
    assert torch.isfinite(outputs[0]).all()
    assert all(torch.equal(out, outputs[0]) for out in outputs)


def test_a_query_sees_exactly_the_positions_up_to_its_own():
    query, key, value = draw(2, 2, 6, 14)
    whole = gqa_attention(query, key, value)
    for i in range(6):
        visible = 14 - 6 + i + 1
        alone = gqa_attention(query[:, :, i : i + 1], key[:, :, :visible], value[:, :, :visible])
        torch.testing.assert_close(whole[:, :, i : i + 1], alone, atol=1e-6, rtol=0)


def test_the_scale_is_one_over_root_d_unless_given():
    query, key, value = draw(2, 2, 1, 5)
    k_pool, v_pool, slots = scatter(key, value, seed=0)
    assert torch.equal(paged_attention_reference(query, k_pool, v_pool, slots, scale=0.25), gqa_attention(query, key, value))
    flat = paged_attention_reference(query, k_pool, v_pool, slots, scale=0.0)
    torch.testing.assert_close(flat[:, :, 0], value.mean(dim=2), atol=1e-6, rtol=0)


def test_the_worked_lookup_has_its_published_numbers():
    torch.manual_seed(0)
    keys, values, query = torch.randn(16, 16, 8), torch.randn(16, 16, 8), torch.randn(8)
    table = torch.tensor([7, 2, 15])
    positions = torch.arange(38)
    slots = table[positions // 16] * 16 + positions % 16
    assert int(slots[20]) == 36
    out = paged_attention_reference(query.view(1, 1, 1, 8), keys.view(256, 1, 8), values.view(256, 1, 8), slots)
    assert float(keys[2, 4].norm()) == pytest.approx(1.6488, abs=5e-5)
    assert float(query @ keys[2, 4]) / math.sqrt(8) == pytest.approx(0.2419, abs=5e-5)
    assert float(out.norm()) == pytest.approx(0.7807, abs=5e-5)


def pools(num_slots: int = 8, n_kv: int = 2, d: int = 4, **kw) -> torch.Tensor:
    return torch.zeros(num_slots, n_kv, d, **kw)


SLOTS = torch.arange(3)
QUERY = torch.zeros(1, 4, 1, 4)


@pytest.mark.parametrize(
    "query, k_pool, v_pool, slots, error, words",
    [
        (torch.zeros(1, 5, 1, 4), pools(), pools(), SLOTS, ValueError, "5 query heads cannot share 2 KV heads"),
        (QUERY[0], pools(), pools(), SLOTS, ValueError, r"query must be \[1, n_q, seq_q, d\]"),
        (torch.zeros(2, 4, 1, 4), pools(), pools(), SLOTS, ValueError, "query must be"),
        (QUERY, pools(), pools(9), SLOTS, ValueError, "k_pool and v_pool"),
        (QUERY, pools(d=8), pools(d=8), SLOTS, ValueError, "head_dim differs: query has 4, key and value have 8"),
        (torch.zeros(1, 4, 4, 4), pools(), pools(), SLOTS, ValueError, "4 queries over 3 positions"),
        (QUERY.half(), pools(), pools(), SLOTS, TypeError, "one floating dtype"),
        (QUERY, pools(dtype=torch.bfloat16), pools(), SLOTS, TypeError, "one floating dtype"),
        (QUERY, pools(), pools(), SLOTS.int(), TypeError, "slot_mapping must be int64"),
        (QUERY, pools(), pools(), SLOTS.view(1, 3), ValueError, r"slot_mapping must be \[seq_total\]"),
        (QUERY, pools(), pools(), torch.tensor([0, -1]), ValueError, r"spans -1\.\.0, but the pool has slots 0\.\.7"),
        (QUERY, pools(), pools(), torch.tensor([0, 8]), ValueError, r"spans 0\.\.8"),
        (QUERY, pools(device="meta"), pools(device="meta"), SLOTS, ValueError, "slot_mapping is on cpu, the pool on meta"),
        (QUERY.to("meta"), pools(), pools(), SLOTS, ValueError, "must share a device"),
    ],
)
def test_a_wrong_input_is_refused_by_name_before_anything_is_computed(query, k_pool, v_pool, slots, error, words):
    with pytest.raises(error, match=words):
        paged_attention_reference(query, k_pool, v_pool, slots)
