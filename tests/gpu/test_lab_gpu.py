"""The kernel lab on a card: three paths, their speed against the ceiling, their differences."""

import pytest

from kernels.lab import LabShape, run_apart

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "shape", [LabShape(8, 2048, 32, 8, 128, 16), LabShape(3, 500, 9, 3, 64, 5), LabShape(1, 4096, 14, 2, 96, 16)]
)
def test_three_paths_are_timed_beside_the_ceiling(shape):
    found = run_apart(shape, "cuda")
    assert (found["kind"], found["backend"]) == ("cuda", "triton")
    assert [path["name"] for path in found["paths"]] == ["triton", "gather", "contiguous"]
    assert found["ceiling"] > 100
    for path in found["paths"]:
        assert 0 < path["share"] < 1.5  # a small batch may come out of the cache
        assert path["max_abs_difference"] < 2e-2  # bf16
    assert found["paths"][0]["bytes_read"] == shape.kv_bytes("cuda")
