"""The real app as a service: what it answers, what it refuses, what it tells of itself, and who shares what."""

from __future__ import annotations

import http.client
import json
import re
import urllib.parse
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.web.conftest import App

ROOT = Path(__file__).resolve().parents[2]
SERVER_PATHS = re.compile(rf"{re.escape(str(ROOT))}|{re.escape(str(Path.home()))}/|site-packages|/tmp/")


@pytest.fixture(scope="module")
def client(app: App) -> Client:
    return app.client()


def generate(client: Client, **arguments: object) -> dict:
    return client.predict(**{"prompt": "The capital of France is", "max_tokens": 4, **arguments}, api_name="/generate")


def raw(app: App, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and text; the path goes over the wire exactly as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", int(app.url.rsplit(":", 1)[1]), timeout=30)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"content-type": "application/json"} if data else {})
    answer = connection.getresponse()
    text = answer.read().decode("utf-8", "replace")
    connection.close()
    return answer.status, text


# ---- endpoints --------------------------------------------------------------------------------------------------


def test_generate_streams_and_its_last_message_is_the_result(client: Client) -> None:
    job = client.submit(prompt="The capital of France is", max_tokens=12, api_name="/generate")
    last = job.result(timeout=60)
    assert set(last) == {
        "session", "requests", "texts", "token_ids", "finish_reasons", "step", "running", "problem", "waiting"
    }  # fmt: skip
    assert last["texts"][0].startswith(" Paris") and last["running"] is False and last["problem"] is None
    assert len(last["token_ids"][0]) <= 12 and [len(m["token_ids"]) for m in job.outputs()] == [1] * len(job.outputs())


def test_state_and_lookup_answer_for_the_run_that_was_just_made(client: Client) -> None:
    run = generate(client, prompts=["The capital of France is", "The capital of Italy is"], prompt="")
    state = client.predict(session=run["session"], step=2, api_name="/state")
    assert state["step"] == 2 and set(state["requests"]) == {"A", "B"} and state["used"] == 2
    look = client.predict(session=run["session"], request_id="B", key_position=3, layer=5, head=2, api_name="/lookup")
    assert look["ok"] and look["physical_block"] == state["requests"]["B"]["block_table"][0]
    assert look["max_abs_difference"] < 0.02
    assert client.predict(step=2, api_name="/state") == state  # a client's own run needs no token


def test_the_worked_example_has_its_numbers(client: Client) -> None:
    assert client.predict(api_name="/worked_example")["slot"] == 36


def test_the_endpoints_describe_themselves(app: App) -> None:
    info = json.loads(app.get("/gradio_api/info")[1])["named_endpoints"]
    assert {"/generate", "/lookup", "/state", "/worked_example"} <= set(info)
    for name in ("/generate", "/lookup", "/state", "/worked_example"):
        assert len(info[name]["description"]) > 40
    for parameter in info["/generate"]["parameters"]:
        assert parameter["parameter_has_default"] and parameter["python_type"]["type"]


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"max_tokens": 65}, "65 new tokens were asked for; this host gives 64"),
        ({"prompt": "x " * 10_001}, "has 20,002 characters; this host takes 20,000"),
        ({"prompt": "word " * 1200}, "tokens; this host takes 1,000. Shorten it"),
        ({"n": 17}, "1 x 17 sequences were asked for; this host runs 16"),
        ({"num_blocks": 16_385, "block_size": 1}, "16,385 blocks was asked for; this host gives 16,384"),
        ({"num_blocks": 4096, "block_size": 64}, "this host gives 512 MiB at most"),
        ({"prompt": " "}, "The prompt is empty"),
        ({"temperature": -1}, "temperature is -1"),
        ({"max_tokens": "many"}, "max_tokens is 'many'"),
        ({"prompts": [1]}, r"prompts is \[1\]; give a list of texts"),
        ({"chat": "no"}, "chat is 'no'; give true or false"),
    ],
)
def test_what_is_too_much_or_absurd_is_refused_in_a_sentence(client: Client, arguments: dict, sentence: str) -> None:
    with pytest.raises(AppError, match=sentence) as refusal:
        generate(client, **arguments)
    assert not SERVER_PATHS.search(str(refusal.value))
    assert len(generate(client)["token_ids"][0]) == 4


