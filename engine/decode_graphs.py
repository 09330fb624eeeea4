"""Decode steps on a GPU as CUDA graphs: a graph for each kind of batch, replayed with one copy in and one wait out.

A graph holds addresses and grids, not lengths: it is captured for a number of sequences (batches are padded to the next one
with rows that are written nowhere) and for a kind of launch (`DecodeGraphAttention.config_for`: at most a few for a size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from engine.attention import PagedAttentionContext
from engine.decode_inputs import DecodeInputs
from engine.kv_cache import PagedKVCache
from engine.model_loader import LoadedModel
from engine.sampler import best_tokens, likeliest
from engine.scheduler import ScheduledRequest
from kernels.dispatch import make_writer
from kernels.metadata import AttentionMetadata

if TYPE_CHECKING:
    from engine.fused_decoder import FusedDecoder
    from kernels.decode_plan import DecodeConfig
    from kernels.triton_paged import DecodeGraphAttention

SIZES = (1, 2, 4, 8, *range(16, 64, 8), *range(64, 256, 32), *range(256, 4097, 64))
FIRST_WIDTH = 64  # blocks in a row of the tables, at first; doubled when a sequence outgrows it


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """logits [n, vocab] on the device, until the next step. best: the likeliest token of each, None where it is not finite."""

    logits: torch.Tensor
    best: list[int | None]
    captured: torch.Tensor | None


class DecodeGraphs:
    """The decode passes of one engine's pool. On a CPU (interpreted kernels, in tests) the same passes run without a graph.

    A model that can be fused runs `FusedDecoder`, any other transformers' modules.
    """

    def __init__(self, model: LoadedModel, kv_cache: PagedKVCache, max_model_len: int) -> None:
        self.model, self.kv_cache = model, kv_cache
        self.on_gpu = model.device.type == "cuda"
        self.scales: tuple[float, ...] = ()
        fused = model.fused_decoder
        self._rotations = fused.rotations(min(max_model_len, kv_cache.k_pool.shape[1])) if fused else None
        self._passes: dict[tuple[int, bool, DecodeConfig], _Pass] = {}
        self._inputs: dict[int, DecodeInputs] = {}
        self._memory = torch.cuda.graph_pool_handle() if self.on_gpu else None

    @torch.inference_mode()
    def run(self, plan: Sequence[ScheduledRequest], tables_changed: bool, capture: bool) -> DecodeResult:
        """One token of each planned request. Waits for the device once, at its end."""
        inputs = self._inputs_for(len(plan), max(len(item.request.block_table) for item in plan))
        lengths = inputs.fill(plan, tables_changed)
        step = self._pass_for(inputs, lengths, capture)
        step.replay()
        captured = step.rows[:, : len(plan)].clone() if capture else None  # the next replay writes over it
        return DecodeResult(step.logits[: len(plan)], likeliest(step.best)[: len(plan)], captured)

    def _inputs_for(self, count: int, blocks: int) -> DecodeInputs:
        size = next(size for size in SIZES if size >= count)
        inputs = self._inputs.get(size)
        if inputs is None or inputs.width < blocks:
            width = FIRST_WIDTH
            while width < blocks:
                width *= 2
            inputs = self._inputs[size] = DecodeInputs(size, width, self.model.device)
            for key in [key for key in self._passes if key[0] == size]:
                del self._passes[key]
        return inputs

    def _pass_for(self, inputs: DecodeInputs, lengths: list[int], capture: bool) -> _Pass:
        from kernels.triton_paged import DecodeGraphAttention, HeadShape

        m = self.model
        shape = HeadShape(m.num_heads, m.num_kv_heads, m.head_dim, m.dtype)
        config = DecodeGraphAttention.config_for(lengths, shape, self.kv_cache.block_size, m.device)
        key = (inputs.size, capture, config)
        if key not in self._passes:
            attention = DecodeGraphAttention(inputs.batch, inputs.block_tables, self.kv_cache.block_size, shape, config)
            made = _Pass(self, inputs, attention, capture)
            if self.on_gpu:
                made.record(self._memory)
            self._passes[key] = made
        return self._passes[key]


class _Pass:
    """One kind of decode pass and what it leaves behind: rows, logits, and best [2, size] (`best_tokens`)."""

    def __init__(self, owner: DecodeGraphs, inputs: DecodeInputs, attention: DecodeGraphAttention, capture: bool) -> None:
        m = owner.model
        self.owner, self.inputs, self.attention = owner, inputs, attention
        heads = 2 * m.num_heads + 2 * m.num_kv_heads
        layers = m.num_layers if capture else 1
        self.rows = torch.zeros((layers, inputs.size, heads, m.head_dim), dtype=m.dtype, device=m.device)
        self.capture = capture
        self.logits = self.best = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

    def replay(self) -> None:
        if self._graph is None:
            self.run()
        else:
            self._graph.replay()

    def record(self, memory: Any) -> None:
        """Runs the pass on padding alone until everything is compiled, then captures it."""
        lengths, slots = self.inputs.batch[2].clone(), self.inputs.slots.clone()
        self.inputs.batch[2].zero_()
        self.inputs.slots.fill_(-1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
            self.run()
        self._graph = graph
        self.inputs.batch[2].copy_(lengths)
        self.inputs.slots.copy_(slots)

    def run(self) -> None:
        self.attention.plan()
        fused = self.owner.model.fused_decoder
        logits = self._modules() if fused is None else self._fused(fused)
        self.logits, self.best = logits, best_tokens(logits)

    def _fused(self, fused: FusedDecoder) -> torch.Tensor:
        cache, inputs = self.owner.kv_cache, self.inputs
        k_pool, v_pool = cache.k_pool, cache.v_pool
        self.owner.scales = scales = tuple(layer.scale for layer in fused.layers)

        def attend(layer: int, query: torch.Tensor, out: torch.Tensor) -> None:
            self.attention.into(out, query, k_pool[layer], v_pool[layer], scales[layer])

        assert self.owner._rotations is not None
        return fused(inputs.token_ids, inputs.positions, inputs.slots, self.owner._rotations, k_pool, v_pool, self.rows, attend)

    def _modules(self) -> torch.Tensor:
        inputs, cache = self.inputs, self.owner.kv_cache
        metadata = AttentionMetadata(
            cache.block_size, inputs.slots, inputs.block_tables, list(range(inputs.size + 1)), [0] * inputs.size
        )  # lengths are in the buffers
        captured = self.rows if self.capture else None
        context = PagedAttentionContext(cache, metadata, self.attention, make_writer("triton"), captured)
        output = self.owner.model.model(
            input_ids=inputs.token_ids[None].long(),
            position_ids=inputs.positions[None].long(),
            use_cache=False,
            paged_context=context,
        )
        self.owner.scales = tuple(context.scales[i] for i in sorted(context.scales))
        return output.logits[0]
