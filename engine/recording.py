"""Recordings: a zip of JSON lines (the events) and safetensors (the captured vectors). No pickle, nothing executed.

header.json          {"format": "pagewalk", "version": 1, "header": {...}, "num_events": n, and engine.recorded_vectors' part}
events.jsonl         one event a line, engine.events.to_wire
capture.safetensors  the captured vectors; may be absent
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save

from engine.block_table import BlockTable
from engine.capture import Kept
from engine.errors import RecordingError
from engine.events import (
    AllBlocksCleared,
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRemoved,
    BlockStored,
    BlockTouched,
    Event,
    PrefixHit,
    RequestAdded,
    RequestForked,
    SlotsWritten,
    TokenSampled,
    from_wire,
    to_wire,
)
from engine.recorded_vectors import Vectors, read_vectors, take_vectors
from engine.trace import CacheState, Trace, TraceHeader

FORMAT, VERSION = "pagewalk", 1
MAX_MEMBER_BYTES = {"header.json": 32 << 20, "events.jsonl": 256 << 20, "capture.safetensors": 2 << 30}
MAX_RECORDED_BLOCKS = 1 << 20
MAX_EXPANSION = 200  # recordings shrink ten- to thirtyfold; what unpacks to more is made to fill the memory


@dataclass(frozen=True, slots=True)
class Taken:
    """Everything a recording holds, taken at one moment: whoever owns the trace may go on while it is written."""

    header: TraceHeader
    events: list[Event]
    vectors: Vectors


def take(trace: Trace, include_capture: bool = True, kept: Kept | None = None) -> Taken:
    """Hold the engine's lock meanwhile. kept: of the captured vectors write these only."""
    return Taken(trace.header, list(trace.events), take_vectors(trace.capture if include_capture else None, kept))


def save_recording(trace: Trace, path: Path, include_capture: bool = True, kept: Kept | None = None) -> None:
    """Writes the trace, and the captured vectors unless told not to. The file appears whole or not at all."""
    write(take(trace, include_capture, kept), path)


def write(taken: Taken, path: Path) -> None:
    """The file appears whole or not at all. Raises RecordingError for a run too long to be read back."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "header": dataclasses.asdict(taken.header),
        "num_events": len(taken.events),
        **taken.vectors.head(),
    }
    tensors = taken.vectors.tensors()
    lines = "".join(json.dumps(to_wire(event), ensure_ascii=False) + "\n" for event in taken.events)
    members = {"header.json": json.dumps(head).encode(), "events.jsonl": lines.encode("utf-8", "surrogatepass")}
    if tensors:
        members["capture.safetensors"] = save(tensors)
    for name, data in members.items():
        if len(data) > MAX_MEMBER_BYTES[name]:
            raise RecordingError(
                f"The run is too long to record: its {name} would be {len(data):,} bytes, and {MAX_MEMBER_BYTES[name]:,} are "
                "read back. Leave the captured vectors out, or record a shorter run."
            )
    partial = path.with_name(path.name + ".part")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    partial.replace(path)


def load_recording(path: Path, limits: Mapping[str, int] = MAX_MEMBER_BYTES) -> Trace:
    """Rebuilds the trace. Every size, shape and event is checked first; RecordingError says what is wrong.

    limits: bytes that each member may unpack to, for a host that reads what strangers send.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, limits)
            head = _parse_json(archive.read("header.json"), "header.json")
            lines = archive.read("events.jsonl")
            tensors = archive.read("capture.safetensors") if "capture.safetensors" in archive.namelist() else None
    except FileNotFoundError:
        raise RecordingError(f"There is no file {path.name!r}.") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        OSError,
        ValueError,
    ) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"Not a recording: {path.name!r} is not a .pagewalk file, or it is damaged.") from None
    trace = Trace(_header(head))
    _replay(trace, lines, head)
    if tensors is not None:
        trace.capture = read_vectors(trace.header, tensors, head)
    return trace


def _check_members(archive: zipfile.ZipFile, limits: Mapping[str, int]) -> None:
    for info in archive.infolist():
        limit = limits.get(info.filename)
        if limit is None:
            raise RecordingError(f"Not a recording: it holds {info.filename[:40]!r}, which no recording holds.")
        if info.file_size > limit:
            raise RecordingError(f"The recording's {info.filename} is {info.file_size:,} bytes; at most {limit:,} are read.")
        if info.file_size > MAX_EXPANSION * max(info.compress_size, 1 << 16):
            raise RecordingError(
                f"The recording's {info.filename} unpacks from {info.compress_size:,} to {info.file_size:,} bytes, more than "
                f"{MAX_EXPANSION} times as much. No recording does."
            )
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise RecordingError(f"Not a recording: its {info.filename} is packed in a way that no recording is.")
    names = archive.namelist()
    for name in MAX_MEMBER_BYTES:
        if names.count(name) > 1 or (name not in names and name != "capture.safetensors"):
            raise RecordingError(f"Not a recording: it holds no {name}, or more than one.")


def _parse_json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise RecordingError(f"Not a recording: {where} is not JSON.") from None


