"""Any value for any argument of any endpoint: an answer or a sentence, never a fault, and the app goes on."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.conftest import App
from tests.web.test_app import SERVER_PATHS, raw

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)

TEXT = st.text(max_size=30) | st.sampled_from(
    ["", "\0", "\ud800", "🙂" * 9, "<script>alert(1)</script>", "${7*7}", "{{7*7}}", "'; DROP TABLE x; --", "../../etc/passwd",
     "%s%n", "A" * 5000, "\r\nSet-Cookie: x=1", "__class__", "<|im_end|>", "<|endoftext|>"]
)  # fmt: skip
NUMBER = st.integers(-3, 40) | st.integers() | st.floats() | st.sampled_from([1e308, -0.0, 2**31, 2**63, 10**30])
LEAF = st.none() | st.booleans() | NUMBER | TEXT
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8)


def mostly(*good: Any) -> st.SearchStrategy[Any]:
    """Good values often enough that a call gets past its other arguments."""
    return st.sampled_from(good) | st.sampled_from(good) | st.sampled_from(good) | VALUE


GENERATE = st.tuples(
    mostly("Hello", "The sea", "a <b> c"), mostly(1, 2), mostly(None, ["x", "y"], []), mostly(1, 2), mostly(0.0, 0.7, 1),
    mostly(1.0, 0.5), mostly(0, 5), mostly(0, 7), mostly(False, True), mostly(16, 4, 1), mostly(128, 16, 40),
)  # fmt: skip
STATE = st.tuples(mostly(""), mostly(-1, 0, 1, 5))
LOOKUP = st.tuples(mostly(""), mostly("A", "B", "ZZ"), mostly(0, 1), mostly(-1, 1), mostly(0, 29), mostly(0, 8))


def encoded(data: Any) -> Any:
    """As JSON takes it: surrogates and infinities as they are, which a server must stand."""
    return list(data)


def call(app: App, name: str, data: Any) -> tuple[str, Any]:
    """("complete" or "error", what came with it), through the queue as a client does."""
    status, text = raw(app, "POST", f"/gradio_api/call/{name}", {"data": encoded(data), "session_hash": "fuzz"})
    assert status < 500 and "Traceback" not in text and not SERVER_PATHS.search(text), text[:300]
    if status != 200:
        return "error", json.loads(text)
    status, text = raw(app, "GET", f"/gradio_api/call/{name}/{json.loads(text)['event_id']}")
    assert status == 200 and "Traceback" not in text and not SERVER_PATHS.search(text), text[:300]
    kind, _, data = text.strip().rsplit("event: ", 1)[1].partition("\ndata: ")
    return kind, json.loads(data)


def direct(app: App, name: str, data: Any) -> None:
    status, text = raw(app, "POST", f"/gradio_api/run/{name}", {"data": encoded(data), "session_hash": "fuzz"})
    assert status < 500 and "Traceback" not in text and not SERVER_PATHS.search(text), (status, text[:300])


@FUZZ
@given(data=GENERATE)
def test_any_argument_of_generate(app: App, data: tuple) -> None:
    kind, answer = call(app, "generate", data)
    if kind == "error":
        assert answer and (answer.get("error") or answer.get("detail")), answer  # a sentence, not a fault without words
    else:
        assert answer[0]["running"] is False and answer[0]["problem"] is None


@FUZZ
@given(data=STATE)
def test_any_argument_of_state(app: App, data: tuple) -> None:
    kind, answer = call(app, "state", data)
    assert kind == "complete" or answer.get("error") or answer.get("detail"), answer
    direct(app, "state", data)


@FUZZ
@given(data=LOOKUP)
def test_any_argument_of_lookup(app: App, data: tuple) -> None:
    kind, answer = call(app, "lookup", data)
    assert kind == "complete" and (answer[0]["ok"] or answer[0]["reason"]), answer
    direct(app, "lookup", data)


@FUZZ
@given(body=VALUE | st.fixed_dictionaries({}, optional={
    "fn_name": mostly("stage_lookup"), "component_id": mostly(1, 40), "session_hash": mostly("x"), "data": VALUE,
    "fn_index": NUMBER, "event_id": TEXT, "trigger_id": NUMBER, "event_data": VALUE, "api_name": TEXT,
}))  # fmt: skip
def test_any_body_on_the_pages_own_routes(app: App, body: Any) -> None:
    for route in (
        "component_server",
        "queue/join",
        "cancel",
        "reset",
        "call/generate",
        "call/v2/generate",
        "run/lookup",
        "upload",
    ):
        status, text = raw(app, "POST", f"/gradio_api/{route}", body)
        assert status < 500 and "Traceback" not in text and not SERVER_PATHS.search(text), (route, status, text[:300])


def test_after_all_that_the_app_goes_on_and_its_log_has_no_traceback_of_ours(app: App) -> None:
    assert call(app, "generate", ("The capital of France is", 4, None, 1, 0.0, 1.0, 0, 0, False, 16, 128))[1][0]["texts"] == [
        " Paris.\n\n"
    ]
    assert app.health()["status"] == "ok"
    assert "/web/" not in app.log and "/engine/" not in app.log, app.log[-3000:]
