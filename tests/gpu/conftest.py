"""These tests run the compiled kernels on a CUDA device; elsewhere they skip and say so."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "tests/gpu/" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="no CUDA device: the compiled kernels cannot run here"))
