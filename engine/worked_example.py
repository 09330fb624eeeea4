"""The worked lookup: token 38's query follows the block table [7, 2, 15] to the key of token 20, every number shown.

    python -m engine.worked_example

Random keys, values and query from seed 0 (the example of the Language AI Handbook, "Paged Attention", section 5), computed
by the code that fills the Lookup panel of a live run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.block_table import BlockTable
from engine.lookup import AttendedHead, attend_head, slot_address
from kernels.dispatch import make_backend
from kernels.metadata import AttentionMetadata

BLOCK_TABLE, BLOCK_SIZE, NUM_BLOCKS, HEAD_DIM = (7, 2, 15), 16, 16, 8
CONTEXT_LEN, KEY_POSITION, SEED = 38, 20, 0


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """Vectors float32. address is of this process's own pool; byte_offset is slot * slot_bytes within it.

    slots and key_norms are of every position that the query sees, [context_len].
    """

    seed: int
    block_table: tuple[int, ...]
    block_size: int
    num_blocks: int
    context_len: int
    key_position: int
    logical_block: int
    block_offset: int
    physical_block: int
    slot: int
    slots: tuple[int, ...]
    slot_bytes: int
    byte_offset: int
    address: int
    key: torch.Tensor
    key_norms: torch.Tensor
    query: torch.Tensor
    attended: AttendedHead
    output_paged: torch.Tensor
    max_abs_difference: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the numbers of the six steps; slots, key_norms, raw_dots, scores and weights [38]; vectors [8]."""
        weights, raw = self.attended.weights, self.attended.raw_dots
        return {
            "seed": self.seed,
            "block_table": list(self.block_table),
            "block_size": self.block_size,
            "num_blocks": self.num_blocks,
            "context_len": self.context_len,
            "key_position": self.key_position,
            "logical_block": self.logical_block,
            "block_offset": self.block_offset,
            "physical_block": self.physical_block,
            "slot": self.slot,
            "slots": list(self.slots),
            "slot_bytes": self.slot_bytes,
            "byte_offset": self.byte_offset,
            "address": hex(self.address),
            "key": self.key.tolist(),
            "query": self.query.tolist(),
            "key_norm": float(self.key.norm()),
            "key_norms": self.key_norms.tolist(),
            "raw_dot": self.attended.raw_dot,
            "scale": self.attended.scale,
            "score": self.attended.score,
            "weight": self.attended.weight,
            "raw_dots": raw.tolist(),
            "scores": (raw * self.attended.scale).tolist(),
            "weights": weights.tolist(),
            "largest_weight": float(weights.max()),
            "largest_weight_position": int(weights.argmax()),
            "output_paged": self.output_paged.tolist(),
            "output_dense": self.attended.output_dense.tolist(),
            "output_norm": float(self.output_paged.norm()),
            "differences": (self.output_paged - self.attended.output_dense).tolist(),
            "max_abs_difference": self.max_abs_difference,
        }


def worked_example() -> WorkedExample:
    """Computes the example through the block table and, for comparison, over a contiguous copy."""
    generator = torch.Generator().manual_seed(SEED)
    keys = torch.randn(NUM_BLOCKS, BLOCK_SIZE, HEAD_DIM, generator=generator)
    values = torch.randn(NUM_BLOCKS, BLOCK_SIZE, HEAD_DIM, generator=generator)
    query = torch.randn(HEAD_DIM, generator=generator)

    table = BlockTable(BLOCK_SIZE, BLOCK_TABLE)
    k_pool, v_pool = keys.view(-1, 1, HEAD_DIM), values.view(-1, 1, HEAD_DIM)
    slots = torch.tensor(table.slots(0, CONTEXT_LEN))
    metadata = AttentionMetadata(BLOCK_SIZE, slots[-1:], torch.tensor([BLOCK_TABLE]), [0, 1], [CONTEXT_LEN])
    scale = HEAD_DIM**-0.5
    paged = make_backend("torch", metadata)(query.view(1, 1, HEAD_DIM), k_pool, v_pool, metadata, scale).flatten()

    attended = attend_head(query, k_pool[slots, 0], v_pool[slots, 0], KEY_POSITION, scale)
    slot = table.slot(KEY_POSITION)
    slot_bytes = k_pool.stride(0) * k_pool.element_size()
    return WorkedExample(
        seed=SEED,
        block_table=BLOCK_TABLE,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        context_len=CONTEXT_LEN,
        key_position=KEY_POSITION,
        logical_block=KEY_POSITION // BLOCK_SIZE,
        block_offset=KEY_POSITION % BLOCK_SIZE,
        physical_block=table[KEY_POSITION // BLOCK_SIZE],
        slot=slot,
        slots=tuple(slots.tolist()),
        slot_bytes=slot_bytes,
        byte_offset=slot * slot_bytes,
        address=slot_address(k_pool, slot),
        key=k_pool[slot, 0],
        key_norms=k_pool[slots, 0].norm(dim=1),
        query=query,
        attended=attended,
        output_paged=paged,
        max_abs_difference=float((paged - attended.output_dense).abs().max()),
    )


def describe(example: WorkedExample) -> str:
    """The example as eight short paragraphs for a console."""
    x, size = example.to_dict(), example.block_size
    at, slot = x["key_position"], x["slot"]
    parts = [
        f"{i * size}-{min((i + 1) * size, example.context_len) - 1} in block {b}" for i, b in enumerate(example.block_table)
    ]
    gap = "     "
    lines = (
        f"{x['context_len']} tokens, block size {size}, block table {x['block_table']}. "
        f"Token {x['context_len']} asks for the key of token {at}.",
        "",
        f"1  logical block   {at} // {size} = {x['logical_block']}{gap}offset  {at} % {size} = {x['block_offset']}",
        f"2  block table     table[{x['logical_block']}] = {x['physical_block']}",
        f"3  slot            {x['physical_block']} * {size} + {x['block_offset']} = {slot}{gap}"
        f"byte offset  {slot} * {x['slot_bytes']} = {x['byte_offset']:,}{gap}address  {x['address']}",
        f"4  key             norm {x['key_norm']:.4f}{gap}score  {x['raw_dot']:.4f} / sqrt({len(x['key'])}) = {x['score']:.4f}",
        f"5  all {x['context_len']} scores   {', '.join(parts)}",
        f"6  softmax         weight of token {at}: {x['weight']:.4f}{gap}"
        f"largest {x['largest_weight']:.4f} at {x['largest_weight_position']}{gap}output norm {x['output_norm']:.4f}",
        "",
        f"Contiguous attention over the same {x['context_len']} tokens: largest difference {x['max_abs_difference']:.1e}.",
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe(worked_example()))
