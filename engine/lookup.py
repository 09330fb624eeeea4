"""One lookup, from a token to the weight of its key, every number computed from what the run really wrote.

token -> logical block -> block-table entry -> physical block -> slot -> byte address -> key -> score -> softmax weight,
then the whole head: the kernel's own output against dense attention over a contiguous copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.block_table import BlockTable
from engine.capture import Capture, Kept
from engine.errors import LookupFailed
from engine.events import SlotsWritten, TokenText
from engine.kv_cache import PagedKVCache
from engine.trace import CacheState, RequestState, Trace
from kernels.reference import gqa_attention


@dataclass(frozen=True, slots=True)
class AttendedHead:
    """One query of one head over the positions it sees. Float32; raw_dots and weights [n]; scale multiplies the raw dot."""

    raw_dot: float
    scale: float
    score: float
    weight: float
    raw_dots: torch.Tensor
    weights: torch.Tensor
    output_dense: torch.Tensor


def attend_head(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, key_position: int, scale: float) -> AttendedHead:
    """query [d], keys and values [n, d], contiguous, in the model's dtype. Scores and softmax in float32."""
    raw = keys.float() @ query.float()
    weights = torch.softmax(raw * scale, dim=0)
    dense = gqa_attention(query.view(1, 1, 1, -1), keys[None, None], values[None, None], scale=scale).flatten()
    return AttendedHead(
        raw_dot=float(raw[key_position]),
        scale=scale,
        score=float(raw[key_position] * scale),
        weight=float(weights[key_position]),
        raw_dots=raw,
        weights=weights,
        output_dense=dense.float(),
    )


