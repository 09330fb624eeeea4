"""The page's side of recordings: controls that repeat a scenario, what a link names, which files are read, what is answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.utils import get_upload_folder

from engine.limits import Limits
from engine.model_loader import LoadedModel
from engine.model_shelf import ModelShelf
from engine.recording_shelf import RecordingShelf
from engine.scenarios import SCENARIOS, listed
from engine.session_store import SessionStore
from web.host import EXPIRED, Host, control_values, page_settings
from web.playground import _title
from web.recordings import link_of, recording_header, uploaded_file


def request(viewer: str = "v") -> Any:
    return SimpleNamespace(session_hash=viewer, headers={})


@pytest.fixture
def host(tiny: LoadedModel) -> Host:
    return Host(ModelShelf.of(tiny), SessionStore(Limits()))


def shown(host: Host, viewer: str = "v", token: str = "", example: str = "", reloaded: str = "") -> dict[str, Any]:
    return next(host.load(token, example, reloaded, request(viewer)))


@pytest.mark.parametrize("scenario_id", SCENARIOS)
def test_the_controls_of_an_example_make_generate_do_its_very_run(scenario_id: str) -> None:
    run = SCENARIOS[scenario_id].run
    prompts, values = control_values(run)
    assert page_settings((*prompts, "", ""), tuple(values)) == run


@pytest.mark.parametrize("scenario_id", SCENARIOS)
def test_a_link_names_the_example_and_the_seed_of_a_run(scenario_id: str) -> None:
    run = SCENARIOS[scenario_id].run
    assert link_of(run) == {"example": scenario_id, "seed": run.params.seed}
    assert link_of(replace(run, params=replace(run.params, seed=77))) == {"example": scenario_id, "seed": 77}
    assert link_of(replace(run, prompts=("mine",))) == {}
    assert link_of(replace(run, config=replace(run.config, num_blocks=99))) == {}


def test_every_entry_of_the_list_has_a_title_of_its_own() -> None:
    titles = [_title(scenario) for scenario in listed()]
    assert len(set(titles)) == len(titles) == 8
    assert "Block size: 1, 4, 16 or 64" in titles


def test_a_recording_of_a_family_brings_the_measurements_of_all() -> None:
    shelf = RecordingShelf()
    header = recording_header(shelf.get("block-size-4"), shelf)
    assert [member["label"] for member in header["family"]] == ["1", "4", "16", "64"]
    assert header["family"][1]["measured"]["longest_table"] == 25
    assert recording_header(shelf.get("plain"), shelf)["family"] == []


def test_a_newcomer_is_shown_the_first_recording(host: Host) -> None:
    message = shown(host)
    assert message["kind"] == "snapshot" and not message["running"]
    assert message["header"]["recording"]["id"] == "first" and message["notice"] is None


def test_a_link_shows_its_example_and_a_wrong_one_is_told(host: Host) -> None:
    assert shown(host, "a", example="fork")["header"]["recording"]["id"] == "fork"
    wrong = shown(host, "b", example="../../etc/passwd")
    assert wrong["header"]["recording"]["id"] == "first"
    assert wrong["notice"]["text"].startswith("There is no example '../../etc/passwd'. Pick one of: first")


def test_a_link_in_a_tab_that_had_a_session_is_followed_and_a_reload_is_not_undone(host: Host) -> None:
    token = shown(host, "a")["session"]
    host.close(request("a"))
    assert shown(host, "b", token=token, example="fork")["header"]["recording"]["id"] == "fork"
    host.open_recording("plain", request("b"))
    host.close(request("b"))
    again = shown(host, "c", token=token, example="fork", reloaded="yes")
    assert again["header"]["recording"]["id"] == "plain"


def test_an_expired_session_is_told_beside_the_first_recording(host: Host) -> None:
    message = shown(host, token="gone")
    assert message["header"]["recording"]["id"] == "first"
    assert message["notice"]["text"] == "This session expired. Press Generate for a new run."


def test_without_the_shipped_files_the_page_still_opens(tiny: LoadedModel, tmp_path: Path) -> None:
    host = Host(ModelShelf.of(tiny), SessionStore(Limits()), recordings=RecordingShelf(tmp_path))
    assert shown(host)["kind"] == "empty"
    message, recording = host.open_recording("fork", request())
    assert recording is None and message["refused"] and "There is no file 'fork.pagewalk'" in message["notice"]["text"]


@pytest.mark.parametrize("example", [None, 7, "nope", ["first"], {"id": "first"}, "x" * 10_000])
def test_an_example_that_is_none_leaves_what_is_shown(host: Host, example: Any) -> None:
    shown(host)
    message, recording = host.open_recording(example, request())
    assert recording is None and message["kind"] == "notice" and len(message["notice"]["text"]) < 400
    assert host.resync(request())["header"]["recording"]["id"] == "first"


def test_lookups_of_a_recording_need_no_session_and_those_of_a_lost_run_say_so(host: Host) -> None:
    question = {"session": "gone", "request": "A", "key_position": 17, "query_position": None, "layer": 14, "head": 1}
    assert host.stage_lookup({**question, "recording": "first"})["ok"]
    assert host.stage_lookup(question) == {"ok": False, "reason": EXPIRED}
    assert host.stage_lookup({**question, "recording": "nope"})["reason"].startswith("There is no example 'nope'")
    for hostile in (
        None,
        7,
        [],
        {"session": 3, "recording": {}},
        {**question, "recording": "first", "step": "x", "layer": None},
    ):
        assert host.stage_lookup(hostile)["ok"] is False


def test_a_page_whose_session_is_gone_keeps_its_picture(host: Host) -> None:
    assert host.resync(request("nobody yet")) == {"kind": "notice", "notice": {"level": "info", "text": EXPIRED}}


def upload(name: str, data: bytes) -> Path:
    folder = Path(get_upload_folder()) / f"test-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path


def test_an_import_that_is_no_recording_leaves_what_is_shown_and_no_file(host: Host) -> None:
    shown(host)
    path = upload("bad.pagewalk", b"no zip")
    message = host.import_file({"path": str(path), "name": "bad.pagewalk"}, request())
    assert message["notice"]["text"] == "Not a recording: 'bad.pagewalk' is not a .pagewalk file, or it is damaged."
    assert host.resync(request())["header"]["recording"]["id"] == "first"
    assert not path.exists()


def test_an_export_comes_back_as_a_recording_without_a_scenario(host: Host) -> None:
    shown(host, example="plain")
    exported = host.export(request())
    message, path = next(exported)
    assert message == {"kind": "notice", "notice": None} and Path(path).name == "pagewalk-plain.pagewalk"
    data = Path(path).read_bytes()
    assert list(exported) == [] and not Path(path).exists()
    back = host.import_file({"path": str(upload("plain.pagewalk", data)), "name": "plain.pagewalk"}, request())
    assert back["kind"] == "snapshot" and back["header"]["recording"]["id"] is None and back["header"]["link"] == {}
    assert back["log"] == host.snapshot(host.store.of_viewer("v"))["log"]


def test_only_files_in_the_folder_for_uploads_are_read(tmp_path: Path) -> None:
    outside = tmp_path / "secret.pagewalk"
    outside.write_bytes(b"x")
    inside = upload("in.pagewalk", b"x")
    link = inside.with_name("link.pagewalk")
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    assert uploaded_file(str(inside)) == inside.resolve()
    refused = [str(outside), str(link), str(inside.parent), f"{inside.parent}/../../../etc/passwd", "", "in.pagewalk", None, 7]
    assert [uploaded_file(path) for path in [*refused, str(inside) + "\0"]] == [None] * 9
    inside.unlink()
    link.unlink()


def test_the_api_lists_the_examples() -> None:
    from web.api import Api

    entries = Api(Host(ModelShelf(), SessionStore(Limits()))).scenarios()
    assert [entry["id"] for entry in entries] == list(SCENARIOS)
    assert all(entry["title"] and entry["sentence"].endswith(".") for entry in entries)


def test_state_and_lookup_of_the_api_read_the_recording_that_is_shown(host: Host) -> None:
    from web.api import Api

    api, token = Api(host), shown(host, example="fork")["session"]
    state = api.state(request(), token, 10)
    assert list(state["requests"]) == ["A", "B", "C"] and state["step"] == 10 and state["shared"] == 3
    assert api.lookup(request(), token, "B", 20, -1, 14, 4)["ok"]
    with pytest.raises(gr.Error, match="expired"):
        api.state(request(), "gone")
