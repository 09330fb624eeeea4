"""Recordings out of a session and into one: whole, small where they must be, and refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.errors import LookupFailed, PagewalkError, RecordingError, RequestError
from engine.exchange import export_recording, import_recording, safe_name
from engine.limits import Limits
from engine.lookup import look_up
from engine.model_loader import LoadedModel
from engine.recording_shelf import RecordingShelf
from engine.run_settings import RunSettings
from engine.session import Session

MIB = 1 << 20


def begun(model: LoadedModel, max_tokens: int = 12, **config: int) -> Session:
    session = Session()
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    session.begin(model, RunSettings(("hello", "and more"), EngineConfig(**config), params))
    return session


def finished(model: LoadedModel, **options: int) -> Session:
    session = begun(model, **options)
    session.start()
    list(session.updates(0.0))
    return session


def test_what_is_exported_comes_back_equal(tiny: LoadedModel, tmp_path: Path) -> None:
    session = finished(tiny)
    path, said = export_recording(session, tmp_path, 64 * MIB)
    assert said == "" and path.name == f"pagewalk-{safe_name(tiny.name)}-12-steps.pagewalk"
    back = import_recording(path, "mine.pagewalk", 64 * MIB)
    assert back.trace.events == session.trace.events and back.scenario is None
    engine = session.engine
    for layer in range(2):
        ours, theirs = engine.lookup("A", None, 3, layer, 1), look_up(back.trace, "A", None, 3, layer, 1)
        assert torch.equal(ours.weights, theirs.weights) and ours.slot == theirs.slot
    assert back.num_bytes > sum(p.stat().st_size for p in tmp_path.iterdir()) // 2


def test_a_run_is_exported_while_it_goes_on(tiny: LoadedModel, tmp_path: Path) -> None:
    session = begun(tiny, max_tokens=200)
    session.start()
    follower = session.updates(0.0)
    next(follower)
    path, _ = export_recording(session, tmp_path, 64 * MIB)
    assert session.running
    taken = import_recording(path, path.name, 64 * MIB).trace
    assert session.trace.events[: len(taken.events)] == taken.events
    follower.close()


def test_a_large_run_leaves_vectors_out_and_says_which(tiny: LoadedModel, tmp_path: Path) -> None:
    session = finished(tiny)
    rows = sum(len(p) for p in session.engine.capture.positions().values())
    one_layer = rows * 12 * 16 * 4
    path, said = export_recording(session, tmp_path, one_layer * 10 // 9 + 100)
    assert said.startswith("To stay small it holds the vectors of layer 1 only; all 2 are")
    trace = import_recording(path, path.name, MIB).trace
    assert look_up(trace, "A", None, 0, 1, 3).max_abs_difference < 1e-5
    with pytest.raises(LookupFailed, match="keeps the vectors of layer 1, not of 0"):
        look_up(trace, "A", None, 0, 0, 0)
    path, said = export_recording(session, tmp_path, 1000)
    assert said.startswith("It holds no captured vectors")
    with pytest.raises(LookupFailed):
        look_up(import_recording(path, path.name, MIB).trace, "A", None, 0, 1, 3)


def test_a_shipped_recording_is_exported_with_what_it_has(tmp_path: Path) -> None:
    session, shelf = Session(), RecordingShelf()
    session.show(shelf.get("plain"))
    path, said = export_recording(session, tmp_path, 64 * MIB)
    assert (path.name, said) == ("pagewalk-plain.pagewalk", "")
    again, first = import_recording(path, path.name, 64 * MIB).trace, shelf.get("plain").trace
    assert again.events == first.events and again.capture.kept == first.capture.kept
    a, b = (look_up(trace, "A", None, 17, 29, 4) for trace in (again, first))
    assert torch.equal(a.weights, b.weights) and a.max_abs_difference == b.max_abs_difference


def test_nothing_to_export_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PagewalkError, match="There is no run to export yet"):
        export_recording(Session(), tmp_path, MIB)


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "big.pagewalk"
    path.write_bytes(b"x" * 2000)
    with pytest.raises(RecordingError, match="The file is too large: 2,000 bytes, and at most 1,000 are read"):
        import_recording(path, "big.pagewalk", 1000)


def test_a_bad_file_is_named_as_the_visitor_named_it(tmp_path: Path) -> None:
    path = tmp_path / "0a1b2c.tmp"
    path.write_bytes(b"no zip")
    with pytest.raises(RecordingError, match=r"Not a recording: 'holiday\.pagewalk' is not a \.pagewalk file"):
        import_recording(path, "holiday.pagewalk", 1000)


@pytest.mark.parametrize(
    "text, name",
    [
        ("plain", "plain"),
        ("../../etc/passwd", "etc-passwd"),
        ("a b\\c:d", "a-b-c-d"),
        ("", "run"),
        ("Qwen/Qwen3-0.6B", "Qwen-Qwen3-0.6B"),
    ],
)  # fmt: skip
def test_file_names_are_safe(text: str, name: str) -> None:
    assert safe_name(text) == name


def test_a_recording_is_shown_in_the_runs_place_until_the_next_run(tiny: LoadedModel) -> None:
    session = finished(tiny)
    run_id, shipped = session.run_id, RecordingShelf().get("plain")
    session.show(shipped)
    assert session.run_id != run_id and session.trace is shipped.trace
    assert session.events_so_far() == (shipped.trace.events, 0)
    assert session.lookup("A", None, 17, 14, 1).slot_state == "recorded"
    assert session.state_at().step == shipped.trace.last_step
    session.begin(tiny, RunSettings(("again",), EngineConfig(), SamplingParams(max_tokens=2)))
    assert session.recording is None and session.trace is session.engine.trace


def test_opening_a_recording_stops_the_run_and_frees_its_blocks(tiny: LoadedModel) -> None:
    session = begun(tiny, max_tokens=400)
    session.start()
    follower = session.updates(0.0)
    next(follower)
    engine = session.engine
    session.show(RecordingShelf().get("plain"))
    assert not session.running and sum(engine.scheduler.pool.ref_cnt) == 0
    assert engine.step_count < 400


def test_an_imported_recording_takes_memory_from_the_budget(tiny: LoadedModel, tmp_path: Path) -> None:
    path, _ = export_recording(finished(tiny), tmp_path, 64 * MIB)
    recording = import_recording(path, path.name, MIB)
    session = Session(Limits(memory_mb=1))
    session.show(recording)
    assert session.budget.held(session) == recording.num_bytes > 0
    assert session.give_up_memory() and session.budget.held(session) == 0
    assert recording.trace.capture is None and session.trace is recording.trace
    small = Session(Limits(memory_mb=1))
    small.budget.total = recording.num_bytes - 1
    with pytest.raises(RequestError, match="are in use by others"):
        small.show(import_recording(path, path.name, MIB))
    assert small.recording is None
