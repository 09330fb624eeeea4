"""What the lab's board shows: texts and figures made of what was measured, on a CPU and on a GPU."""

import json

import pytest

from kernels.decode_plan import DeviceLimits
from kernels.lab import LabShape, plan_of
from viz.lab.lab import LabBoard, idle_view, problem_view, result_view, running_view
from viz.lab.times import times_figure
from viz.lab.words import NAMES, headline, interpreted, notes, table
from viz.text import bytes_text, count

SHAPE = LabShape(8, 512, 9, 3, 64, 16)
PLAN = plan_of(SHAPE, 2, DeviceLimits())


def path(name, ms, size, share=None, difference=2e-3):
    return {
        "name": name, "ms": ms, "bytes_read": size, "bytes_written": 0, "gb_per_s": size / ms / 1e6, "share": share,
        "max_abs_difference": difference,
    }  # fmt: skip


GPU = {
    "kind": "cuda", "device": "NVIDIA H200", "dtype": "bfloat16", "backend": "triton", "reason": "Triton kernels on it.",
    "ceiling": 4600.0, "interpreter": None,
    "paths": [path("triton", 0.05, 2**27, 0.58), path("gather", 0.2, 2**28, 0.29), path("contiguous", 0.0625, 2**27, 0.47)],
}  # fmt: skip
CPU = {
    "kind": "cpu", "device": "A CPU, 2 threads", "dtype": "float32", "backend": "torch", "reason": "No GPU.", "ceiling": None,
    "paths": [path("gather", 8.0, 2**21, difference=2e-7), path("contiguous", 0.4, 2**20, difference=1e-7)],
    "interpreter": {
        "shape": {"batch": 3, "context": 150, "n_q": 6, "n_kv": 2, "head_dim": 64, "block_size": 16}, "programs": 6,
        "merges": 1, "seconds": 0.53, "max_abs_difference": 2.4e-7,
    },
}  # fmt: skip


def test_on_a_gpu_ours_is_compared_with_contiguous_sdpa():
    assert headline(GPU).startswith("Reading through the block table takes 0.80 times the time of contiguous SDPA; ")
    assert headline(GPU).endswith("gathering first takes 3.20 times the time.")
    shown = table(GPU)
    assert shown["columns"] == ["Path", "Median time", "Bytes read", "Read speed", "Of the ceiling", "Difference from float64"]
    assert shown["rows"][0] == {
        "name": "Paged, Triton kernels", "ours": True, "cells": ["0.05 ms", "128 MiB", "2,684 GB/s", "58%", "2.0e-03"],
    }  # fmt: skip
    assert [row["ours"] for row in shown["rows"]] == [True, False, False]


def test_on_a_cpu_no_speed_of_the_triton_kernels_is_shown():
    assert headline(CPU).startswith("Timed on this machine's CPU: gathering the pages first takes 20 times the time")
    shown = table(CPU)
    assert "Of the ceiling" not in shown["columns"]
    last = shown["rows"][-1]
    assert last["name"] == "Triton kernels, interpreted"
    assert last["cells"] == ["not timed", "–", "–", "2.4e-07"]
    assert all(len(row["cells"]) == len(shown["columns"]) - 1 for row in shown["rows"])
    told = notes(CPU)[-1]
    assert "3 × 150 tokens, 6/2 heads, head_dim 64, blocks of 16, float32: 6 programs, 1 merge in 0.5 s." in told
    assert "nothing about the kernels' speed" in told


def test_an_interpreter_that_cannot_run_says_so_and_has_no_row():
    broken = {**CPU, "interpreter": {"problem": "No triton here."}}
    assert interpreted(broken["interpreter"]) == "No triton here."
    assert len(table(broken)["rows"]) == 2


def test_times_are_bars_in_the_order_given_with_the_floor_beside_them():
    figure = times_figure(GPU["paths"], NAMES, "triton", 0.0292)
    assert list(figure.data[0].x) == [0.05, 0.2, 0.0625]
    assert list(figure.data[0].text) == ["0.05 ms", "0.2 ms", "0.0625 ms"]
    assert figure.layout.meta["roles"] == ["ours", "peer", "peer"]
    assert figure.layout.shapes[0].x0 == 0.0292
    assert not times_figure(CPU["paths"], NAMES, "gather", None).layout.shapes


@pytest.mark.parametrize("result", [GPU, CPU])
def test_a_result_is_plain_json_with_its_figures(result):
    view = json.loads(json.dumps(result_view(result, "8 × 512 tokens", SHAPE.kv_bytes("cuda"), PLAN)))
    assert view["kind"] == "result"
    assert view["measured"] == json.loads(json.dumps(result))
    assert view["plan_title"] == f"The launch, as planned for {'NVIDIA H200' if result is GPU else 'an H200'}"
    assert view["plan"]["layout"]["meta"]["lines"] == 8
    assert bool(view["times"]["layout"].get("shapes")) == (result is GPU)


def test_the_board_takes_every_keyword_because_gradio_makes_it_anew_for_each_update():
    for view in (idle_view("cpu", "No GPU.", PLAN), running_view("r"), problem_view("p")):
        assert LabBoard(view, elem_id="other", visible=False, key="k", render=False, whatever=3).value == view
    assert "cannot be timed" in idle_view("cpu", "No GPU.", PLAN)["headline"]
    assert idle_view("cuda", "Triton kernels on it.", PLAN)["headline"].startswith("Triton kernels on it. Press Run")


def test_bytes_and_counts_are_written_for_reading():
    assert [bytes_text(n) for n in (0, 1023, 1024, 10_240, 2**20 * 128, 2**31, 2**44)] == [
        "0 B", "1,023 B", "1.00 KiB", "10.0 KiB", "128 MiB", "2.00 GiB", "16.0 TiB",
    ]  # fmt: skip
    assert [count(n, "block") for n in (0, 1, 1234)] == ["0 blocks", "1 block", "1,234 blocks"]
