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

PROGRAMS = 1536  # that a launch should have at least: a dozen for each of an H200's 132 SMs, so that the last wave is short
WARPS = 4
LANES = 128 * 8  # columns that 4 warps load at once, 16 bytes a thread of a 16-bit type


@dataclass(frozen=True, slots=True)
class GemvShape:
    """Rows of the weights that a program owns, and columns that it reads at a time, a power of two each."""

    rows: int
    columns: int


def shape_for(n: int, k: int, norm: bool) -> GemvShape:
    """The tile for weights [n, k], from shapes alone; norm: the input is normed in the same launch.

    What decides: a tile of 4,096 weights keeps a program's loads in flight without spilling, so rows and columns trade
    against each other. More rows read the input fewer times, as long as PROGRAMS are left; a normed input is read twice, and
    its weight once, by every program, so there eight rows pay where four do elsewhere. A tile is not narrower than its four
    warps load at once (then the input would be exchanged through shared memory) nor wider than k needs.
    Measured on an H200, without a norm: [4096, 4096] and [4096, 14336] are best at 2 x 2048, larger n at 4 x 1024.
    """
    rows = 2
    while rows < (8 if norm else 4) and n // (2 * rows) >= PROGRAMS:
        rows *= 2
    return GemvShape(rows, min(max(4096 // rows, LANES), max(16, triton.next_power_of_2(k))))


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
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Grid (N / BN,): BN elements of norm(x) W^T. The first weights are on their way while the norm is computed."""
    rows, at = owned_rows(N, BN)
    none = tl.zeros((1, 1), tl.int32)
    weights = WEIGHT + at[:, None] * weight_row
    first = columns_at(weights, 0, K, BK)
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
    X, NORM, WEIGHT, OUT, eps, weight_row, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Grid (N / BN,): BN elements of silu(norm(x) G^T) * norm(x) U^T, G and U the halves of WEIGHT [2 N, K]."""
    rows, at = owned_rows(N, BN)
    none = tl.zeros((1, 1), tl.int32)
    gates = WEIGHT + at[:, None] * weight_row
    ups = WEIGHT + (at + N)[:, None] * weight_row
    first_gate = columns_at(gates, 0, K, BK)
    first_up = columns_at(ups, 0, K, BK)
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
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Grid (N / BN,): BN elements of x W^T, added to the residual stream."""
    rows, at = owned_rows(N, BN)
    none = tl.zeros((1, 1), tl.int32)
    weights = WEIGHT + at[:, None] * weight_row
    products = tl.zeros((BN, BK), tl.float32)
    for start in range(0, K, BK):
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
        N=n, K=k, BN=shape.rows, BK=shape.columns, HAS_BIAS=bias is not None, num_warps=WARPS,
    )  # fmt: skip
    return out


def norm_swiglu(x: torch.Tensor, norm_weight: torch.Tensor, eps: float, gate_up: torch.Tensor) -> torch.Tensor:
    """silu_mul(linear(rms_norm(x, norm_weight, eps), gate_up)): x [1, K], norm_weight [K], gate_up [2 N, K] -> [1, N]."""
    n, k = gate_up.shape[0] // 2, gate_up.shape[1]
    shape = shape_for(2 * n, k, norm=True)
    rows = shape.rows // 2  # of each half
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    norm_swiglu_kernel[(triton.cdiv(n, rows),)](
        x, norm_weight, gate_up, out, eps, gate_up.stride(0), N=n, K=k, BN=rows, BK=shape.columns, num_warps=WARPS
    )
    return out


def linear_add(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor) -> None:
    """residual [1, N] += linear(x, weight, bias), in place: x [1, K], weight [N, K], bias [N]."""
    n, k = weight.shape
    shape = shape_for(n, k, norm=False)
    linear_add_kernel[(triton.cdiv(n, shape.rows),)](
        x, weight, weight if bias is None else bias, residual, weight.stride(0),
        N=n, K=k, BN=shape.rows, BK=shape.columns, HAS_BIAS=bias is not None, num_warps=WARPS,
    )  # fmt: skip
