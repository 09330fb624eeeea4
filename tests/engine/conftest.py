"""Tests on the tiny model run on one thread: its matrices are so small that a second one only waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if "smollm" in request.fixturenames else 1)
    yield
    torch.set_num_threads(before)
