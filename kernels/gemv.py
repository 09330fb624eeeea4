"""The matrix products of a decode step of one sequence: a row times a matrix, with what lies before or after it in the launch.

One row is bound by reading the weights once, whatever computes with them, and a model of many launches by the gaps between
them. So norm and SwiGLU and the addition to the residual stream ride along, and no product is split over programs: no
atomics, one program owns a few rows of the weights, and the result does not depend on the order in which programs run.

Rounding is where kernels.fused_ops rounds, so that the numbers are those of a launch each but for the order of fp32 sums.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.early_launch import early

PROGRAMS = 256  # that a launch should have at least: about two for each of an H200's 132 SMs


@dataclass(frozen=True, slots=True)
class GemvShape:
    """Rows of the weights that a program owns, and columns that it reads at a time, a power of two each."""

    rows: int
    columns: int
    warps: int


def shape_for(n: int, k: int, norm: bool) -> GemvShape:
    """The tile for weights [n, k], from shapes alone; norm: the input is normed in the same launch.

    What decides: 8,192 weights in flight a program. A normed input takes two passes over x and its weight, so a program takes
    all of a row at once where it can, and x stays in registers between them; a plain input is read in passing, and then
    narrow tiles of many rows read it fewest times. Measured on one H200 (benchmarks/NOTES.md).
    """
    columns = min(4096 if norm else 1024, max(16, triton.next_power_of_2(k)))
    rows = max(2, min(8192 // columns, 4 if norm else 8))
    while rows > 2 and n // rows < PROGRAMS:
        rows //= 2
    return GemvShape(rows, columns, 8 if columns > 2048 else 4)


@triton.jit
def owned_rows(N: tl.constexpr, BN: tl.constexpr):
    """(rows [BN] of this program, the same with those past N replaced by the last, so that loads need no mask), int64."""
    rows = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    return rows, (rows if N % BN == 0 else tl.minimum(rows, N - 1))


@triton.jit
def columns_at(pointers, start, K: tl.constexpr, BK: tl.constexpr):
    """Columns start .. start + BK - 1 of rows whose first elements are at `pointers` [rows, 1]; zeros past K."""
    i = start + tl.arange(0, BK)[None, :]
    return tl.load(pointers + i) if K % BK == 0 else tl.load(pointers + i, mask=i < K, other=0.0)


@triton.jit
def rms_scale(x_row, eps, K: tl.constexpr, BK: tl.constexpr):
    """[1, 1]: one over the root mean square of the row."""
    squares = tl.zeros((1, BK), tl.float32)
    for start in range(0, K, BK):
        wide = columns_at(x_row, start, K, BK).to(tl.float32)
        squares += wide * wide
    return tl.rsqrt(tl.sum(squares, 1) / K + eps)[:, None]


@triton.jit
def normed_at(x_row, norm_row, scale, start, K: tl.constexpr, BK: tl.constexpr):
    """[1, BK] float32: columns of the normed row, rounded as rms_norm_kernel rounds them."""
    x = columns_at(x_row, start, K, BK)
    scaled = (x.to(tl.float32) * scale).to(x.dtype).to(tl.float32)
    return (scaled * columns_at(norm_row, start, K, BK).to(tl.float32)).to(x.dtype).to(tl.float32)


@triton.jit
def norm_linear_kernel(
    X, NORM, WEIGHT, BIAS, OUT, eps, weight_row,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (N / BN,): BN elements of norm(x) W^T. The first weights are on their way while the norm is computed."""
    if PDL:
        gdc_launch_dependents()
    rows, at = owned_rows(N, BN)
    none = tl.zeros((1, 1), tl.int32)
    weights = WEIGHT + at[:, None] * weight_row
    first = columns_at(weights, 0, K, BK)
    if PDL:
        gdc_wait()
    scale = rms_scale(X + none, eps, K, BK)
    products = first.to(tl.float32) * normed_at(X + none, NORM + none, scale, 0, K, BK)
    for start in range(BK, K, BK):
        tile = columns_at(weights, start, K, BK)
        products += tile.to(tl.float32) * normed_at(X + none, NORM + none, scale, start, K, BK)
    out = tl.sum(products, 1)
    if HAS_BIAS:
        out += tl.load(BIAS + at).to(tl.float32)
    tl.store(OUT + rows, out.to(OUT.dtype.element_ty), mask=rows < N)


