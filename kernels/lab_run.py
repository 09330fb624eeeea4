"""The kernel lab's measuring, in a process of its own: kernels/lab.py starts it and reads the one JSON line it prints.

    python -m kernels.lab_run '{"kind": "cpu", "batch": 8, "context": 512, "n_q": 9, "n_kv": 3,
                                 "head_dim": 64, "block_size": 16}'

On a GPU: bf16, CUDA graphs, the L2 cache flushed, medians, beside the read ceiling of the same run. On a CPU the Triton kernels
are not compiled but interpreted (TRITON_INTERPRET=1): what that shows is that they are right, not how fast they are.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kernels.contiguous import sdpa_decode_call
from kernels.decode_plan import DeviceLimits
from kernels.dispatch import choose_backend, make_backend
from kernels.lab import LabShape, plan_of
from kernels.random_batch import PagedBatch, paged_batch

Call = Callable[[], torch.Tensor]

CPU_SECONDS, CPU_REPEATS, CPU_WARM_UP = 1.0, 50, 2
GPU_REPEATS, CEILING_BYTES = 30, 4 * 2**30
SMALL = {"batch": 3, "context": 150, "n_kv": 2}
"""The most that is interpreted: about 6 ms a tile of 64 tokens."""


def measure(shape: LabShape, kind: str) -> dict[str, Any]:
    """Times and differences of every path, as plain data; see `paths` in the result."""
    return _on_gpu(shape) if kind == "cuda" else _on_cpu(shape)


def _on_gpu(shape: LabShape) -> dict[str, Any]:
    from kernels.bandwidth import Timer, read_ceiling
    from kernels.triton_paged import device_limits

    device = torch.device("cuda")
    choice = choose_backend("auto", device, torch.bfloat16, shape.head_dim)
    given = _batch(shape, "cuda", torch.bfloat16)
    timer = Timer(GPU_REPEATS)
    ceiling = read_ceiling(timer, min(CEILING_BYTES, torch.cuda.mem_get_info()[0] // 4))
    paths = [_path(name, call, given, timer(call), ceiling) for name, call in _calls(given, choice.name).items()]
    return {
        "kind": "cuda",
        "device": torch.cuda.get_device_name(device),
        "dtype": "bfloat16",
        "backend": choice.name,
        "reason": choice.reason,
        "ceiling": ceiling,
        "limits": asdict(device_limits(device)),
        "paths": paths,
        "interpreter": None,
    }


def _on_cpu(shape: LabShape) -> dict[str, Any]:
    if hasattr(os, "nice"):
        os.nice(5)  # visitors' runs come first
    given = _batch(shape, "cpu", torch.float32)
    paths = [_path(name, call, given, _milliseconds(call), None) for name, call in _calls(given, "torch").items()]
    return {
        "kind": "cpu",
        "device": f"{_cpu_name()}, {torch.get_num_threads()} threads",
        "dtype": "float32",
        "backend": "torch",
        "reason": choose_backend("auto", torch.device("cpu")).reason,
        "ceiling": None,
        "limits": asdict(DeviceLimits()),
        "paths": paths,
        "interpreter": interpreted(shape),
    }


def _batch(shape: LabShape, device: str, dtype: torch.dtype) -> PagedBatch:
    ones, lens = [1] * shape.batch, [shape.context] * shape.batch
    return paged_batch(ones, lens, shape.n_q, shape.n_kv, shape.head_dim, shape.block_size, dtype, device=device)


def _calls(given: PagedBatch, backend: str) -> dict[str, Call]:
    """By name: "triton" where that is the engine's backend here, "gather", "contiguous"."""
    scale = given.query.shape[-1] ** -0.5

    def paged(name: str) -> Call:
        attend = make_backend(name, given.metadata)
        return lambda: attend(given.query, given.k_pool, given.v_pool, given.metadata, scale)

    calls = {"triton": paged("triton")} if backend == "triton" else {}
    return {**calls, "gather": paged("torch"), "contiguous": sdpa_decode_call(given.query, *given.contiguous())}


def _path(name: str, call: Call, given: PagedBatch, ms: float, ceiling: float | None) -> dict[str, Any]:
    """gather reads K and V twice: in their pages, and in the contiguous copy that it has written."""
    size = given.kv_bytes * (2 if name == "gather" else 1)
    speed = size / ms / 1e6
    return {
        "name": name,
        "ms": ms,
        "bytes_read": size,
        "bytes_written": given.kv_bytes if name == "gather" else 0,
        "gb_per_s": speed,
        "share": speed / ceiling if ceiling else None,
        "max_abs_difference": given.largest_difference(call()),
    }


def _milliseconds(call: Call) -> float:
    """Median over as many calls as fit in about a second."""
    for _ in range(CPU_WARM_UP):
        call()
    samples: list[float] = []
    until = time.perf_counter() + CPU_SECONDS
    while len(samples) < CPU_REPEATS and (len(samples) < 3 or time.perf_counter() < until):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def small_shape(shape: LabShape) -> LabShape:
    """The same heads to a group, head_dim and block size, cut down to what the interpreter does in a second or two."""
    n_kv = min(shape.n_kv, SMALL["n_kv"])
    return replace(
        shape,
        batch=min(shape.batch, SMALL["batch"]),
        context=min(shape.context, SMALL["context"]),
        n_kv=n_kv,
        n_q=shape.n_q // shape.n_kv * n_kv,
    )


def interpreted(shape: LabShape) -> dict[str, Any]:
    """The Triton kernels on a small batch, statement by statement, against float64; or {"problem": a sentence}."""
    if importlib.util.find_spec("triton") is None:
        return {"problem": "The triton package is not installed here, so its interpreter cannot run the kernels either."}
    from kernels.triton_paged import device_limits

    small = small_shape(shape)
    given = _batch(small, "cpu", torch.float32)
    backend = make_backend("triton", given.metadata)
    start = time.perf_counter()
    out = backend(given.query, given.k_pool, given.v_pool, given.metadata, given.query.shape[-1] ** -0.5)
    seconds = time.perf_counter() - start
    plan = plan_of(small, given.query.element_size(), device_limits(torch.device("cpu")))
    return {
        "shape": asdict(small),
        "programs": len(plan.programs),
        "merges": len(plan.merges),
        "seconds": seconds,
        "max_abs_difference": given.largest_difference(out),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "CPU"


def main() -> None:
    asked = json.loads(sys.argv[1])
    kind = asked.pop("kind")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device is visible to the lab's process")
    print(json.dumps(measure(LabShape(**asked), kind)))


if __name__ == "__main__":
    main()
