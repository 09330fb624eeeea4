"""One forward pass: plan in, logits out, through transformers' own model code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from engine.attention import ATTENTION_NAME, PagedAttentionContext, register
from engine.config import EngineConfig
from engine.decode_graphs import DecodeGraphs
from engine.errors import ConfigError
from engine.events import BlockCopied
from engine.kv_cache import PagedKVCache
from engine.model_loader import LoadedModel
from engine.scheduler import ScheduledRequest
from kernels.dispatch import choose_backend, make_backend, make_writer
from kernels.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """logits: [number of sampling requests, vocab], in plan order. captured: [layers, T, heads, head_dim] or None.

    scales: each layer's factor between dot product and score. best: the likeliest tokens, where they came with the pass.
    """

    logits: torch.Tensor
    captured: torch.Tensor | None
    scales: tuple[float, ...] = ()
    best: list[int | None] | None = None


class ModelRunner:
    """Owns the physical pool; shares the weights with every other engine."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self.model = model
        self.config = config
        try:
            self.backend = choose_backend(config.attention_backend, model.device, model.dtype, model.head_dim)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        try:
            self.kv_cache = PagedKVCache(
                model.num_layers,
                config.num_blocks,
                config.block_size,
                model.num_kv_heads,
                model.head_dim,
                model.dtype,
                model.device,
            )
        except (RuntimeError, MemoryError):
            per_slot = 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.dtype.itemsize
            raise ConfigError(
                f"A pool of {config.num_blocks:,} blocks of {config.block_size} takes "
                f"{config.num_slots * per_slot / 2**30:,.1f} GiB, which {model.device} cannot give. "
                "Use fewer or smaller blocks."
            ) from None
        self.graphs: DecodeGraphs | None = None
        if self.backend.name == "triton" and (model.device.type == "cuda" or model.fused_decoder is not None):
            limit = min(model.max_model_len, config.max_model_len or model.max_model_len)
            self.graphs = DecodeGraphs(model, self.kv_cache, limit)
        self._tables_changed = False
        register()
        if model.model.config._attn_implementation != ATTENTION_NAME:
            model.model.set_attn_implementation(ATTENTION_NAME)

    @torch.inference_mode()
    def copy_blocks(self, copies: Iterable[BlockCopied]) -> None:
        """Does the copies that a plan calls for, in their order; to be called before `execute`."""
        for copied in copies:
            self._tables_changed = True
            self.kv_cache.copy_block(copied.source_block_id, copied.block_id, copied.num_slots)

    @torch.inference_mode()
    def execute(self, plan: list[ScheduledRequest], capture: bool) -> ForwardResult:
        """Runs the packed batch of all planned positions and returns logits for the requests that sample."""
        changed, self._tables_changed = self._tables_changed, False
        if self.graphs is not None and all(item.num_tokens == 1 and item.samples for item in plan):
            result = self.graphs.run(plan, changed, capture)
            return ForwardResult(result.logits, result.captured, self.graphs.scales, result.best)
        device = self.model.device
        token_ids: list[int] = []
        positions: list[int] = []
        sample_rows: list[int] = []
        for item in plan:
            token_ids += item.request.token_ids[item.start : item.stop]
            positions += range(item.start, item.stop)
            if item.samples:
                sample_rows.append(len(token_ids) - 1)
        metadata = self.metadata(plan)
        name = self.backend.name
        buffer = self._capture_buffer(len(token_ids), capture)
        context = PagedAttentionContext(self.kv_cache, metadata, make_backend(name, metadata), make_writer(name), buffer)
        output = self.model.model(
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(sample_rows, dtype=torch.int64, device=device),
            paged_context=context,
        )
        return ForwardResult(output.logits[0], context.captured, tuple(context.scales[i] for i in sorted(context.scales)))

    def metadata(self, plan: list[ScheduledRequest]) -> AttentionMetadata:
        """Where every planned row is written and what it may read."""
        device = self.model.device
        tables = [item.request.block_table.block_ids for item in plan]
        width = max(len(table) for table in tables)
        slots: list[int] = []
        starts = [0]
        for item in plan:
            slots += item.request.block_table.slots(item.start, item.stop)
            starts.append(len(slots))
        return AttentionMetadata(
            block_size=self.config.block_size,
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
            block_tables=torch.tensor([table + [-1] * (width - len(table)) for table in tables], device=device),
            query_start=starts,
            context_lens=[item.stop for item in plan],
        )

    def _capture_buffer(self, num_rows: int, capture: bool) -> torch.Tensor | None:
        if not capture:
            return None
        m = self.model
        shape = (m.num_layers, num_rows, 2 * m.num_heads + 2 * m.num_kv_heads, m.head_dim)
        return torch.empty(shape, dtype=m.dtype, device=m.device)
