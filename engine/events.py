"""What the engine says happened: frozen events, and their one-line wire form.

The engine appends these to a `Trace`; everything a person sees is a replay of them (`engine.trace`). Each carries the
`step` it belongs to: 0 before the first forward pass, then the number of the forward pass. An event that a person would
ask "why?" about carries a `reason`, one sentence.

`BlockStored`, `BlockRemoved` and `AllBlocksCleared` keep the field names of vLLM's KV cache events.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from engine.errors import RecordingError

TokenText = str | bytes
"""The text of one token, exactly; raw bytes where the token alone is not valid UTF-8 (a piece of an emoji)."""


@dataclass(frozen=True, slots=True)
class Event:
    step: int


@dataclass(frozen=True, slots=True)
class RequestAdded(Event):
    request_id: str
    prompt: str
    token_ids: tuple[int, ...]
    token_texts: tuple[TokenText, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class RequestRefused(Event):
    prompt: str
    reason: str


@dataclass(frozen=True, slots=True)
class PrefixHit(Event):
    """The first `num_tokens` of the request were found in the pool; `BlockTouched` events take the blocks."""

    request_id: str
    num_tokens: int
    block_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PrefixMiss(Event):
    """The first logical block that was looked up and not found.

    num_shared_tokens: how many of its first tokens the likest block after the same beginning has. evicted_step: when the block
    that held just these tokens was reused, if it is remembered.
    """

    request_id: str
    logical_index: int
    reason: str
    num_shared_tokens: int = 0
    evicted_step: int | None = None


@dataclass(frozen=True, slots=True)
class BlockAllocated(Event):
    """A free block was appended to the request's block table, at `logical_index`."""

    request_id: str
    logical_index: int
    block_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class BlockTouched(Event):
    """A block that already holds the right tokens was appended to the table: its reference count went up by one."""

    request_id: str
    logical_index: int
    block_id: int


@dataclass(frozen=True, slots=True)
class BlockCopied(Event):
    """Copy-on-write: the request's table now names `block_id` in place of `source_block_id`, which others still read.

    The first `num_slots` slots were copied, K and V of every layer. The source's reference count went down by one.
    """

    request_id: str
    logical_index: int
    source_block_id: int
    block_id: int
    num_slots: int
    reason: str


@dataclass(frozen=True, slots=True)
class BlockStored(Event):
    """Full blocks were hashed, so that a later prompt can hit them. One hash and one block id a block, in order."""

    block_hashes: tuple[str, ...]
    parent_block_hash: str | None
    token_ids: tuple[int, ...]
    block_size: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved(Event):
    """Cached blocks lost their hash because they are about to be reused."""

    block_hashes: tuple[str, ...]
    block_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class AllBlocksCleared(Event):
    """Every hash was dropped; allowed only while no block is in use."""


@dataclass(frozen=True, slots=True)
class BlockFreed(Event):
    """The request let go of its whole table, in this order (tail first); each block's reference count went down by one."""

    request_id: str
    block_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SlotsWritten(Event):
    """K and V of positions `start_position`.. were written, one slot a position, in every layer."""

    request_id: str
    start_position: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenSampled(Event):
    """The token that will stand at `position`. It has no slot until a later step computes it."""

    request_id: str
    position: int
    token_id: int
    text: TokenText


@dataclass(frozen=True, slots=True)
class RequestForked(Event):
    """A child of `parent_id` with the same prompt. It reads the parent's blocks `block_ids`, each one reference more.

    Without blocks the child could not fork: it waits, to compute the prompt itself.
    """

    request_id: str
    parent_id: str
    block_ids: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RequestPreempted(Event):
    """The request gave its blocks back (see `BlockFreed`) and waits at the head of the queue to be recomputed.

    num_tokens: to recompute. needed_by: who wanted a block. num_freed_blocks: of the victim's, those that nobody else reads.
    """

    request_id: str
    num_tokens: int
    reason: str
    needed_by: str = ""
    num_freed_blocks: int = 0


@dataclass(frozen=True, slots=True)
class RequestFinished(Event):
    """`finish_reason` is "stop" or "length", as in the OpenAI API; "abort"; or "error": no token could be chosen."""

    request_id: str
    finish_reason: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepTimed(Event):
    """The last event of a forward pass. Times in milliseconds of wall clock."""

    num_tokens: int
    num_requests: int
    schedule_ms: float
    forward_ms: float
    sample_ms: float


EVENT_TYPES: dict[str, type[Event]] = {
    cls.__name__: cls
    for cls in (
        RequestAdded, RequestRefused, PrefixHit, PrefixMiss, BlockAllocated, BlockTouched, BlockCopied, BlockStored,
        BlockRemoved, AllBlocksCleared, BlockFreed, SlotsWritten, TokenSampled, RequestForked, RequestPreempted,
        RequestFinished, StepTimed,
    )
}  # fmt: skip
_FIELDS = {name: tuple(f.name for f in dataclasses.fields(cls)) for name, cls in EVENT_TYPES.items()}
_NUM_REQUIRED = {
    name: sum(f.default is dataclasses.MISSING for f in dataclasses.fields(cls)) for name, cls in EVENT_TYPES.items()
}
_TYPES = {name: {f.name: f.type for f in dataclasses.fields(cls)} for name, cls in EVENT_TYPES.items()}


_PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "str": (str,),
    "TokenText": (str,),
    "str | None": (str, type(None)),
}


def to_wire(event: Event) -> list[Any]:
    """`[type name, step, then the fields in their order]`, ready for JSON. Bytes become `{"hex": "e280"}`."""
    name = type(event).__name__
    return [name, *(_plain(getattr(event, field)) for field in _FIELDS[name])]


def from_wire(row: Any) -> Event:
    """The event of one wire row; fields with a default may be left out. Raises RecordingError where the row is not one."""
    if not isinstance(row, list) or not row or not isinstance(row[0], str) or row[0] not in EVENT_TYPES:
        raise RecordingError(f"Not a recording: {str(row)[:60]!r} is no event of this version.")
    name, values = row[0], row[1:]
    fields = _TYPES[name]
    if not _NUM_REQUIRED[name] <= len(values) <= len(fields):
        raise RecordingError(f"Not a recording: {name} has {len(values)} fields, expected {len(fields)}.")
    return EVENT_TYPES[name](**{
        field: _checked(value, str(kind), f"{name}.{field}")
        for (field, kind), value in zip(fields.items(), values, strict=False)
    })  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _checked(value: Any, kind: str, where: str) -> Any:
    """`value` as the annotated type `kind`, or RecordingError."""
    if kind.startswith("tuple[") and isinstance(value, list):
        return tuple(_checked(v, kind[len("tuple[") : -len(", ...]")], where) for v in value)
    if kind == "TokenText" and isinstance(value, dict) and isinstance(value.get("hex"), str):
        try:
            return bytes.fromhex(value["hex"])
        except ValueError:
            raise RecordingError(f"Not a recording: {where} holds bad hexadecimal.") from None
    expected = _PLAIN_TYPES.get(kind)
    if expected is None or not isinstance(value, expected) or isinstance(value, bool):
        raise RecordingError(f"Not a recording: {where} holds {str(value)[:40]!r}, expected {kind}.")
    limit = {"int": 1 << 53, "int | None": 1 << 53, "float": 1e15}.get(kind)
    if limit is not None and isinstance(value, (int, float)) and not 0 <= value < limit:
        raise RecordingError(f"Not a recording: {where} is {str(value)[:40]}, out of range.")
    return value
