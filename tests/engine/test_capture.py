"""What is kept of every token, within a budget."""

from __future__ import annotations

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.capture import Capture
from engine.events import SlotsWritten

N_Q, N_KV, D, LAYERS = 4, 2, 8, 3


def rows(num: int, start: float = 0.0) -> torch.Tensor:
    heads = 2 * N_Q + 2 * N_KV
    return torch.arange(LAYERS * num * heads * D, dtype=torch.float32).view(LAYERS, num, heads, D) + start


def capture(budget: int = 1 << 20) -> Capture:
    return Capture(N_Q, N_KV, budget)


def written(request_id: str, position: int, *slots: int) -> SlotsWritten:
    return SlotsWritten(1, request_id, position, slots)


def test_a_row_is_found_by_request_and_position_in_every_layer():
    kept, data = capture(), rows(3)
    kept.add(1, data, [written("A", 0, 10, 11), written("B", 0, 20)])
    for layer in range(LAYERS):
        assert torch.equal(kept.vectors("A", [1, 0], layer), data[layer, [1, 0]])
    assert torch.equal(kept.row("B", 0), data[:, 2])
    assert kept.vectors("B", [0, 1], 0) is None
    assert kept.row("C", 0) is None
    assert kept.positions() == {"A": [0, 1], "B": [0]}


def test_a_row_splits_into_query_key_value_and_output():
    kept, data = capture(), rows(1)
    query, key, value, output = kept.split(data[0])
    assert [x.shape[-2] for x in (query, key, value, output)] == [N_Q, N_KV, N_KV, N_Q]
    assert torch.equal(torch.cat((query, key, value, output), dim=-2), data[0])


def test_a_position_computed_again_has_its_newest_vectors():
    kept = capture()
    kept.add(1, rows(1), [written("A", 0, 10)])
    kept.add(5, rows(1, 0.5), [written("A", 0, 33)])
    assert torch.equal(kept.row("A", 0), rows(1, 0.5)[:, 0])
    assert kept.step_of("A", 0) == 5


def test_beyond_the_budget_the_oldest_steps_are_dropped_first():
    one = rows(2).numel() * 4
    kept = capture(2 * one)
    for step in (1, 2, 3):
        kept.add(step, rows(2), [written("A", 2 * step, 0, 1)])
        assert kept.num_bytes <= 2 * one
    assert kept.num_bytes == 2 * one
    assert kept.positions() == {"A": [4, 5, 6, 7]}
    assert kept.vectors("A", [3, 4], 0) is None
    assert kept.step_of("A", 2) == 1  # it is known that the step was there


def test_a_budget_of_nothing_keeps_nothing():
    kept = capture(0)
    kept.add(1, rows(2), [written("A", 0, 0, 1)])
    assert (kept.num_bytes, kept.positions()) == (0, {"A": []})


def test_a_linked_position_has_the_vectors_of_the_slot_and_the_step_of_the_link():
    kept, data = capture(), rows(2)
    kept.add(1, data, [written("A", 0, 10, 11)])
    kept.link(7, "B", range(2), range(10, 12))
    assert torch.equal(kept.row("B", 1), data[:, 1])
    assert kept.step_of("B", 1) == 7
    assert kept.step_of("A", 1) == 1


def test_a_link_to_a_slot_nobody_captured_is_no_row():
    kept = capture()
    kept.link(1, "B", [0], [99])
    assert kept.row("B", 0) is None


def test_rows_of_nobody_are_not_kept_findable():
    kept = capture()
    kept.add(1, rows(2), [1, written("A", 0, 5)])
    assert torch.equal(kept.row("A", 0), rows(2)[:, 1])


@pytest.mark.parametrize("keep_slots", [True, False])
def test_the_next_run_names_requests_afresh_and_the_last_one_keeps_its_own(keep_slots):
    kept, data = capture(), rows(2)
    kept.add(9, data, [written("A", 0, 10, 11)])
    after = kept.next_run(keep_slots)
    assert after.row("A", 0) is None
    after.link(1, "A", [0], [11])
    assert (after.row("A", 0) is not None) is keep_slots
    assert torch.equal(kept.row("A", 0), data[:, 0])
    assert after.num_bytes == (kept.num_bytes if keep_slots else 0)


def test_runs_that_keep_the_pool_share_one_budget():
    one = rows(2).numel() * 4
    first = capture(2 * one)
    first.add(1, rows(2), [written("A", 0, 0, 1)])
    second = first.next_run(keep_slots=True)
    second.add(1, rows(2), [written("A", 0, 4, 5)])
    assert first.positions() == {"A": [0, 1]}
    second.add(2, rows(2), [written("A", 2, 6, 7)])
    assert first.positions() == {"A": []}
    assert second.num_bytes == 2 * one


# ---- in the engine ---------------------------------------------------------------------------------------


def test_every_computed_position_of_a_run_is_kept_and_its_k_and_v_are_those_in_the_pool(tiny):
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=32))
    rid = engine.add_request("hello world", SamplingParams(max_tokens=5, ignore_eos=True))
    for _ in range(4):
        engine.step()
    request, pool = engine.requests[rid], engine.runner.kv_cache
    assert engine.capture.positions() == {rid: list(range(request.num_computed_tokens))}
    for position in range(request.num_computed_tokens):
        slot = request.block_table.slot(position)
        _, key, value, _ = engine.capture.split(engine.capture.row(rid, position))
        assert torch.equal(key, pool.k_pool[:, slot])
        assert torch.equal(value, pool.v_pool[:, slot])


def test_without_capture_nothing_is_kept_and_the_text_is_the_same(tiny):
    outputs = []
    for on in (True, False):
        engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=32, capture=on))
        outputs.append(engine.generate(["hello world"], SamplingParams(max_tokens=5))[0].token_ids)
        assert (engine.capture is None) is not on
    assert outputs[0] == outputs[1]


def test_the_engine_stays_within_its_capture_budget(tiny):
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=32, capture_bytes=20_000))
    engine.generate(["hello world"], SamplingParams(max_tokens=30, ignore_eos=True))
    assert 0 < engine.capture.num_bytes <= 20_000
    per_row = 2 * 12 * 16 * 4
    assert engine.capture.positions()["A"] == list(range(40 - 20_000 // per_row, 40))


def test_what_is_known_of_a_copied_slot_holds_for_its_target_and_what_is_not_known_is_forgotten_there():
    kept = capture()
    kept.add(1, rows(1), [written("A", 0, 4)])
    kept.add(2, rows(1, 50.0), [written("B", 0, 9)])
    kept.copy_slots([4, 5], [8, 9])
    kept.link(3, "C", range(2), [8, 9])
    assert torch.equal(kept.vectors("C", [0], 0), kept.vectors("A", [0], 0))
    assert kept.step_of("C", 0) == 3
    assert kept.vectors("C", [1], 0) is None
