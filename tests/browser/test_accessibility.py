"""axe-core on the real page, in every view and both themes, and a visit with the keyboard alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE
from tests.browser.test_page import STAGE, OpenPage, generate, lookup_fields, wait_until_done

pytestmark = pytest.mark.browser

GRADIOS: dict[str, str] = {}
"""Selectors of Gradio's own markup that cannot be mended from outside -> why."""

OPTIONS = {"resultTypes": ["violations", "passes"]}
OVERLAYS = ".walk, .ring { display: none !important }"
"""Pictures that lie over all of the Stage and let the mouse through: axe-core judges no contrast under them."""


def serious(page: Page) -> list[str]:
    """One line a serious or critical violation of axe-core's rules, colour contrast among them."""
    for selector, why in GRADIOS.items():
        print(f"axe: {selector} left out: {why}")
    context = {"exclude": [[selector] for selector in GRADIOS]} if GRADIOS else None
    style = page.add_style_tag(content=OVERLAYS)
    response: dict[str, Any] = Axe().run(page, context=context, options=OPTIONS).response
    style.evaluate("element => element.remove()")
    judged = sum(
        len(rule["nodes"]) for rule in (*response["passes"], *response["violations"]) if rule["id"] == "color-contrast"
    )
    if page.locator(".stage .tok[data-position]:visible").count():
        assert judged > page.locator(".stage .tok[data-position]:visible").count() / 2, "contrast was judged where the text is"
    found = response["violations"]
    return [
        f"{v['id']} ({v['impact']}): {' '.join(map(str, node['target']))}  {node['html'][:160]}  {node['failureSummary'][:300]}"
        for v in found
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]


def views(page: Page) -> list[tuple[str, list[str]]]:
    """Every view of the page with what axe-core says of it."""
    seen = [("at first", serious(page))]
    generate(page, "The capital of France is", max_tokens=24)
    wait_until_done(page)
    seen.append(("after a run, first visit", serious(page)))
    page.click('[data-request="A"][data-position="17"]')
    lookup_fields(page)
    seen.append(("a token pinned", serious(page)))
    page.click("#settings-toggle")
    expect(page.locator("#settings")).to_be_visible()
    seen.append(("settings open", serious(page)))
    page.click("#settings-toggle")
    page.get_by_role("button", name="Back one step").click()
    expect(page.locator(".stage .notice")).to_be_visible()
    seen.append(("in the past", serious(page)))
    page.locator("[data-level=tokens]").click()
    page.wait_for_function(f"{STAGE}.settled && document.querySelector('.poolwrap').dataset.level === 'tokens'")
    seen.append(("zoomed in", serious(page)))
    page.locator("[data-action=tour]").click()
    expect(page.locator(".guide .progress")).to_be_visible()
    seen.append(("tour", serious(page)))
    page.locator("[data-action=ask]").click()
    expect(page.locator(".ask")).to_be_visible()
    seen.append(("questions", serious(page)))
    page.locator('[data-question="where"]').click()
    expect(page.locator("#pw-guide-text")).to_contain_text("logical block")
    seen.append(("an answer", serious(page)))
    page.locator("[data-action=predict]").click()
    expect(page.locator(".quiz")).to_be_visible()
    seen.append(("predict", serious(page)))
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator(".keybox")).to_be_visible()
    seen.append(("keys", serious(page)))
    page.keyboard.press("Escape")
    for tab in page.get_by_role("tab").all()[1:]:
        if tab.is_visible():
            tab.click()
            expect(tab).to_have_attribute("aria-selected", "true")
            seen.append((f"tab {tab.inner_text()}", serious(page)))
    return seen


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_in_any_view(open_page: OpenPage, dark: bool) -> None:
    page = open_page(dark=dark)
    assert page.evaluate("document.body.classList.contains('dark')") is dark
    bad = [f"{view}: {line}" for view, lines in views(page) for line in lines]
    assert bad == [], "\n".join(bad)


def test_axe_finds_nothing_serious_on_a_phone(open_page: OpenPage) -> None:
    page = open_page(viewport=PHONE)
    bad = [f"{view}: {line}" for view, lines in views(page) for line in lines]
    assert bad == [], "\n".join(bad)


