"""The kernel lab: one decode batch, by the engine's own backend, by gather and SDPA, and by SDPA over contiguous tensors.

Measuring happens in a process of its own (kernels/lab_run.py): it can be given up on, it cannot take the host's memory with
it, and its CUDA graphs never meet the engine's. This side checks what was asked for, starts that process, and waits.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.decode_plan import DeviceLimits
from kernels.launch_plan import LaunchPlan, launch_plan

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 60.0
ITEMSIZE = {"cuda": 2, "cpu": 4}
"""Bytes of one number: bfloat16 on a GPU, float32 on a CPU."""
MAX_KV_BYTES = {"cuda": 2**32, "cpu": 2**27}
"""K and V of one batch. It is held twice: in pages, and contiguous."""
MAX_PAIRS = 2**22
"""(position, KV head) pairs of one batch: the launch plan lists them tile by tile."""
BOUNDS: dict[str, tuple[str, int, int]] = {
    "batch": ("Batch", 1, 256),
    "context": ("Context", 1, 131_072),
    "n_q": ("Query heads", 1, 128),
    "n_kv": ("KV heads", 1, 128),
    "head_dim": ("head_dim", 16, 256),
    "block_size": ("Block size", 1, 256),
}
MOST_GROUP = 16

log = logging.getLogger(__name__)


class LabRefused(ValueError):
    """What was asked for cannot be run, and the message says what can."""


class LabBusy(RuntimeError):
    """Somebody else's run is under way."""


class LabFailed(RuntimeError):
    """The run did not come to its end."""


@dataclass(frozen=True, slots=True)
class LabShape:
    """One decode step: `batch` sequences of `context` tokens each, one new row a sequence."""

    batch: int
    context: int
    n_q: int
    n_kv: int
    head_dim: int
    block_size: int

    def kv_bytes(self, kind: str) -> int:
        """K and V of all sequences on a device of that kind ("cuda" or "cpu"): what must be read once."""
        return self.batch * self.context * self.n_kv * self.head_dim * 2 * ITEMSIZE[kind]

    @property
    def blocks_a_sequence(self) -> int:
        return -(-self.context // self.block_size)


PRESETS: dict[str, LabShape] = {
    "SmolLM2-135M, 8 × 512 tokens": LabShape(8, 512, 9, 3, 64, 16),
    "SmolLM2-135M, 64 × 512 tokens": LabShape(64, 512, 9, 3, 64, 16),
    "SmolLM2-135M, one context of 32,768": LabShape(1, 32_768, 9, 3, 64, 16),
    "Qwen2.5-0.5B, 16 × 1,024 tokens": LabShape(16, 1024, 14, 2, 64, 16),
    "Llama-3.1-8B, one context of 4,096": LabShape(1, 4096, 32, 8, 128, 16),
    "Llama-3.1-8B, 8 × 2,048 tokens": LabShape(8, 2048, 32, 8, 128, 16),
    "Llama-3.1-8B, 64 × 4,096 tokens": LabShape(64, 4096, 32, 8, 128, 16),
}


def presets(kind: str) -> dict[str, LabShape]:
    """The presets that fit a device of that kind."""
    return {name: shape for name, shape in PRESETS.items() if shape.kv_bytes(kind) <= MAX_KV_BYTES[kind]}


def lab_shape(values: Mapping[str, object], kind: str) -> LabShape:
    """The shape that the visitor's numbers ask for. Raises LabRefused, naming the number and what it may be."""
    numbers = {name: _whole(values.get(name), *bounds) for name, bounds in BOUNDS.items()}
    shape = LabShape(**numbers)
    if shape.n_q % shape.n_kv:
        raise LabRefused(
            f"{shape.n_q} query heads cannot share {shape.n_kv} KV heads: make the query heads a multiple of the KV heads."
        )
    if shape.n_q // shape.n_kv > MOST_GROUP:
        raise LabRefused(
            f"{shape.n_q // shape.n_kv} query heads to a KV head are more than the {MOST_GROUP} that the kernels were tested "
            "with. Take more KV heads or fewer query heads."
        )
    if shape.head_dim % 8:
        raise LabRefused(f"head_dim is {shape.head_dim}; give a multiple of 8, such as 64, 80, 96 or 128.")
    pairs, size, most = shape.batch * shape.context * shape.n_kv, shape.kv_bytes(kind), MAX_KV_BYTES[kind]
    if size > most:
        where = "this machine's CPU" if kind == "cpu" else "this GPU"
        raise LabRefused(
            f"That is {_mib(size)} of K and V; on {where} the lab takes up to {_mib(most)}. "
            "Make batch, context, KV heads or head_dim smaller."
        )
    if pairs > MAX_PAIRS:
        raise LabRefused(
            f"Batch × context × KV heads is {pairs:,}; the lab takes up to {MAX_PAIRS:,}. Make one of them smaller."
        )
    return shape


def plan_of(shape: LabShape, itemsize: int, limits: DeviceLimits) -> LaunchPlan:
    """The decode kernel's launch for this shape on a card with those limits, pages numbered in order."""
    each = shape.blocks_a_sequence
    tables = [range(b * each, (b + 1) * each) for b in range(shape.batch)]
    return launch_plan(
        shape.block_size, tables, list(range(shape.batch + 1)), [shape.context] * shape.batch, shape.n_q, shape.n_kv,
        shape.head_dim, itemsize, limits,
    )  # fmt: skip


def run_apart(shape: LabShape, kind: str) -> dict[str, Any]:
    """Measures in a child process. Raises LabFailed where it ends badly, or not within TIMEOUT_SECONDS."""
    command = [sys.executable, "-m", "kernels.lab_run", json.dumps({"kind": kind, **asdict(shape)})]
    environment = {**os.environ}
    if kind == "cpu":  # read when the kernels are decorated, so before they are imported
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LabFailed(
            f"The run was stopped after {TIMEOUT_SECONDS:.0f} s. Try a smaller batch or context, or try later."
        ) from None
    if done.returncode:
        log.error("The lab's process ended with code %d:\n%s", done.returncode, done.stderr[-4000:])
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LabFailed(f"The run ended early ({said[:200]}). Try a smaller batch or context.")
    return json.loads(done.stdout.splitlines()[-1])


class Lab:
    """One a host: runs one shape at a time. `kind`: "cuda" or "cpu"."""

    def __init__(self, kind: str, runner: Callable[[LabShape, str], dict[str, Any]] = run_apart) -> None:
        self.kind = kind
        self._run = runner
        self._one = threading.Lock()

    def run(self, values: Mapping[str, object]) -> tuple[LabShape, dict[str, Any]]:
        """(shape, what kernels.lab_run.measure found). Raises LabRefused, LabBusy or LabFailed, each with its sentence."""
        shape = lab_shape(values, self.kind)
        if not self._one.acquire(blocking=False):
            raise LabBusy(
                "The lab runs one shape at a time on this machine, and somebody else's is under way. Try again in a moment."
            )
        try:
            return shape, self._run(shape, self.kind)
        finally:
            self._one.release()


def _whole(value: object, name: str, low: int, high: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        shown = "empty" if value is None else value if isinstance(value, (int, float)) else "no number"
        raise LabRefused(f"{name} is {shown}; give a whole number from {low:,} to {high:,}.")
    return value


def _mib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
