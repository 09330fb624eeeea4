"""Runs the project's Triton kernels in Triton's interpreter, also where triton was imported compiled long before.

TRITON_INTERPRET is read when a function is decorated, and triton decorates its own library when it is imported (transformers
does that). So the library's functions are swapped for interpreted ones for a while, and our modules imported anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

OURS = ("cache_write", "decode_launch", "fused_ops", "gemv", "merge_parts", "paged_decode", "paged_prefill", "triton_paged")


@contextmanager
def interpreted_kernels() -> Iterator[None]:
    """Inside, `kernels.paged_decode` and its like are interpreted; what was imported inside must not be used outside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        import triton.language as _  # noqa: F401 (compiled, if nobody imported it before)
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction

        patch.setenv("TRITON_INTERPRET", "1")
        swapped: dict[int, InterpretedFunction] = {}
        for name, module in list(sys.modules.items()):
            if name == "triton.language" or name.startswith("triton.language."):
                for attribute, value in list(vars(module).items()):
                    if isinstance(value, JITFunction):
                        patch.setattr(module, attribute, swapped.setdefault(id(value), InterpretedFunction(value.fn)))
        forget()
        try:
            yield
        finally:
            forget()


def forget() -> None:
    """The next import of our kernels decorates them afresh."""
    for name in OURS:
        sys.modules.pop(f"kernels.{name}", None)


@contextmanager
def grid_reversed() -> Iterator[None]:
    """Programs run last first. One after another they cannot race, but one that needs an earlier one's work shows."""
    from triton.runtime.interpreter import interpreter_builder as builder

    forwards = builder.set_grid_idx

    def backwards(*index: int) -> None:
        forwards(*(size - 1 - i for size, i in zip(builder.grid_dim, index)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "set_grid_idx", backwards)
        yield
