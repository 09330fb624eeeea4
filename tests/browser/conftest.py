"""The real app with the real model in a process of its own, and pages that fail a test on any console error."""

from __future__ import annotations

import contextlib
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
from playwright.sync_api import Browser, BrowserContext, BrowserType, ConsoleMessage, Page, sync_playwright
from playwright.sync_api import Error as PlaywrightError

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
def chromium() -> Iterator[tuple[BrowserType, str]]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("Chromium is not installed: browser tests cannot run. scripts/test.sh installs it on Debian.")
    with sync_playwright() as playwright:
        yield playwright.chromium, found


@pytest.fixture(scope="session")
def browser(chromium: tuple[BrowserType, str]) -> Iterator[Browser]:
    kind, found = chromium
    browser = kind.launch(executable_path=found, args=CHROMIUM_FLAGS)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def profile(chromium: tuple[BrowserType, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """One that keeps compiled scripts, as a person's browser does: a page opens in half the time."""
    kind, found = chromium
    folder = tmp_path_factory.mktemp("profile")
    with kind.launch_persistent_context(folder, executable_path=found, args=CHROMIUM_FLAGS) as context:
        yield context


@pytest.fixture
def new_tab(profile: BrowserContext, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """`new_tab(viewport, dark=False)`: an empty tab; nothing that a page of it keeps outlives the test.

    A test's first one is of the profile. A profile has six connections to a host, so further ones have a context each.
    """
    pages: list[Page] = []
    contexts: list[BrowserContext] = []

    def open_(viewport: dict[str, int], dark: bool = False) -> Page:
        scheme = "dark" if dark else "light"
        if pages:
            contexts.append(request.getfixturevalue("browser").new_context(viewport=viewport, color_scheme=scheme))
            return contexts[-1].new_page()
        pages.append(profile.new_page())
        pages[0].set_viewport_size(viewport)  # type: ignore[arg-type]
        pages[0].emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        return pages[0]

    yield open_
    for page in [page for page in profile.pages if page.url != "about:blank"]:
        with contextlib.suppress(PlaywrightError):
            page.evaluate("localStorage.clear()")
        page.close()
    profile.clear_cookies()
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(new_tab: Callable[..., Page], app_url: str) -> Iterator[Callable[..., Page]]:
    """`open_page(context=None, viewport=..., dark=False, path="")`: a page, all of it drawn. Console errors fail the test."""
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def open_(
        context: BrowserContext | None = None, viewport: dict[str, int] = DESKTOP, dark: bool = False, path: str = ""
    ) -> Page:
        page = new_tab(viewport, dark) if context is None else context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"a dialog opened: {dialog.message}") or dialog.dismiss())
        page.goto(app_url + path)
        stage = "document.querySelector('.stage')?.pagewalk"
        page.wait_for_function(f"{stage}?.bus?.session && !{stage}.charts.pending", timeout=60_000)
        return page

    open_.problems = problems  # type: ignore[attr-defined]
    yield open_
    assert not problems, problems


@pytest.fixture
def api(app_url: str) -> Client:
    return Client(app_url, verbose=False)
