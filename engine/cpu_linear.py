"""Faster matrix products on a CPU, in the same dtype and with the same weights.

A decode step reads every weight once, so it should run at the memory's speed; MKL's GEMV over PyTorch's [out, in] layout
reaches about half of it, and its GEMM with two to eight rows less. Two standard remedies, chosen by the number of rows:

    1 row      a wide weight (out > in) is laid out [in, out] in memory; its shape, and the model's code, stay as they are
    more       a second copy in oneDNN's blocked layout, as torch.compile's weight freezing makes it

The copy doubles the memory of the linear layers, so it is made only up to `MAX_PACKED_BYTES` of weights.
"""

from __future__ import annotations

import logging
import types
from typing import Any

import torch
from torch.nn import functional

log = logging.getLogger("pagewalk")

MAX_PACKED_BYTES = 2 << 30


def speed_up_linears(model: torch.nn.Module) -> int:
    """Re-lays and packs the float32 linear layers of a CPU model, once. Returns the bytes of the packed copies.

    Tied weights stay tied: the weight keeps its storage's owner, only its strides change.
    """
    linears = [m for m in model.modules() if type(m) is torch.nn.Linear and m.weight.dtype is torch.float32]
    linears = [m for m in linears if m.weight.device.type == "cpu" and not hasattr(m, "packed_weight")]
    total = sum(m.weight.numel() * m.weight.element_size() for m in linears)
    pack = torch.backends.mkldnn.is_available() and total <= MAX_PACKED_BYTES
    with torch.no_grad():
        for linear in linears:
            if pack:
                linear.packed_weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
                linear.forward = types.MethodType(_forward, linear)  # type: ignore[method-assign]
            if linear.out_features > linear.in_features:
                linear.weight.data = linear.weight.data.t().contiguous().t()
    return total if pack else 0


def _forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    if x.numel() == self.in_features:
        return functional.linear(x, self.weight, self.bias)
    return torch.ops.mkldnn._linear_pointwise(x, self.packed_weight, self.bias, "none", [], "")
