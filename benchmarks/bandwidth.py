"""The read ceiling of this card by size, beside what a copy shows.

    python -m benchmarks.bandwidth

A copy is the wrong yardstick for attention, which writes next to nothing: reads alone go faster.
"""

from __future__ import annotations

import torch
import triton

from kernels.bandwidth import Timer, read_call


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark measures a CUDA device, and there is none here.")
    timer = Timer()
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, triton {triton.__version__}\n")
    print(f"{'MiB':>7}  {'read ms':>9}  {'GB/s':>7}  {'copy GB/s':>9}")
    for mib in (16, 64, 256, 1024, 4096):
        num_bytes = mib * 2**20
        ms = timer(read_call(num_bytes))
        source = torch.randint(1, 2**30, (num_bytes // 8,), dtype=torch.int32, device="cuda")
        target = torch.empty_like(source)
        copy = timer(lambda source=source, target=target: torch.neg(source, out=target))  # half is read, half written
        print(f"{mib:>7}  {ms:>9.4f}  {num_bytes / ms / 1e6:>7.0f}  {num_bytes / copy / 1e6:>9.0f}")


if __name__ == "__main__":
    main()
