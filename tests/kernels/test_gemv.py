"""A row times a matrix with its neighbours in one launch: the numbers of a launch each, rounding included."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from tests.kernels.interpreter import grid_reversed

pytestmark = [
    pytest.mark.usefixtures("interpreted", "poisoned"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
SHAPES = [(24, 64), (7, 576), (5, 1536), (9, 100), (1, 2500)]  # n by no 2, k by no 1024 or 2048, and both
EPS = 1e-5


@pytest.fixture(params=["chosen", "as for many rows"])
def tile(request, monkeypatch):
    """The tile that the rule chooses for few rows, and one of more rows, of fewer columns."""
    gemv = importlib.import_module("kernels.gemv")
    if request.param != "chosen":
        monkeypatch.setattr(gemv, "shape_for", lambda n, k, norm: gemv.GemvShape(8, 256, 4))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def few(*shape: int, among: tuple[float, ...], seed: int) -> torch.Tensor:
    return torch.tensor(among)[torch.randint(len(among), shape, generator=torch.Generator().manual_seed(seed))].half()


def exact(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float16 input, norm weight and weights whose fp32 sums have no error in any order: what differs was rounded elsewhere.

    Squares are whole numbers; a normed value has 11 bits, none below 2**-13, times 0 or 1 or -1, and sums stay below 2**10.
    """
    x, weight = few(1, k, among=(-2, -1, 1, 2), seed=0), few(n, k, among=(-1, 0, 1), seed=1)
    return x, (drawn(k, seed=2).abs().clamp(0.5, 2)).half(), weight


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As a card multiplies: fp32 sums, the bias added to them, one rounding."""
    return linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


def assert_same_but_for_the_order_of_sums(made: torch.Tensor, expected: torch.Tensor, k: int) -> None:
    """Of k products of size 1, in fp32: errors of some sqrt(k) roundings to 6e-8 of a sum of some sqrt(k)."""
    torch.testing.assert_close(made, expected, atol=4 * 6e-8 * k, rtol=2e-6)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n, k", SHAPES)
def test_a_normed_product_is_a_norm_and_a_product(n, k, biased):
    from kernels.fused_ops import rms_norm
    from kernels.gemv import norm_linear

    x, norm, weight = drawn(1, k), drawn(k, seed=1), drawn(n, k, seed=2)
    bias = drawn(n, seed=3) if biased else None
    expected = linear(rms_norm(x, norm, EPS), weight, bias)
    assert_same_but_for_the_order_of_sums(norm_linear(x, norm, EPS, weight, bias), expected, k)
    x, norm, weight = exact(n, k)
    bias = drawn(n, seed=3).half() if biased else None
    assert torch.equal(norm_linear(x, norm, EPS, weight, bias), product(rms_norm(x, norm, EPS), weight, bias))


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("n, k", SHAPES)
def test_a_normed_swiglu_is_a_norm_and_a_product_and_a_swiglu(n, k):
    from kernels.fused_ops import rms_norm, silu_mul
    from kernels.gemv import norm_swiglu

    x, norm, weight = drawn(1, k), drawn(k, seed=1), drawn(2 * n, k, seed=2) / k**0.5
    expected = silu_mul(linear(rms_norm(x, norm, EPS), weight))
    assert_same_but_for_the_order_of_sums(norm_swiglu(x, norm, EPS, weight), expected, 1)
    x, norm, weight = exact(2 * n, k)
    weight /= 32  # no error either, and gates where silu bends
    assert torch.equal(norm_swiglu(x, norm, EPS, weight), silu_mul(product(rms_norm(x, norm, EPS), weight)))


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n, k", SHAPES)
def test_a_product_is_added_to_the_residual_stream_in_place(n, k, biased):
    from kernels.gemv import linear_add

    x, weight, residual = drawn(1, k), drawn(n, k, seed=1), drawn(1, n, seed=2)
    bias = drawn(n, seed=3) if biased else None
    expected = residual + linear(x, weight, bias)
    linear_add(x, weight, bias, residual)
    assert_same_but_for_the_order_of_sums(residual, expected, k)
    x, _, weight = exact(n, k)
    bias, residual = drawn(n, seed=3).half() if biased else None, drawn(1, n, seed=2).half()
    expected = residual + product(x / 4, weight, bias)
    linear_add(x / 4, weight, bias, residual)
    assert torch.equal(residual, expected)


@pytest.mark.usefixtures("tile")
def test_rows_and_columns_beyond_the_weights_are_neither_read_nor_written(monkeypatch):
    """Everything is a view of something larger: NaN all around."""
    from kernels.gemv import linear_add, norm_linear, norm_swiglu

    made: list[torch.Tensor] = []

    def empty(shape: tuple[int, int], **_) -> torch.Tensor:
        made.append(torch.full((1, shape[1] + 16), float("nan")))
        return made[-1][:, : shape[1]]

    monkeypatch.setattr(torch, "empty", empty)
    n, k = 7, 100
    around = torch.full((2 * n + 4, k + 28), float("nan"))
    around[: 2 * n, :k] = drawn(2 * n, k)
    wide, stream = torch.full((1, k + 28), float("nan")), torch.full((1, n + 9), float("nan"))
    wide[:, :k], stream[:, :n] = 1.0, 0.0
    norm = torch.full((k + 28,), float("nan"))
    norm[:k] = 1.0
    views = [wide[:, :k], norm[None, :k], around[: 2 * n, :k], stream[:, :n]]
    inside = np.concatenate([addresses(view) for view in views])
    with every_load() as found:
        assert norm_linear(wide[:, :k], norm[:k], EPS, around[n : 2 * n, :k]).isfinite().all()
        assert norm_swiglu(wide[:, :k], norm[:k], EPS, around[: 2 * n, :k]).isfinite().all()
        linear_add(wide[:, :k], around[n : 2 * n, :k], None, stream[:, :n])
    assert set(np.concatenate(found).tolist()) == set(inside.tolist())
    assert stream[:, :n].isfinite().all() and stream[:, n:].isnan().all()
    assert len(made) == 2 and all(out[:, n:].isnan().all() for out in made)


def addresses(view: torch.Tensor) -> np.ndarray:
    at = torch.arange(view.shape[0])[:, None] * view.stride(0) + torch.arange(view.shape[1])
    return view.data_ptr() + at.flatten().numpy() * view.element_size()


@contextmanager
def every_load() -> Iterator[list[np.ndarray]]:
    """The addresses of every load of every program."""
    from triton.runtime.interpreter import interpreter_builder as builder

    load, found = builder.create_masked_load, []

    def watched(ptrs, mask, *rest, **kwargs):
        found.append(ptrs.data[mask.data].astype(np.int64))
        return load(ptrs, mask, *rest, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", watched)  # unmasked loads come this way too
        yield found


def test_programs_need_nothing_of_each_other():
    from kernels.gemv import linear_add, norm_linear

    x, norm, weight = drawn(1, 100), drawn(100, seed=1), drawn(9, 100, seed=2)

    def both() -> torch.Tensor:
        residual = norm_linear(x, norm, EPS, weight)
        linear_add(x, weight, None, residual)
        return residual

    forwards = both()
    with grid_reversed():
        assert torch.equal(both(), forwards)


@pytest.mark.parametrize(
    "n, k, norm, shape",
    [
        (4096, 4096, False, (8, 1024, 4)),
        (4096, 14336, False, (8, 1024, 4)),
        (6144, 4096, True, (2, 4096, 8)),
        (28672, 4096, True, (2, 4096, 8)),
        (128256, 4096, True, (2, 4096, 8)),
        (3072, 576, True, (4, 1024, 4)),
        (576, 576, False, (2, 1024, 4)),
        (3, 5, True, (2, 16, 4)),
    ],
)
def test_a_tile_is_chosen_from_the_shape_of_the_weights(n, k, norm, shape):
    from kernels.gemv import GemvShape, shape_for

    assert shape_for(n, k, norm) == GemvShape(*shape)