def test_two_clients_share_nothing_and_a_caller_without_a_name_has_nothing(app: App, client: Client) -> None:
    mine = generate(client)
    other = app.client()
    with pytest.raises(AppError, match="no run yet"):
        other.predict(api_name="/state")
    assert generate(other)["session"] != mine["session"]
    status, text = raw(app, "POST", "/gradio_api/run/state", {"data": ["", -1]})
    assert status == 422 and "Give the session that /generate answered with" in text
    assert "expired" in other.predict(session="A" * 24, api_name="/lookup")["reason"]


# ---- what it tells of itself ------------------------------------------------------------------------------------


def test_health_answers_without_the_queue_and_counts(app: App, client: Client) -> None:
    generate(client)
    status, body, headers = app.get("/health")
    facts = json.loads(body)
    assert status == 200 and facts["status"] == "ok" and facts["model_ready"] and facts["sessions"] >= 1
    assert facts["backend"]["attention"] and facts["version"] and headers["cache-control"] == "no-store"
    assert not SERVER_PATHS.search(body.decode())


def test_neither_page_nor_config_names_a_path_of_the_server(app: App) -> None:
    for path in ("/", "/config", "/gradio_api/info", "/gradio_api/openapi.json", "/theme.css", "/gradio_api/startup-events"):
        status, body, headers = app.get(path)
        assert status == 200 and headers["x-content-type-options"] == "nosniff", path
        assert not SERVER_PATHS.search(body.decode()), path


@pytest.mark.parametrize("route", ["/gradio_api/file=", "/gradio_api/file/", "/static/", "/assets/", "/pagewalk/view/"])
@pytest.mark.parametrize(
    "target",
    [
        "{root}/app.py", "{root}/README.md", "/etc/passwd", "//etc/passwd", "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpw",
        "%2e%2e/%2e%2e/%2e%2e/etc/passwd", "%252e%252e%252fetc%252fpasswd", "....//....//etc/passwd", "..%5c..%5cetc%5cpasswd",
        "/proc/self/environ", "/proc/self/cwd/app.py", "file:///etc/passwd", "http://127.0.0.1/", "https://example.com/x",
        "{root}/viz/../app.py", "app.py", "./app.py", "%00", "{root}/app.py%00.js", "\\\\host\\share", "CON", "~/.bashrc",
    ],
)  # fmt: skip
def test_no_trick_with_a_path_fetches_a_file(app: App, route: str, target: str) -> None:
    status, text = raw(app, "GET", route + target.format(root=ROOT))
    assert status in (307, 400, 403, 404, 405, 422), text[:300]
    assert "root:" not in text and "import" not in text and "PATH=" not in text


@pytest.mark.parametrize(
    "path",
    ["/monitoring", "/gradio_api/proxy=https://x.com", "/gradio_api/vibe-code", "/gradio_api/runs", "/docs", "/redoc"],
)
def test_what_the_page_does_not_use_is_not_there(app: App, path: str) -> None:
    assert raw(app, "GET", path)[0] == 404


def test_the_log_has_a_line_for_each_run_and_no_word_of_a_prompt(app: App, client: Client) -> None:
    run = generate(client, prompt="Zebra crossings in Wuppertal")
    assert f"run session={run['session'][:6]} tokens=4" in app.log
    assert "Zebra" not in app.log and "Wuppertal" not in app.log and run["session"] not in app.log


@pytest.mark.parametrize("api_name", ["generate", "lookup", "state", "worked_example", "page_generate", "nothing"])
@pytest.mark.parametrize("data", [[], [1] * 40, ["a"], [None], "x", None, {"a": 1}])
def test_a_call_with_odd_arguments_is_answered_without_a_fault(app: App, api_name: str, data: object) -> None:
    for path in (f"/gradio_api/call/{api_name}", f"/gradio_api/run/{api_name}", f"/gradio_api/call/v2/{api_name}"):
        status, text = raw(app, "POST", path, {"data": data, "session_hash": "odd"})
        assert status < 500 and "Traceback" not in text and not SERVER_PATHS.search(text), (path, status, text[:300])
        if status == 200 and "event_id" in text:
            events = raw(app, "GET", f"{path}/{urllib.parse.quote(json.loads(text)['event_id'])}")
            assert events[0] == 200 and "Traceback" not in events[1] and not SERVER_PATHS.search(events[1])
    assert app.health()["status"] == "ok"
