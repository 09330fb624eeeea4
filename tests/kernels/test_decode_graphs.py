"""Decode passes from fixed buffers and merged weights, interpreted: what a CUDA graph replays on a card."""

from __future__ import annotations

import dataclasses
import importlib
import random

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.engine import Engine
from engine.fused_decoder import FusedDecoder, _OneRow, _Rows, obstacle
from engine.model_loader import LoadedModel
from kernels.decode_plan import Cut
from tests.conftest import tiny_llama

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
PROMPTS = ["a", "Eleven letters and more than one block of five", "b" * 21]
LONG = "Longer than a sequence that is never cut. " * 4


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """Products of one row in large tiles: an interpreted program takes its time, however little it does."""
    gemv = importlib.import_module("kernels.gemv")
    monkeypatch.setattr(gemv, "shape_for", lambda n, k, norm: gemv.GemvShape(32, 64, 4))


def plain(**changes) -> LoadedModel:
    """A tiny model whose norms and biases say something: new ones are all 1 and all 0."""
    model, generator = tiny_llama(**changes), torch.Generator().manual_seed(5)
    for value in model.model.parameters():
        if value.dim() == 1:
            value.data += 0.3 * torch.randn(value.shape, generator=generator)
    return model


def fused(**changes) -> LoadedModel:
    model = plain(**changes)
    return dataclasses.replace(model, fused_decoder=FusedDecoder(model.model))


def run(model: LoadedModel, backend: str, params: SamplingParams, prompts=PROMPTS, **config) -> tuple[Engine, list[list[int]]]:
    settings = {"block_size": 5, "num_blocks": 64, "max_num_batched_tokens": 64} | config
    engine = Engine(model, EngineConfig(attention_backend=backend, **settings))  # type: ignore[arg-type]
    engine.runner.kv_cache.fill_(float("nan"))
    for prompt in prompts:
        engine.add_request(prompt, params)
    while engine.has_unfinished_requests():
        engine.step()
        engine.audit()
    return engine, [engine.output(name).token_ids for name in engine.requests]


@pytest.mark.parametrize(
    "prompts, size, cut",
    [(PROMPTS, 4, Cut.WHOLE), ([*PROMPTS[:2], LONG], 4, Cut.RAGGED), (PROMPTS[1:2], 1, Cut.WHOLE), ([LONG], 1, Cut.EVEN)],
    ids=["three", "three, one of them long", "one", "one, long"],
)
def test_fused_passes_say_what_transformers_modules_say(prompts, size, cut):
    assert_fused_passes_say_the_same({}, prompts, size, cut)


@pytest.mark.parametrize("prompts, size", [(PROMPTS, 4), (PROMPTS[1:2], 1)], ids=["three", "one"])
@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"tie_word_embeddings": False, "head_dim": 8}])
def test_so_they_do_with_biases_and_with_a_head_of_its_own(changes, prompts, size):
    assert_fused_passes_say_the_same(changes, prompts, size, Cut.WHOLE)


def assert_fused_passes_say_the_same(changes: dict[str, object], prompts: list[str], size: int, cut: Cut) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    engine, said = run(fused(**changes), "triton", params, prompts, max_num_batched_tokens=256)
    assert engine.runner.graphs is not None
    assert {(size, config.cut) for size, _, config in engine.runner.graphs._passes} == {(size, cut)}  # they were used
    assert said == run(plain(**changes), "torch", params, prompts, max_num_batched_tokens=256)[1]
    look = engine.lookup("B" if len(prompts) > 1 else "A", None, 40, layer=1, head=3)
    assert look.max_abs_difference < 1e-5 and look.score == pytest.approx(look.raw_dot * look.scale)


