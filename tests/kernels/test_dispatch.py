"""Which backend runs, and the sentence that says why."""

from __future__ import annotations

import pytest
import torch

from kernels.dispatch import choose_backend, make_backend
from tests.kernels.test_torch_paged import assert_equals_the_oracle, batch

CPU = torch.device("cpu")


def test_without_a_gpu_the_torch_path_runs_and_says_so():  # P38
    choice = choose_backend("auto", CPU)
    assert choice.name == "torch"
    assert choice.reason.startswith("No GPU")
    assert choice.reason.endswith(".")


@pytest.mark.parametrize("requested", ["torch", "reference"])
def test_a_backend_that_was_asked_for_is_the_one_that_runs(requested):
    choice = choose_backend(requested, CPU)
    assert choice.name == requested
    assert choice.reason.endswith(".")


def test_the_engine_starts_and_names_backend_and_reason_without_a_gpu_or_a_compiler(tiny, monkeypatch):  # P38
    from engine import Engine, EngineConfig, SamplingParams

    monkeypatch.setenv("CC", "/nonexistent/cc")
    monkeypatch.setenv("PATH", "/nonexistent")
    engine = Engine(tiny, EngineConfig(num_blocks=8))
    assert (engine.trace.header.backend, engine.trace.header.backend_reason[:6]) == ("torch", "No GPU")
    assert len(engine.generate(["abc"], SamplingParams(max_tokens=2, ignore_eos=True))[0].token_ids) == 2


def test_triton_without_a_gpu_is_refused_by_name(tiny):
    from engine import Engine, EngineConfig
    from engine.errors import ConfigError

    with pytest.raises(ValueError, match=r"[Tt]riton.*auto"):
        choose_backend("triton", CPU)
    with pytest.raises(ConfigError, match=r"[Tt]riton.*auto"):
        Engine(tiny, EngineConfig(attention_backend="triton"))


def test_the_reference_backend_is_the_oracle_bit_for_bit():
    given = batch([1, 5, 2, 1], [9, 21, 2, 0])
    out = given.run("reference")
    for index in range(3):
        assert torch.equal(out[given.rows(index)], given.oracle(index))
    assert not out[given.rows(3)].any()


def test_a_backend_is_made_once_a_pass_and_serves_every_layer():
    given, other = batch([1, 3], [9, 7], seed=1), batch([1, 3], [9, 7], seed=1)
    other.v_pool *= 2.0
    attend = make_backend("torch", given.metadata)
    first = attend(given.query, given.k_pool, given.v_pool, given.metadata, 0.25)
    second = attend(given.query, other.k_pool, other.v_pool, given.metadata, 0.25)
    torch.testing.assert_close(second, 2 * first, atol=1e-6, rtol=0)
    assert_equals_the_oracle(given)
