"""Compiles the kernels for a Hopper GPU, which need not be there, and prints what the compiler says of each as JSON.

Run as a process of its own: once Triton's interpreter has run in a process, its compiler does not.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

BF16 = {
    "Q", "K", "V", "OUT", "KEY", "VALUE", "K_POOL", "V_POOL", "X", "RESIDUAL", "WEIGHT", "QKV", "COS", "SIN", "Q_OUT", "KV_OUT",
    "GATE_UP", "NORM", "BIAS",
}  # fmt: skip
INT32 = {"TABLE", "PIECES", "MERGES", "BATCH", "POSITIONS"}
UNALIGNED = {"table_row", "table_width", "count", "programs", "capacity", "scale_log2", "scale", "eps", "pieces"}
COMMON = {"G": 4, "D": 128, "DP": 128, "BLOCK": 16, "N_KV": 8, "STEP": 2, "PRECISION": "tf32"}
HOPPER = {name: value for name, value in COMMON.items() if name != "PRECISION"}
BOXES = "tensordesc<bf16[16, 1, 64],NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)>"
PARTS = {"hopper_prefill_kernel": 3}  # that many times the threads it is launched with
KINDS = {"products": "HGMMA", "exponentials": "MUFU.EX2", "spilled": r"\b(LDL|STL)\b"}
EARLY = {"PDL": True}
DECODE = COMMON | {"GP": 16, "WIDTH": 16, "IDS": 8, "PDL": True}
PLAN = {"CUT": 1, "TILE": 64, "BLOCK": 16, "PAGES": 4, "WIDTH": 16, "IDS": 8, "LANES": 64, "STEP": 16, "CHOICES": 256}
ROPE = EARLY | {"N_Q": 32, "N_KV": 8, "D": 128, "HALF": 64, "KEEP": True}
GEMV = EARLY | {"K": 4096}
KERNELS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "cache write": ("cache_write", "cache_write_kernel", {"N_KV": 8, "D": 128, "BLOCK": 1024}, 4),
    "decode": ("paged_decode", "decode_kernel", DECODE | {"TILE": 64, "STAGES": 2, "PAGES": 4}, 4),
    "decode, blocks of 5": ("paged_decode", "decode_kernel", DECODE | {"TILE": 32, "STAGES": 3, "PAGES": 0, "BLOCK": 5}, 2),
    "prefill": ("paged_prefill", "prefill_kernel", COMMON | {"BLOCK_M": 128, "TILE": 64, "STAGES": 3, "PAGES": 4}, 8),
    "prefill on Hopper": ("hopper_prefill", "hopper_prefill_kernel", HOPPER | {"TILE": 128, "STAGES": 3}, 4),
    "prefill on Hopper, short": ("hopper_prefill", "hopper_prefill_kernel", HOPPER | {"TILE": 64, "STAGES": 6}, 4),
    "merge": ("merge_parts", "merge_kernel", {"N_Q": 32, "D": 128, "DB": 128, "PARTS": 16, "PDL": True}, 2),
    "plan, even": ("decode_launch", "plan_kernel", PLAN, 4),
    "plan, ragged": ("decode_launch", "plan_kernel", PLAN | {"CUT": 2}, 4),
    "norm": ("fused_ops", "rms_norm_kernel", EARLY | {"N": 4096, "BLOCK": 4096, "ADD": True}, 16),
    "rotate and write": ("fused_ops", "rope_and_write_kernel", ROPE, 1),
    "swiglu": ("fused_ops", "silu_mul_kernel", EARLY | {"N": 14336, "BLOCK": 1024}, 4),
    "norm and product": ("gemv", "norm_linear_kernel", GEMV | {"N": 6144, "BN": 2, "BK": 4096, "HAS_BIAS": True}, 8),
    "norm and head": ("gemv", "norm_linear_kernel", GEMV | {"N": 128256, "BN": 2, "BK": 4096, "HAS_BIAS": False}, 8),
    "norm and swiglu": ("gemv", "norm_swiglu_kernel", GEMV | {"N": 14336, "BN": 1, "BK": 4096}, 8),
    "product and sum": ("gemv", "linear_add_kernel", GEMV | {"N": 4096, "BN": 8, "BK": 1024, "HAS_BIAS": False}, 4),
    "product, edges": ("gemv", "norm_linear_kernel", GEMV | {"N": 577, "K": 576, "BN": 2, "BK": 1024, "HAS_BIAS": True}, 4),
}


def compiled(module: str, function: str, constants: dict[str, Any], warps: int) -> dict[str, Any]:
    kernel = getattr(importlib.import_module(f"kernels.{module}"), function)
    signature, attributes = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
            continue
        pointer = "*bf16" if argument in BF16 else "*i32" if argument in INT32 else "*fp32"
        signature[argument] = pointer if argument.isupper() else "i32"
        if argument not in UNALIGNED:
            attributes[(i,)] = [["tt.divisibility", 16]]
    scalars = (("SLOTS", "*i64"), ("scale_log2", "fp32"), ("scale", "fp32"), ("eps", "fp32"))
    signature |= {name: kind for name, kind in scalars if name in signature}
    fixed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource
    if function in PARTS:
        source, signature["K"], signature["V"] = GluonASTSource, BOXES, BOXES
        attributes = {key: value for key, value in attributes.items() if signature[kernel.arg_names[key[0]]] != BOXES}
    made = triton.compile(
        source(kernel, signature, fixed, attributes), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(made.asm["cubin"])
        tools = Path(triton.__file__).parent / "backends/nvidia/bin"
        usage, code = (
            subprocess.run([tools / tool, option, file], capture_output=True, text=True, check=True).stdout
            for tool, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    registers, stack = (int(re.search(rf"{key}:(\d+)", usage)[1]) for key in ("REG", "STACK"))  # type: ignore[index]
    softmax = [part.count("MUFU.EX2") for part in re.split("WARPGROUP.DEPBAR", code)]
    return {
        "registers": registers, "stack": stack, "threads": warps * 32 * PARTS.get(function, 1), "shared": made.metadata.shared,
        "wgmma": "wgmma" in made.asm["ptx"], "tile_loops": tile_loops(code), "exponentials": softmax,
    }  # fmt: skip


def tile_loops(code: str) -> list[dict[str, int]]:
    """Of each innermost loop of disassembled `code` with products and exponentials: how many, and accesses to spilled numbers.

    What jumps back from behind the last product is a wait that ptxas has put out of the way, not a loop.
    """
    lines = code.splitlines()
    labels = {found[1]: i for i, line in enumerate(lines) if (found := re.match(r"(\.L_\w+):", line))}
    jumps = [(labels[found[1]], i) for i, line in enumerate(lines) if (found := re.search(r"BRA\S* .*`\((\.L_\w+)\)", line))]
    last = max((i for i, line in enumerate(lines) if "HGMMA" in line), default=0)
    loops = {
        (a, b) for a, b in jumps if a < b < last and all(any(what in x for x in lines[a:b]) for what in ("HGMMA", "MUFU.EX2"))
    }
    inner = [a for a in loops if not any(a[0] <= b[0] and b[1] <= a[1] and a != b for b in loops)]
    return [{name: sum(bool(re.search(what, x)) for x in lines[a:b]) for name, what in KINDS.items()} for a, b in sorted(inner)]


if __name__ == "__main__":
    print(json.dumps({name: compiled(*how) for name, how in KERNELS.items()}))
