"""ZeroGPU by a stand-in that really forks: what crosses, who shares a worker, what stops, and the whole app under it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "zero_gpu"


def python(code: str, timeout: int = 120) -> str:
    """Output of a script in a process of its own, as on a ZeroGPU Space: `spaces` first."""
    head = f"import sys\nsys.path[:0] = [{str(STAND_IN)!r}, {str(ROOT)!r}]\n"
    run = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=timeout,
        env={"PATH": "/usr/bin:/bin", "SPACES_ZERO_GPU": "1", "HOME": str(Path.home())},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


RUNS = """
    import spaces
    import os
    from collections.abc import Iterator
    from engine.config import EngineConfig, SamplingParams
    from engine.engine import Engine
    from engine.events import StepTimed
    from tests.conftest import tiny_llama
    from web.zero import engine_maker

    model = tiny_llama()
    make = engine_maker(model)
    params = SamplingParams(max_tokens=12, ignore_eos=True)

    def run(engine, *prompts, params=params):
        for prompt in prompts:
            engine.add_request(prompt, params)
        while engine.has_unfinished_requests():
            engine.step()
        return [event for event in engine.trace.events if not isinstance(event, StepTimed)]
"""


def test_a_forked_run_tells_the_same_story_and_lookups_work_afterwards() -> None:
    out = python(
        RUNS
        + """
    there, here = make(model, EngineConfig()), Engine(model, EngineConfig())
    assert run(there, "hello", "and more") == run(here, "hello", "and more")
    print(there.lookup("A", None, 3, 1, 2).score == here.lookup("A", None, 3, 1, 2).score)
    print([there.output(name) == here.output(name) for name in "AB"])
    """
    )
    assert out.split("\n")[:2] == ["True", "[True, True]"]


def test_two_visitors_on_one_worker_share_nothing_not_even_a_cached_prefix() -> None:
    out = python(
        RUNS
        + """
    prompt = "a prompt that fills more than one block of sixteen"
    first, second = make(model, EngineConfig()), make(model, EngineConfig())
    print(run(first, prompt) == run(second, prompt), second.output("A").num_cached_tokens)
    """
    )
    assert out.strip() == "True 0"


def test_a_tensor_is_refused_on_its_way_in_either_direction() -> None:  # P69
    out = python("""
    import spaces
    import pickle
    import torch

    @spaces.GPU
    def back():
        yield torch.zeros(1)

    @spaces.GPU
    def forth(tensor):
        yield 1

    for call in (lambda: list(back()), lambda: list(forth({"deep": [torch.zeros(1)]}))):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error)
    """)
    assert out.split("\n")[0] == "Error 'PicklingError'" and out.split("\n")[1].startswith("PicklingError Tensor cannot cross")


def test_spaces_must_come_before_torch_and_the_app_sees_to_it() -> None:  # P69
    with pytest.raises(AssertionError, match="import it before torch"):
        python("import torch, spaces")
    assert python("import app, spaces; print(spaces.GPU.__name__)").strip() == "GPU"


def test_stopping_ends_the_call_at_its_next_yield_and_the_worker_serves_the_next_visitor() -> None:
    out = python(
        RUNS
        + """
    stopped = make(model, EngineConfig())
    stopped.add_request("hello", SamplingParams(max_tokens=400, ignore_eos=True))
    stopped.will_run(None)
    stopped.step()
    stopped.abort("A")
    print(stopped.output("A").finish_reason, sum(stopped.trace.latest.ref_cnt))
    print(len(run(make(model, EngineConfig()), "hello")) > 12)
    """
    )
    assert out.split("\n")[:2] == ["abort 0", "True"]


def test_a_worker_that_dies_and_a_gpu_that_is_refused_are_said_in_words() -> None:
    out = python(
        RUNS
        + """
    from engine.errors import PagewalkError
    import engine.engine, web.zero

    def die(*_):
        os._exit(1)

    engine.engine.Engine.step = die
    for seconds in (web.zero.seconds_for, lambda run: 999):
        web.zero.seconds_for = seconds
        try:
            run(engine_maker(model)(model, EngineConfig()), "hello")
        except PagewalkError as error:
            print(error)
    """
    )
    assert "GPU task aborted" in out and "larger than the maximum allowed" in out
