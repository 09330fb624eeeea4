"""One lookup, every field against arithmetic done here, at any time of a run."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import LookupFailed
from engine.events import RequestPreempted
from kernels.reference import paged_attention_reference
from kernels.torch_paged import slots_of


def engine_of(model, **settings) -> Engine:
    return Engine(model, EngineConfig(**{"block_size": 4, "num_blocks": 32} | settings))


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


@pytest.fixture
def running(tiny) -> Engine:
    """A: 11 prompt tokens and 3 sampled, of which the last has no slot; the pool was NaN before."""
    engine = engine_of(tiny)
    engine.runner.kv_cache.fill_(float("nan"))
    engine.add_request("hello world", greedy())
    for _ in range(3):
        engine.step()
    return engine


@pytest.mark.parametrize("layer, head", [(0, 0), (1, 1), (0, 2), (1, 3)])
@pytest.mark.parametrize("query_position, key_position", [(12, 6), (12, 12), (12, 0), (5, 5), (9, 2)])
def test_every_field_equals_independent_arithmetic(running, layer, head, query_position, key_position):
    engine, pool = running, running.runner.kv_cache
    found = engine.lookup("A", query_position, key_position, layer, head)
    table = engine.requests["A"].block_table.block_ids
    kv_head = head // 2
    slot = table[key_position // 4] * 4 + key_position % 4
    assert (found.request_id, found.query_position, found.key_position) == ("A", query_position, key_position)
    assert (found.layer, found.head, found.kv_head) == (layer, head, kv_head)
    assert (found.logical_block, found.block_offset) == (key_position // 4, key_position % 4)
    assert (found.physical_block, found.slot) == (table[key_position // 4], slot)
    assert found.step == (1 if query_position < 11 else query_position - 9)

    itemsize, stride = 4, 2 * 16
    assert found.slot_bytes == stride * itemsize
    assert found.byte_offset == slot * stride * itemsize
    assert found.address == pool.k_pool[layer].data_ptr() + slot * pool.k_pool[layer].stride(0) * itemsize
    assert found.address == pool.k_pool[layer, slot].data_ptr()
    assert (found.dtype, found.head_dim) == ("float32", 16)

    slots = torch.tensor([table[p // 4] * 4 + p % 4 for p in range(query_position + 1)])
    keys, values = pool.k_pool[layer, slots, kv_head], pool.v_pool[layer, slots, kv_head]
    assert torch.equal(found.key, keys[key_position])
    assert torch.equal(found.value, values[key_position])
    assert found.key_norm == pytest.approx(math.sqrt(sum(float(x) ** 2 for x in keys[key_position])), rel=1e-6)

    raw = [sum(float(a) * float(b) for a, b in zip(found.query, key)) for key in keys]
    scores = [x / math.sqrt(16) for x in raw]
    largest = max(scores)
    total = sum(math.exp(s - largest) for s in scores)
    weights = [math.exp(s - largest) / total for s in scores]
    # float32 against double: 24 bits, 16 products, values of order 10.
    assert found.scale == 0.25
    assert found.raw_dot == pytest.approx(raw[key_position], abs=1e-4)
    assert found.score == pytest.approx(scores[key_position], abs=1e-4)
    assert found.weight == pytest.approx(weights[key_position], abs=1e-5)
    assert found.weights.tolist() == pytest.approx(weights, abs=1e-5)
    output = [sum(w * float(v[i]) for w, v in zip(weights, values)) for i in range(16)]
    assert found.output_dense.tolist() == pytest.approx(output, abs=1e-4)
    assert found.output_paged.tolist() == pytest.approx(output, abs=1e-4)
    assert found.max_abs_difference == float((found.output_paged - found.output_dense).abs().max()) < 1e-5

    tokens = engine.trace.latest.requests["A"].tokens
    assert (found.token_text, found.query_text) == (tokens[key_position], tokens[query_position])
    assert (found.slot_state, found.slot_owner) == ("captured", ("A", key_position))
    assert found.slot_sentence == f"Slot {slot} still holds the captured bytes."


def test_the_query_is_the_one_the_kernel_had_and_the_output_the_oracles(running):
    engine, pool = running, running.runner.kv_cache
    slots = torch.tensor(engine.requests["A"].block_table.slots(0, 13))
    queries, _, _, _ = engine.capture.split(engine.capture.vectors("A", range(13), 1))
    oracle = paged_attention_reference(queries.transpose(0, 1)[None], pool.k_pool[1], pool.v_pool[1], slots)[0]
    for position in range(13):
        for head in range(4):
            found = engine.lookup("A", position, 0, 1, head)
            assert torch.equal(found.query, queries[position, head])
            torch.testing.assert_close(found.output_paged, oracle[head, position], atol=1e-5, rtol=0)


def test_without_a_query_the_newest_computed_one_asks(running):
    assert running.lookup("A", key_position=3).query_position == 12
    running.step()
    assert running.lookup("A", key_position=3).query_position == 13


def test_a_lookup_is_plain_json(running):
    out = json.loads(json.dumps(running.lookup("A", 12, 6).to_dict()))
    assert out["ok"] is True
    assert out["address"].startswith("0x")
    assert len(out["key"]) == len(out["query"]) == len(out["value"]) == 16
    assert len(out["weights"]) == 13
    assert out["token_text"] == "w"
    expected = {f.name for f in dataclasses.fields(running.lookup("A"))} | {"ok", "key_norm"}
    assert set(out) == expected


def test_a_token_that_is_no_text_is_shown_as_its_bytes(tiny):
    engine = engine_of(tiny)
    engine.generate(["é!"], greedy(2))
    assert engine.lookup("A", 2, 0).to_dict()["token_text"] == "c3"


# ---- when there is nothing to look up -------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("B", 0, 0, 0, 0), "There is no sequence B in this run. Pick one of: A."),
        (("", 0, 0, 0, 0), "There is no sequence  in this run"),
        ((None, 0, 0, 0, 0), "There is no sequence None in this run"),
        ((["A"], 0, 0, 0, 0), "There is no sequence ['A'] in this run"),
        (("A", 12, 0, 2, 0), "Layer 2 does not exist: the model has layers 0 to 1."),
        (("A", 12, 0, -1, 0), "Layer -1 does not exist"),
        (("A", 12, 0, 0, 4), "Head 4 does not exist: the model has query heads 0 to 3."),
        (("A", 12, 0, 0, -1), "Head -1 does not exist"),
        (("A", 14, 0, 0, 0), "A has no token 14: its tokens are A:0 to A:13."),
        (("A", 12, -1, 0, 0), "A has no token -1: its tokens are A:0 to A:13."),
        (
            ("A", 13, 0, 0, 0),
            "A:13 was sampled in this step and has no slot yet. It gets one when it is read in the next step.",
        ),
        (
            ("A", None, 13, 0, 0),
            "A:13 was sampled in this step and has no slot yet. It gets one when it is read in the next step.",
        ),
        (("A", 5, 6, 0, 0), "The query A:5 cannot see A:6: a token attends to itself and those before it."),
        (("A", 1.0, 0, 0, 0), "A lookup takes whole numbers"),
        (("A", 12, "0", 0, 0), "A lookup takes whole numbers"),
        (("A", 12, 0, True, 0), "A lookup takes whole numbers"),
        (("A", 12, 0, 0, None), "A lookup takes whole numbers"),
    ],
)
def test_a_lookup_of_nothing_says_why(running, arguments, words):
    with pytest.raises(LookupFailed) as caught:
        running.lookup(*arguments)
    assert str(caught.value).startswith(words)


def test_before_any_request_there_is_no_sequence_to_pick(tiny):
    with pytest.raises(LookupFailed, match=r"There is no sequence A in this run\. Pick one of: none yet\."):
        engine_of(tiny).lookup("A")


def test_a_request_that_waits_has_no_slots_yet(tiny):
    engine = engine_of(tiny)
    engine.add_request("abc", greedy())
    with pytest.raises(LookupFailed, match="A has no token with a slot yet"):
        engine.lookup("A")
    for query, key in ((1, 0), (2, 2)):
        with pytest.raises(LookupFailed, match=r"has no slot yet\. It gets one when a step computes it\."):
            engine.lookup("A", query, key)


def test_a_prompt_half_computed_says_what_has_no_slot(tiny):
    engine = engine_of(tiny, max_num_batched_tokens=5)
    engine.add_request("hello world", greedy())
    engine.step()
    assert engine.lookup("A").query_position == 4
    with pytest.raises(LookupFailed, match=r"A:7 has no slot yet\. It gets one when a step computes it\."):
        engine.lookup("A", 7, 0)


def test_with_capture_off_a_lookup_says_so(tiny):
    engine = engine_of(tiny, capture=False)
    engine.generate(["abc"], greedy(2))
    with pytest.raises(LookupFailed, match="capture is off"):
        engine.lookup("A")


def test_a_lookup_beyond_the_capture_budget_says_so(tiny):
    engine = engine_of(tiny, capture_bytes=40_000)
    engine.generate(["hello world"], greedy(30))
    with pytest.raises(
        LookupFailed, match=r"The vectors of A:0 to A:39 are no longer kept: the capture budget of 0 MiB is used up"
    ):
        engine.lookup("A")


# ---- at other times ------------------------------------------------------------------------------------


def test_a_finished_request_can_be_looked_up_and_its_bytes_are_still_there(tiny):
    engine = engine_of(tiny)
    engine.add_request("hello world", greedy(3))
    tables = []
    while engine.has_unfinished_requests():
        tables.append(list(engine.requests["A"].block_table.block_ids))
        engine.step()
    found = engine.lookup("A", None, 5)
    assert found.query_position == 12
    assert found.physical_block == tables[-1][1]
    assert found.slot_state == "freed"
    assert found.slot_owner is None
    assert (
        found.slot_sentence
        == f"Slot {found.slot} was given back; its bytes are still there until another sequence takes the block."
    )
    assert found.max_abs_difference < 1e-5
    with pytest.raises(LookupFailed, match=r"A:13 never got a slot: A ended before a step computed it\."):
        engine.lookup("A", 13, 0)


def test_a_request_that_ends_in_its_first_step_can_be_looked_up(tiny):
    engine = engine_of(tiny)
    engine.generate(["hello"], greedy(1))
    assert engine.lookup("A", 4, 2).slot_state == "freed"


def test_an_aborted_request_can_be_looked_up(tiny):
    engine = engine_of(tiny)
    engine.add_request("hello world", greedy())
    engine.step()
    engine.abort("A")
    assert engine.lookup("A", 10, 3).slot_state == "freed"


def test_a_request_aborted_while_it_waited_never_got_a_slot(tiny):
    engine = engine_of(tiny)
    engine.add_request("hello", greedy())
    engine.abort("A")
    with pytest.raises(LookupFailed, match="A:0 never got a slot"):
        engine.lookup("A", 3, 0)
    with pytest.raises(LookupFailed, match="A has no token with a slot"):
        engine.lookup("A")


def test_after_the_block_was_reused_the_captured_bytes_are_still_shown(tiny):
    engine = engine_of(tiny, num_blocks=4, enable_prefix_caching=False)
    engine.generate(["hello world"], greedy(2))
    before = engine.lookup("A", 11, 6)
    engine.add_request("other words", greedy(4))
    engine.step()
    after = engine.lookup("A", 11, 6)
    assert before.slot_state == "freed"
    assert after.slot_state == "reused"
    owner, position = after.slot_owner
    assert owner == "B"
    assert engine.requests["B"].block_table.slot(position) == after.slot == before.slot
    assert (
        after.slot_sentence == f"Slot {after.slot} belongs to B:{position} now. The bytes shown are those captured at step 1."
    )
    for name in ("key", "query", "value", "weights", "output_paged"):
        assert torch.equal(getattr(after, name), getattr(before, name))
    while engine.has_unfinished_requests():
        engine.step()
    gone = engine.lookup("A", 11, 6)
    assert (gone.slot_state, gone.slot_owner) == ("reused", None)
    assert (
        gone.slot_sentence
        == f"Slot {gone.slot} was given back and written again since. The bytes shown are those captured at step 1."
    )


def test_a_reused_block_not_yet_written_that_far_still_holds_the_bytes(tiny):
    engine = engine_of(tiny, num_blocks=1, enable_prefix_caching=False)
    engine.generate([[1, 2, 3]], greedy(1))
    engine.add_request([9], greedy(2))
    engine.step()
    found = engine.lookup("A", 2, 2)
    assert found.slot_state == "freed"
    assert found.slot_owner == ("B", 2)
    assert found.slot_sentence == f"Slot {found.slot} was given back; its bytes are still there until B:2 is written over them."


def test_a_key_overwritten_behind_the_engines_back_is_noticed(running):
    found = running.lookup("A", 12, 6)
    running.runner.kv_cache.k_pool[0, found.slot] += 1
    spoiled = running.lookup("A", 12, 6)
    assert spoiled.slot_state == "reused"
    assert torch.equal(spoiled.key, found.key)


def test_positions_found_in_the_pool_are_looked_up_like_computed_ones(tiny):
    engine = engine_of(tiny)
    engine.generate(["hello world"], greedy(3))
    engine.add_request("hello world", greedy(3))
    engine.step()
    step = engine.step_count
    assert engine.requests["B"].num_cached_tokens == 8
    for query, key in ((10, 5), (7, 5), (3, 0), (10, 9)):
        found = engine.lookup("B", query, key)
        assert found.step == step
        assert found.slot_state == "captured"
        assert found.slot_owner == ("B", key)
        assert found.slot == engine.requests["B"].block_table.slot(key)
        assert torch.equal(found.key, engine.runner.kv_cache.k_pool[0, found.slot, 0])
        assert found.max_abs_difference < 1e-5


def test_each_holder_of_a_shared_block_sees_its_own_position(tiny):
    engine = engine_of(tiny)
    for prompt in ("hello world", "hello there"):
        engine.add_request(prompt, greedy(6))
        engine.step()
    for name in ("A", "B"):
        found = engine.lookup(name, 10, 1)
        assert (found.slot_state, found.slot_owner) == ("captured", (name, 1))
        assert found.slot_sentence == f"Slot {found.slot} still holds the captured bytes."
    engine.abort("B")
    found = engine.lookup("B", 10, 1)
    assert found.slot_sentence == f"Slot {found.slot} belongs to A:1 now and still holds the captured bytes."


def test_positions_cached_by_an_earlier_run_can_be_looked_up(tiny):
    engine = engine_of(tiny)
    first = engine.generate(["hello world"], greedy(3))[0]
    weights = engine.lookup("A", 7, 5).weights
    engine.reset(keep_cache=True)
    engine.add_request("hello world", greedy(3))
    engine.step()
    found = engine.lookup("A", 7, 5)
    assert found.step == 1
    assert found.slot_state == "captured"
    assert torch.equal(found.weights, weights)
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.output("A").token_ids == first.token_ids


def test_a_trace_set_aside_at_a_reset_keeps_its_own_vectors(tiny):
    from engine.lookup import look_up

    engine = engine_of(tiny)
    engine.generate(["hello world"], greedy(3))
    old, before = engine.trace, engine.lookup("A", 10, 4)
    engine.reset()
    engine.generate(["quite another text"], greedy(3))
    assert torch.equal(look_up(old, "A", 10, 4, 0, 0).key, before.key)
    assert not torch.equal(engine.lookup("A", 10, 4).key, before.key)


def test_after_a_preemption_the_recomputed_vectors_and_their_new_slots_are_shown(tiny):
    engine = engine_of(tiny, num_blocks=12, enable_prefix_caching=False, watermark=0.0)
    for i in range(4):
        engine.add_request([10 * i + j for j in range(5)], greedy(24))
    while not any(isinstance(e, RequestPreempted) for e in engine.trace.events):
        engine.step()
    assert engine.requests["D"].status.value == "waiting"
    lost = engine.lookup("D", None, 2)
    assert lost.query_position == 11
    assert lost.slot_state in ("freed", "reused")
    while engine.requests["D"].num_computed_tokens < 13:
        engine.step()
    found = engine.lookup("D", 11, 2)
    assert found.slot == engine.requests["D"].block_table.slot(2)
    assert (found.slot_state, found.slot_owner) == ("captured", ("D", 2))
    assert found.step > lost.step
    # The same sums over other batch mates: float32, keys of order 1.
    torch.testing.assert_close(found.key, lost.key, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.weights, lost.weights, atol=1e-4, rtol=0)


def test_a_lookup_at_any_time_of_a_tight_run_agrees_with_the_slots_written_then(tiny):
    engine = engine_of(tiny, num_blocks=12, max_num_batched_tokens=7)
    for i in range(4):
        engine.add_request([7, 7, 7, 7, i], greedy(20))
    while engine.has_unfinished_requests():
        engine.step()
        for name, request in engine.requests.items():
            num = request.num_computed_tokens
            if request.status.value == "running" and num:
                for query, key in ((num - 1, 0), (num - 1, num - 1), (num // 2, num // 3)):
                    found = engine.lookup(name, query, key, layer=1, head=3)
                    assert found.slot == request.block_table.slot(key)
                    assert found.slot_state == "captured"
                    assert found.max_abs_difference < 1e-5


def test_a_lookup_during_the_forward_pass_finds_the_past_or_says_what_has_no_slot(tiny):
    """As another thread does it: the lock is free while the model runs, and the step's own positions are not captured yet."""
    engine = engine_of(tiny, num_blocks=12, max_num_batched_tokens=7)
    execute, found, failed = engine.runner.execute, 0, 0

    def watched(plan, capture):
        nonlocal found, failed
        result = execute(plan, capture)
        for name, state in engine.trace.latest.requests.items():
            for query in (None, 0, len(state.tokens) - 1, state.num_computed_tokens):
                try:
                    engine.lookup(name, query, 0)
                    found += 1
                except LookupFailed:
                    failed += 1
        return result

    engine.runner.execute = watched
    for i in range(4):
        engine.add_request([7, 7, 7, 7, i], greedy(20))
    while engine.has_unfinished_requests():
        engine.step()
        engine.audit()
    assert found > 100
    assert failed > 100


