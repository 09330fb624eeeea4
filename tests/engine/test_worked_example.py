"""The worked lookup of SEEDS.md A, computed by the code of the live lookup."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.worked_example import describe, worked_example

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example():
    return worked_example()


def test_the_address_is_walked_as_published(example):
    assert example.block_table == (7, 2, 15)
    assert (example.logical_block, example.block_offset, example.physical_block, example.slot) == (1, 4, 2, 36)
    assert (example.slot_bytes, example.byte_offset) == (32, 36 * 32)


def test_the_numbers_are_the_published_ones(example):
    numbers = example.to_dict()
    assert numbers["context_len"] == len(numbers["weights"]) == 38
    # Published with four decimals.
    assert numbers["key_norm"] == pytest.approx(1.6488, abs=5e-5)
    assert numbers["score"] == pytest.approx(0.2419, abs=5e-5)
    assert numbers["largest_weight"] == pytest.approx(0.1318, abs=5e-5)
    assert numbers["largest_weight_position"] == 9
    assert numbers["weight"] == pytest.approx(0.0208, abs=5e-5)
    assert numbers["output_norm"] == pytest.approx(0.7807, abs=5e-5)


def test_reading_through_the_table_gives_what_contiguous_attention_gives(example):
    assert example.max_abs_difference < 1e-6  # float32, values of order 1
    assert sum(example.to_dict()["weights"]) == pytest.approx(1.0, abs=1e-6)


def test_the_numbers_follow_from_the_seed_alone(example):
    torch.manual_seed(0)
    keys, values, query = torch.randn(16, 16, 8), torch.randn(16, 16, 8), torch.randn(8)
    assert torch.equal(example.key, keys[2, 4])
    assert torch.equal(example.query, query)
    gathered = torch.cat([keys[7], keys[2], keys[15, :6]])
    weights = torch.softmax(gathered @ query / 8**0.5, dim=0)
    assert torch.allclose(example.attended.weights, weights, atol=1e-6)
    output = weights @ torch.cat([values[7], values[2], values[15, :6]])
    assert torch.allclose(example.output_paged, output, atol=1e-6)


def test_every_position_has_its_own_slot_score_and_weight(example):
    numbers = example.to_dict()
    assert numbers["slots"] == [table * 16 + p for table, n in ((7, 16), (2, 16), (15, 6)) for p in range(n)]
    at = numbers["key_position"]
    for every, one in (("slots", "slot"), ("raw_dots", "raw_dot"), ("scores", "score"), ("weights", "weight")):
        assert len(numbers[every]) == 38
        assert numbers[every][at] == numbers[one]
    assert numbers["key_norms"][at] == pytest.approx(numbers["key_norm"], rel=1e-6)
    assert torch.softmax(torch.tensor(numbers["scores"]), 0).tolist() == pytest.approx(numbers["weights"], rel=1e-5)


def test_the_differences_are_those_of_the_two_outputs(example):
    numbers = example.to_dict()
    both = zip(numbers["output_paged"], numbers["output_dense"], strict=True)
    assert numbers["differences"] == [paged - dense for paged, dense in both]
    assert max(map(abs, numbers["differences"])) == numbers["max_abs_difference"]


def test_it_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    worked_example()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_console_page_prints_the_published_numbers():
    run = subprocess.run(
        [sys.executable, "-m", "engine.worked_example"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    walk = ("20 // 16 = 1", "20 % 16 = 4", "table[1] = 2", "2 * 16 + 4 = 36")
    blocks = ("0-15 in block 7, 16-31 in block 2, 32-37 in block 15",)
    for part in walk + blocks + ("1.6488", "0.2419", "0.1318 at 9", "0.0208", "0.7807"):
        assert part in run.stdout


def test_the_description_has_a_line_for_each_step(example):
    lines = describe(example).splitlines()
    assert [line[0] for line in lines if line[:1].isdigit() and line[1:3] == "  "] == list("123456")
