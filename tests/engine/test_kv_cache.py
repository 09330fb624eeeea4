"""The physical pool: sizes in bytes, and writes that go to their slots and nowhere else."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import PagedKVCache


def cache(layers: int = 2, blocks: int = 3, block_size: int = 4, n_kv: int = 2, d: int = 8, dtype=torch.float32, device="cpu"):
    pool = PagedKVCache(layers, blocks, block_size, n_kv, d, dtype, torch.device(device))
    if device == "cpu":
        pool.fill_(0.0)
    return pool


@pytest.mark.parametrize(
    "name, layers, n_kv, d, dtype, kibibytes",
    [
        ("SmolLM2-135M", 30, 3, 64, torch.bfloat16, 360),
        ("SmolLM2-135M", 30, 3, 64, torch.float32, 720),
        ("Llama-3.2-1B", 16, 8, 64, torch.bfloat16, 512),
    ],
)
def test_a_block_has_the_bytes_of_its_kv_heads_not_of_its_query_heads(name, layers, n_kv, d, dtype, kibibytes):
    pool = cache(layers, 4, 16, n_kv, d, dtype, device="meta")
    assert pool.bytes_per_block == kibibytes * 1024
    assert pool.num_bytes == 4 * kibibytes * 1024
    assert pool.slot_bytes == n_kv * d * dtype.itemsize


def test_the_default_model_has_360_kib_a_block_in_bfloat16(smollm):
    bytes_per_block = 2 * smollm.num_layers * 16 * smollm.num_kv_heads * smollm.head_dim * 2
    assert bytes_per_block == 360 * 1024


def test_a_write_goes_to_its_slots_and_nowhere_else():
    pool = cache()
    key, value = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    pool.write(1, key, value, torch.tensor([11, 0, 5]))
    assert torch.equal(pool.k_pool[1, [11, 0, 5]], key)
    assert torch.equal(pool.v_pool[1, [11, 0, 5]], value)
    others = [slot for slot in range(12) if slot not in (11, 0, 5)]
    for tensor in (pool.k_pool, pool.v_pool):
        assert not tensor[0].any()
        assert not tensor[1, others].any()


def test_slot_minus_one_writes_nothing_and_leaves_the_last_slot_alone():  # P23
    pool = cache()
    pool.fill_(7.0)
    key = torch.arange(48.0).view(3, 2, 8)
    pool.write(0, key, key, torch.tensor([-1, 2, -1]))
    assert torch.equal(pool.k_pool[0, 2], key[1])
    assert (pool.k_pool[0, 11] == 7.0).all()
    assert (pool.v_pool[0, 11] == 7.0).all()
    pool.write(0, key[:1], key[:1], torch.tensor([-1]))
    assert (pool.k_pool[0, 11] == 7.0).all()


def test_no_rows_write_nothing():
    pool = cache()
    pool.write(0, torch.empty(0, 2, 8), torch.empty(0, 2, 8), torch.empty(0, dtype=torch.int64))
    assert not pool.k_pool.any()


def test_a_slot_beyond_the_pool_is_an_error_not_a_stray_write():
    with pytest.raises((IndexError, RuntimeError)):
        cache().write(0, torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), torch.tensor([12]))


def test_each_layers_pool_is_contiguous_so_that_a_slot_has_one_address():
    pool = cache(layers=3)
    assert pool.k_pool[2].is_contiguous()
    assert pool.k_pool[2].stride() == (16, 8, 1)


def test_a_block_copy_takes_the_slots_in_use_of_every_layer_and_leaves_the_rest():
    pool = cache()
    pool.k_pool.copy_(torch.randn(pool.k_pool.shape))
    pool.v_pool.copy_(torch.randn(pool.v_pool.shape))
    k, v = pool.k_pool.clone(), pool.v_pool.clone()
    pool.copy_block(2, 0, num_slots=3)
    for after, before in ((pool.k_pool, k), (pool.v_pool, v)):
        assert torch.equal(after[:, :3], before[:, 8:11])
        assert torch.equal(after[:, 3:], before[:, 3:])
