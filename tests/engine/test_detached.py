"""Runs whose passes happen elsewhere: the same story, the same lookups, and nothing but plain data on the way."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.detached import DetachedEngine, DetachedRun, Passes, PlainTensor, run_passes
from engine.engine import Engine
from engine.errors import PagewalkError, RequestError
from engine.events import Event, StepTimed
from engine.lookup import Lookup
from engine.model_loader import LoadedModel
from engine.run_settings import RunSettings
from engine.session import Session
from engine.trace import Trace

CASES = {
    "two prompts": (("hello", "and more"), EngineConfig(), SamplingParams(max_tokens=9, ignore_eos=True)),
    "forks": (
        ("hello you",), EngineConfig(block_size=4),
        SamplingParams(max_tokens=9, n=3, temperature=1.0, seed=5, ignore_eos=True),
    ),
    "preemption": (
        ("hello", "and more", "third"), EngineConfig(block_size=4, num_blocks=11, watermark=0.0),
        SamplingParams(max_tokens=20, ignore_eos=True),
    ),
    "ends by itself": (("hello",), EngineConfig(), SamplingParams(max_tokens=200)),
    "without capture": (("hello",), EngineConfig(capture=False), SamplingParams(max_tokens=5, ignore_eos=True)),
}  # fmt: skip


def story(trace: Trace) -> list[Event]:
    return [event for event in trace.events if not isinstance(event, StepTimed)]


def across(passes: Iterator[Passes]) -> Iterator[Passes]:
    """As between two processes."""
    for item in passes:
        yield pickle.loads(pickle.dumps(item))


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[tuple[str, ...], EngineConfig, SamplingParams]:
    return CASES[request.param]


def detached(model: LoadedModel, config: EngineConfig, pace: float = 0.0) -> DetachedEngine:
    return DetachedEngine(model, config, lambda run: across(run_passes(model, pickle.loads(pickle.dumps(run)), pace)))


def run(engine: Engine | DetachedEngine, prompts: tuple[str, ...], params: SamplingParams) -> None:
    for prompt in prompts:
        engine.add_request(prompt, params)
    while engine.has_unfinished_requests():
        engine.step()


def test_events_outputs_and_lookups_equal_those_of_a_run_in_this_process(tiny: LoadedModel, case) -> None:
    prompts, config, params = case
    here, there = Engine(tiny, config), detached(tiny, config)
    run(here, prompts, params)
    run(there, prompts, params)
    assert story(there.trace) == story(here.trace)
    assert there.trace.header == here.trace.header
    assert there.trace.latest == here.trace.latest
    for request_id in here.requests:
        assert there.output(request_id) == here.output(request_id)
        if config.capture:
            ours, theirs = (engine.lookup(request_id, None, 3, 1, 2) for engine in (here, there))
            for name in ("key", "query", "value", "score", "weight", "output_paged", "slot", "physical_block", "step"):
                assert same(getattr(ours, name), getattr(theirs, name)), name
            assert isinstance(theirs, Lookup) and theirs.slot_state == "recorded" and theirs.address is None


def same(a: object, b: object) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b


@pytest.mark.parametrize("at", [1, 2, 7])
def test_a_paused_run_goes_on_as_if_it_had_not_paused(tiny: LoadedModel, case, at: int) -> None:
    prompts, config, params = case
    here, there = Engine(tiny, config), detached(tiny, config, pace=1e9)
    run(here, prompts, params)
    for prompt in prompts:
        there.add_request(prompt, params)
    there.will_run(at)
    there.step()
    assert there.step_count == min(at, here.step_count)
    there.will_run(None)
    while there.has_unfinished_requests():
        there.step()
    assert story(there.trace) == story(here.trace)
    if config.capture:
        assert there.lookup("A", None, 3, 1, 2).to_dict()["score"] == here.lookup("A", None, 3, 1, 2).to_dict()["score"]


def test_stopping_frees_every_block_and_hangs_up(tiny: LoadedModel) -> None:
    closed: list[bool] = []

    def remote(work: DetachedRun) -> Iterator[Passes]:
        try:
            yield from run_passes(tiny, work, 0.0)
        finally:
            closed.append(True)

    engine = DetachedEngine(tiny, EngineConfig(), remote)
    engine.add_request("hello", SamplingParams(max_tokens=100, ignore_eos=True))
    engine.step()
    engine.step()
    engine.abort("A")
    assert closed == [True] and not engine.has_unfinished_requests()
    assert engine.output("A").finish_reason == "abort" and engine.output("A").text
    assert sum(engine.trace.latest.ref_cnt) == 0


def test_a_gpu_taken_back_too_early_is_told_and_other_steps_are_noticed(tiny: LoadedModel) -> None:
    def cut(work: DetachedRun) -> Iterator[Passes]:
        yield next(run_passes(tiny, work, 0.0))

    engine = DetachedEngine(tiny, EngineConfig(), cut)
    engine.add_request("hello", SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    with pytest.raises(PagewalkError, match="taken back before the run was over"):
        engine.step()
    odd = DetachedRun(EngineConfig(), SamplingParams(max_tokens=9), ("hello",), False, 2, 9, (1, 2))
    (told,) = run_passes(tiny, odd)
    assert told.problem is not None and "did not repeat" in told.problem


def test_prompts_are_refused_before_a_gpu_is_asked_for(tiny: LoadedModel) -> None:
    engine = DetachedEngine(tiny, EngineConfig(num_blocks=8), lambda run: pytest.fail("a GPU was asked for"))
    with pytest.raises(RequestError, match="the pool has 8"):
        engine.check_prompts(["x" * 300], SamplingParams())
    assert engine.check_prompts(["hello", "x"], SamplingParams()) == [5, 1]
    with pytest.raises(RequestError, match="empty"):
        engine.add_request(" ", SamplingParams())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_a_tensor_crosses_as_an_array_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 5).mul(100).to(dtype)
    crossed = pickle.loads(pickle.dumps(PlainTensor.of(tensor[:, ::2])))
    assert crossed.tensor().dtype is dtype and torch.equal(crossed.tensor(), tensor[:, ::2])


def test_a_session_runs_steps_stops_and_looks_up_on_such_an_engine(tiny: LoadedModel) -> None:
    session = Session(make_engine=lambda model, config: detached(model, config, pace=1e9))
    wanted = RunSettings(("hello", "more"), EngineConfig(), SamplingParams(max_tokens=6, ignore_eos=True), False)
    session.begin(tiny, wanted)
    assert [type(event).__name__ for event in session.step_once().events[:2]] == ["RequestAdded", "RequestAdded"]
    session.step_once()
    assert session.engine.step_count == 2 and session.paused and session.can_continue(tiny, wanted)
    session.start()
    for _ in session.updates(0.0):
        pass
    assert session.engine.step_count == 6 and session.lookup("B", None, 1, 0, 0).slot_state == "recorded"
    session.begin(tiny, wanted)
    session.step_once()
    session.stop()
    assert session.engine.output("A").finish_reason == "abort" and not session.running
    assert session.give_up_memory() and session.budget.num_bytes == 0


def test_prompts_that_arrive_later_arrive_there_at_the_same_steps(tiny: LoadedModel) -> None:
    params, config = SamplingParams(max_tokens=8, ignore_eos=True), EngineConfig(block_size=4)
    here, there = Engine(tiny, config), detached(tiny, config)
    for engine in (here, there):
        engine.add_request("hello", params)
        engine.add_later(3, "and more", params)
        engine.add_later(40, "third", params)
    while here.has_unfinished_requests():
        here.step()
    for max_steps in (2, 3, None):  # paused before the second prompt has come, and after it
        there.will_run(max_steps)
        for _ in range(max_steps or 99):
            if there.has_unfinished_requests():
                there.step()
    assert story(there.trace) == story(here.trace)


def test_aborting_all_there_forgets_the_prompts_that_were_to_come(tiny: LoadedModel) -> None:
    there, params = detached(tiny, EngineConfig(block_size=4)), SamplingParams(max_tokens=8, ignore_eos=True)
    there.add_request("hello", params)
    there.add_later(30, "and more", params)
    there.will_run(1)
    there.step()
    there.abort_all()
    assert not there.has_unfinished_requests() and list(there.requests) == ["A"]