@dataclass(frozen=True, slots=True)
class Lookup:
    """All of one lookup (DESIGN.md section 5). Byte offset and address are within one layer's K tensor.

    block_table: the request's, in the step that computed the query.
    slot_state: "captured" (the slot still holds these bytes and the request still maps to it), "freed" (the bytes are there,
    the request let go), "reused" (other bytes are there now), "recorded" (the pool is gone; this is a recording).
    """

    request_id: str
    query_position: int
    key_position: int
    layer: int
    head: int
    kv_head: int
    step: int
    token_text: TokenText
    query_text: TokenText
    block_size: int
    block_table: tuple[int, ...]
    logical_block: int
    block_offset: int
    physical_block: int
    slot: int
    slot_bytes: int
    byte_offset: int
    address: int | None
    dtype: str
    head_dim: int
    key: torch.Tensor
    query: torch.Tensor
    value: torch.Tensor
    raw_dot: float
    scale: float
    score: float
    weight: float
    weights: torch.Tensor
    output_paged: torch.Tensor
    output_dense: torch.Tensor
    max_abs_difference: float
    slot_state: str
    slot_owner: tuple[str, int] | None
    slot_sentence: str

    @property
    def key_norm(self) -> float:
        return float(self.key.norm())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: tensors as lists of floats, the address as a hexadecimal string, raw token bytes as "e2 80"."""
        out: dict[str, Any] = {"ok": True, "key_norm": self.key_norm}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            out[name] = value.tolist() if isinstance(value, torch.Tensor) else value
        out["token_text"] = printable(self.token_text)
        out["query_text"] = printable(self.query_text)
        out["address"] = None if self.address is None else hex(self.address)
        out["slot_owner"] = list(self.slot_owner) if self.slot_owner else None
        return out


def printable(text: TokenText) -> str:
    return text if isinstance(text, str) else text.hex(" ")


def look_up(
    trace: Trace,
    request_id: str,
    query_position: int | None,
    key_position: int,
    layer: int,
    head: int,
    kv_cache: PagedKVCache | None = None,
    as_of: int | None = None,
) -> Lookup:
    """Follows `request_id`'s query at `query_position` (None: its newest computed one) to the key at `key_position`.

    as_of: a preempted request is computed twice, in other blocks; None: where it was the last time, else as seen at this step.

    Raises LookupFailed, saying why, where there is nothing to follow: no such request or token, no slot yet, a key after the
    query, a layer or head the model has not, vectors not captured.
    """
    header, capture = trace.header, trace.capture
    if not all(type(n) is int for n in (key_position, layer, head, 0 if query_position is None else query_position)):
        raise LookupFailed("A lookup takes whole numbers: a query and a key position, a layer and a head.")
    request = trace.latest.requests.get(request_id) if isinstance(request_id, str) else None
    if request is None:
        raise LookupFailed(
            f"There is no sequence {str(request_id)[:40]} in this run. "
            f"Pick one of: {', '.join(trace.latest.requests) or 'none yet'}."
        )
    if not 0 <= layer < header.num_layers:
        raise LookupFailed(f"Layer {layer} does not exist: the model has layers 0 to {header.num_layers - 1}.")
    if not 0 <= head < header.num_heads:
        raise LookupFailed(f"Head {head} does not exist: the model has query heads 0 to {header.num_heads - 1}.")
    if capture is None:
        raise LookupFailed("This run keeps no keys (capture is off). Switch capture on and generate again.")
    if query_position is None:
        query_position = _newest_computed(capture, request)
    _check_positions(capture, request, query_position, key_position)
    _check_kept(capture.kept, request_id, query_position, layer, head)
    vectors = capture.vectors(request_id, range(query_position + 1), layer)
    step = capture.step_of(request_id, query_position)
    if vectors is None or step is None:
        raise LookupFailed(
            f"The vectors of {request_id}:0 to {request_id}:{query_position} are no longer kept: the capture budget of "
            f"{capture.budget_bytes / 2**20:,.0f} MiB is used up. Look up a newer run or raise capture_bytes."
        )
    if as_of is not None and as_of < step:
        step = _written_by(trace, request_id, query_position, as_of) or step
    queries, keys, values, outputs = capture.split(vectors)
    kv_head = head // (header.num_heads // header.num_kv_heads)
    row = capture.kept.heads.index(head) if capture.kept else head
    query, key, value = queries[query_position, row], keys[key_position, kv_head], values[key_position, kv_head]
    scale = capture.scales[layer] if capture.scales else header.head_dim**-0.5
    attended = attend_head(query, keys[:, kv_head], values[:, kv_head], key_position, scale)
    paged = outputs[query_position, row].float()

    table = BlockTable(header.block_size, trace.table_in(step, request_id))
    if key_position >= table.capacity:
        raise LookupFailed(f"This run does not say which slot {request_id}:{key_position} had in step {step}.")
    slot = table.slot(key_position)
    logical_block, block_offset = divmod(key_position, header.block_size)
    key_step = capture.step_of(request_id, key_position) or step
    state, owner, sentence = _slot_now(trace.latest, request, key_position, slot, key_step, keys[key_position], layer, kv_cache)
    return Lookup(
        request_id=request_id,
        query_position=query_position,
        key_position=key_position,
        layer=layer,
        head=head,
        kv_head=kv_head,
        step=step,
        token_text=request.tokens[key_position],
        query_text=request.tokens[query_position],
        block_size=header.block_size,
        block_table=tuple(table.block_ids),
        logical_block=logical_block,
        block_offset=block_offset,
        physical_block=table[logical_block],
        slot=slot,
        slot_bytes=header.slot_bytes,
        byte_offset=slot * header.slot_bytes,
        address=slot_address(kv_cache.k_pool[layer], slot) if kv_cache else None,
        dtype=header.dtype,
        head_dim=header.head_dim,
        key=key.float(),
        query=query.float(),
        value=value.float(),
        raw_dot=attended.raw_dot,
        scale=attended.scale,
        score=attended.score,
        weight=attended.weight,
        weights=attended.weights,
        output_paged=paged,
        output_dense=attended.output_dense,
        max_abs_difference=float((paged - attended.output_dense).abs().max()),
        slot_state=state,
        slot_owner=owner,
        slot_sentence=sentence,
    )


def slot_address(pool: torch.Tensor, slot: int) -> int:
    """The address of `slot` in a pool [num_slots, n_kv, d]: data_ptr + slot * stride, in bytes."""
    return pool.data_ptr() + slot * pool.stride(0) * pool.element_size()


def owner_of_slot(state: CacheState, slot: int) -> tuple[str, int] | None:
    """The request and position that map to `slot` in this state, or None."""
    block_id, offset = divmod(slot, state.block_size)
    for request in state.requests.values():
        if block_id in request.block_table:
            return request.request_id, request.block_table.index(block_id) * state.block_size + offset
    return None


def _newest_computed(capture: Capture, request: RequestState) -> int:
    if request.num_computed_tokens:
        return request.num_computed_tokens - 1
    known = capture.positions().get(request.request_id, [])
    if not known:
        raise LookupFailed(f"{request.request_id} has no token with a slot yet. It gets one in the next step.")
    return known[-1]


def _check_positions(capture: Capture, request: RequestState, query_position: int, key_position: int) -> None:
    name, last = request.request_id, len(request.tokens) - 1
    for position in (query_position, key_position):
        if not 0 <= position <= last:
            raise LookupFailed(f"{name} has no token {position}: its tokens are {name}:0 to {name}:{last}.")
    for position in (key_position, query_position):
        if position >= request.num_computed_tokens and capture.step_of(name, position) is None:
            if request.status == "finished":
                raise LookupFailed(f"{name}:{position} never got a slot: {name} ended before a step computed it.")
            if position == last and position >= request.num_prompt_tokens:
                raise LookupFailed(
                    f"{name}:{position} was sampled in this step and has no slot yet. "
                    "It gets one when it is read in the next step."
                )
            raise LookupFailed(f"{name}:{position} has no slot yet. It gets one when a step computes it.")
    if key_position > query_position:
        raise LookupFailed(
            f"The query {name}:{query_position} cannot see {name}:{key_position}: "
            "a token attends to itself and those before it."
        )


def _written_by(trace: Trace, request_id: str, position: int, step: int) -> int | None:
    """The last step up to `step` in which the request computed this position."""
    for event in reversed(trace.events_between(0, step)):
        if isinstance(event, SlotsWritten) and event.request_id == request_id:
            first, stop = event.start_position, event.start_position + len(event.slots)
            if first <= position < stop:
                return event.step
    return None


def _check_kept(kept: Kept | None, request_id: str, query_position: int, layer: int, head: int) -> None:
    if kept is None:
        return
    for what, wanted, there in (("layer", layer, kept.layers), ("query head", head, kept.heads)):
        if wanted not in there:
            names = ", ".join(map(str, there))
            raise LookupFailed(f"To stay small, this recording keeps the vectors of {what} {names}, not of {wanted}.")
    if (request_id, query_position) not in kept.queries:
        raise LookupFailed(
            f"To stay small, this recording keeps the queries of the newest tokens of each step, not of {request_id}:"
            f"{query_position}."
        )


def _slot_now(
    now: CacheState,
    request: RequestState,
    position: int,
    slot: int,
    step: int,
    captured_key: torch.Tensor,
    layer: int,
    kv_cache: PagedKVCache | None,
) -> tuple[str, tuple[str, int] | None, str]:
    """(slot_state, owner now, sentence)."""
    mine = BlockTable(now.block_size, request.block_table)
    still_mapped = position < mine.capacity and mine.slot(position) == slot
    owner = (request.request_id, position) if still_mapped else owner_of_slot(now, slot)
    if kv_cache is None:
        return "recorded", owner, "From a recording: these are the bytes captured in that run."
    same = torch.equal(kv_cache.k_pool[layer, slot].cpu(), captured_key)
    captured_at = f"The bytes shown are those captured at step {step}."
    if owner is None and same:
        return "freed", None, f"Slot {slot} was given back; its bytes are still there until another sequence takes the block."
    if owner is None:
        return "reused", None, f"Slot {slot} was given back and written again since. {captured_at}"
    name, at = owner
    if still_mapped and same:
        return "captured", owner, f"Slot {slot} still holds the captured bytes."
    if still_mapped:
        return "reused", owner, f"Slot {slot} holds other bytes now: {name}:{at} was computed again. {captured_at}"
    written = at < now.requests[name].num_computed_tokens
    if same and written:
        return "captured", owner, f"Slot {slot} belongs to {name}:{at} now and still holds the captured bytes."
    if same:
        return "freed", owner, f"Slot {slot} was given back; its bytes are still there until {name}:{at} is written over them."
    return "reused", owner, f"Slot {slot} belongs to {name}:{at} now. {captured_at}"
