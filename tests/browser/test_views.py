"""The dock's views in Chromium, on the scripted run and the server's real figures of it. A console error fails the test."""
# ruff: noqa: F811

from __future__ import annotations

import json
import re
import shutil

import pytest
from playwright.sync_api import expect

from tests.browser.test_stage import RANGES, STAGE, click_token, open_page, run, url, wait_answer  # noqa: F401

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: it makes the scripted run"),
]
SETTLED = f"{STAGE}.settled"
COUNT_CALLS = f"""{{
  const {{ server }} = {STAGE}, {{ stage_lookup, stage_view }} = server;
  window.asked = [];
  {STAGE}.server = {{ stage_lookup, stage_view: question => {{ window.asked.push(question); return stage_view(question); }} }};
}}"""
HOLD_WASTE = f"""{{
  const {{ server }} = {STAGE}, {{ stage_lookup, stage_view }} = server;
  const held = question => new Promise(done => {{ window.late = async () => done(await stage_view(question)); }});
  {STAGE}.server = {{ stage_lookup, stage_view: question => (question.view === 'waste' ? held : stage_view)(question) }};
}}"""
AT_STEP_40 = """() => {
  const div = document.querySelector('.viewplot'), x = div._fullLayout.xaxis, box = div.getBoundingClientRect();
  return [box.left + x._offset + x.l2p(40), box.top + 40];
}"""


def choose(page, view: str) -> None:
    page.click(f'.views [data-view="{view}"]')
    page.wait_for_function(f"{STAGE}.dock.views.answer && {SETTLED}")


def caption(page) -> str:
    return page.inner_text(".viewsay")


def bar_point(page, position: int) -> list[float]:
    """The pixel in the middle of the attention column of a position."""
    return page.evaluate(
        """position => {
          const div = document.querySelector('.viewplot'), columns = div.data.at(-1), box = div.getBoundingClientRect();
          const { xaxis: x, yaxis: y } = div._fullLayout;
          return [box.left + x._offset + x.l2p(columns.x[position]), box.top + y._offset + y.l2p(columns.y[position] / 2)];
        }""",
        position,
    )


def move(page, point: list[float]) -> None:
    """To a data point, as a hand does: twice, and a moment's rest."""
    page.mouse.move(point[0] - 3, point[1])
    page.mouse.move(*point)
    page.wait_for_timeout(60)


def test_each_view_is_drawn_with_a_caption_and_the_blocks_come_back(open_page):
    page = open_page()
    run(page, "mid:72")
    said = set()
    for view in ("allocator", "waste", "timeline", "memory", "attention", "vectors", "kernel"):
        choose(page, view)
        assert page.locator(".viewplot .main-svg").first.is_visible()
        assert page.locator(".usage").is_hidden()
        assert page.get_attribute(f'.views [data-view="{view}"]', "aria-selected") == "true"
        assert page.get_attribute(".viewplot", "aria-label").endswith(caption(page))
        said.add(caption(page))
    assert len(said) == 7
    page.click('.views [data-view="blocks"]')
    page.wait_for_function(SETTLED)
    assert page.locator(".usage .main-svg").first.is_visible()
    assert page.locator(".viewplot").is_hidden() and page.locator(".viewsay").is_hidden()


def test_a_view_over_steps_lies_under_the_scrubber_and_its_legend_has_the_numbers_of_the_shown_step(open_page):
    page = open_page()
    run(page, "mid:72")
    for view in ("allocator", "waste", "timeline"):
        choose(page, view)
        x, y = page.evaluate(AT_STEP_40)
        page.mouse.click(x, y)
        page.wait_for_function(f"{STAGE}.state.step === 40 && {SETTLED}")
        line = "(b => b.left + b.width / 2)(document.querySelector('.s-line').getBoundingClientRect())"
        page.wait_for_function(f"Math.abs({line} - ({AT_STEP_40})()[0]) < 1.5")  # the axis may still take its last shape
    choose(page, "allocator")
    numbers = page.evaluate("[...document.querySelectorAll('.viewkey li')].map(li => li.textContent)")
    counts = page.evaluate(f"{STAGE}.state.counts")
    assert numbers[:4] == [
        f"used by one{counts['used'] - counts['shared']}", f"shared{counts['shared']}", f"cached{counts['cached']}",
        f"free{counts['free']}",
    ]  # fmt: skip
    page.focus(".scrub")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"{STAGE}.state.step === 39")