def test_axe_does_find_what_is_wrong(open_page: OpenPage) -> None:
    """The tests above are no empty claim: low contrast and a nameless button are both found."""
    page = open_page()
    page.evaluate(
        "() => { const b = document.createElement('button'), p = document.createElement('p');"
        " p.textContent = 'pale'; p.style.cssText = 'color: #ccc; background: #fff';"
        " document.querySelector('.stage').append(b, p) }"
    )
    found = "\n".join(serious(page))
    assert "button-name (critical)" in found and "color-contrast (serious)" in found


# ---- the keyboard alone


def focused(page: Page) -> str:
    return str(
        page.evaluate(
            "(() => { const e = document.activeElement;"
            " return e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent || e.tagName })()"
        )
    ).strip()


def tab_to(page: Page, selector: str, back: bool = False) -> None:
    """Presses Tab until the element has the focus. Everywhere on the way the focus can be seen."""
    for _ in range(120):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    pytest.fail(f"{selector} cannot be reached with Tab; the focus is at {focused(page)!r}")


def test_a_visit_with_the_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page()
    tab_to(page, "#settings-toggle")
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_visible()
    tab_to(page, "#max-tokens input")
    page.keyboard.press("Control+a")
    page.keyboard.type("24")
    tab_to(page, "#ignore-eos input")
    page.keyboard.press("Space")
    tab_to(page, "#settings-toggle", back=True)
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_hidden()

    tab_to(page, "#prompt textarea, #prompt input", back=True)
    page.keyboard.press("Control+a")
    page.keyboard.type("The capital of France is")
    tab_to(page, "#generate, #generate button")
    page.keyboard.press("Enter")
    wait_until_done(page)
    assert page.evaluate(f"{STAGE}.state.request('A').length") == 29

    tab_to(page, ".rows button")  # one stop for all tokens; arrows move among them
    assert re.match(r"A 0: ", focused(page))
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert re.match(r'A 3: "', focused(page))
    page.keyboard.press("Enter")
    fields = lookup_fields(page)
    assert fields["block_offset"] == "3"

    tab_to(page, ".scrub")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"{STAGE}.state.step === {STAGE}.bus.mirror.newest - 1")
    tab_to(page, ".events .ev")  # one stop for all events; Enter goes to the step
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_function(f"{STAGE}.state.step <= 1 && {STAGE}.settled")
    assert page.evaluate("document.activeElement.matches('.events .ev')")  # rows went; the focus did not
    tab_to(page, ".scrub", back=True)
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"{STAGE}.state.step === {STAGE}.bus.mirror.newest - 1")
    tab_to(page, ".pool", back=True)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".stage > .announce")).to_have_text(re.compile(r"^block \d+, slot \d+ A:1 "))
    page.keyboard.press("Enter")
    expect(page.locator('.tok.pinned[data-position="1"]')).to_have_count(1)
    tab_to(page, '.lookup select[aria-label="Layer"]')
    page.keyboard.press("ArrowDown")
    expect(page.locator(".tok.pinned")).to_have_count(1)

    tab_to(page, "[data-action=tour]")
    page.keyboard.press("Enter")
    expect(page.locator(".guide")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".guide .progress")).to_have_text("2 of 8")
    tab_to(page, ".guide .primary")
    page.keyboard.press("Enter")
    expect(page.locator(".guide .progress")).to_have_text("3 of 8")
    page.keyboard.press("Escape")
    expect(page.locator("[data-action=tour]")).to_be_focused()

    page.keyboard.press("a")
    expect(page.locator(".ask input")).to_be_focused()
    page.keyboard.type("which slot")
    page.keyboard.press("Enter")
    expect(page.locator(".guide")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("[data-action=tour]")).to_be_focused()

    page.keyboard.press("p")
    expect(page.locator(".pool")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator(".quiz .score")).to_contain_text("of 1 right")
    tab_to(page, ".quiz button.primary", back=True)
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator(".quiz")).to_be_hidden()

    page.keyboard.press("/")
    page.keyboard.type("France")
    page.keyboard.press("Enter")
    expect(page.locator('.tok.pinned[data-position="3"]')).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".tok.pinned")).to_have_count(0)
    tab_to(page, "[role=tab]", back=True)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", selected=True)).not_to_have_text("Playground")
