"""Many visitors on one host, as a page shows it: waiting, a full queue, a host that stops, and what strangers type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.test_page import generate, session_of, wait_for_step, wait_until_done
from tests.web.conftest import App, start_app  # noqa: F401  a fixture

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def narrow(start_app: Callable[..., App]) -> App:  # noqa: F811
    """One run at a time and one that waits, for strangers."""
    return start_app(
        PAGEWALK_PUBLIC="1", PAGEWALK_MAX_RUNNING="1", PAGEWALK_MAX_WAITING="1", PAGEWALK_TURN_SECONDS="1000",
        PAGEWALK_MAX_NEW_TOKENS="600",
    )  # fmt: skip


@pytest.fixture
def visit(browser: Browser) -> Any:
    """`visit(app, path="")`: a page of a visitor of its own. A dialog, or an error in the console, fails the test."""
    problems: list[str] = []
    contexts: list[BrowserContext] = []

    def open_(app: App, path: str = "") -> Page:
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"a dialog opened: {dialog.message}") or dialog.dismiss())
        page.goto(f"{app.url}/{path}")
        page.wait_for_function("document.querySelector('.stage')?.pagewalk?.bus?.session", timeout=60_000)
        return page

    open_.problems = problems  # type: ignore[attr-defined]
    yield open_
    for context in contexts:
        context.close()
    assert not problems, problems


def test_one_waits_and_reads_the_place_one_is_sent_away_and_all_go_on(narrow: App, visit: Any) -> None:  # G10
    first, second, third = visit(narrow), visit(narrow), visit(narrow)
    generate(first, "Numbers: 1, 2, 3,", max_tokens=600)
    wait_for_step(first, 1)
    generate(second, "The capital of France is", max_tokens=4)
    expect(second.locator(".notice")).to_contain_text("Waiting for a turn: place 1 in the queue.", timeout=20_000)
    generate(third, "The capital of Italy is", max_tokens=4)
    expect(third.locator(".notice")).to_contain_text("The queue is full: 1 runs share the model and 1 wait", timeout=20_000)
    first.click("#stop")
    wait_until_done(second)
    expect(second.locator(".notice")).to_be_hidden()
    wait_until_done(first)
    generate(third, "The capital of Italy is", max_tokens=4)
    wait_until_done(third)
    expect(third.locator(".notice")).to_be_hidden()


@pytest.mark.parametrize("name", ["/etc/passwd", "<img src=x onerror=alert(1)>", "${alert(1)}`", "owner/model\n"])
def test_a_strange_model_name_is_refused_as_text(narrow: App, visit: Any, name: str) -> None:
    page = visit(narrow)
    box = page.locator("#model input")
    box.fill(name)
    box.press("Tab")
    page.click("#generate")
    expect(page.locator(".notice")).to_contain_text("This host runs SmolLM2-135M-Instruct", timeout=20_000)
    assert page.locator(".notice img").count() == 0


@pytest.mark.parametrize(
    "link",
    [
        "?example=<img src=x onerror=alert(1)>&seed=1", "?tok=A:17<svg onload=alert(1)>&layer=${alert(1)}&head=-1",
        "?step=1e999&tok=constructor:__proto__", "?seed=%00&example=%F0%9F%99%82", "?__theme=<script>alert(1)</script>",
        "#<img src=x onerror=alert(1)>",
    ],
)  # fmt: skip
def test_a_strange_link_opens_the_page_and_runs_nothing(narrow: App, visit: Any, link: str) -> None:
    page = visit(narrow, link)
    expect(page.locator("#generate")).to_be_enabled()
    assert page.locator("img[src=x], svg[onload]").count() == 0


def test_when_the_host_stops_the_page_reads_why_and_keeps_its_run(start_app: Callable[..., App], visit: Any) -> None:  # noqa: F811
    app = start_app()
    page = visit(app)
    generate(page, "Numbers: 1, 2, 3,", max_tokens=600)
    wait_for_step(page, 3)
    app.process.terminate()
    expect(page.locator(".notice")).to_contain_text("The host is restarting.", timeout=20_000)
    assert app.process.wait(20) == 0
    assert page.locator("[data-request=A][data-position]").count() > 3
    visit.problems.clear()  # the browser says that the server is gone


def test_two_visitors_have_sessions_of_their_own(narrow: App, visit: Any) -> None:
    assert session_of(visit(narrow)) != session_of(visit(narrow))


def test_the_about_tab_says_what_runs_where(narrow: App, visit: Any) -> None:
    page = visit(narrow)
    page.get_by_role("tab", name="About").click()
    line = page.locator(".pw-build")
    expect(line).to_contain_text("Pagewalk 0.")
    expect(line).to_contain_text("attention: torch")
