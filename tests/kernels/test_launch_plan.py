"""The account of a launch is what the kernels really do: held to every load that the interpreter makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from kernels.decode_plan import DeviceLimits
from kernels.dispatch import paged_attention
from kernels.launch_plan import LaunchPlan, launch_plan
from tests.kernels.paged_cases import Batch, Case, make

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
CASES = {
    "decode, uneven": Case((1, 1, 1, 1), (170, 0, 33, 5), n_q=6),
    "decode, one sequence": Case((1,), (150,), block_size=5),
    "decode, short": Case((1, 1), (100, 3)),
    "chunks": Case((20, 7), (64, 7), block_size=12),
    "both, and a long context": Case((1, 5, 1, 30), (40, 300, 1, 64), n_q=2, n_kv=1),
}


def planned(batch: Batch) -> LaunchPlan:
    from kernels.triton_paged import device_limits

    case, metadata = batch.case, batch.metadata
    limits = device_limits(batch.query.device)
    return launch_plan(
        case.block_size, batch.tables, metadata.query_start, metadata.context_lens, case.n_q, case.n_kv, case.d, 4, limits
    )


@contextmanager
def loads_of(pool: torch.Tensor) -> Iterator[list[tuple[tuple[int, ...], list[tuple[int, int]]]]]:
    """(grid, index) of every program's every load from `pool`, with the (slot, head) pairs it touched, in order."""
    from triton.runtime.interpreter import interpreter_builder as builder

    load, found = builder.create_masked_load, []
    first, row = pool.data_ptr(), pool.stride(1) * pool.element_size()

    def watched(ptrs, mask, *rest, **kwargs):
        at = ptrs.data[mask.data]
        inside = at[(at >= first) & (at < first + pool.numel() * pool.element_size())].astype(np.int64)
        if inside.size:
            rows = np.unique((inside - first) // row)
            found.append((tuple(builder.grid_idx), [divmod(int(x), pool.shape[1]) for x in rows]))
        return load(ptrs, mask, *rest, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_masked_load", watched)  # unmasked loads come this way too
        yield found


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("pool", ["k_pool", "v_pool"])
def test_every_program_loads_the_pages_its_tiles_name_in_order(name, pool):
    batch = make(CASES[name])
    plan, size = planned(batch), batch.case.block_size
    with loads_of(getattr(batch, pool)) as found:
        paged_attention(batch.query, batch.k_pool, batch.v_pool, batch.metadata, backend="triton")
    expected = [
        [(tile.pages[p // size - tile.start // size] * size + p % size, program.kv_head) for p in range(tile.start, tile.stop)]
        for program in sorted(plan.programs, key=lambda p: (p.kernel, p.kv_head, p.index))
        for tile in program.tiles
    ]
    assert [sorted(rows) for _, rows in found] == [sorted(rows) for rows in expected]


@pytest.mark.usefixtures("interpreted")
def test_the_interpreted_cases_are_cut_and_merged():
    cut = {name: {p.kernel for p in planned(make(case)).programs if p.parts > 1} for name, case in CASES.items()}
    assert cut["decode, one sequence"] == cut["decode, uneven"] == {"decode"}
    assert not cut["decode, short"]
    assert "prefill" in cut["both, and a long context"]


@pytest.mark.parametrize("name", list(CASES))
def test_its_bytes_are_those_of_the_visible_positions(name):
    case = CASES[name]
    batch = make(case)
    plan = launch_plan(case.block_size, batch.tables, batch.metadata.query_start, case.context_lens, case.n_q, case.n_kv, 64, 2)
    for program in plan.programs:
        assert program.bytes_read == sum(tile.stop - tile.start for tile in program.tiles) * 64 * 2 * 2
    decode = [program for program in plan.programs if program.kernel == "decode"]
    seen = sum(n for n, rows in zip(case.context_lens, case.query_lens) if rows == 1)
    assert sum(program.bytes_read for program in decode) == seen * case.n_kv * 64 * 2 * 2


def test_a_long_sequence_is_cut_and_every_part_is_merged_once():
    plan = launch_plan(16, [list(range(256))], [0, 1], [4096], 32, 8, 128, 2)
    assert len(plan.programs) == 8 * 64
    assert {program.parts for program in plan.programs} == {64}
    assert [(merge.row, merge.parts) for merge in plan.merges] == [(0, 64)]
    assert all(plan.merged_by(program) == plan.merges for program in plan.programs)
    pages = [page for program in plan.programs if program.kv_head == 0 for tile in program.tiles for page in tile.pages]
    assert pages == list(range(256))


def test_where_nothing_is_cut_nothing_is_merged():
    plan = launch_plan(16, [[7, 2]] * 300, list(range(301)), [20] * 300, 8, 4, 64, 2, DeviceLimits())
    assert plan.merges == ()
    assert len(plan.programs) == 1200
    assert plan.programs[0].tiles[0].pages == (7, 2)


def test_heads_that_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match="5 query heads cannot share 2"):
        launch_plan(16, [[0]], [0, 1], [3], 5, 2, 64, 2)
