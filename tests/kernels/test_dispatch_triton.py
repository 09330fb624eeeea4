"""When the Triton kernels run, what they refuse, and what one forward pass prepares once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.dispatch import choose_backend, make_backend, paged_attention
from tests.kernels.paged_cases import Case, make

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture
def a_card(monkeypatch):
    """As if this were a machine with a GPU: only what choose_backend asks about."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CC", sys.executable)  # some program that exists


@pytest.mark.usefixtures("a_card")
def test_with_a_gpu_the_triton_kernels_run_and_the_page_can_say_so():
    choice = choose_backend("auto", CUDA, torch.bfloat16, 64)
    assert (choice.name, choice.reason) == ("triton", "Triton kernels on NVIDIA H200.")
    assert choose_backend("triton", CUDA).name == "triton"
    assert choose_backend("torch", CUDA).name == "torch"


@pytest.mark.usefixtures("a_card")
@pytest.mark.parametrize(
    "break_it, says",
    [
        (lambda patch: patch.setattr("importlib.util.find_spec", lambda name: None), "not installed"),
        (lambda patch: patch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5)), "capability"),
        (lambda patch: (patch.delenv("CC"), patch.setenv("PATH", "/nonexistent")), "C compiler"),  # P38
        (lambda patch: patch.setattr(torch.version, "cuda", None), "NVIDIA"),
    ],
)
def test_a_gpu_that_cannot_run_them_runs_torch_and_says_why(break_it, says, monkeypatch):
    break_it(monkeypatch)
    choice = choose_backend("auto", CUDA)
    assert choice.name == "torch"
    assert says in choice.reason and choice.reason.endswith(".")
    with pytest.raises(ValueError, match=f"{says}.*auto"):
        choose_backend("triton", CUDA)


@pytest.mark.usefixtures("a_card")
@pytest.mark.parametrize("dtype, head_dim, says", [(torch.float64, 64, "float64"), (torch.float16, 512, "512")])
def test_shapes_and_dtypes_they_do_not_take_go_to_torch(dtype, head_dim, says):
    choice = choose_backend("auto", CUDA, dtype, head_dim)
    assert choice.name == "torch"
    assert says in choice.reason


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'cuda'.*auto, triton, torch and reference"):
        choose_backend("cuda", CPU)


