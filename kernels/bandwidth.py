"""The read ceiling: how fast this card's memory can be read at all, by a kernel that does nothing else; and the timer.

Every column of the benchmarks and of the kernel lab is measured alike: a CUDA graph of one call, the L2 cache flushed by
reading something else before each replay, and the median over replays.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import triton
import triton.language as tl

CHUNK = 4096  # numbers a program reads at once
_FLUSH_BYTES = 256 * 2**20


@triton.jit
def read_kernel(X, OUT, n, STRIDE, CHUNK: tl.constexpr):
    """Reads X [n] int32 and keeps one number of it, so that no load can be left out."""
    at = tl.program_id(0).to(tl.int64) * CHUNK
    i = tl.arange(0, CHUNK)
    acc = tl.zeros([CHUNK], tl.int32)
    for start in tl.range(at, n, STRIDE, num_stages=4):
        acc ^= tl.load(X + start + i, mask=start + i < n, other=0)
    found = tl.xor_sum(acc, 0)
    if found == 0x5EED:
        tl.store(OUT, found)


def read_call(num_bytes: int) -> Callable[[], None]:
    """A call that reads num_bytes of fresh random memory."""
    x = torch.randint(1, 2**30, (num_bytes // 4,), dtype=torch.int32, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    programs = min(triton.cdiv(x.numel(), CHUNK), sms * 8)

    def call() -> None:
        read_kernel[(programs,)](x, out, x.numel(), programs * CHUNK, CHUNK=CHUNK, num_warps=8)

    return call


class Timer:
    """Milliseconds of calls on the device, as medians; see the module's docstring."""

    def __init__(self, repeats: int = 50) -> None:
        self.repeats = repeats
        self._flush = read_call(_FLUSH_BYTES)

    def __call__(self, call: Callable[[], object], repeats: int | None = None) -> float:
        return statistics.median(self.samples(call, repeats))

    def samples(self, call: Callable[[], object], repeats: int | None = None) -> list[float]:
        """One number a replay."""
        graph = captured(call)
        repeats = repeats or self.repeats
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        for start, stop in [*events[:5], *events]:
            self._flush()
            start.record()
            graph.replay()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in events]


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The call as a graph, after three warm-up runs on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def read_ceiling(timer: Timer, num_bytes: int = 4 * 2**30) -> float:
    """GB/s of a read-only kernel over num_bytes."""
    return num_bytes / timer(read_call(num_bytes), repeats=20) / 1e6
