"""The small launches of a decoder layer, ours beside liger-kernel's where that is installed, each in a CUDA graph.

    python -m benchmarks.small_launches [--shape Llama-3.1-8B] [--batches 1 8 64 256]

Microseconds of one layer: norm with the residual sum, twice; rotation, and K and V into the cache; SwiGLU. liger's rotation
knows no cache, so ours follows it there as a launch of its own (kernels.cache_write). What a model does not do in every layer
is left out: taking each row's sines, and parting gate and up, which separate projections bring parted. "empty" is what an
empty measurement reads; every column contains it once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from benchmarks.random_model import SHAPES
from kernels.bandwidth import Timer
from kernels.cache_write import write_kv
from kernels.fused_ops import rms_norm, rope_and_write, silu_mul


class LayerInputs:
    """Random bfloat16 tensors of one decoder layer's decode step, at batch `rows`."""

    def __init__(self, shape: str, rows: int) -> None:
        config = SHAPES[shape]
        self.n_q, self.n_kv, self.d = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        hidden, wide = config["hidden_size"], config["intermediate_size"]
        new = {"dtype": torch.bfloat16, "device": "cuda"}
        self.x, self.residual = torch.randn(rows, hidden, **new), torch.randn(rows, hidden, **new)
        self.weight = torch.rand(hidden, **new)
        self.qkv = torch.randn(rows, (self.n_q + 2 * self.n_kv) * self.d, **new)
        self.cos, self.sin = torch.randn(4096, self.d, **new), torch.randn(4096, self.d, **new)
        self.positions = torch.randint(4096, (rows,), dtype=torch.int32, device="cuda")
        self.slots = torch.randperm(rows * 16, device="cuda")[:rows]
        self.pools = [torch.zeros(rows * 16, self.n_kv, self.d, **new) for _ in range(2)]
        self.q_out = torch.empty(rows, self.n_q, self.d, **new)
        self.gate_up = torch.randn(rows, 2 * wide, **new)

    def heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of the merged projection: q [B, n_q, d], k and v [B, n_kv, d]."""
        parts = self.qkv.view(-1, self.n_q + 2 * self.n_kv, self.d)
        return parts[:, : self.n_q], parts[:, self.n_q : self.n_q + self.n_kv], parts[:, self.n_q + self.n_kv :]


def ours(at: LayerInputs) -> dict[str, Callable[[], object]]:
    return {
        "norm": lambda: rms_norm(at.x, at.weight, 1e-5, at.residual),
        "rope": lambda: rope_and_write(at.qkv, at.cos, at.sin, at.positions, at.slots, *at.pools, at.q_out),
        "swiglu": lambda: silu_mul(at.gate_up),
    }


def ligers(at: LayerInputs) -> dict[str, Callable[[], object]]:
    """liger's operators on the same tensors, as its modules for transformers call them; empty where it is not installed."""
    try:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
        from liger_kernel.ops.rope import LigerRopeFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError:
        return {}
    gate, up = (half.contiguous() for half in at.gate_up.chunk(2, dim=1))
    cos, sin = (table[at.positions.long(), None] for table in (at.cos, at.sin))

    def rope() -> None:
        q, k, v = at.heads()
        q, k = LigerRopeFunction.apply(q.unsqueeze(2), k.unsqueeze(2), cos, sin)
        write_kv(k.squeeze(2), v, *at.pools, at.slots)

    return {
        "norm": lambda: LigerFusedAddRMSNormFunction.apply(at.x, at.residual, at.weight, 1e-5, 0.0, "llama", False),
        "rope": rope,
        "swiglu": lambda: LigerSiLUMulFunction.apply(gate, up),
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="*", default=sorted(SHAPES), choices=sorted(SHAPES))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8, 64, 256])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark measures a CUDA device, and there is none here.")
    timer, nothing = Timer(), torch.zeros(1, device="cuda")
    empty = timer(lambda: nothing.zero_()) * 1e3
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, bf16; empty {empty:.1f} us\n")
    print(f"{'shape, batch':<20}{'':<8}{'norm':>8}{'rope+cache':>12}{'SwiGLU':>8}{'layer':>8}{'ours':>8}")
    for shape in args.shape:
        for rows in args.batches:
            inputs, base = LayerInputs(shape, rows), 0.0
            for who, calls in (("ours", ours(inputs)), ("liger", ligers(inputs))):
                if not calls:
                    continue
                us = {name: timer(call) * 1e3 for name, call in calls.items()}
                layer = us["norm"] * 2 + us["rope"] + us["swiglu"] - 3 * empty
                base = base or layer
                print(
                    f"{f'{shape}, {rows}':<20}{who:<8}{us['norm']:>8.1f}{us['rope']:>12.1f}{us['swiglu']:>8.1f}{layer:>8.1f}"
                    f"{layer / base:>7.2f}x",
                    flush=True,
                )


if __name__ == "__main__":
    main()
