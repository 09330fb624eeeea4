"""Recordings come back equal, and nothing else comes back as anything but a sentence."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from engine import Engine, EngineConfig, SamplingParams, Trace, recorded_vectors
from engine import recording as recording_module
from engine.errors import LookupFailed, RecordingError
from engine.events import SlotsWritten
from engine.lookup import look_up
from engine.recorded_vectors import kept_for
from engine.recording import MAX_RECORDED_BLOCKS, save_recording

MEMBERS = ("header.json", "events.jsonl", "capture.safetensors")


@pytest.fixture(scope="module")
def engine(tiny) -> Engine:
    """A tight run: shared beginnings, an emoji, a refusal, preemptions, an abort, a fork, blocks of an earlier run."""
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=14, max_num_batched_tokens=9, watermark=0.0))
    engine.generate(["shared beginning"], SamplingParams(max_tokens=2))
    engine.reset(keep_cache=True)
    with pytest.raises(ValueError):
        engine.add_request("")
    for i in range(4):
        engine.add_request(f"shared beginning {i} 😀", SamplingParams(max_tokens=10, ignore_eos=True))
    for _ in range(14):
        engine.step()
    engine.abort("B")
    while engine.has_unfinished_requests():
        engine.step()
    engine.generate(["forked"], SamplingParams(max_tokens=4, n=2, temperature=1.0, ignore_eos=True))
    kinds = {type(event).__name__ for event in engine.trace.events}
    assert {
        "RequestRefused",
        "PrefixHit",
        "PrefixMiss",
        "RequestPreempted",
        "BlockRemoved",
        "BlockTouched",
        "BlockStored",
        "RequestForked",
        "BlockCopied",
    } <= kinds
    return engine


@pytest.fixture(scope="module")
def saved(engine, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("recording") / "run.pagewalk"
    engine.trace.save(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.pagewalk"]
    return path.read_bytes()


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


def loaded(data: bytes, folder: Path) -> Trace:
    path = folder / "given.pagewalk"
    path.write_bytes(data)
    return Trace.load(path)


def refused(data: bytes, folder: Path) -> str:
    with pytest.raises(RecordingError) as caught:
        loaded(data, folder)
    message = str(caught.value)
    assert message.endswith(".")
    assert len(message) < 300
    return message


# ---- round trips -----------------------------------------------------------------------------------------


def test_a_recording_comes_back_equal_at_every_step(engine, saved, tmp_path):
    trace = loaded(saved, tmp_path)
    assert trace.header == engine.trace.header
    assert trace.events == engine.trace.events
    for step in range(trace.last_step + 1):
        assert trace.state_at(step) == engine.trace.state_at(step)


def test_every_lookup_of_a_recording_is_the_lookup_of_the_run(engine, saved, tmp_path):
    trace = loaded(saved, tmp_path)
    num = 0
    for name, positions in engine.capture.positions().items():
        for query in positions:
            for key in {0, query // 2, query}:
                live, again = engine.lookup(name, query, key, 1, 2), look_up(trace, name, query, key, 1, 2)
                assert (again.address, again.slot_state) == (None, "recorded")
                assert again.slot_sentence == "From a recording: these are the bytes captured in that run."
                left, right = live.to_dict(), again.to_dict()
                for changed in ("address", "slot_state", "slot_sentence", "slot_owner"):
                    left.pop(changed), right.pop(changed)
                assert left == right
                num += 1
    assert num > 100


def test_a_recording_of_a_recording_is_the_same(saved, tmp_path):
    loaded(saved, tmp_path).save(tmp_path / "again.pagewalk")
    again = members((tmp_path / "again.pagewalk").read_bytes())
    first = members(saved)
    assert again["events.jsonl"] == first["events.jsonl"]
    one, two = (loaded(packed(parts), tmp_path) for parts in (first, again))
    assert one.capture.positions() == two.capture.positions()
    assert all(
        torch.equal(one.capture.row(n, p), two.capture.row(n, p)) for n, ps in one.capture.positions().items() for p in ps
    )


def test_the_captured_vectors_can_be_left_out(engine, tmp_path):
    engine.trace.save(tmp_path / "small.pagewalk", include_capture=False)
    trace = Trace.load(str(tmp_path / "small.pagewalk"))
    assert trace.events == engine.trace.events
    assert trace.capture is None
    with pytest.raises(LookupFailed, match="keeps no keys"):
        look_up(trace, "A", None, 0, 0, 0)


def test_a_run_without_capture_and_an_empty_one_can_be_recorded(tiny, tmp_path):
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=8, capture=False))
    for _ in range(2):
        engine.trace.save(tmp_path / "run.pagewalk")
        assert Trace.load(tmp_path / "run.pagewalk").events == engine.trace.events
        engine.generate(["abc"], SamplingParams(max_tokens=2))


def test_a_bfloat16_run_comes_back_bit_for_bit(tiny, tmp_path):
    import copy
    import dataclasses

    model = dataclasses.replace(tiny, model=copy.deepcopy(tiny.model).bfloat16(), dtype=torch.bfloat16)
    engine = Engine(model, EngineConfig(block_size=4, num_blocks=8))
    engine.generate(["abcdef"], SamplingParams(max_tokens=3))
    engine.trace.save(tmp_path / "run.pagewalk")
    trace = Trace.load(tmp_path / "run.pagewalk")
    assert torch.equal(trace.capture.row("A", 4), engine.capture.row("A", 4))
    assert engine.lookup("A", 6, 2).dtype == "bfloat16"


def test_a_refused_prompt_with_half_a_character_is_recorded_too(tiny, tmp_path):
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=8))
    with pytest.raises(ValueError):
        engine.add_request("a\ud800")
    engine.trace.save(tmp_path / "run.pagewalk")
    assert Trace.load(tmp_path / "run.pagewalk").events == engine.trace.events


def test_a_failed_save_leaves_the_old_file(engine, saved, tmp_path, monkeypatch):
    path = tmp_path / "run.pagewalk"
    path.write_bytes(saved)
    monkeypatch.setitem(recording_module.MAX_MEMBER_BYTES, "events.jsonl", 100)
    with pytest.raises(
        RecordingError, match=r"The run is too long to record: its events\.jsonl would be [\d,]+ bytes, and 100 are read back"
    ):
        engine.trace.save(path)
    assert path.read_bytes() == saved


# ---- what is not a recording -------------------------------------------------------------------------------


def test_there_may_be_no_such_file(tmp_path):
    with pytest.raises(RecordingError, match=r"There is no file 'nothing\.pagewalk'\."):
        Trace.load(tmp_path / "nothing.pagewalk")
    with pytest.raises(RecordingError):
        Trace.load(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 1000,
        b"PK\x03\x04",
        b"not a zip",
        pickle.dumps({"version": 1}),
        b"\x89PNG\r\n\x1a\n" + b"x" * 100,
        "é".encode() * 50,
    ],
    ids=["empty", "zeros", "zip head", "text", "pickle", "png", "utf-8"],
)
def test_another_kind_of_file_is_refused(data, tmp_path):
    assert refused(data, tmp_path) == "Not a recording: 'given.pagewalk' is not a .pagewalk file, or it is damaged."


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved, tmp_path, share):
    assert "is damaged" in refused(saved[: int(len(saved) * share)], tmp_path)


def test_a_pickled_tensor_in_place_of_the_vectors_is_refused_and_not_run(saved, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path(tmp_path / "executed").touch, ())

    parts = members(saved) | {"capture.safetensors": pickle.dumps(Bomb())}
    assert refused(packed(parts), tmp_path) == "The recording's captured vectors are damaged."
    buffer = io.BytesIO()
    torch.save({"rows": torch.zeros(2)}, buffer)
    assert refused(packed(members(saved) | {"capture.safetensors": buffer.getvalue()}), tmp_path).endswith("are damaged.")
    assert "not JSON" in refused(packed(members(saved) | {"header.json": pickle.dumps(Bomb())}), tmp_path)
    assert not (tmp_path / "executed").exists()


def test_an_extra_a_missing_or_a_doubled_member_is_refused(saved, tmp_path):
    parts = members(saved)
    assert (
        refused(packed(parts | {"evil.py": b"x"}), tmp_path) == "Not a recording: it holds 'evil.py', which no recording holds."
    )
    assert "'../header.json'" in refused(packed(parts | {"../header.json": b"x"}), tmp_path)
    for name in ("header.json", "events.jsonl"):
        rest = {key: value for key, value in parts.items() if key != name}
        assert refused(packed(rest), tmp_path) == f"Not a recording: it holds no {name}, or more than one."
    for name in MEMBERS:
        out = io.BytesIO(saved)
        with zipfile.ZipFile(out, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(name, parts[name])
        assert f"it holds no {name}, or more than one" in refused(out.getvalue(), tmp_path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(saved, tmp_path):
    bomb = packed(members(saved) | {"events.jsonl": b"\n" * (100 << 20)})
    assert len(bomb) < 1 << 20
    assert "more than 200 times as much" in refused(bomb, tmp_path)
    huge = bytearray(packed(members(saved), zipfile.ZIP_STORED))
    at = huge.rindex(b"events.jsonl") - 46  # its entry in the central directory: the size unpacked is at 24
    huge[at + 24 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    assert "bytes; at most" in refused(bytes(huge), tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_another_packing_is_refused(saved, tmp_path, method):
    assert "packed in a way that no recording is" in refused(packed(members(saved), method), tmp_path)


def test_an_encrypted_file_is_refused(saved, tmp_path):
    data = bytearray(saved)
    for marker, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = data.index(marker)
        data[at + offset] |= 1
    refused(bytes(data), tmp_path)


# ---- the header -----------------------------------------------------------------------------------------------


def with_head(saved: bytes, change) -> bytes:
    parts = members(saved)
    head = json.loads(parts["header.json"])
    changed = change(head)
    return packed(parts | {"header.json": json.dumps(head if changed is None else changed).encode()})


def test_another_version_is_named(saved, tmp_path):
    assert (
        refused(with_head(saved, lambda head: head.update(version=3)), tmp_path)
        == "Not a recording: expected version 1, got 3."
    )
    assert "expected version 1, got None" in refused(with_head(saved, lambda head: head.pop("version") and None), tmp_path)
    assert "expected version 1, got 1." not in refused(with_head(saved, lambda head: head.update(version="1" * 500)), tmp_path)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda head: [head], "its header does not say so"),
        (lambda head: "pagewalk", "its header does not say so"),
        (lambda head: head.update(format="other"), "its header does not say so"),
        (lambda head: head.update(header=None), "lacks fields, or has unknown ones"),
        (lambda head: head["header"].update(extra=1), "lacks fields, or has unknown ones"),
        (lambda head: head["header"].pop("block_size") and None, "lacks fields, or has unknown ones"),
        (lambda head: head["header"].update(block_size="4"), "block_size in its header is not of type int"),
        (lambda head: head["header"].update(num_blocks=True), "num_blocks in its header is not of type int"),
        (lambda head: head["header"].update(model=None), "model in its header is not of type str"),
        (lambda head: head["header"].update(model="m" * 100_000), "model in its header has 100,000 characters"),
        (lambda head: head["header"].update(block_size=0), "a size in its header is out of range"),
        (lambda head: head["header"].update(num_blocks=MAX_RECORDED_BLOCKS + 1), "a size in its header is out of range"),
        (lambda head: head["header"].update(num_blocks=10**18), "a size in its header is out of range"),
        (lambda head: head["header"].update(num_blocks=-4), "a size in its header is out of range"),
        (lambda head: head["header"].update(num_layers=10**9), "a size in its header is out of range"),
        (lambda head: head["header"].update(slot_bytes=-1), "a size in its header is out of range"),
        (lambda head: head["header"].update(bytes_per_block=10**40), "a size in its header is out of range"),
        (lambda head: head["header"].update(num_kv_heads=3), "its query heads cannot share its KV heads"),
        (lambda head: head.update(num_events=5), "events of 5"),
        (lambda head: head.update(num_events=None), "events of None"),
        (lambda head: head.update(captured=None), "index of captured vectors is damaged"),
        (lambda head: head["captured"].pop() and None, "rows of captured vectors are damaged"),
        (lambda head: head["captured"].__setitem__(0, ["A", -1, 1]), "index of captured vectors is damaged"),
        (lambda head: head["captured"].__setitem__(0, [["A"], 1, 1]), "index of captured vectors is damaged"),
        (lambda head: head["captured"].__setitem__(0, ["A", True, 1]), "index of captured vectors is damaged"),
        (lambda head: head.update(scales=None), "scales, one a layer, are damaged"),
        (lambda head: head.update(scales=[0.25]), "scales, one a layer, are damaged"),
        (lambda head: head.update(scales=[0.25, float("nan")]), "scales, one a layer, are damaged"),
        (lambda head: head["header"].update(dtype="bfloat16"), "its header says bfloat16"),
        (lambda head: head["header"].update(head_dim=32), "captured vectors have the wrong shape"),
    ],
)
def test_a_hostile_header_is_refused_in_a_sentence(saved, tmp_path, change, words):
    assert words in refused(with_head(saved, change), tmp_path)


def test_a_header_that_is_no_json_is_refused(saved, tmp_path):
    for data in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000):
        refused(packed(members(saved) | {"header.json": data}), tmp_path)


# ---- the events -------------------------------------------------------------------------------------------------


def with_events(saved: bytes, change) -> bytes:
    """`change` edits the list of rows in place."""
    parts = members(saved)
    rows = [json.loads(line) for line in parts["events.jsonl"].splitlines()]
    change(rows)
    head = json.loads(parts["header.json"])
    head["num_events"] = len(rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return packed(parts | {"header.json": json.dumps(head).encode(), "events.jsonl": lines})


def first(rows: list, name: str) -> int:
    return next(i for i, row in enumerate(rows) if row[0] == name)


def edit(name: str, index: int, value):
    def change(rows: list) -> None:
        row = rows[first(rows, name)]
        row[index] = value(row[index]) if callable(value) else value

    return change


def repeat(name: str):
    return lambda rows: rows.insert(first(rows, name), rows[first(rows, name)])


def drop(name: str):
    return lambda rows: rows.pop(first(rows, name))


def both_empty(rows: list) -> None:
    rows[first(rows, "RequestAdded")][4:6] = [[], []]


def at_the_end(name: str, *values):
    return lambda rows: rows.append([name, rows[-1][1], *values])


def cleared_early(rows: list) -> None:
    rows.insert(first(rows, "SlotsWritten"), ["AllBlocksCleared", 1])


def late_fork(rows: list) -> None:
    at = first(rows, "BlockCopied")
    rows.insert(at, ["RequestForked", rows[at][1], "Z", rows[first(rows, "RequestForked")][3], [], "late"])


def copy_onto_itself(rows: list) -> None:
    rows[first(rows, "BlockCopied")][5] = rows[first(rows, "BlockCopied")][4]


DAMAGE = {
    "a negative block": (edit("BlockAllocated", 4, -1), "BlockAllocated.block_id is -1, out of range"),
    "a block beyond the pool": (edit("BlockAllocated", 4, 14), "names a block, slot or step out of range"),
    "a block far beyond": (edit("BlockAllocated", 4, (1 << 53) - 1), "names a block, slot or step out of range"),
    "a negative slot": (edit("SlotsWritten", 4, lambda slots: [-1, *slots[1:]]), "out of range"),
    "a slot beyond the pool": (edit("SlotsWritten", 4, lambda slots: [14 * 4, *slots[1:]]), "out of range"),
    "slots of another block": (edit("SlotsWritten", 4, lambda slots: slots[::-1]), "SlotsWritten) contradicts"),
    "a position beyond the tokens": (edit("SlotsWritten", 3, 1 << 40), "SlotsWritten) contradicts"),
    "a negative step": (edit("SlotsWritten", 1, -2), "out of range"),
    "a step that goes back": (lambda rows: rows.append(["AllBlocksCleared", 0]), "names a block, slot or step out of range"),
    "a double free": (repeat("BlockFreed"), "BlockFreed) contradicts"),
    "a free of another's block": (edit("BlockFreed", 3, lambda ids: [*ids[:-1], ids[-1] ^ 1]), "BlockFreed) contradicts"),
    "a block allocated twice": (repeat("BlockAllocated"), "BlockAllocated) contradicts"),
    "a gap in a table": (edit("BlockAllocated", 3, lambda i: i + 1), "BlockAllocated) contradicts"),
    "a hit on an empty block": (edit("BlockTouched", 4, lambda b: (b + 1) % 14), "contradicts"),
    "a block touched twice": (repeat("BlockTouched"), "BlockTouched) contradicts"),
    "a removed hash that was not": (edit("BlockRemoved", 2, ["feed"]), "BlockRemoved) contradicts"),
    "a missing removal": (drop("BlockRemoved"), "BlockAllocated) contradicts"),
    "a fork of a stranger": (edit("RequestForked", 3, "Q"), "RequestForked) contradicts"),
    "a fork that ends its parent's name": (edit("RequestForked", 2, "E"), "RequestForked) contradicts"),
    "a fork of an ended one": (edit("RequestForked", 3, "A"), "RequestForked) contradicts"),
    "a fork of half a table": (edit("RequestForked", 4, lambda ids: ids[:1]), "RequestForked) contradicts"),
    "a fork with a hostile name": (edit("RequestForked", 2, "<b>"), "RequestForked) contradicts"),
    "a second fork of one name": (repeat("RequestForked"), "RequestForked) contradicts"),
    "a fork in mid-text": (late_fork, "RequestForked) contradicts"),
    "a copy of a block of one's own": (repeat("BlockCopied"), "BlockCopied) contradicts"),
    "a copy of another's block": (edit("BlockCopied", 4, lambda b: (b + 1) % 14), "BlockCopied) contradicts"),
    "a copy from beyond the pool": (edit("BlockCopied", 4, 14), "names a block, slot or step out of range"),
    "a copy onto a block in use": (copy_onto_itself, "BlockCopied) contradicts"),
    "a copy of a row that is not there": (edit("BlockCopied", 3, 99), "BlockCopied) contradicts"),
    "a copy of too many slots": (edit("BlockCopied", 6, lambda n: n + 1), "BlockCopied) contradicts"),
    "a miss evicted at no step": (edit("PrefixMiss", 6, "soon"), "expected int | None"),
    "too few hashes": (edit("BlockStored", 2, []), "BlockStored) contradicts"),
    "another block size": (edit("BlockStored", 5, 8), "BlockStored) contradicts"),
    "a request twice": (repeat("RequestAdded"), "RequestAdded) contradicts"),
    "a request nobody added": (drop("RequestAdded"), "contradicts"),
    "a request with a hostile name": (edit("RequestAdded", 2, "<img src=x>"), "RequestAdded) contradicts"),
    "a request without tokens": (both_empty, "RequestAdded) contradicts"),
    "texts of other tokens": (edit("RequestAdded", 5, lambda t: t[:-1]), "RequestAdded) contradicts"),
    "a token out of order": (edit("TokenSampled", 3, lambda p: p + 1), "TokenSampled) contradicts"),
    "a token after the end": (at_the_end("TokenSampled", "A", 99, 1, "x"), "TokenSampled) contradicts"),
    "a hit of more than was asked": (edit("PrefixHit", 3, 1 << 30), "PrefixHit) contradicts"),
    "an end nobody began": (at_the_end("RequestFinished", "Q", "stop", ""), "RequestFinished) contradicts"),
    "a second end": (repeat("RequestFinished"), "RequestFinished) contradicts"),
    "an unknown event": (edit("StepTimed", 0, "Exploded"), "is no event of this version"),
    "an event that is a number": (lambda rows: rows.__setitem__(3, 7), "is no event of this version"),
    "a list as a name": (edit("StepTimed", 0, ["StepTimed"]), "is no event of this version"),
    "a time that is no number": (edit("StepTimed", 4, float("nan")), "out of range"),
    "a text as a step": (edit("StepTimed", 1, "1"), "expected int"),
    "a clearing while blocks are used": (cleared_early, "AllBlocksCleared) contradicts"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_events_are_refused_in_a_sentence(saved, tmp_path, name):
    change, words = DAMAGE[name]
    assert words in refused(with_events(saved, change), tmp_path)


def test_events_that_are_no_json_are_refused(saved, tmp_path):
    parts = members(saved)
    lines = parts["events.jsonl"].splitlines(keepends=True)
    for bad in (b"{\n", b"\xff\n", b"[" * 50_000 + b"\n", b"\n", b'["StepTimed", 1' + b"0" * 5000 + b"]\n"):
        refused(packed(parts | {"events.jsonl": b"".join([*lines[:5], bad, *lines[6:]])}), tmp_path)
    refused(packed(parts | {"events.jsonl": b"".join(lines)[:-1]}), tmp_path)


# ---- the vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda rows: rows[:1], "wrong shape"),
        (lambda rows: rows[:, :-1], "wrong shape"),
        (lambda rows: rows[:, :, :-1], "wrong shape"),
        (lambda rows: rows[..., :-1], "wrong shape"),
        (lambda rows: rows.flatten(), "wrong shape"),
        (lambda rows: rows.int(), "are torch.int32; its header says float32"),
        (lambda rows: rows.half(), "are torch.float16; its header says float32"),
    ],
)
def test_vectors_of_the_wrong_shape_or_kind_are_refused(saved, tmp_path, change, words):
    parts = members(saved)
    rows = change(load(parts["capture.safetensors"])["rows"]).contiguous()
    assert words in refused(packed(parts | {"capture.safetensors": save({"rows": rows})}), tmp_path)


def test_vectors_under_another_name_or_none_are_refused(saved, tmp_path):
    for data in (save({"other": torch.zeros(1)}), b"", b"\xff" * 64, (10**15).to_bytes(8, "little") + b"{}"):
        assert (
            refused(packed(members(saved) | {"capture.safetensors": data}), tmp_path)
            == "The recording's captured vectors are damaged."
        )


def test_an_index_that_points_elsewhere_gives_a_sentence_and_no_crash(saved, tmp_path):
    """The index names requests, positions and steps that the events do not know."""
    rng = random.Random(0)

    def scramble(head):
        for entry in head["captured"]:
            entry[1] = rng.randrange(40)
            entry[2] = rng.choice([0, 1, 5, 10**9])
            entry[0] = rng.choice(["A", "B", "C", "D", "nobody"])

    trace = loaded(with_head(saved, scramble), tmp_path)
    for name in ("A", "B", "C", "D", "nobody"):
        for query in range(30):
            with contextlib.suppress(LookupFailed):
                look_up(trace, name, query, query // 2, 0, 0)


# ---- anything at all ----------------------------------------------------------------------------------------------


def only_a_recording_error_or_a_trace(data: bytes, folder: Path) -> None:
    try:
        trace = loaded(data, folder)
    except RecordingError:
        return
    for step in range(0, trace.last_step + 1, 7):
        trace.state_at(step)
    for name in trace.latest.requests:
        with contextlib.suppress(LookupFailed):
            look_up(trace, name, None, 0, 0, 0)


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_of_the_file_give_a_recording_error_or_a_trace(saved, tmp_path, flips):
    data = bytearray(saved)
    for where, what in flips:
        data[int(where * len(data))] ^= what
    only_a_recording_error_or_a_trace(bytes(data), tmp_path)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_near_the_end_of_the_file_where_the_zip_keeps_its_books(saved, tmp_path, flips):
    data = bytearray(saved)
    for where, what in flips:
        data[-1 - where] ^= what
    only_a_recording_error_or_a_trace(bytes(data), tmp_path)


@FUZZ
@given(
    st.sampled_from(MEMBERS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_flipped_bytes_of_a_member_with_a_right_checksum(saved, tmp_path, name, flips):
    parts = members(saved)
    data = bytearray(parts[name])
    for where, what in flips:
        data[int(where * len(data))] ^= what
    only_a_recording_error_or_a_trace(packed(parts | {name: bytes(data)}, zipfile.ZIP_STORED), tmp_path)


@FUZZ
@given(st.data())
def test_events_with_any_field_replaced(saved, tmp_path, data):
    value = st.one_of(
        st.integers(-3, 70), st.integers(), st.none(), st.text(max_size=3), st.lists(st.integers(-1, 70), max_size=3)
    )

    def change(rows):
        for _ in range(data.draw(st.integers(1, 3))):
            row = rows[data.draw(st.integers(0, len(rows) - 1))]
            row[data.draw(st.integers(0, len(row) - 1))] = data.draw(value)

    only_a_recording_error_or_a_trace(with_events(saved, change), tmp_path)


@FUZZ
@given(st.data())
def test_events_dropped_repeated_or_moved(saved, tmp_path, data):
    def change(rows):
        for _ in range(data.draw(st.integers(1, 3))):
            row = rows.pop(data.draw(st.integers(0, len(rows) - 1)))
            for _ in range(data.draw(st.integers(0, 2))):
                rows.insert(data.draw(st.integers(0, len(rows))), row)

    only_a_recording_error_or_a_trace(with_events(saved, change), tmp_path)


# ---- small recordings: some layers and heads, queries where somebody looks from ------------------------------


@pytest.fixture(scope="module")
def small(engine, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "run.pagewalk"
    save_recording(engine.trace, path, kept=kept_for(engine.trace, (1,), (3, 0)))
    return path.read_bytes()


def test_a_small_recording_answers_as_the_run_does_and_says_what_it_lacks(engine, small, tmp_path):
    trace = loaded(small, tmp_path)
    assert trace.events == engine.trace.events
    assert (trace.capture.kept.layers, trace.capture.kept.heads) == ((1,), (3, 0))
    written = [event for event in engine.trace.events if isinstance(event, SlotsWritten)]
    for event in written:
        query = event.start_position + len(event.slots) - 1
        for head in (0, 3):
            again, live = (
                look_up(trace, event.request_id, query, 0, 1, head),
                engine.lookup(event.request_id, query, 0, 1, head),
            )
            assert torch.equal(again.weights, live.weights) and torch.equal(again.output_paged, live.output_paged)
    for query, layer, head, words in (
        (None, 0, 0, "keeps the vectors of layer 1, not of 0"),
        (None, 1, 2, "query head 3, 0, not of 2"),
        (1, 1, 0, "not of A:1"),
    ):
        with pytest.raises(LookupFailed, match=words):
            look_up(trace, "A", query, 0, layer, head)


def test_a_small_recording_of_a_small_recording_is_the_same(small, tmp_path):
    loaded(small, tmp_path).save(tmp_path / "again.pagewalk")
    assert members((tmp_path / "again.pagewalk").read_bytes()) == members(small)


def test_rows_that_sequences_share_are_written_once(engine, saved):
    head, tensors = json.loads(members(saved)["header.json"]), load(members(saved)["capture.safetensors"])
    assert len(head["captured"]) > tensors["rows"].shape[1] == max(head["row_of"]) + 1


def test_a_recording_without_a_list_of_rows_has_one_for_each_position(tiny, tmp_path):
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=8))
    engine.generate(["abc"], SamplingParams(max_tokens=3, ignore_eos=True))
    engine.trace.save(tmp_path / "run.pagewalk")
    older = with_head((tmp_path / "run.pagewalk").read_bytes(), lambda head: head.pop("row_of") and None)
    assert torch.equal(loaded(older, tmp_path).capture.row("A", 2), engine.capture.row("A", 2))


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda head: head.update(kept=7), "does not say which vectors it keeps"),
        (lambda head: head["kept"].pop("heads") and None, "does not say which vectors it keeps"),
        (lambda head: head["kept"].update(layers=[2]), "list of kept layers is damaged"),
        (lambda head: head["kept"].update(layers=[]), "list of kept layers is damaged"),
        (lambda head: head["kept"].update(heads=[0, 0]), "list of kept heads is damaged"),
        (lambda head: head["kept"].update(heads=[True]), "list of kept heads is damaged"),
        (lambda head: head["kept"].update(queries=[-1]), "list of kept queries is damaged"),
        (lambda head: head["kept"].update(queries=[10**9]), "list of kept queries is damaged"),
        (lambda head: head["kept"].update(heads=[0]), "wrong shape"),
        (lambda head: head["kept"]["queries"].pop() and None, "wrong shape"),
        (lambda head: head.pop("kept") and None, "captured vectors are damaged"),
        (lambda head: head.update(row_of=[0]), "rows of captured vectors are damaged"),
        (lambda head: head["row_of"].__setitem__(0, 10**9), "rows of captured vectors are damaged"),
        (lambda head: head["row_of"].__setitem__(0, "0"), "rows of captured vectors are damaged"),
    ],
)
def test_a_hostile_header_of_a_small_recording_is_refused_in_a_sentence(small, tmp_path, change, words):
    assert words in refused(with_head(small, change), tmp_path)


def test_vectors_that_would_unpack_to_too_much_are_refused(small, tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_vectors, "MAX_KEPT_BYTES", 1000)
    assert "at most 1,000 are read" in refused(small, tmp_path)


def test_a_reader_of_strangers_files_may_set_closer_limits(saved, tmp_path):
    path = tmp_path / "run.pagewalk"
    path.write_bytes(saved)
    limits = {"header.json": 1 << 20, "events.jsonl": 100, "capture.safetensors": 1 << 20}
    with pytest.raises(RecordingError, match=r"events\.jsonl is [\d,]+ bytes; at most 100 are read"):
        recording_module.load_recording(path, limits)
