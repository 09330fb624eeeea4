"""What stands around Gradio's routes: headers, shut routes, plain faults, and the bound on one address's requests."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from web.server import SHUT, AnswerHeaders, BodySize, PlainFaults, RequestRate, ShutRoutes


def fault(request: Request) -> JSONResponse:
    kind = request.query_params["kind"]
    if kind == "refusal":
        return JSONResponse({"error": "The prompt is empty."}, 500)
    if kind == "bug":
        return JSONResponse({"error": None}, 500)
    raise {"key": KeyError, "type": TypeError, "runtime": RuntimeError}[kind]("/a/path/of/the/server")


async def stream(request: Request) -> StreamingResponse:
    async def parts():
        for i in range(3):
            yield f"part {i}\n"

    return StreamingResponse(parts())


def client(*middleware: Middleware) -> TestClient:
    async def say(request: Request) -> PlainTextResponse:
        return PlainTextResponse("here")

    routes = [Route("/fault", fault), Route("/stream", stream), Route("/{path:path}", say, methods=["GET", "POST"])]
    return TestClient(Starlette(routes=routes, middleware=list(middleware)), raise_server_exceptions=False)


def test_every_answer_has_the_headers_and_streams_pass_through() -> None:
    page = client(Middleware(AnswerHeaders))
    for path in ("/", "/stream"):
        headers = page.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'self' https://huggingface.co" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "strict-origin-when-cross-origin"
    assert page.get("/stream").text == "part 0\npart 1\npart 2\n"


@pytest.mark.parametrize(
    "path",
    [
        "/monitoring", "/monitoring/summary", "/gradio_api/proxy=https://example.com/x", "/gradio_api/process_recording",
        "/gradio_api/vibe-edit/", "/gradio_api/vibe-code", "/gradio_api/runs", "/gradio_api/run-history/records",
        "/gradio_api/deep_link", "/gradio_api/stream/abc", "/gradio_api/file=https://example.com/a",
        "/gradio_api/file=http:/example.com", "/gradio_api/file= HTTPS://example.com", "/gradio_api/file=ftp://x/y",
        "/gradio_api/file/etc/passwd", "/Gradio_API/PROXY=http://x",
    ],
)  # fmt: skip
def test_routes_that_nothing_uses_are_shut(path: str) -> None:
    assert SHUT.match(path) and client(Middleware(ShutRoutes)).get(path).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/", "/config", "/gradio_api/queue/join", "/gradio_api/queue/data", "/gradio_api/call/generate", "/gradio_api/info",
        "/gradio_api/run/lookup", "/gradio_api/heartbeat/abc", "/gradio_api/component_server", "/gradio_api/upload",
        "/gradio_api/file=/tmp/gradio/run.pagewalk", "/gradio_api/startup-events", "/gradio_api/mcp/", "/health",
        "/pagewalk/plotly/plotly.min.js", "/theme.css", "/assets/index.js",
    ],
)  # fmt: skip
def test_routes_that_the_page_uses_are_open(path: str) -> None:
    assert client(Middleware(ShutRoutes)).get(path).text == "here"


def test_a_refusal_is_the_callers_mistake_and_a_bug_stays_ours() -> None:
    page = client(Middleware(PlainFaults))
    refused = page.get("/fault?kind=refusal")
    assert (refused.status_code, refused.json()) == (422, {"error": "The prompt is empty."})
    assert page.get("/fault?kind=bug").status_code == 500


def test_what_gradio_cannot_read_is_answered_in_words_without_a_path() -> None:
    page = client(Middleware(PlainFaults))
    for kind in ("key", "type"):
        answer = page.get(f"/fault?kind={kind}")
        assert answer.status_code == 400 and "check its arguments" in answer.json()["detail"] and "/a/path" not in answer.text
    assert page.get("/fault?kind=runtime").status_code == 500  # nobody hides a real fault


def test_a_request_that_is_too_large_is_refused_announced_or_not() -> None:
    async def length(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    page = TestClient(
        Starlette(routes=[Route("/", length, methods=["POST"])], middleware=[Middleware(BodySize, max_bytes=1 << 20)])
    )
    assert page.post("/", content=b"x" * (1 << 20)).text == str(1 << 20)
    announced = page.post("/", content=b"x" * ((1 << 20) + 1))
    assert (announced.status_code, announced.json()["detail"]) == (413, "A request may have 1 MiB at most.")
    assert page.post("/", content=iter([b"x" * (1 << 19)] * 3)).status_code == 413


def rate(per_minute: int, behind_proxy: bool = False) -> tuple[RequestRate, list[float]]:
    now = [0.0]

    async def nothing(*_: object) -> None: ...

    return RequestRate(nothing, per_minute, behind_proxy, clock=lambda: now[0]), now


def test_one_address_has_a_burst_and_then_its_rate_and_others_theirs() -> None:
    limit, now = rate(60)
    assert [limit.take("a") for _ in range(15)] == [0.0] * 15
    assert limit.take("a") == 1.0 and limit.take("b") == 0.0
    now[0] = 2.0
    assert [limit.take("a") == 0.0 for _ in range(3)] == [True, True, False]


def test_addresses_that_went_quiet_are_forgotten() -> None:
    limit, now = rate(60)
    limit.MAX_ADDRESSES = 10
    for i in range(10):
        limit.take(str(i))
    now[0] = 60.0
    limit.take("new")
    assert set(limit._left) == {"new"}


@pytest.mark.parametrize(
    "forwarded, address",
    [
        ("8.8.8.8", "8.8.8.8"),
        ("1.1.1.1, 8.8.8.8, 10.0.0.7", "8.8.8.8"),
        ("8.8.8.8, nonsense", "8.8.8.8"),
        ("10.0.0.7", "192.0.2.1"),
        ("", "192.0.2.1"),
    ],
)
def test_behind_a_proxy_the_last_public_address_counts_and_elsewhere_the_header_is_ignored(
    forwarded: str, address: str
) -> None:
    scope = {"type": "http", "client": ("192.0.2.1", 5), "headers": [(b"x-forwarded-for", forwarded.encode())]}
    assert rate(60, behind_proxy=True)[0].address(scope) == address
    assert rate(60)[0].address(scope) == "192.0.2.1"


def test_too_many_requests_are_told_when_to_come_back_and_reading_is_free() -> None:
    page = client(Middleware(RequestRate, per_minute=4, behind_proxy=False))
    assert page.post("/gradio_api/call/generate").status_code == 200
    refused = page.post("/gradio_api/queue/join")
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert "More than 4 requests a minute" in refused.json()["detail"]
    assert page.get("/gradio_api/queue/data").status_code == 200 and page.post("/elsewhere").status_code == 200
