"""The kernels compile for a real card, without one: what the interpreter lets pass and the compiler does not shows here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compile_for_hopper"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


def test_every_kernel_compiles_and_keeps_its_numbers_in_registers(compiled):
    for name, made in compiled.items():
        assert made["stack"] <= (32 if name == "prefill on Hopper" else 0), name
        assert not any(loop["spilled"] for loop in made["tile_loops"]), name  # what is on the stack stays out of them
        assert made["registers"] * made["threads"] <= 65536, name
        assert made["shared"] <= 227 * 1024, name


def test_four_decode_programs_of_four_warps_fit_an_sm(compiled):
    made = compiled["decode"]
    assert made["registers"] <= 128
    assert 4 * (made["shared"] + 1024) <= 228 * 1024


def test_prefill_multiplies_with_wgmma(compiled):
    assert compiled["prefill"]["wgmma"]


@pytest.mark.parametrize("name, tile", [("prefill on Hopper", 128), ("prefill on Hopper, short", 64)])
def test_on_hopper_softmax_stands_between_the_waits_for_its_scores_and_for_the_product_before(compiled, name, tile):
    between = compiled[name]["exponentials"][1:]  # after each wait, up to the next
    assert len(between) == 12  # two warpgroups: first scores, two loops with two waits each, last product
    assert [between[i] >= tile // 2 for i in (1, 3, 7, 9)] == [True] * 4, between  # 64 rows by 128 threads
    assert len(compiled[name]["tile_loops"]) == 4  # so many were looked at for spilled numbers