def test_without_a_gpu_triton_runs_only_where_it_is_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"need a CUDA device, and this is cpu.*auto"):
        choose_backend("triton", CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_backend("triton", CPU).name == "triton"
    assert "interpreter" in choose_backend("triton", CPU).reason
    assert choose_backend("auto", CPU).name == "torch"


def test_the_torch_path_works_where_triton_is_missing():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, kernels.dispatch as d; from kernels.metadata import AttentionMetadata\n"
        "import kernels.decode_plan, kernels.prefill_plan\n"
        "m = AttentionMetadata(4, torch.zeros(1, dtype=torch.int64), torch.tensor([[0]]), [0, 1], [3])\n"
        "x = torch.randn(4, 2, 16); print(d.paged_attention(torch.randn(1, 4, 16), x, x, m).shape)"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "[1, 4, 16]" in run.stdout


def test_one_public_call_runs_without_a_gpu():
    batch = make(Case((1, 5), (40, 9)))
    out = paged_attention(batch.query, batch.k_pool, batch.v_pool, batch.metadata)
    torch.testing.assert_close(out, batch.expected(), atol=2e-6, rtol=0)


def pools(num_slots=32, n_kv=2, d=64, **kwargs):
    return torch.zeros(num_slots, n_kv, d, **kwargs)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"query": torch.zeros(2, 5, 64)}, ValueError, "5 query heads cannot share 2 KV heads"),
        ({"context_lens": [33, 1]}, ValueError, r"33 positions, but a table of 2 blocks of 16 holds 32"),
        ({"query": torch.zeros(2, 4, 64, dtype=torch.float16)}, TypeError, "one dtype"),
        ({"query": torch.zeros(2, 4, 64).double(), "pools": [pools().double()] * 2}, ValueError, "float64"),
        ({"v_pool": pools(n_kv=1)}, ValueError, "k_pool and v_pool"),
        ({"query": torch.zeros(2, 4, 32)}, ValueError, "head_dim differs"),
        ({"query": torch.zeros(3, 4, 64)}, ValueError, r"query must be \[2"),
        ({"query": torch.zeros(2, 4, 512), "pools": [pools(d=512)] * 2}, ValueError, "512"),
        ({"tables": torch.zeros(2, 2)}, TypeError, "int32 or int64"),
        ({"tables": torch.zeros(3, 2, dtype=torch.int64)}, ValueError, "block_tables must be"),
        ({"tables": torch.zeros(2, 2, dtype=torch.int64, device="meta")}, ValueError, "share a device"),
        ({"query": torch.zeros(2, 4, 128)[..., ::2]}, ValueError, "contiguous"),
        ({"context_lens": [-1, 1]}, ValueError, "-1"),
        ({"query_start": [0, 1]}, ValueError, "query_start"),
    ],
)
def test_what_they_would_misread_is_refused_before_any_launch(change, error, says, monkeypatch):
    import kernels.triton_paged as ours
    from kernels.metadata import AttentionMetadata

    for name in ("paged_decode", "paged_prefill"):
        monkeypatch.setattr(ours, name, lambda *args: pytest.fail("launched"))
    k_pool, v_pool = change.get("pools", [pools(), pools()])
    metadata = AttentionMetadata(
        16,
        torch.zeros(2, dtype=torch.int64),
        change.get("tables", torch.zeros(2, 2, dtype=torch.int64)),
        change.get("query_start", [0, 1, 2]),
        change.get("context_lens", [4, 5]),
    )
    query = change.get("query", torch.zeros(2, 4, 64))
    with pytest.raises(error, match=says):
        paged_attention(query, k_pool, change.get("v_pool", v_pool), metadata, backend="triton")


@pytest.mark.usefixtures("interpreted")
def test_the_plan_is_made_once_a_pass_and_serves_every_layer(monkeypatch):
    import kernels.triton_paged as ours

    batch = make(Case((1, 3), (40, 9)))
    made = []
    monkeypatch.setattr(ours, "plan_blocks", lambda *args, plan=ours.plan_blocks: made.append("prefill") or plan(*args))
    monkeypatch.setattr(ours, "DecodePlan", lambda *args, plan=ours.DecodePlan: made.append("decode") or plan(*args))
    attend = make_backend("triton", batch.metadata)
    assert made == []
    first = attend(batch.query, batch.k_pool, batch.v_pool, batch.metadata, batch.scale)
    second = attend(batch.query, batch.k_pool, 2 * batch.v_pool, batch.metadata, batch.scale)
    torch.testing.assert_close(second, 2 * first, atol=4e-6, rtol=0)
    assert sorted(made) == ["decode", "prefill"]


@pytest.mark.usefixtures("interpreted")
def test_a_batch_without_blocks_is_zeros():
    from kernels.metadata import AttentionMetadata

    metadata = AttentionMetadata(16, torch.full((4,), -1), torch.zeros(2, 0, dtype=torch.int64), [0, 1, 4], [0, 0])
    query = torch.randn(4, 4, 64)
    assert torch.equal(paged_attention(query, pools(), pools(), metadata, backend="triton"), torch.zeros_like(query))


@pytest.mark.usefixtures("interpreted")
def test_the_engine_says_the_same_through_the_triton_kernels(tiny):
    from engine import Engine, EngineConfig, SamplingParams

    said = []
    for backend in ("torch", "triton"):
        engine = Engine(tiny, EngineConfig(num_blocks=16, block_size=4, attention_backend=backend))
        outs = engine.generate(["abcabcabc", "xy"], SamplingParams(max_tokens=3, ignore_eos=True))
        said.append([out.token_ids for out in outs])
        assert engine.trace.header.backend == backend
    assert said[0] == said[1]