def test_the_scale_is_the_models_own(tiny):
    model = dataclasses.replace(tiny, model=copy.deepcopy(tiny.model))
    for layer in model.model.model.layers:
        layer.self_attn.scaling = 0.1
    engine = engine_of(model)
    engine.generate(["hello world"], greedy(2))
    found = engine.lookup("A", 10, 3)
    assert found.scale == 0.1
    assert found.score == pytest.approx(found.raw_dot * 0.1, abs=1e-6)
    assert found.max_abs_difference < 1e-5


# ---- the strongest test: move one position ---------------------------------------------------------------


def test_changing_the_last_positions_k_and_v_moves_the_last_query_and_no_earlier_one(running):
    from kernels.dispatch import make_backend
    from kernels.metadata import AttentionMetadata

    pool = running.runner.kv_cache
    table = torch.tensor([running.requests["A"].block_table.block_ids])
    queries, _, _, captured = running.capture.split(running.capture.vectors("A", range(13), 0))
    metadata = AttentionMetadata(4, torch.full((13,), -1), table, [0, 13], [13])

    def outputs():
        return make_backend("torch", metadata)(queries.contiguous(), pool.k_pool[0], pool.v_pool[0], metadata, 0.25)

    before = outputs()
    torch.testing.assert_close(before, captured, atol=1e-5, rtol=0)
    last = int(slots_of(metadata, 0)[-1])
    pool.k_pool[0, last] += 1.0
    pool.v_pool[0, last] -= 1.0
    after = outputs()
    assert torch.equal(after[:-1], before[:-1])
    assert (after[-1] != before[-1]).any(dim=-1).all()
