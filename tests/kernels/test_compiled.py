"""The kernels compile for a real card, without one: what the interpreter lets pass and the compiler does not shows here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, int]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compile_for_hopper"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


def test_every_kernel_compiles_and_keeps_its_numbers_in_registers(compiled):
    for name, made in compiled.items():
        assert made["stack"] == 0, name
        assert made["registers"] * made["threads"] <= 65536, name
        assert made["shared"] <= 227 * 1024, name


def test_four_decode_programs_of_four_warps_fit_an_sm(compiled):
    made = compiled["decode"]
    assert made["registers"] <= 128
    assert 4 * (made["shared"] + 1024) <= 228 * 1024


def test_prefill_multiplies_with_wgmma(compiled):
    assert compiled["prefill"]["wgmma"]
