"""Fixtures for tests that run the Triton kernels without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.interpreter import interpreted_kernels


@pytest.fixture(scope="module")
def interpreted() -> Iterator[None]:
    """The kernels run in Triton's interpreter for the tests of this module."""
    with interpreted_kernels():
        yield


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and scratch come as NaN, and integers as nonsense: whatever is read before it is written shows."""
    empty = torch.empty

    def filled(*args, **kwargs):
        made = empty(*args, **kwargs)
        return made.fill_(float("nan") if made.is_floating_point() else -77)

    monkeypatch.setattr(torch, "empty", filled)
