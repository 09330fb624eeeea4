"""New keys and values land in the slots that the mapping names, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreter import grid_reversed

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
FIVE = [7, -1, 0, 11, 4]


def drawn(n_kv=2, d=64, dtype=torch.float32, num_slots=12, tokens=5):
    gen = torch.Generator().manual_seed(0)
    key, value = (torch.randn(tokens, n_kv, d, generator=gen).to(dtype) for _ in range(2))
    pools = [torch.full((num_slots, n_kv, d), float("nan"), dtype=dtype) for _ in range(2)]
    return key, value, *pools


def write(key, value, k_pool, v_pool, slots=FIVE):
    from kernels.cache_write import write_kv

    write_kv(key, value, k_pool, v_pool, torch.tensor(slots, dtype=torch.int64))


def assert_written(key, value, k_pool, v_pool, slots=FIVE):
    rows = [i for i, slot in enumerate(slots) if slot >= 0]
    named = [slots[i] for i in rows]
    others = [slot for slot in range(len(k_pool)) if slot not in named]
    for pool, new in ((k_pool, key), (v_pool, value)):
        assert torch.equal(pool[named], new[rows])
        assert pool[others].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n_kv, d", [(1, 64), (3, 64), (2, 80), (2, 96), (8, 128), (5, 256)])
def test_named_slots_hold_the_new_rows_and_the_others_are_untouched(n_kv, d, dtype):
    given = drawn(n_kv, d, dtype)
    write(*given)
    assert_written(*given)


def test_slot_minus_one_writes_nothing_and_leaves_the_last_slot_alone():  # P23
    given = drawn()
    write(*given, slots=[-1] * 5)
    assert_written(*given, slots=[-1] * 5)
    assert given[2][-1].isnan().all()


def test_the_order_of_the_programs_does_not_matter():
    given = drawn()
    with grid_reversed():
        write(*given)
    assert_written(*given)


def test_keys_and_values_may_be_strided_views():
    key, value, *pools = drawn()
    both = torch.stack((key, value), dim=-2)  # [T, n_kv, 2, d], as a merged projection leaves them
    write(both[:, :, 0], both[:, :, 1], *pools)
    assert_written(key, value, *pools)
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (key, value)]  # as transformers hands them over
    pools = drawn()[2:]
    write(*heads_first, *pools)
    assert_written(key, value, *pools)


def test_pools_may_be_strided_views():
    key, value, k_pool, _ = drawn()
    both = torch.full((2, 2, *k_pool.shape[::2]), float("nan"))  # [n_kv, 2, num_slots, d]
    pools = [both[:, i].transpose(0, 1) for i in range(2)]
    write(key, value, *pools)
    assert_written(key, value, *pools)


def test_no_tokens_is_no_launch():
    key, value, *pools = drawn()
    write(key[:0], value[:0], *pools, slots=[])
    assert pools[0].isnan().all()


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"slots": torch.zeros(5, dtype=torch.int32)}, TypeError, "int64"),
        ({"slots": torch.zeros(4, dtype=torch.int64)}, ValueError, r"\[5\]"),
        ({"value": torch.zeros(5, 2, 32)}, ValueError, "key and value"),
        ({"k_pool": torch.zeros(12, 3, 64)}, ValueError, "Pools"),
        ({"v_pool": torch.zeros(12, 2, 64, dtype=torch.float16)}, TypeError, "One dtype"),
        ({"key": torch.zeros(5, 2, 128)[..., ::2]}, ValueError, "last dimension"),
        ({"slots": torch.zeros(5, dtype=torch.int64, device="meta")}, ValueError, "share a device"),
    ],
)
def test_what_would_be_misread_is_refused_before_anything_is_written(change, error, says):
    from kernels.cache_write import write_kv

    names = ("key", "value", "k_pool", "v_pool")
    given = dict(zip(names, drawn())) | {"slots": torch.tensor(FIVE)} | change
    with pytest.raises(error, match=says):
        write_kv(*(given[name] for name in (*names, "slots")))
    assert not given["k_pool"].isfinite().any() or "k_pool" in change