def test_one_row_reads_and_adds_as_rows_do():
    generator = torch.Generator().manual_seed(1)
    x, norm, bias, embedded = (torch.randn(n, 64, generator=generator) for n in (1, 1, 1, 1))
    weight, both = torch.randn(64, 64, generator=generator), torch.randn(128, 64, generator=generator)
    found = []
    for kind in (_Rows, _OneRow):
        stream = kind(embedded.clone(), 1e-5)
        stream.add(x, weight, bias[0])
        found.append([stream.linear(norm[0], weight, bias[0]), stream.linear(norm[0], both), stream.swiglu(norm[0], both)])
        stream.add(x, weight)
        found[-1].append(stream.linear(norm[0], weight))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-5)  # sums of 64 products, then of their products


def test_a_model_that_cannot_be_fused_runs_its_own_modules_from_the_same_buffers():
    from engine.decode_graphs import DecodeGraphs

    model, params = tiny_llama(), SamplingParams(max_tokens=4, ignore_eos=True)
    expected = run(model, "torch", params)[1]
    engine = Engine(model, EngineConfig(block_size=5, num_blocks=64, attention_backend="triton"))
    engine.runner.graphs = DecodeGraphs(model, engine.runner.kv_cache, model.max_model_len)
    assert [out.token_ids for out in engine.generate(PROMPTS, params)] == expected
    assert engine.runner.graphs._passes and engine.lookup("B", None, 40, 1, 3).max_abs_difference < 1e-5


def test_texts_survive_preemption_forks_and_arrivals_in_padded_batches():
    """Tables that are cut, copied and regrown must never be read as they were sent before."""
    model, own = fused(), plain()
    params = SamplingParams(max_tokens=9, n=2, temperature=0.0, ignore_eos=True)
    for num_blocks, block_size in ((20, 4), (14, 5)):
        config = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": 6}
        prompts = ["abcdefg", "abcdefgh12", "xyz", "q" * 11]
        engine, said = run(model, "triton", params, prompts, **config)
        assert said == run(own, "torch", params, prompts, **config)[1]
        log = [type(event).__name__ for event in engine.trace.events]
        assert "BlockCopied" in log and "RequestPreempted" in log


def test_what_is_sent_is_the_plan(monkeypatch):
    from engine.decode_inputs import DecodeInputs

    seen = []
    fill = DecodeInputs.fill

    def checked(self, plan, tables_changed):
        lengths = fill(self, plan, tables_changed)
        for row, item in enumerate(plan):
            table = item.request.block_table
            assert self.block_tables[row, : len(table)].tolist() == table.block_ids
            assert self.slots[row] == table.slot(item.start) and self.positions[row] == item.start
            assert self.token_ids[row] == item.request.token_ids[item.start]
        rest = slice(len(plan), self.size)
        assert (self.slots[rest] == -1).all() and not self.batch[2, rest].any()
        assert self.batch[2].tolist() == lengths and self.batch[0].tolist() == self.batch[1].tolist() == list(range(self.size))
        seen.append(len(plan))
        return lengths

    monkeypatch.setattr(DecodeInputs, "fill", checked)
    rng = random.Random(3)
    model = fused()
    engine = Engine(model, EngineConfig(block_size=2, num_blocks=24, max_num_seqs=5, attention_backend="triton"))
    for _ in range(9):
        engine.add_request("k" * rng.randint(1, 9), SamplingParams(max_tokens=rng.randint(2, 7), n=rng.randint(1, 2)))
        for _ in range(rng.randint(1, 3)):
            engine.step()
    while engine.has_unfinished_requests():
        engine.step()
    assert max(seen) >= 3 and len(seen) > 8


def test_merged_weights_are_held_once():
    model = tiny_llama()
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    merged = FusedDecoder(model.model)
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    attention = model.model.model.layers[0].self_attn
    assert attention.k_proj.weight.data_ptr() == merged.layers[0].qkv[attention.q_proj.out_features :].data_ptr()


def test_what_cannot_be_fused_says_why(make_tiny):
    assert "dynamic" in obstacle(make_tiny(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}).model)
    assert obstacle(make_tiny(mlp_bias=True).model) and not obstacle(make_tiny().model)
    with pytest.raises(ValueError, match="SwiGLU"):
        FusedDecoder(make_tiny(hidden_act="gelu").model)
