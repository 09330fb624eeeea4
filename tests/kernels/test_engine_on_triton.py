"""The whole engine on the Triton kernels, interpreted: cache write, chunked prefill, decode, prefix hits."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig, SamplingParams
from engine.engine import Engine
from engine.model_loader import LoadedModel

pytestmark = pytest.mark.usefixtures("interpreted")
PROMPTS = ["a", "Eleven letters and more than one block of five", "b" * 21]


def texts(model: LoadedModel, backend: str) -> list[list[int]]:
    engine = Engine(
        model,
        EngineConfig(block_size=5, num_blocks=64, max_num_batched_tokens=16, attention_backend=backend),  # type: ignore[arg-type]
    )
    assert engine.runner.backend.name == backend
    engine.runner.kv_cache.fill_(float("nan"))
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    first = [out.token_ids for out in engine.generate(PROMPTS, params)]
    engine.reset(keep_cache=True)
    second = engine.generate(PROMPTS[1:2], params)[0]  # from cached blocks
    assert second.num_cached_tokens == 45 and second.token_ids == first[1]
    look = engine.lookup("A", None, 40, layer=1, head=3)
    assert look.max_abs_difference < 1e-5  # the kernel's own output beside dense attention, float32
    engine.audit()
    return first


def test_the_engine_says_the_same_on_triton_and_on_torch(tiny: LoadedModel) -> None:
    assert texts(tiny, "triton") == texts(tiny, "torch")
