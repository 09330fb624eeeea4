"""Agents: the endpoints as MCP tools, each caller with runs of its own."""

from __future__ import annotations

import ast
import importlib.util
import json
import urllib.request
from typing import Any

import pytest

from tests.web.conftest import App

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="The package mcp is not installed: pip install -r requirements.txt"
)


def ask(app: App, method: str, **params: Any) -> dict[str, Any]:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with urllib.request.urlopen(urllib.request.Request(f"{app.url}/gradio_api/mcp/", body, headers), timeout=60) as answer:
        (line,) = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")][-1:]
    return json.loads(line)["result"]


def call(app: App, name: str, **arguments: Any) -> tuple[bool, Any]:
    """Whether it is an error, and what was said."""
    result = ask(app, "tools/call", name=name, arguments=arguments)
    text = result["content"][0]["text"]
    return result["isError"], text if result["isError"] else ast.literal_eval(text)


def test_the_tools_say_what_they_do_and_what_each_argument_means(app: App) -> None:
    tools = {tool["name"].removeprefix("pagewalk_"): tool for tool in ask(app, "tools/list")["tools"]}
    assert {"generate", "lookup", "state", "worked_example"} <= set(tools)
    for name, tool in tools.items():
        assert len(tool["description"]) > 80, name
        for argument, schema in tool["inputSchema"]["properties"].items():
            assert len(schema.get("description", "")) > 5, (name, argument)


def test_an_agent_generates_and_goes_on_by_the_session_it_was_given(app: App) -> None:
    failed, run = call(app, "generate", prompt="The capital of France is", max_tokens=4)
    assert not failed and run["texts"] == [" Paris.\n\n"]
    assert call(app, "lookup", session=run["session"], request_id="A", key_position=2)[1]["ok"]
    assert call(app, "state", session=run["session"], step=1)[1]["step"] == 1


def test_two_agents_share_nothing(app: App) -> None:
    first, second = (call(app, "generate", prompt="The capital of France is", max_tokens=2)[1] for _ in range(2))
    assert first["session"] != second["session"]
    failed, said = call(app, "state")
    assert failed and "Give the session that /generate answered with" in said


def test_a_refusal_reaches_the_agent_as_a_sentence(app: App) -> None:
    assert call(app, "generate", prompt=" ") == (True, "The prompt is empty. Type some text, or pick an example.")
