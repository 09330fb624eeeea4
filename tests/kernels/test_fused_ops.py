"""The launches between a decoder layer's matrix products give what transformers' modules give, rounding included."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
DTYPES = [torch.float32, torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}  # sums of another order; float16: a last digit


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, n", [(1, 64), (5, 576), (2, 100)])
def test_a_norm_is_the_modules_own_and_the_residual_stream_grows_in_place(rows, n, dtype):
    from kernels.fused_ops import rms_norm

    x, residual = drawn(rows, n, dtype=dtype), drawn(rows, n, dtype=dtype, seed=1)
    module = LlamaRMSNorm(n, eps=1e-5)
    module.weight.data = drawn(n, dtype=dtype, seed=2)
    torch.testing.assert_close(rms_norm(x, module.weight, 1e-5), module(x), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    total = x + residual
    out = rms_norm(x, module.weight, 1e-5, residual)
    assert torch.equal(residual, total)
    torch.testing.assert_close(out, module(total), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("n_q, n_kv, d", [(4, 2, 16), (9, 3, 64), (3, 1, 80)])
def test_rotated_heads_reach_the_query_and_their_slots_and_nothing_else(n_q, n_kv, d, keep, dtype):
    from kernels.fused_ops import rope_and_write

    qkv = drawn(3, (n_q + 2 * n_kv) * d, dtype=dtype)
    angles = drawn(40, d // 2, seed=3)
    cos, sin = (torch.cat((f(angles), f(angles)), -1).to(dtype) for f in (torch.cos, torch.sin))
    positions, slots = torch.tensor([0, 39, 7], dtype=torch.int32), torch.tensor([5, -1, 2])
    pools = [torch.full((8, n_kv, d), float("nan"), dtype=dtype) for _ in range(2)]
    rows = torch.empty(3, 2 * n_q + 2 * n_kv, d, dtype=dtype)
    rope_and_write(
        qkv, cos, sin, positions, slots, pools[0], pools[1], rows[:, :n_q], rows[:, n_q : n_q + 2 * n_kv] if keep else None
    )
    heads = qkv.view(3, n_q + 2 * n_kv, d)
    query, key = apply_rotary_pos_emb(
        heads[:, :n_q].transpose(0, 1)[None], heads[:, n_q : n_q + n_kv].transpose(0, 1)[None], cos[positions][None],
        sin[positions][None],
    )  # fmt: skip
    expected = torch.cat((query[0].transpose(0, 1), key[0].transpose(0, 1), heads[:, n_q + n_kv :]), dim=1)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(rows[:, :n_q], expected[:, :n_q], **tolerance)
    assert rows[:, n_q + 2 * n_kv :].isnan().all()
    if keep:
        torch.testing.assert_close(rows[:, n_q : n_q + 2 * n_kv], expected[:, n_q:], **tolerance)
    else:
        assert rows[:, n_q:].isnan().all()
    for pool, first in zip(pools, (n_q, n_q + n_kv)):
        torch.testing.assert_close(pool[[5, 2]], expected[[0, 2], first : first + n_kv], **tolerance)
        assert pool[[0, 1, 3, 4, 6, 7]].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, n", [(1, 96), (4, 1536), (2, 100)])
def test_swiglu_is_silu_of_the_gate_times_up(rows, n, dtype):
    from kernels.fused_ops import silu_mul

    both = drawn(rows, 2 * n, dtype=dtype)
    expected = torch.nn.functional.silu(both[:, :n]) * both[:, n:]
    torch.testing.assert_close(silu_mul(both), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
