"""The engine from the outside: requests in, texts out, whatever is asked of it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.engine import letters
from engine.errors import ConfigError, PagewalkError, RequestError
from engine.events import RequestAdded, RequestFinished, RequestPreempted, RequestRefused, StepTimed
from engine.model_runner import ForwardResult
from tests.engine.helpers import assert_all_free, assert_replay_is_live, without_forward_pass


def engine_of(model, **settings) -> Engine:
    return Engine(model, EngineConfig(**{"block_size": 4, "num_blocks": 32} | settings))


def greedy(max_tokens: int = 8, **more) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **more)


def texts(engine: Engine, prompts, params=None) -> list[list[int]]:
    return [output.token_ids for output in engine.generate(prompts, params or greedy())]


def run_audited(engine: Engine) -> None:
    while engine.has_unfinished_requests():
        engine.step()
        engine.audit()


PROMPTS = ["one", "two and more", "three " * 5, "4"]


@pytest.fixture(scope="module")
def expected(tiny):
    """Each prompt alone in a large pool, on the frozen oracle."""
    each = []
    for prompt in PROMPTS:
        engine = engine_of(tiny, num_blocks=64, attention_backend="reference", enable_prefix_caching=False)
        each += texts(engine, [prompt], greedy(12))
    return each


# ---- the same text, however it is run -----------------------------------------------------------------


@pytest.mark.parametrize("block_size", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_a_batch_says_what_each_prompt_says_alone_at_any_block_size(tiny, expected, block_size, caching):  # E2, E22
    engine = engine_of(tiny, block_size=block_size, num_blocks=-(-200 // block_size) + 4, enable_prefix_caching=caching)
    engine.runner.kv_cache.fill_(float("nan"))
    assert texts(engine, PROMPTS, greedy(12)) == expected


@pytest.mark.parametrize("budget", [1, 3, 7])
def test_chunked_prefill_says_the_same_text(tiny, expected, budget):
    engine = engine_of(tiny, max_num_batched_tokens=budget)
    engine.runner.kv_cache.fill_(float("nan"))
    assert texts(engine, PROMPTS, greedy(12)) == expected


def test_the_reference_backend_says_the_same_text(tiny, expected):
    assert texts(engine_of(tiny, attention_backend="reference"), PROMPTS, greedy(12)) == expected


def test_a_poisoned_pool_and_a_clean_one_give_the_same_text(tiny):  # P24
    runs = []
    for fill in (float("nan"), 0.0, float("inf")):
        engine = engine_of(tiny)
        engine.runner.kv_cache.fill_(fill)
        runs.append(texts(engine, [list(range(10))]))
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("caching", [True, False])
def test_a_preempted_request_says_the_same_text(tiny, expected, caching):  # P13, E19
    engine = engine_of(tiny, num_blocks=12, enable_prefix_caching=caching)
    engine.runner.kv_cache.fill_(float("nan"))
    ids = [engine.add_request(prompt, greedy(12)) for prompt in PROMPTS]
    run_audited(engine)
    assert sum(isinstance(e, RequestPreempted) for e in engine.trace.events) >= 1
    assert [engine.output(i).token_ids for i in ids] == expected
    assert_all_free(engine)


@pytest.mark.parametrize(
    "num, blocks, iterations, preemptions, recomputed",
    [(4, 12, 44, 3, 55), (4, 24, 28, 1, 25), (4, 32, 24, 0, 0), (6, 12, 64, 7, 107), (6, 8, 100, 8, 96)],
)
def test_the_scheduling_figures_hold_with_a_model_and_the_texts_are_those_of_a_large_pool(
    tiny, num, blocks, iterations, preemptions, recomputed
):  # P13, P14
    prompts = [[10 * i + j for j in range(5)] for i in range(num)]
    settings = {"enable_prefix_caching": False, "watermark": 0.0}
    large = texts(engine_of(tiny, num_blocks=64, **settings), prompts, greedy(24))
    engine = engine_of(tiny, num_blocks=blocks, **settings)
    outputs = engine.generate(prompts, greedy(24))
    assert engine.step_count == iterations
    assert sum(o.num_preemptions for o in outputs) == preemptions
    assert sum(o.num_recomputed_tokens for o in outputs) == recomputed
    assert [o.token_ids for o in outputs] == large
    assert [len(o.token_ids) for o in outputs] == [24] * num


def test_the_same_prompt_four_times_says_the_same_text(tiny):  # P29
    engine = engine_of(tiny)
    outputs = [engine.generate(["hello world"], greedy())[0] for _ in range(4)]
    assert len({tuple(o.token_ids) for o in outputs}) == 1
    assert [o.num_cached_tokens for o in outputs] == [0, 8, 8, 8]


def test_a_cached_prompt_computes_at_least_one_token_and_gives_the_same_logits(tiny):  # P03
    engine = engine_of(tiny, capture=False)
    seen: list[torch.Tensor] = []
    execute = engine.runner.execute
    engine.runner.execute = lambda plan, capture: (result := execute(plan, capture), seen.append(result.logits))[0]
    outputs = [engine.generate([list(range(8))], greedy(1))[0] for _ in range(2)]
    assert [o.num_cached_tokens for o in outputs] == [0, 4]
    assert [e.num_tokens for e in engine.trace.timings()] == [8, 4]
    # One pass of 8 rows against one of 4: the same sums in another order, float32, logits of order 10.
    torch.testing.assert_close(seen[0], seen[1], atol=1e-4, rtol=0)


def test_a_prompt_whose_blocks_were_reused_misses_and_says_the_same_text(tiny):  # P04
    engine = engine_of(tiny, num_blocks=4)
    a, b = list(range(8)), list(range(100, 113))
    first = engine.generate([a], greedy(1))[0]
    engine.generate([b], greedy(4))
    again = engine.generate([a], greedy(1))[0]
    assert again.num_cached_tokens == 0
    assert again.token_ids == first.token_ids


def test_two_equal_prompts_in_one_step_both_compute(tiny):  # E12
    engine = engine_of(tiny)
    engine.runner.kv_cache.fill_(float("nan"))
    a, b = engine.generate([list(range(9))] * 2, greedy())
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 0)
    assert a.token_ids == b.token_ids


def test_prompts_that_share_a_beginning_share_its_blocks(tiny):
    engine = engine_of(tiny)
    first = engine.add_request([*range(8), 50], greedy(4))
    engine.step()
    second = engine.add_request([*range(8), 60], greedy(4))
    engine.step()
    engine.audit()
    tables = [engine.requests[name].block_table.block_ids for name in (first, second)]
    assert tables[0][:2] == tables[1][:2]
    assert engine.trace.latest.num_shared_blocks == 2
    run_audited(engine)
    alone = [texts(engine_of(tiny, enable_prefix_caching=False), [[*range(8), last]], greedy(4))[0] for last in (50, 60)]
    assert [engine.output(name).token_ids for name in (first, second)] == alone


def test_sampled_text_depends_on_the_seed_and_not_on_the_batch(tiny):
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=11, ignore_eos=True)
    alone = texts(engine_of(tiny), ["abc"], params)[0]
    together = texts(engine_of(tiny, seed=5), ["xyz", "abc"], params)[1]
    assert alone == together


def test_sampled_text_survives_preemption(tiny):
    params = SamplingParams(max_tokens=24, temperature=1.0, ignore_eos=True)
    prompts = [[10 * i + j for j in range(5)] for i in range(4)]
    runs = [engine_of(tiny, num_blocks=n).generate(prompts, params) for n in (12, 64)]
    assert sum(o.num_preemptions for o in runs[0]) > 0
    assert [o.token_ids for o in runs[0]] == [o.token_ids for o in runs[1]]


def test_two_engines_over_one_model_do_not_touch_each_other(tiny):
    first, second = engine_of(tiny), engine_of(tiny, block_size=2)
    a, b = first.add_request("one", greedy(12)), second.add_request("two and more", greedy(12))
    while first.has_unfinished_requests() or second.has_unfinished_requests():
        first.step()
        second.step()
    alone = [texts(engine_of(tiny), [p], greedy(12))[0] for p in ("one", "two and more")]
    assert [first.output(a).token_ids, second.output(b).token_ids] == alone


# ---- how a request ends -----------------------------------------------------------------------------


def test_a_request_ends_at_any_of_several_end_of_text_ids(tiny):  # P47
    plain = texts(engine_of(tiny), ["abc"], greedy(8))[0]
    for index, eos in enumerate(dict.fromkeys(plain)):
        model = dataclasses.replace(tiny, eos_token_ids=frozenset({eos, 299, 300}))
        output = engine_of(model).generate(["abc"], SamplingParams(max_tokens=8))[0]
        assert output.finish_reason == "stop"
        assert output.token_ids == plain[: plain.index(eos) + 1]
        if index == 2:
            break
    model = dataclasses.replace(tiny, eos_token_ids=frozenset(plain))
    assert texts(engine_of(model), ["abc"], greedy(8))[0] == plain  # ignore_eos


def test_an_end_of_text_token_is_no_part_of_the_text_and_a_stop_token_neither(tiny):
    plain = engine_of(tiny).generate(["abc"], greedy(8))[0]
    model = dataclasses.replace(tiny, eos_token_ids=frozenset({plain.token_ids[3]}))
    by_eos = engine_of(model).generate(["abc"], SamplingParams(max_tokens=8))[0]
    by_id = engine_of(tiny).generate(["abc"], greedy(8, stop_token_ids=[plain.token_ids[3]]))[0]
    assert by_eos.text == by_id.text
    assert by_eos.token_ids == by_id.token_ids
    assert plain.text.startswith(by_eos.text)


def scripted(model, script: list[int], **settings) -> Engine:
    """An engine whose only request says exactly `script`."""
    engine = without_forward_pass(model, EngineConfig(**{"block_size": 4, "num_blocks": 32, "capture": False} | settings))

    def execute(plan, capture):
        logits = torch.zeros(sum(item.samples for item in plan), model.vocab_size)
        for row, item in enumerate(item for item in plan if item.samples):
            logits[row, script[item.request.num_output_tokens]] = 1.0
        return ForwardResult(logits, None)

    engine.runner.execute = execute
    return engine


def ids_of(model, text: str) -> list[int]:
    return model.tokenizer(text).input_ids


def test_a_stop_string_ends_the_output_and_nothing_of_it_is_shown(tiny):
    engine = scripted(tiny, ids_of(tiny, "abcDEFGHIJxyz"))
    rid = engine.add_request("p", SamplingParams(max_tokens=13, stop=["DEFGHIJ"]))
    shown = ""
    while engine.has_unfinished_requests():
        shown += engine.step().texts[rid]
    output = engine.output(rid)
    assert (shown, output.text, output.finish_reason) == ("abc", "abc", "stop")
    assert len(output.token_ids) == 10


def test_the_beginning_of_a_stop_string_is_shown_when_the_output_ends_without_it(tiny):
    engine = scripted(tiny, ids_of(tiny, "abcDEF"))
    output = engine.generate(["p"], SamplingParams(max_tokens=6, stop=["DEFGHIJ"]))[0]
    assert (output.text, output.finish_reason) == ("abcDEF", "length")


def test_an_aborted_output_keeps_what_was_held_back(tiny):
    engine = scripted(tiny, ids_of(tiny, "abcDEFxxx"))
    rid = engine.add_request("p", SamplingParams(max_tokens=9, stop=["DEFGHIJ"]))
    for _ in range(6):
        engine.step()
    assert engine.output(rid).text == "abc"
    engine.abort(rid)
    assert (engine.output(rid).text, engine.output(rid).finish_reason) == ("abcDEF", "abort")


def test_a_character_of_several_tokens_is_shown_once_whole(tiny):
    engine = scripted(tiny, ids_of(tiny, "a😀b"))
    rid = engine.add_request("p", SamplingParams(max_tokens=6))
    pieces = []
    while engine.has_unfinished_requests():
        pieces.append(engine.step().texts[rid])
    assert pieces == ["a", "", "", "", "😀", "b"]


def test_the_pieces_of_every_step_join_to_the_text(tiny):
    engine = engine_of(tiny)
    ids = [engine.add_request(prompt, greedy(12)) for prompt in PROMPTS]
    pieces = dict.fromkeys(ids, "")
    tokens: dict[str, list[int]] = {name: [] for name in ids}
    while engine.has_unfinished_requests():
        out = engine.step()
        for name in out.texts:
            pieces[name] += out.texts[name]
            tokens[name].append(out.tokens[name])
    assert all(engine.output(name).text == pieces[name] for name in ids)
    assert all(engine.output(name).token_ids == tokens[name] for name in ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_nan_end_that_request_and_no_other(tiny, temperature):
    engine = engine_of(tiny, capture=False)
    execute = engine.runner.execute

    def poisoned(plan, capture):
        result = execute(plan, capture)
        names = [item.request.request_id for item in plan if item.samples]
        if engine.step_count == 3 and "B" in names:
            result.logits[names.index("B")] = float("nan")
        return result

    engine.runner.execute = torch.inference_mode()(poisoned)
    a, b = engine.generate(["abc", "defg"], greedy(6, temperature=temperature))
    engine.audit()
    assert (a.finish_reason, len(a.token_ids)) == ("length", 6)
    assert (b.finish_reason, len(b.token_ids)) == ("error", 2)
    (event,) = [e for e in engine.trace.events if isinstance(e, RequestFinished) and e.finish_reason == "error"]
    assert (event.request_id, event.step) == ("B", 3)
    assert "no finite score" in event.reason
    assert_all_free(engine)


# ---- aborts -------------------------------------------------------------------------------------------


def test_after_an_abort_every_block_is_free_at_once(tiny):
    engine = engine_of(tiny)
    ids = [engine.add_request(prompt, greedy(20)) for prompt in PROMPTS]
    for _ in range(3):
        engine.step()
    for name in ids:
        engine.abort(name)
        engine.audit()
    assert_all_free(engine)
    assert not engine.has_unfinished_requests()
    assert engine.step().events == []


def test_aborting_twice_or_somebody_unknown_does_nothing(tiny):
    engine = engine_of(tiny)
    rid = engine.add_request("abc", greedy())
    engine.step()
    engine.abort(rid)
    events = len(engine.trace.events)
    for name in (rid, rid, "ZZ", "", None):
        engine.abort(name)
    assert len(engine.trace.events) == events
    engine.audit()


def test_a_waiting_and_a_preempted_request_can_be_aborted(tiny):
    engine = engine_of(tiny, num_blocks=8, max_num_seqs=2)
    ids = [engine.add_request([10 * i + j for j in range(5)], greedy(24)) for i in range(3)]
    while not any(isinstance(e, RequestPreempted) for e in engine.trace.events):
        engine.step()
    engine.abort(ids[2])
    engine.abort(ids[1])
    engine.audit()
    assert [engine.output(name).finish_reason for name in ids] == [None, "abort", "abort"]
    run_audited(engine)
    assert len(engine.output(ids[0]).token_ids) == 24


@pytest.mark.parametrize("capture", [True, False])
def test_a_request_stopped_during_the_forward_pass_gets_nothing_written_or_sampled(tiny, capture):
    engine = engine_of(tiny, capture=capture)
    execute = engine.runner.execute

    def interrupted(plan, capture):
        result = execute(plan, capture)
        if engine.step_count == 2:
            engine.abort("A")  # another thread pressed Stop
        return result

    engine.runner.execute = interrupted
    a, b = (engine.add_request(prompt, greedy(4)) for prompt in ("abcdef", "xy"))
    run_audited(engine)
    assert_replay_is_live(engine)
    assert (engine.output(a).finish_reason, len(engine.output(a).token_ids)) == ("abort", 1)
    assert engine.output(b).token_ids == texts(engine_of(tiny), ["xy"], greedy(4))[0]


def test_a_forward_pass_that_fails_leaves_books_that_can_go_on(tiny):
    engine = engine_of(tiny)
    plain = texts(engine_of(tiny), ["abcdef", "xy"], greedy(4))
    execute = engine.runner.execute

    def failing(plan, capture):
        if engine.step_count in (1, 3):
            raise torch.OutOfMemoryError("no memory")
        return execute(plan, capture)

    engine.runner.execute = failing
    ids = [engine.add_request(prompt, greedy(4)) for prompt in ("abcdef", "xy")]
    failures = 0
    while engine.has_unfinished_requests():
        try:
            engine.step()
        except torch.OutOfMemoryError:
            failures += 1
    assert failures == 2
    assert [engine.output(name).token_ids for name in ids] == plain
    engine.audit()
    assert_all_free(engine)


def test_after_a_failed_pass_everything_can_be_aborted(tiny):
    engine = engine_of(tiny)

    def failing(plan, capture):
        raise RuntimeError("broken")

    engine.runner.execute = failing
    rid = engine.add_request("abcdef", greedy(4))
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    engine.abort(rid)
    engine.audit()
    assert_all_free(engine)


# ---- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t", [], ()])
def test_an_empty_prompt_is_refused_and_the_next_one_works(tiny, prompt):  # P48
    engine = engine_of(tiny)
    with pytest.raises(RequestError, match="The prompt is empty"):
        engine.add_request(prompt)
    assert engine.requests == {}
    (event,) = engine.trace.events
    assert isinstance(event, RequestRefused)
    assert len(engine.generate(["ok"], greedy(2))[0].token_ids) == 2


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        3.5,
        b"abc",
        bytearray(b"abc"),
        {"role": "user", "content": "x"},
        {1, 2},
        iter([1, 2]),
        object(),
        torch.tensor([1, 2]),
    ],
    ids=lambda p: type(p).__name__,
)
def test_a_prompt_of_another_type_is_refused_by_name(tiny, prompt):
    engine = engine_of(tiny)
    with pytest.raises(RequestError, match="A prompt is text, chat messages or token ids, not"):
        engine.add_request(prompt)
    engine.audit()
    assert engine.requests == {}


@pytest.mark.parametrize(
    "ids", [[258 + 100], [-1], [1, 2, 10**20], [True], [1.0], ["a", "b"], [None], [[1]], [{"role": "user"}, 3]]
)
def test_token_ids_out_of_the_vocabulary_are_refused(tiny, ids):
    engine = engine_of(tiny)
    with pytest.raises(RequestError):
        engine.add_request(ids)
    assert engine.requests == {}
    assert len(engine.generate([[0, tiny.vocab_size - 1]], greedy(2))[0].token_ids) == 2


@pytest.mark.parametrize(
    "messages", [[{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 5}], [{}], [{"role": 1, "content": "x"}]]
)
def test_chat_messages_without_role_or_text_are_refused(tiny, messages):
    engine = engine_of(tiny)
    with pytest.raises(RequestError):
        engine.add_request(messages)
    assert len(engine.generate([[{"role": "user", "content": "hi"}]], greedy(2))[0].token_ids) == 2


def test_half_a_character_is_refused(tiny):
    engine = engine_of(tiny)
    with pytest.raises(RequestError):
        engine.add_request("a\ud800b")
    engine.audit()


def test_any_other_text_is_accepted_and_comes_back(tiny):
    engine = engine_of(tiny, num_blocks=256)
    for text in (
        "\0",
        "é",
        "😀" * 3,
        "‮abc",
        "<|end|>",
        "<|start|>",
        "x\r\n",
        "a" * 300,
        "<img src=x onerror=alert(1)>",
        "${x}`",
    ):
        output = engine.generate([text], SamplingParams(max_tokens=1))[0]
        assert output.prompt == text
        state = engine.trace.latest.requests[output.request_id]
        joined = b"".join(t.encode() if isinstance(t, str) else t for t in state.tokens[: state.num_prompt_tokens])
        assert joined.decode() == text


def test_a_request_that_could_never_finish_is_refused_with_the_numbers_and_later_ones_run(tiny):  # P07, P08, E1
    engine = engine_of(tiny, block_size=16, num_blocks=8)
    with pytest.raises(RequestError, match="150 prompt tokens and 8 new ones need 10 blocks of 16; the pool has 8"):
        engine.add_request([1] * 150, greedy(8))
    with pytest.raises(RequestError, match="the model reads at most 512"):
        engine.add_request([1] * 20, greedy(1 << 24))
    refused = [e for e in engine.trace.events if isinstance(e, RequestRefused)]
    assert [e.reason.split(";")[0] for e in refused] == [
        "150 prompt tokens and 8 new ones need 10 blocks of 16",
        "20 prompt tokens and 16,777,216 new ones make 16,777,236",
    ]
    assert len(engine.generate([[1] * 100], greedy(8))[0].token_ids) == 8
    small = engine_of(tiny, num_blocks=2)
    with pytest.raises(RequestError):
        small.generate([[1] * 8], greedy(5))
    assert not small.has_unfinished_requests()
    assert len(small.generate([[1] * 8], greedy(1))[0].token_ids) == 1


def test_no_new_tokens_is_a_clear_error_and_the_pool_stays_whole(tiny):  # E3
    engine = engine_of(tiny)
    with pytest.raises(ConfigError, match="max_tokens is 0"):
        engine.generate(["abc"], SamplingParams(max_tokens=0))
    assert_all_free(engine)


# ---- generate -----------------------------------------------------------------------------------------


def test_no_prompts_give_no_outputs(tiny):
    assert engine_of(tiny).generate([]) == []


def test_a_bare_text_is_not_taken_for_a_list_of_letters(tiny):
    engine = engine_of(tiny)
    with pytest.raises(RequestError, match="takes a list of prompts"):
        engine.generate("abc")
    assert engine.trace.events == []


def test_if_one_prompt_is_refused_none_runs(tiny):
    engine = engine_of(tiny)
    with pytest.raises(RequestError):
        engine.generate(["abc", "", "def"], greedy())
    assert not engine.has_unfinished_requests()
    assert engine.step_count == 0
    engine.audit()


def test_each_prompt_can_have_its_own_parameters_or_all_the_same(tiny):
    outputs = engine_of(tiny).generate(["a", "b"], [greedy(2), greedy(5)])
    assert [len(o.token_ids) for o in outputs] == [2, 5]
    with pytest.raises(RequestError, match="2 prompts came with 1 sampling parameters"):
        engine_of(tiny).generate(["a", "b"], [greedy(2)])


@pytest.mark.parametrize("params", [{"max_tokens": 3}, 3, ["greedy"], "greedy"])
def test_parameters_of_another_type_are_refused_by_name(tiny, params):
    engine = engine_of(tiny)
    with pytest.raises(RequestError, match=r"params must be SamplingParams, not|1 prompts came with 6"):
        engine.generate(["abc"], params)
    engine.audit()
    assert engine.requests == {}


def test_an_output_of_an_unknown_request_is_an_error_in_a_sentence(tiny):
    with pytest.raises(PagewalkError, match="There is no request 'Q'"):
        engine_of(tiny).output("Q")


def test_a_step_with_nothing_to_do_changes_nothing(tiny):
    engine = engine_of(tiny)
    out = engine.step()
    assert (out.step, out.events, out.tokens) == (0, [], {})
    assert engine.trace.events == []


def test_requests_can_arrive_at_any_time(tiny, expected):
    engine = engine_of(tiny)
    ids = []
    for prompt in PROMPTS:
        ids.append(engine.add_request(prompt, greedy(12)))
        engine.step()
        engine.audit()
    run_audited(engine)
    assert [engine.output(name).token_ids for name in ids] == expected


def test_a_step_tells_its_events_and_ends_with_its_timing(tiny):
    engine = engine_of(tiny)
    engine.add_request("abc", greedy(2))
    out = engine.step()
    assert [type(e).__name__ for e in out.events] == ["BlockAllocated", "SlotsWritten", "TokenSampled", "StepTimed"]
    assert isinstance(out.events[-1], StepTimed)
    assert (out.events[-1].num_tokens, out.events[-1].num_requests) == (3, 1)
    assert out.events[-1].forward_ms == out.timings.forward_ms > 0


def test_names_count_like_the_columns_of_a_spreadsheet(tiny):
    assert [letters(n) for n in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == ["A", "B", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA"]
    assert len({letters(n) for n in range(20_000)}) == 20_000


def test_a_reset_ends_everything_and_names_requests_afresh(tiny):
    engine = engine_of(tiny)
    first = texts(engine, ["abcdefghi"], greedy(4))
    engine.add_request("left over", greedy(4))
    engine.step()
    old = engine.trace
    engine.reset()
    assert engine.trace is not old
    assert (engine.step_count, engine.requests, engine.trace.events) == (0, {}, [])
    engine.audit()
    assert_all_free(engine)
    assert engine.add_request("abcdefghi", greedy(4)) == "A"
    run_audited(engine)
    assert [engine.output("A").token_ids] == first
    assert engine.output("A").num_cached_tokens == 0


def test_a_reset_that_keeps_the_cache_lets_the_next_run_hit_it(tiny):
    engine = engine_of(tiny)
    first = engine.generate(["abcdefghi"], greedy(4))[0]
    engine.reset(keep_cache=True)
    engine.audit()
    again = engine.generate(["abcdefghi"], greedy(4))[0]
    assert again.num_cached_tokens == 8
    assert again.token_ids == first.token_ids
    engine.audit()


def test_the_header_names_backend_and_reason(tiny):  # P38
    header = engine_of(tiny).trace.header
    assert header.backend == "torch"
    assert header.backend_reason.startswith("No GPU")
    assert header.bytes_per_block == 2 * 2 * 4 * 2 * 16 * 4
    assert header.slot_bytes == 2 * 16 * 4


def test_a_later_prompt_arrives_after_its_step_or_when_nothing_else_is_left(tiny):
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=32))
    engine.add_request("first", params)
    engine.add_later(3, "second", params)
    engine.add_later(50, "third", params)
    with pytest.raises(RequestError, match="the pool has 32"):
        engine.add_later(60, "x" * 300, params)
    while engine.has_unfinished_requests():
        engine.step()
    added = [event for event in engine.trace.events if isinstance(event, RequestAdded)]
    assert [(event.step, event.prompt) for event in added] == [(0, "first"), (3, "second"), (9, "third")]
    alone = Engine(tiny, EngineConfig(block_size=4, num_blocks=32)).generate(["second"], params)[0]
    assert engine.output("B").token_ids == alone.token_ids


def test_aborting_all_forgets_the_prompts_that_were_to_come(tiny):
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=32))
    engine.add_request("first", SamplingParams(max_tokens=6, ignore_eos=True))
    engine.add_later(3, "second", SamplingParams(max_tokens=6))
    engine.step()
    engine.abort_all()
    assert not engine.has_unfinished_requests() and list(engine.requests) == ["A"]
    engine.audit()
