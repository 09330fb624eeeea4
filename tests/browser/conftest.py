"""The real app with the real model in a process of its own, and pages that fail a test on any console error."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def app_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log_file = tmp_path_factory.mktemp("app") / "app.log"
    with log_file.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "app.py"), "--port", str(port)],
            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}/"
        try:
            deadline = time.monotonic() + 240
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    with urllib.request.urlopen(url, timeout=2):
                        break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.3)
            else:
                pytest.fail(f"The app did not start:\n{log_file.read_text()[-3000:]}")
            Client(url, verbose=False).predict(prompt="Hi", max_tokens=1, api_name="/generate")  # the model is loaded now
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        assert "Traceback" not in log_file.read_text(), log_file.read_text()[-3000:]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is not installed: browser tests cannot run. scripts/test.sh installs it on Debian.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, app_url: str) -> Iterator[Callable[..., Page]]:
    """`open_page(context=None, viewport=..., dark=False, path="")`: a page, its Stage mounted. Console errors fail the test."""
    problems: list[str] = []
    contexts: list[BrowserContext] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def open_(
        context: BrowserContext | None = None, viewport: dict[str, int] = DESKTOP, dark: bool = False, path: str = ""
    ) -> Page:
        if context is None:
            context = browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
            contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"a dialog opened: {dialog.message}") or dialog.dismiss())
        page.goto(app_url + path)
        page.wait_for_function("document.querySelector('.stage')?.pagewalk?.bus?.session", timeout=60_000)
        return page

    open_.problems = problems  # type: ignore[attr-defined]
    yield open_
    for context in contexts:
        context.close()
    assert not problems, problems


@pytest.fixture
def api(app_url: str) -> Client:
    return Client(app_url, verbose=False)
