"""The page's events on a tiny model: who is who, what is refused, and where one waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.limits import Limits
from engine.model_loader import LoadedModel
from engine.model_shelf import ModelShelf
from engine.session_store import SessionStore
from web.host import MAX_SEQUENCES, Host, viewer_of

SETTINGS = (32, 16, 512, 0, 4, 1, 0.0, 1.0, 0, 0, False, True, True)


def request(name: str | None = "page", **headers: str) -> Any:
    return SimpleNamespace(session_hash=name, headers=headers)


def values(*prompts: str, model: str = "", settings: tuple = SETTINGS) -> tuple:
    return (model, *prompts, *[""] * (MAX_SEQUENCES - len(prompts)), *settings)


def said(messages: list[dict]) -> list[str]:
    return [message["notice"]["text"] for message in messages if message.get("notice")]


@pytest.fixture
def host(tiny: LoadedModel) -> Host:
    return Host(ModelShelf.of(tiny), SessionStore(Limits(max_running=1, max_waiting=1, turn_seconds=1e9)), ("a/b",))


def test_a_caller_without_a_name_is_somebody_new_each_time() -> None:
    assert viewer_of(request("page")) == "page"
    for nobody in (request(None), request(""), None, request("gradio's own client", **{"x-gradio-user": "mcp"})):
        assert viewer_of(nobody) != viewer_of(nobody)


def test_a_model_that_is_not_on_the_list_is_refused_with_the_list(host: Host) -> None:
    messages = list(host.generate(request(), *values("hello", model="/etc/passwd")))
    assert len(messages) == 1 and said(messages)[0].startswith("This host runs") and "a/b" in said(messages)[0]


def test_who_waits_reads_the_place_and_then_sees_the_run(host: Host) -> None:
    first = host.generate(request("one"), *values("hello", settings=(32, 16, 512, 0, 300, *SETTINGS[5:])))
    assert next(first)["kind"] == "snapshot"
    next(first)
    second = host.generate(request("two"), *values("hello"))
    messages = [next(second) for _ in range(2)]
    assert [message["kind"] for message in messages] == ["snapshot", "delta"] and messages[1]["running"]
    assert said(messages) == ["Waiting for a turn: place 1 in the queue."]
    third = list(host.generate(request("three"), *values("hello")))
    assert said(third) == ["The queue is full: 1 runs share the model and 1 wait. Try again in a minute."]
    first.close()
    rest = list(second)
    assert rest[-1]["kind"] == "end" and "TokenSampled" in rest[0]["log"]


def test_a_full_host_says_so_when_the_page_opens(tiny: LoadedModel) -> None:
    host = Host(ModelShelf.of(tiny), SessionStore(Limits(max_sessions=1)))
    list(host.load("", "", "", request("one")))
    assert said(list(host.load("", "", "", request("two")))) == ["All 1 places are taken. Try again in some minutes."]


def test_a_session_is_told_by_its_token_only(host: Host) -> None:
    list(host.generate(request("one"), *values("hello")))
    token = host.store.of_viewer("one").token
    asked = {"request": "A", "key_position": 2, "query_position": None, "layer": 0, "head": 0}
    assert host.stage_lookup({**asked, "session": token})["ok"]
    for session in ("one", "", None, token[:-1], 7, ["x"]):
        assert "expired" in host.stage_lookup({**asked, "session": session})["reason"]
    assert "Give the session" in host.lookup("A", 2, None, 0, 0, "", request(None))["reason"]
    assert host.lookup("A", 2, None, 0, 0, "", request("one"))["ok"]


def test_a_lookup_after_the_memory_went_to_others_says_so(host: Host) -> None:
    list(host.generate(request("one"), *values("hello")))
    assert host.store.of_viewer("one").give_up_memory()
    assert "needed for other visitors" in host.lookup("A", 2, None, 0, 0, "", request("one"))["reason"]
    assert list(host.generate(request("one"), *values("hello")))[-1]["kind"] == "end"


def test_when_the_host_stops_the_page_reads_why(host: Host) -> None:
    run = host.generate(request("one"), *values("hello", settings=(32, 16, 512, 0, 300, *SETTINGS[5:])))
    next(run)
    next(run)
    host.store.stop_all("The host is restarting.")
    rest = list(run)
    assert rest[-1]["kind"] == "end" and said(rest[-1:]) == ["The host is restarting."]  # all that a page may see of them
    assert said(list(host.generate(request("two"), *values("hello")))) == ["The host is restarting."]
