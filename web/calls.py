"""Calls are checked before Gradio sees them: an endpoint that is there, and as many arguments as it takes."""

from __future__ import annotations

import json
import re
from typing import Any

import gradio as gr
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CALL = re.compile(r"/gradio_api/(?:(?P<kind>run|api|call)/(?P<name>[^/]+)|(?P<join>queue/join))/?")


class KnownCalls:
    """Gradio would answer 500, and write a traceback into the log, for each of these."""

    def __init__(self, app: ASGIApp, demo: gr.Blocks) -> None:
        self.app = app
        self.demo = demo

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = CALL.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if call is None:
            await self.app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return  # the caller is gone
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        problem = self.problem(call, body)
        if problem is not None:
            await JSONResponse({"detail": problem[1], "error": problem[1]}, problem[0])(scope, receive, send)
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    def problem(self, call: re.Match[str], body: bytes) -> tuple[int, str] | None:
        """Status and sentence for a call that cannot work."""
        try:
            asked = json.loads(body)
        except ValueError:
            return 400, "The request's body is not JSON."
        if not isinstance(asked, dict):
            return 400, "The request's body is no JSON object."
        public = {fn.api_name: fn for fn in self.demo.fns.values() if fn.api_name and fn.api_visibility == "public"}
        index = asked.get("fn_index")  # the page's own events go by number, and then the name in the path says nothing
        if index is not None and call["kind"] != "call":
            found = self.demo.fns.get(index) if isinstance(index, int) else None
        else:
            found = public.get(call["name"])
        if found is None:
            return 404, f"There is no such endpoint. There are: {', '.join(sorted('/' + str(name) for name in public))}."
        counts = {len(found.inputs), sum(not block.skip_api for block in found.inputs)}
        data: Any = asked.get("data")
        if not isinstance(data, list) or len(data) not in counts:
            return 422, f"This endpoint takes a list of {max(counts)} arguments as data."
        return None
