"""What stands around Gradio's routes: answers' headers, routes that stay shut, bounds on requests' size and number.

Plain ASGI, so that streams pass through untouched.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import threading
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("pagewalk.server")

FRAME_ANCESTORS = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "strict-origin-when-cross-origin",
    "content-security-policy": f"frame-ancestors {FRAME_ANCESTORS}; object-src 'none'; base-uri 'self'",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}

SHUT = re.compile(
    r"""
    /monitoring | /svelte/
    | /gradio_api/ (
        proxy= | process_recording | vibe- | undo-vibe | runs | run-history | deep_link | stream/ | profiling | dev/ | file/
        | file= [^/]* : [/\\]           # an address: the server fetches nothing on a visitor's behalf
      )
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Routes of Gradio's that the page and its clients never use."""

COUNTED = re.compile(r"/gradio_api/(queue/join|call/|run/|api/|component_server|upload|mcp)")


class AnswerHeaders:
    """Every answer says what a browser may do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


class ShutRoutes:
    """Gradio's routes that nothing here uses answer 404."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and SHUT.match(scope["path"]):
            await JSONResponse({"detail": "There is no such page."}, 404)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class PlainFaults:
    """A request that Gradio cannot make sense of gets an answer in words, and no fault gets a traceback into the log.

    What a handler refuses on purpose (gr.Error) is the caller's mistake, 422; Gradio would answer 500.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started: list[Message] = []  # the beginning of an answer 500, held until its body is known

        async def sober(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 500:
                started.append(message)
                return
            if started and message["type"] == "http.response.body":
                start = started.pop()
                if _is_refusal(message.get("body", b"")):
                    start["status"] = 422
                await send(start)
            await send(message)

        try:
            await self.app(scope, receive, sober)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            log.warning("refused %s %s (%s)", scope["method"], scope["path"].split("=")[0][:60], type(error).__name__)
            await JSONResponse({"detail": "This request makes no sense here: check its arguments."}, 400)(scope, receive, send)


class BodySize:
    """A request of more than `max_bytes` is refused: by what it announces, or as soon as that much has come."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = JSONResponse({"detail": f"A request may have {self.max_bytes / 2**20:,.0f} MiB at most."}, 413)
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self.max_bytes:
            await refusal(scope, receive, send)
            return
        come = 0

        async def counted() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > self.max_bytes:
                raise _TooLarge
            return message

        try:
            await self.app(scope, counted, send)
        except _TooLarge:
            await refusal(scope, receive, send)


class _TooLarge(Exception):
    pass


class RequestRate:
    """At most `per_minute` requests that cause work from one address, and a quarter of that at once."""

    MAX_ADDRESSES = 4096

    def __init__(self, app: ASGIApp, per_minute: int, behind_proxy: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self.per_minute, self.behind_proxy = per_minute, behind_proxy
        self.burst = max(1.0, per_minute / 4)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # address -> (requests left, as of when)
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and COUNTED.match(scope["path"]):
            wait = self.take(self.address(scope))
            if wait > 0:
                text = f"More than {self.per_minute} requests a minute came from your address. Try again in {wait:.0f} s."
                await JSONResponse({"detail": text}, 429, {"retry-after": f"{wait:.0f}"})(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def take(self, address: str) -> float:
        """0.0 if one more request is allowed now, else the seconds until it is."""
        now = self._clock()
        with self._lock:
            left, since = self._left.get(address, (self.burst, now))
            left = min(self.burst, left + (now - since) * self.per_minute / 60)
            if left < 1:
                return max(1.0, (1 - left) * 60 / self.per_minute)
            if len(self._left) >= self.MAX_ADDRESSES:
                full = {name for name, (n, at) in self._left.items() if n + (now - at) * self.per_minute / 60 >= self.burst}
                self._left = {name: value for name, value in self._left.items() if name not in full}
            self._left[address] = (left - 1, now)
            return 0.0

    def address(self, scope: Scope) -> str:
        """Who asks: behind a proxy the last public address it forwards for, which a caller cannot invent."""
        if self.behind_proxy:
            for name in reversed(Headers(scope=scope).get("x-forwarded-for", "").split(",")):
                try:
                    if ipaddress.ip_address(name.strip()).is_global:
                        return name.strip()
                except ValueError:
                    continue
        return str((scope.get("client") or ("unknown", 0))[0])


def _is_refusal(body: bytes) -> bool:
    try:
        return bool(json.loads(body).get("error"))
    except (ValueError, AttributeError):
        return False
