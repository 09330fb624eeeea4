"""The kernel lab as a visitor without a GPU meets it: honest times, the interpreter's difference, sentences for bad numbers."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE

pytestmark = pytest.mark.browser

OpenPage = Any  # Callable[..., Page]
STATE = "document.querySelector('.lab')?.dataset.state"
SETTLED = "document.querySelector('.lab')?.pagewalk?.settled"
SMALL = {"batch": 2, "context": 64, "n-q": 6, "n-kv": 2, "head-dim": 32, "block-size": 8}


def open_lab(page: Page) -> None:
    page.get_by_role("tab", name="Kernel lab").click()
    page.wait_for_function(f"{STATE} === 'idle' && {SETTLED}", timeout=20_000)


def ask(page: Page, **numbers: object) -> None:
    """Types numbers and presses Run."""
    for name, value in numbers.items():
        box = page.locator(f"#lab-{name.replace('_', '-')} input")
        box.fill(str(value))
        box.press("Tab")
    page.click("#lab-run")


def ended(page: Page, state: str) -> None:
    """The run's last word is drawn."""
    page.wait_for_function(f"{STATE} === '{state}' && {SETTLED}", timeout=90_000)


def small(**change: object) -> dict[str, object]:
    return {name.replace("-", "_"): value for name, value in SMALL.items()} | change


def test_on_a_cpu_it_shows_differences_and_no_speed_of_the_triton_kernels(open_page: OpenPage) -> None:
    page = open_page()
    open_lab(page)
    expect(page.locator(".lab .headline")).to_contain_text("No GPU here, so the Triton kernels cannot be timed.")
    expect(page.locator(".lab .plan .bars path").first).to_be_attached()  # the launch needs no run
    ask(page, **small())
    ended(page, "result")
    expect(page.locator(".lab .asked")).to_have_text("2 × 64 tokens, 6/2 heads, head_dim 32, blocks of 8")
    expect(page.locator(".lab .headline")).to_contain_text("Timed on this machine's CPU")
    expect(page.locator(".lab .labnotes")).to_contain_text("float32")
    rows = page.locator(".labtable tbody tr")
    assert rows.count() == 3
    found = page.evaluate("document.querySelector('.lab').pagewalk.view.measured")
    for row, path in zip(rows.all(), found["paths"]):
        expect(row).to_contain_text(f"{path['ms']:.4g} ms")
        expect(row.locator("td").last).to_have_text(f"{path['max_abs_difference']:.1e}")
        assert path["max_abs_difference"] < 1e-5
    inside = rows.nth(2)
    expect(inside.locator("th")).to_have_text("Triton kernels, interpreted")
    expect(inside.locator("td").first).to_have_text("not timed")
    expect(inside.locator("td").last).to_have_text(f"{found['interpreter']['max_abs_difference']:.1e}")
    assert found["interpreter"]["max_abs_difference"] < 1e-5
    bars = page.evaluate("document.querySelector('.lab .times').data[0].x")
    assert bars == [path["ms"] for path in found["paths"]]
    assert "GB/s" not in inside.inner_text()


def test_absurd_numbers_get_their_sentence_and_the_next_run_works(open_page: OpenPage) -> None:
    page = open_page()
    open_lab(page)
    for change, sentence in (
        ({"batch": 0}, "Batch is 0; give a whole number from 1 to 256."),
        ({"batch": -7}, "Batch is -7; give a whole number from 1 to 256."),
        ({"batch": ""}, "Batch is empty; give a whole number from 1 to 256."),
        ({"batch": 2, "context": 999999999999}, "Context is 999999999999; give a whole number from 1 to 131,072."),
        ({"context": 64, "n_q": 5}, "5 query heads cannot share 2 KV heads"),
        ({"n_q": 6, "head_dim": 33}, "head_dim is 33; give a multiple of 8"),
        ({"head_dim": 256, "batch": 256, "context": 4096}, "on this machine's CPU the lab takes up to 128.0 MiB"),
    ):
        ask(page, **(small() | change))
        expect(page.locator(".labsay")).to_contain_text(sentence, timeout=20_000)
        assert page.evaluate(STATE) == "problem"
    ask(page, **small())
    ended(page, "result")
    expect(page.locator(".labsay")).to_have_text("")


def test_a_preset_fills_the_numbers(open_page: OpenPage) -> None:
    page = open_page()
    open_lab(page)
    page.locator("#lab-preset input").click()
    page.get_by_role("option", name="Qwen2.5-0.5B, 16 × 1,024 tokens").click()
    for name, value in {
        "batch": "16",
        "context": "1024",
        "n-q": "14",
        "n-kv": "2",
        "head-dim": "64",
        "block-size": "16",
    }.items():
        expect(page.locator(f"#lab-{name} input")).to_have_value(value)


def test_while_one_visitor_runs_another_is_told_to_wait(open_page: OpenPage) -> None:
    one, other = open_page(), open_page()
    for page in (one, other):
        open_lab(page)
    ask(one, **small())
    one.wait_for_function(f"{STATE} === 'running'")
    ask(other, **small())
    ended(one, "result")
    other.wait_for_function(f"['problem', 'result'].includes({STATE})", timeout=90_000)
    # the other came either into the first run, or after it
    assert "one shape at a time" in other.locator(".labsay").inner_text() or other.evaluate(STATE) == "result"
    ask(other, **small())
    ended(other, "result")


def test_on_a_phone_nothing_scrolls_sideways_and_every_number_has_its_name(open_page: OpenPage) -> None:
    page = open_page(viewport=PHONE)
    open_lab(page)
    ask(page, **small())
    ended(page, "result")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    first = page.locator(".labtable tbody tr").first.locator("td").first
    assert first.get_attribute("data-label") == "Median time"
    widths = page.evaluate("[...document.querySelectorAll('.lab .main-svg')].map(s => s.getBoundingClientRect().right)")
    assert max(widths) <= 390
    clipped = page.evaluate(
        """() => [...document.querySelectorAll('.lab .times .bartext')].filter(text =>
             text.getBoundingClientRect().right > document.querySelector('.lab .times').getBoundingClientRect().right).length"""
    )
    assert clipped == 0