def _header(head: Any) -> TraceHeader:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise RecordingError("Not a recording: its header does not say so.")
    if head.get("version") != VERSION:
        raise RecordingError(f"Not a recording: expected version {VERSION}, got {str(head.get('version'))[:20]}.")
    given = head.get("header")
    names = {field.name: str(field.type) for field in dataclasses.fields(TraceHeader)}
    if not isinstance(given, dict) or set(given) != set(names):
        raise RecordingError("Not a recording: its header lacks fields, or has unknown ones.")
    for name, kind in names.items():
        if type(given[name]).__name__ != kind:
            raise RecordingError(f"Not a recording: {name} in its header is not of type {kind}.")
        if kind == "str" and len(given[name]) > 1000:
            raise RecordingError(f"Not a recording: {name} in its header has {len(given[name]):,} characters.")
    header = TraceHeader(**given)
    small = (header.block_size, header.num_layers, header.num_heads, header.num_kv_heads, header.head_dim)
    fits = all(1 <= value <= 65536 for value in small) and 1 <= header.num_blocks <= MAX_RECORDED_BLOCKS
    if not fits or not all(1 <= value < 1 << 53 for value in (header.slot_bytes, header.bytes_per_block)):
        raise RecordingError("Not a recording: a size in its header is out of range.")
    if header.num_heads % header.num_kv_heads:
        raise RecordingError("Not a recording: its query heads cannot share its KV heads.")
    return header


def _replay(trace: Trace, lines: bytes, head: dict[str, Any]) -> None:
    rows = lines.split(b"\n")[:-1]
    if len(rows) != head.get("num_events"):
        raise RecordingError(f"The recording is damaged: {len(rows)} events of {str(head.get('num_events'))[:20]}.")
    blocks, slots = trace.header.num_blocks, trace.header.num_blocks * trace.header.block_size
    for number, row in enumerate(rows):
        event = from_wire(_parse_json(row, f"event {number}"))
        named = [getattr(event, "block_id", 0), getattr(event, "source_block_id", 0), *getattr(event, "block_ids", ())]
        if max(named) >= blocks or max(getattr(event, "slots", ()), default=0) >= slots or event.step < trace.last_step:
            raise RecordingError(f"The recording is damaged: event {number} names a block, slot or step out of range.")
        if _contradicts(trace.latest, event):
            raise RecordingError(
                f"The recording is damaged: event {number} ({type(event).__name__}) contradicts the ones before it."
            )
        trace.append(event)


def _contradicts(state: CacheState, event: Event) -> bool:
    """Whether no engine could have said this next: a recording gets nothing into the views that a live run would not."""
    request_id = getattr(event, "request_id", None)
    if isinstance(event, RequestAdded | RequestForked):
        if re.fullmatch("[A-Z]{1,8}", event.request_id) is None or event.request_id in state.requests:
            return True
        if isinstance(event, RequestAdded):
            return not 0 < len(event.token_ids) == len(event.token_texts)
        parent = state.requests.get(event.parent_id)
        if parent is None or parent.status != "running":
            return True
        ready = parent.num_computed_tokens == len(parent.tokens) == parent.num_prompt_tokens
        return not ready or list(event.block_ids) not in ([], parent.block_table)
    request = state.requests.get(request_id) if request_id is not None else None
    if request_id is not None and (request is None or request.status == "finished"):
        return True
    held = request.block_table if request else []
    if isinstance(event, BlockAllocated):
        free = not state.ref_cnt[event.block_id] and state.block_hash[event.block_id] is None
        return not free or event.logical_index != len(held)
    if isinstance(event, BlockTouched):
        known = state.block_hash[event.block_id] is not None and event.block_id not in held
        return not known or event.logical_index != len(held)
    if isinstance(event, BlockCopied):
        assert request is not None
        mapped = event.logical_index < len(held) and held[event.logical_index] == event.source_block_id
        free = not state.ref_cnt[event.block_id] and state.block_hash[event.block_id] is None
        in_block = request.num_computed_tokens - event.logical_index * state.block_size
        return not (
            mapped and free and state.ref_cnt[event.source_block_id] > 1 and 0 < event.num_slots == in_block < state.block_size
        )
    if isinstance(event, BlockStored):
        num = len(event.block_ids)
        return (
            len(event.block_hashes) != num
            or event.block_size != state.block_size
            or len(event.token_ids) != num * event.block_size
        )
    if isinstance(event, BlockRemoved):
        names = [state.block_hash[block_id] if not state.ref_cnt[block_id] else None for block_id in event.block_ids]
        return tuple(names) != event.block_hashes
    if isinstance(event, BlockFreed):
        return list(event.block_ids) != held[::-1] or not held
    if isinstance(event, AllBlocksCleared):
        return any(state.ref_cnt)
    assert request is not None or request_id is None
    num_tokens = len(request.tokens) if request else 0
    if isinstance(event, SlotsWritten):
        table, stop = BlockTable(state.block_size, held), event.start_position + len(event.slots)
        return stop > min(num_tokens, table.capacity) or tuple(table.slots(event.start_position, stop)) != event.slots
    if isinstance(event, PrefixHit):
        return event.num_tokens > num_tokens or event.num_tokens != len(event.block_ids) * state.block_size
    return isinstance(event, TokenSampled) and event.position != num_tokens
