"""Programmatic dependent launch: a kernel is resident, and may read what it alone reads, before the one in front of it ends.

In a decode step of many short kernels the gaps between them are a tenth of the time; this hides most of each. Such a kernel
calls `gdc_wait` before it reads or writes anything that an earlier kernel touches: it returns once the kernel in front has
ended, which has waited for the one in front of itself. `gdc_launch_dependents` lets the next one come when every program has
called it. (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch


@lru_cache(maxsize=16)
def launches_early(device: torch.device) -> bool:
    """Whether the card knows such launches: compute capability 9.0 and newer."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def early(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch whose kernel has the flag PDL."""
    return {"PDL": True, "launch_pdl": True} if launches_early(device) else {"PDL": False}