def test_clicking_a_bar_of_the_attention_pins_that_token_under_the_same_query(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate(f"{STAGE}.seek(41)")
    click_token(page, "A", 17)
    wait_answer(page)
    page.evaluate(f"{STAGE}.newest()")
    page.wait_for_function(f"{STAGE}.state.step === 72")
    choose(page, "attention")
    assert caption(page).startswith("Query A:44, layer 15, head 0 (KV head 0): 45 positions in 3 blocks")
    assert page.locator(".viewplot .annotation").all_text_contents() == ["block 95", "12", "26"]
    point = bar_point(page, 32)
    move(page, point)
    page.wait_for_function(f"{STAGE}.hover?.block === 26 && {STAGE}.hover.offset === 0")
    page.mouse.click(*point)
    page.wait_for_selector('.tok.pinned[data-request="A"][data-position="32"]')
    wait_answer(page)
    assert page.inner_text(".lookup .say").startswith("Query A:44 reads the key of A:32")
    page.wait_for_function(
        f"{SETTLED} && document.querySelector('.viewsay').textContent.includes('the key of A:32, in block 26')"
    )


def test_layer_and_head_choose_whose_attention_is_shown(open_page):
    page = open_page()
    run(page, "mid:72")
    click_token(page, "A", 17)
    choose(page, "attention")
    page.select_option(".lookup select >> nth=0", "3")
    page.wait_for_function(f"{SETTLED} && document.querySelector('.viewsay').textContent.includes('layer 3, head 0')")


def test_a_bar_of_the_kernel_rings_the_pages_it_reads_in_the_pool(open_page):
    page = open_page()
    run(page, "mid:72")
    choose(page, "kernel")
    rings = "document.querySelector('.pool').layout.shapes.length"
    assert page.evaluate(rings) == 0
    first = page.evaluate("document.querySelector('.viewplot').data[0].customdata[0][1]")
    assert first == page.evaluate(f"{STAGE}.state.request('A').table.slice(0, {len(first)})")
    point = page.evaluate(
        """() => {
          const div = document.querySelector('.viewplot'), bars = div.data[0], box = div.getBoundingClientRect();
          const { xaxis: x, yaxis: y } = div._fullLayout;
          return [box.left + x._offset + x.l2p(bars.base[0] + bars.x[0] / 2), box.top + y._offset + y.l2p(bars.y[0])];
        }"""
    )
    move(page, point)
    page.wait_for_function(f"n => {rings} === n", arg=len(first))
    page.mouse.click(*point)
    page.mouse.move(20, 20)
    page.wait_for_function(f"n => !{STAGE}.dock.hovered && {rings} === n", arg=len(first))
    page.focus(".pool")
    page.keyboard.press("Escape")
    page.wait_for_function(f"{rings} === 0")


def test_views_and_bars_are_reached_by_keyboard_alone(open_page):
    page = open_page()
    run(page, "mid:72")
    assert page.locator('.views [tabindex="0"]').count() == 1
    page.focus('.views [tabindex="0"]')
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    page.wait_for_function(f"{STAGE}.dock.views.answer && {SETTLED}")
    assert page.evaluate("document.activeElement.dataset.view") == "attention"
    page.focus(".viewplot")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.announce').textContent.includes('A:1 ')")
    page.keyboard.press("Enter")
    page.wait_for_selector('.tok.pinned[data-request="A"][data-position="1"]')
    page.focus('.views [tabindex="0"]')
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.dataset.view") == "blocks"


def test_python_is_asked_for_an_open_view_only_and_seldom_while_the_run_streams(open_page):
    page = open_page()
    run(page, "mid:40", rate=20, until=2)
    page.evaluate(COUNT_CALLS)
    page.wait_for_function(f"{STAGE}.state.step >= 40")
    assert page.evaluate("window.asked.length") == 0
    run(page, "mid:60", rate=20, until=2)
    choose(page, "waste")
    page.wait_for_function(f"{STAGE}.state.step >= 60 && !{STAGE}.bus.running && {SETTLED}", timeout=30_000)
    asked = page.evaluate("window.asked")
    assert {q["view"] for q in asked} == {"waste"}
    assert 2 <= len(asked) <= 12  # of 60 steps; the last one tells the end
    assert asked[-1]["step"] == 60
    page.evaluate("window.asked = []")
    for step in range(60, 20, -1):
        page.evaluate(f"{STAGE}.seek({step})")
    page.wait_for_function(f"{STAGE}.state.step === 21 && {SETTLED}")
    assert page.evaluate("window.asked.length") == 0  # the past of a run is in its figure already


def test_a_zoomed_pool_stays_zoomed_while_a_view_streams(open_page):
    page = open_page()
    run(page, "long:300", rate=12, until=5)
    choose(page, "allocator")
    page.evaluate(f"{STAGE}.pool.zoomToBlock(12, 'tokens')")
    page.wait_for_function(f"{STAGE}.pool.g.level === 'tokens' && !{STAGE}.pool.settling && !{STAGE}.pool.busy")
    before = page.evaluate(RANGES)
    step = page.evaluate(f"{STAGE}.state.step")
    page.wait_for_function(f"{STAGE}.state.step >= {step + 12}")
    assert page.evaluate(RANGES) == before


def test_a_late_answer_to_another_view_is_dropped(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate(HOLD_WASTE)
    page.click('.views [data-view="waste"]')
    page.wait_for_function("window.late")
    choose(page, "memory")
    before = caption(page)
    page.evaluate("window.late()")
    page.wait_for_timeout(100)
    page.wait_for_function(SETTLED)
    assert caption(page) == before
    assert page.evaluate(f"{STAGE}.dock.views.figure.layout.title.text") == "Memory"


def test_a_server_that_does_not_answer_is_said(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate(
        f"{STAGE}.server = {{ stage_view: () => Promise.reject(new Error('gone')), stage_lookup: {STAGE}.server.stage_lookup }}"
    )
    page.click('.views [data-view="waste"]')
    page.wait_for_function("document.querySelector('.viewsay').textContent.startsWith('The server did not answer.')")
    page.evaluate(f"{STAGE}.server.stage_view = async () => ({{ ok: false, reason: 'This run is <b>gone</b>.' }})")
    page.click('.views [data-view="memory"]')
    page.wait_for_function("document.querySelector('.viewsay').textContent === 'This run is <b>gone</b>.'")


def test_before_a_run_a_view_says_what_to_do(open_page):
    page = open_page()
    page.click('.views [data-view="waste"]')
    page.wait_for_function("document.querySelector('.viewsay').textContent === 'Nothing has run yet. Press Generate.'")


def test_dark_mode_asks_for_the_figure_in_dark(open_page):
    page = open_page()
    run(page, "mid:72")
    choose(page, "allocator")
    light = page.evaluate("document.querySelector('.viewplot').data[0].fillcolor")
    page.evaluate("document.body.classList.add('dark')")
    page.wait_for_function("light => document.querySelector('.viewplot').data[0].fillcolor !== light", arg=light)
    assert (light, page.evaluate("document.querySelector('.viewplot').data[0].fillcolor")) == ("#6E7786", "#8A93A2")


def test_the_phone_shows_every_view_without_scrolling_sideways(open_page):
    page = open_page(width=390, height=844)
    run(page, "mid:72")
    for view in ("waste", "attention", "kernel", "memory"):
        choose(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    sizes = page.evaluate("[...document.querySelectorAll('.views button')].map(b => b.getBoundingClientRect().height)")
    assert min(sizes) >= 36


def save(page, box: str, form: str):
    page.click(f"{box} .save > button, {box}.save > button")
    with page.expect_download() as info:
        page.click(f'{box} [data-format="{form}"]')
    return info.value


@pytest.mark.parametrize("view", ["blocks", "waste", "attention"])
def test_a_view_is_saved_as_picture_drawing_and_page(open_page, view):
    page = open_page()
    run(page, "mid:72")
    if view != "blocks":
        choose(page, view)
    page.wait_for_function(SETTLED)
    for form, begins in (("png", b"\x89PNG"), ("svg", b"<svg"), ("html", b"<!doctype html>")):
        got = save(page, ".time", form)
        assert got.suggested_filename == f"pagewalk-{view}-step-72.{form}"
        data = got.path().read_bytes()
        assert data.startswith(begins)
        assert len(data) > 5000
        if form == "svg" and view != "attention":
            assert b"<pattern" in data


def test_token_texts_stay_literal_in_hover_and_in_every_export(open_page, tmp_path):  # P64
    page = open_page()
    run(page, "hostile:30")
    click_token(page, "A", 3)
    choose(page, "attention")
    move(page, bar_point(page, 0))
    page.wait_for_function("document.querySelector('.viewplot .hoverlayer')?.textContent.includes('“<b>”')")
    move(page, bar_point(page, 3))
    page.wait_for_function("document.querySelector('.viewplot .hoverlayer')?.textContent.includes('“$x^2$”')")

    svg = save(page, ".poolpane", "svg").path().read_text("utf-8")
    assert "MathJax" not in svg
    file = tmp_path / "pool.html"
    file.write_bytes(save(page, ".poolpane", "html").path().read_bytes())
    text = file.read_text("utf-8")
    assert not re.search(r'src="?https?:|href="?https?:', text[: text.index("<script>")])
    assert "<img src=x" not in text and "</script><b>" not in text
    saved = page.context.new_page()
    problems: list[str] = []
    saved.on("pageerror", lambda error: problems.append(str(error)))
    saved.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    saved.goto(file.as_uri())
    saved.wait_for_selector("#figure .main-svg")
    hovered = saved.evaluate(
        """async () => {
          const div = document.getElementById('figure'), seen = {};
          const texts = div.data.map(trace => (trace.hoverinfo === 'skip' ? [] : trace.hovertext ?? []));
          for (const [curveNumber, list] of texts.entries()) for (const [pointNumber, text] of list.entries()) {
            const at = /A:(\\d+) /.exec(text)?.[1];
            if (at === undefined || Number(at) > 8) continue;
            Plotly.Fx.hover(div, [{ curveNumber, pointNumber }]);
            await new Promise(done => setTimeout(done, 120));   // Plotly throttles hovering to once in 50 ms
            seen[at] = div.querySelector('.hoverlayer').textContent;
          }
          return seen;
        }"""
    )
    for position, token in enumerate(
        ["<b>", "<br>", "&lt;", "$x^2$", "$100-$200", "<img src=x onerror=alert(1)>", "${alert(1)}"]
    ):
        assert f"“{token}”" in hovered[str(position)], json.dumps(hovered)
    assert saved.locator("#caption").inner_text().startswith("Step 30: ")
    assert saved.locator("#figure img, #figure .hoverlayer b").count() == 0
    assert problems == []


def test_the_save_menu_is_a_menu(open_page):
    page = open_page()
    run(page, "mid:72")
    button = page.locator(".time .save > button")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    items = page.locator(".time .savemenu [role=menuitem]")
    assert [item.inner_text() for item in items.all()][-3:] == ["PNG picture", "SVG drawing", "HTML, works offline"]
    expect(items.first).to_be_focused()
    menu = page.locator(".time .savemenu").bounding_box()
    stage = page.locator("#stage .stage").bounding_box()
    assert menu and stage and menu["y"] + menu["height"] <= stage["y"] + stage["height"]  # none of it is cut off
    page.keyboard.press("ArrowDown")
    expect(items.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(items.last).to_be_focused()
    page.keyboard.press("Escape")
    assert page.locator(".time .savemenu").is_hidden()
    assert page.evaluate("document.activeElement.getAttribute('aria-haspopup')") == "menu"