@triton.jit
def norm_swiglu_kernel(
    X, NORM, WEIGHT, OUT, eps, weight_row,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (N / BN,): BN elements of silu(norm(x) G^T) * norm(x) U^T, G and U the halves of WEIGHT [2 N, K]."""
    if PDL:
        gdc_launch_dependents()
    rows, at = owned_rows(N, BN)
    none = tl.zeros((1, 1), tl.int32)
    gates = WEIGHT + at[:, None] * weight_row
    ups = WEIGHT + (at + N)[:, None] * weight_row
    first_gate = columns_at(gates, 0, K, BK)
    first_up = columns_at(ups, 0, K, BK)
    if PDL:
        gdc_wait()
    scale = rms_scale(X + none, eps, K, BK)
    x = normed_at(X + none, NORM + none, scale, 0, K, BK)
    gate_products = first_gate.to(tl.float32) * x
    up_products = first_up.to(tl.float32) * x
    for start in range(BK, K, BK):
        gate_tile = columns_at(gates, start, K, BK)
        up_tile = columns_at(ups, start, K, BK)
        x = normed_at(X + none, NORM + none, scale, start, K, BK)
        gate_products += gate_tile.to(tl.float32) * x
        up_products += up_tile.to(tl.float32) * x
    kind = OUT.dtype.element_ty
    gate = tl.sum(gate_products, 1).to(kind).to(tl.float32)
    up = tl.sum(up_products, 1).to(kind).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(OUT + rows, (active * up).to(kind), mask=rows < N)


@triton.jit
def linear_add_kernel(
    X, WEIGHT, BIAS, RESIDUAL, weight_row,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (N / BN,): BN elements of x W^T, added to the residual stream."""
    if PDL:
        gdc_launch_dependents()
    rows, at = owned_rows(N, BN)
    none = tl.zeros((1, 1), tl.int32)
    weights = WEIGHT + at[:, None] * weight_row
    first = columns_at(weights, 0, K, BK)
    if PDL:
        gdc_wait()
    products = first.to(tl.float32) * columns_at(X + none, 0, K, BK).to(tl.float32)
    for start in range(BK, K, BK):
        tile = columns_at(weights, start, K, BK)
        products += tile.to(tl.float32) * columns_at(X + none, start, K, BK).to(tl.float32)
    out = tl.sum(products, 1)
    if HAS_BIAS:
        out += tl.load(BIAS + at).to(tl.float32)
    kind = RESIDUAL.dtype.element_ty
    total = out.to(kind).to(tl.float32) + tl.load(RESIDUAL + rows, mask=rows < N, other=0.0).to(tl.float32)
    tl.store(RESIDUAL + rows, total.to(kind), mask=rows < N)


def norm_linear(
    x: torch.Tensor, norm_weight: torch.Tensor, eps: float, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """linear(rms_norm(x, norm_weight, eps), weight, bias): x [1, K], norm_weight [K], weight [N, K], bias [N] -> [1, N].

    One dtype of float32, float16 and bfloat16; rows contiguous. Checks nothing, waits for nothing, as all here.
    """
    n, k = weight.shape
    shape = shape_for(n, k, norm=True)
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    norm_linear_kernel[(triton.cdiv(n, shape.rows),)](
        x, norm_weight, weight, weight if bias is None else bias, out, eps, weight.stride(0),
        N=n, K=k, BN=shape.rows, BK=shape.columns, HAS_BIAS=bias is not None, num_warps=shape.warps, **early(x.device),
    )  # fmt: skip
    return out


def norm_swiglu(x: torch.Tensor, norm_weight: torch.Tensor, eps: float, gate_up: torch.Tensor) -> torch.Tensor:
    """silu_mul(linear(rms_norm(x, norm_weight, eps), gate_up)): x [1, K], norm_weight [K], gate_up [2 N, K] -> [1, N]."""
    n, k = gate_up.shape[0] // 2, gate_up.shape[1]
    shape = shape_for(2 * n, k, norm=True)
    rows = shape.rows // 2  # of each half
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    norm_swiglu_kernel[(triton.cdiv(n, rows),)](
        x, norm_weight, gate_up, out, eps, gate_up.stride(0),
        N=n, K=k, BN=rows, BK=shape.columns, num_warps=shape.warps, **early(x.device),
    )  # fmt: skip
    return out


def linear_add(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor) -> None:
    """residual [1, N] += linear(x, weight, bias), in place: x [1, K], weight [N, K], bias [N]."""
    n, k = weight.shape
    shape = shape_for(n, k, norm=False)
    linear_add_kernel[(triton.cdiv(n, shape.rows),)](
        x, weight, weight if bias is None else bias, residual, weight.stride(0),
        N=n, K=k, BN=shape.rows, BK=shape.columns, HAS_BIAS=bias is not None, num_warps=shape.warps, **early(x.device),
    )  # fmt: skip
