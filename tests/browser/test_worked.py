"""The worked lookup as a visitor meets it: six steps, every number that of the API, by mouse, by keyboard, on a phone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE

pytestmark = pytest.mark.browser

OpenPage = Any  # Callable[..., Page]
WORKED = "document.querySelector('.wstage').pagewalk"


def settle(page: Page, step: int) -> None:
    """The step is drawn."""
    page.wait_for_function(
        f"step => document.querySelector('.wstage')?.pagewalk?.settled && {WORKED}.step === step", arg=step, timeout=20_000
    )


def open_worked(page: Page) -> None:
    page.get_by_role("tab", name="Worked lookup").click()
    settle(page, 1)


def minus(text: str) -> str:
    return text.replace("-", "−")


def test_six_steps_show_the_numbers_of_the_api_one_after_the_other(open_page: OpenPage, api: Client) -> None:
    x = api.predict(api_name="/worked_example")
    page = open_page()
    open_worked(page)
    p, size, block, slot = x["key_position"], x["block_size"], x["physical_block"], x["slot"]
    told = [
        [f"{x['logical_block']}, offset {x['block_offset']}", f"{p} // {size} = {p // size}", f"{p} % {size} = {p % size}"],
        [str(block), f"table[{x['logical_block']}] = {block}", f"Blocks {x['block_table'][0]}, "],
        [
            f"slot {slot}",
            f"{block} × {size} + {x['block_offset']} = {slot}",
            f"{slot} × {x['slot_bytes']} B = {x['byte_offset']:,}",
        ],
        [f"{x['score']:.4f}", f"{x['raw_dot']:.4f} / {1 / x['scale']:.4f}", f"norm {x['key_norm']:.4f}"],
        [f"{len(x['scores'])} scores", f"0–15 in {x['block_table'][0]}", f"32–{x['context_len'] - 1} in {x['block_table'][2]}"],
        [
            f"weight {x['weight']:.4f}",
            f"largest {x['largest_weight']:.4f} at {x['largest_weight_position']}",
            f"‖o‖ {x['output_norm']:.4f}",
        ],
    ]
    for step, texts in enumerate(told, 1):
        settle(page, step)
        expect(page.locator(".wnav .at")).to_have_text(f"Step {step} of 6")
        row = page.locator(f".six [data-step='{step}']")
        expect(row).to_have_attribute("aria-current", "step")
        for text in texts:
            expect(row).to_contain_text(text)
        for later in range(step + 1, 7):
            expect(page.locator(f".six [data-step='{later}'] .val")).to_be_hidden()
        if step < 6:
            expect(page.locator(".wproof .val")).to_be_hidden()
            page.get_by_role("button", name="Next").click()
    assert page.get_by_role("button", name="Next").is_disabled()
    for name in ("slot", "byte_offset", "score", "raw_dot", "key_norm", "weight", "largest_weight", "output_norm"):
        attribute = f"data-{name.replace('_', '-')}"
        assert float(str(page.locator(f".six [{attribute}]").get_attribute(attribute))) == x[name], name
    for _ in range(5):
        page.get_by_role("button", name="Back").click()
    settle(page, 1)
    assert page.get_by_role("button", name="Back").is_disabled()


def test_paged_and_contiguous_stand_side_by_side_with_their_difference(open_page: OpenPage, api: Client) -> None:
    x = api.predict(api_name="/worked_example")
    page = open_page()
    open_worked(page)
    page.keyboard.press("End")
    settle(page, 6)
    for name, key in (("paged", "output_paged"), ("contiguous", "output_dense"), ("difference", "differences")):
        cells = page.locator(f".otable [data-output='{name}']")
        assert [float(str(cell.get_attribute("data-value"))) for cell in cells.all()] == x[key]
        if name != "difference":
            assert cells.all_inner_texts() == [minus(f"{value:.4f}") for value in x[key]]
    proof = page.locator(".wproof [data-field=max_abs_difference]")
    expect(proof).to_contain_text("Same as contiguous attention")
    assert float(str(proof.get_attribute("data-value"))) == x["max_abs_difference"] == max(map(abs, x["differences"]))
    bars = page.evaluate("document.querySelector('.weights').data[0].y")
    assert bars == x["weights"]


def test_the_walk_grows_with_the_steps_and_ends_at_the_proof(open_page: OpenPage) -> None:
    page = open_page()
    open_worked(page)
    lines = []
    for step in range(1, 7):
        settle(page, step)
        lines.append(page.locator(".wstage .walk .line").count())
        page.keyboard.press("ArrowRight")
    assert lines == [0, 1, 2, 3, 4, 4]
    assert sorted(page.locator(".wstage .walk text").all_text_contents()) == ["1", "2", "3"]
    ends = page.evaluate(
        """() => { const path = [...document.querySelectorAll('.wstage .walk .line')].at(-1).getBoundingClientRect();
             const tick = document.querySelector('.wproof .tick').getBoundingClientRect();
             return [path.bottom, tick.top, tick.bottom]; }"""
    )
    assert ends[1] - 3 <= ends[0] <= ends[2]


def test_it_can_be_walked_with_the_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page()
    open_worked(page)
    page.locator("#pw-tabs [role=tab]", has_text="Worked lookup").focus()
    for step in (2, 3):
        page.locator(".wnav .next").focus()
        page.keyboard.press("Enter")
        settle(page, step)
    page.keyboard.press("ArrowLeft")
    settle(page, 2)
    page.keyboard.press("End")
    settle(page, 6)
    expect(page.locator(".wstage .announce")).to_contain_text("Step 6 of 6")
    page.keyboard.press("Home")
    settle(page, 1)
    page.locator(".six .go").nth(3).focus()
    page.keyboard.press("Enter")
    settle(page, 4)
    page.locator(".wstage .tok[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")  # among the tokens arrows move by token
    assert page.evaluate("document.activeElement.dataset.position") == "1"
    settle(page, 4)
    expect(page.locator(".wstage .cell[data-hover]")).to_have_attribute("data-physical", "7")


def test_a_token_and_its_slot_are_shown_together(open_page: OpenPage, api: Client) -> None:
    x = api.predict(api_name="/worked_example")
    page = open_page()
    open_worked(page)
    token = page.locator(".wstage .tok[data-position='33']")
    token.hover()
    assert token.get_attribute("aria-label") == f"position 33: block 15, slot {x['slots'][33]}"
    page.wait_for_function(f"{WORKED}.hover?.block === 15 && {WORKED}.settled")
    x0, y0 = page.evaluate(
        f"""() => {{ const pool = {WORKED}.pool, s = pool.g.slot(7, 3), box = pool.div.getBoundingClientRect();
             return [box.left + s.x + s.w / 2, box.top + s.y + s.h / 2]; }}"""
    )
    page.mouse.move(x0, y0)
    expect(page.locator(".wstage .tok[data-hover]")).to_have_attribute("data-position", "3")
    expect(page.locator(".wstage .tip")).to_contain_text(f"slot {x['slots'][3]}")


@pytest.mark.parametrize("dark", [False, True])
def test_it_has_its_size_when_its_tab_is_first_opened(open_page: OpenPage, dark: bool) -> None:
    page = open_page(dark=dark)
    open_worked(page)
    page.keyboard.press("End")
    settle(page, 6)
    frame, pool, chart = (
        page.locator(f".wstage {part}").bounding_box() for part in (".panes", ".pool", ".weights .main-svg >> nth=0")
    )
    assert frame and pool and chart
    assert frame["width"] > 1300 and frame["height"] >= 600
    assert pool["width"] > 400 and pool["height"] > 450
    assert chart["width"] > 400 and chart["height"] > 90
    ink = page.evaluate("document.querySelector('.weights').data[0].marker.color[20].toUpperCase()")
    assert ink == ("#FFFFFF" if dark else "#0B0D12")


def test_the_pool_follows_the_size_of_the_window(open_page: OpenPage) -> None:
    page = open_page()
    open_worked(page)
    page.keyboard.press("End")
    settle(page, 6)
    page.set_viewport_size(PHONE)
    page.wait_for_function(f"{WORKED}.pool.g.w < 390 && {WORKED}.settled")
    canvas, pool = (page.locator(f".wstage .poolwrap {part}").bounding_box() for part in ("canvas.picture", ".pool"))
    assert canvas and pool
    assert abs(canvas["width"] - pool["width"]) < 1 and canvas["x"] + canvas["width"] <= 390


def test_a_link_opens_the_tab(open_page: OpenPage) -> None:
    page = open_page(path="?tab=worked")
    settle(page, 1)
    expect(page.locator(".wstage")).to_be_visible()


def test_on_a_phone_panes_stack_and_the_buttons_stay_in_sight(open_page: OpenPage) -> None:
    page = open_page(viewport=PHONE)
    open_worked(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(page.locator(".wnav .next")).to_be_in_viewport()
    page.locator(".wnav .next").click()
    settle(page, 2)
    for _ in range(4):
        page.locator(".wnav .next").click()
    settle(page, 6)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    tops = [page.locator(f".wstage .pane.{name}").bounding_box() for name in ("logical", "poolpane", "lookup")]
    assert all(upper and lower and upper["y"] + upper["height"] <= lower["y"] + 1 for upper, lower in pairwise(tops))
    assert page.locator(".otable.tall").count() == 1
