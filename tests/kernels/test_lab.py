"""The kernel lab: what it refuses, what it runs, and that its numbers are those of the kernels."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from kernels import lab as lab_module
from kernels.decode_plan import DeviceLimits
from kernels.lab import BOUNDS, PRESETS, Lab, LabBusy, LabFailed, LabRefused, LabShape, lab_shape, plan_of, presets, run_apart
from kernels.lab_run import small_shape
from kernels.random_batch import paged_batch
from kernels.reference import paged_attention_reference

GOOD: dict[str, object] = {"batch": 2, "context": 40, "n_q": 6, "n_kv": 2, "head_dim": 64, "block_size": 16}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch": None}, "Batch is empty; give a whole number from 1 to 256."),
        ({"batch": 0}, "Batch is 0; give a whole number from 1 to 256."),
        ({"context": 10**9}, "Context is 1000000000; give a whole number from 1 to 131,072."),
        ({"context": float("nan")}, "Context is nan; give a whole number"),
        ({"context": 1.5}, "Context is 1.5; give a whole number"),
        ({"n_q": "<b>"}, "Query heads is no number; give a whole number from 1 to 128."),
        ({"n_kv": True}, "KV heads is True; give a whole number"),
        ({"n_q": 5}, "5 query heads cannot share 2 KV heads: make the query heads a multiple of the KV heads."),
        ({"n_q": 64, "n_kv": 2}, "32 query heads to a KV head are more than the 16"),
        ({"head_dim": 100}, "head_dim is 100; give a multiple of 8"),
        ({"block_size": -1}, "Block size is -1; give a whole number from 1 to 256."),
        ({"batch": 256, "context": 4096}, "That is 1.0 GiB of K and V; on this machine's CPU the lab takes up to 128.0 MiB."),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_can(change, sentence):
    with pytest.raises(LabRefused) as refused:
        lab_shape({**GOOD, **change}, "cpu")
    assert sentence in str(refused.value)


def test_the_plan_of_what_is_accepted_stays_small():
    with pytest.raises(LabRefused, match="Batch × context × KV heads is 8,388,608"):
        lab_shape({**GOOD, "batch": 64, "context": 65_536, "head_dim": 16}, "cuda")


def test_every_preset_is_accepted_where_it_is_offered():
    assert "Llama-3.1-8B, 64 × 4,096 tokens" in presets("cuda")
    assert "Llama-3.1-8B, 64 × 4,096 tokens" not in presets("cpu")
    assert len(presets("cpu")) >= 5
    for kind in ("cpu", "cuda"):
        for shape in presets(kind).values():
            assert lab_shape({name: getattr(shape, name) for name in BOUNDS}, kind) == shape
    assert set(presets("cuda")) == set(PRESETS)


def test_numbers_may_come_as_whole_floats():
    assert lab_shape({**GOOD, "batch": 2.0}, "cpu") == LabShape(2, 40, 6, 2, 64, 16)


def test_one_run_at_a_time_and_the_next_one_works():
    begun, finish = threading.Event(), threading.Event()

    def slow(shape: LabShape, kind: str) -> dict[str, Any]:
        begun.set()
        assert finish.wait(20)
        return {"kind": kind}

    lab = Lab("cpu", slow)
    first = threading.Thread(target=lab.run, args=(GOOD,))
    first.start()
    assert begun.wait(20)
    with pytest.raises(LabBusy, match="one shape at a time"):
        lab.run(GOOD)
    finish.set()
    first.join(20)
    assert lab.run(GOOD)[1] == {"kind": "cpu"}


def test_a_run_that_fails_lets_the_next_one_in():
    def broken(shape: LabShape, kind: str) -> dict[str, Any]:
        raise LabFailed("no")

    lab = Lab("cpu", broken)
    for _ in range(2):
        with pytest.raises(LabFailed):
            lab.run(GOOD)


def test_a_run_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(lab_module, "TIMEOUT_SECONDS", 0.05)
    with pytest.raises(LabFailed, match="The run was stopped after 0 s"):
        run_apart(lab_shape(GOOD, "cpu"), "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about a host without CUDA")
def test_a_run_that_ends_badly_says_why():
    with pytest.raises(LabFailed, match="no CUDA device is visible"):
        run_apart(LabShape(**GOOD), "cuda")  # type: ignore[arg-type]


def test_on_a_cpu_the_triton_kernels_are_interpreted_and_right():
    shape = lab_shape({**GOOD, "batch": 1, "context": 150}, "cpu")  # one sequence alone is cut, and its parts are merged
    found = run_apart(shape, "cpu")
    assert (found["kind"], found["backend"], found["ceiling"]) == ("cpu", "torch", None)
    assert [path["name"] for path in found["paths"]] == ["gather", "contiguous"]
    for path in found["paths"]:
        assert path["ms"] > 0
        assert path["max_abs_difference"] < 1e-5  # float32, values of order 1
    gather, contiguous = found["paths"]
    assert contiguous["bytes_read"] == shape.kv_bytes("cpu") == 150 * 2 * 64 * 2 * 4
    assert gather["bytes_read"] == 2 * contiguous["bytes_read"]
    inside = found["interpreter"]
    assert inside["max_abs_difference"] < 1e-5
    assert inside["programs"] > 2
    assert inside["merges"] == 1


def test_what_is_interpreted_keeps_the_heads_to_a_group_and_is_small():
    small = small_shape(LabShape(64, 4096, 32, 8, 128, 16))
    assert small.n_q // small.n_kv == 4
    assert (small.head_dim, small.block_size) == (128, 16)
    assert small.batch * small.context * small.n_kv <= 1000
    tiny = LabShape(1, 7, 1, 1, 64, 16)
    assert small_shape(tiny) == tiny


def test_the_plan_reads_the_shapes_bytes():
    shape = LabShape(8, 512, 9, 3, 64, 16)
    assert plan_of(shape, 2, DeviceLimits()).bytes_read == shape.kv_bytes("cuda")


def test_the_float64_answer_is_the_reference():
    given = paged_batch([1, 3], [40, 21], 6, 2, 16, dtype=torch.float32, device="cpu")
    for b, rows in enumerate((torch.tensor([0]), torch.tensor([1, 2, 3]))):
        chunk = given.query[rows].double().transpose(0, 1)[None]
        expected = paged_attention_reference(chunk, given.k_pool.double(), given.v_pool.double(), given.slots(b))
        assert torch.allclose(given.exact(b, rows), expected[0].transpose(0, 1).float().double(), atol=1e-6)
    out = torch.cat([given.exact(0, torch.tensor([0])), given.exact(1, torch.tensor([1, 2, 3]))]).float()
    assert given.largest_difference(out) < 1e-6
    out[2, 1, 3] += 0.5
    assert given.largest_difference(out) == pytest.approx(0.5, abs=1e-5)
