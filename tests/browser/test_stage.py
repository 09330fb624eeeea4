"""The Stage in Chromium, on the scripted run of tests/viz/harness.py. Every test fails on a console error."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.viz.fake_run import HEADER
from viz import deltas

ROOT = Path(__file__).parents[2]
RANGES = "(({ xaxis, yaxis }) => [...xaxis.range, ...yaxis.range])(document.querySelector('.pool')._fullLayout)"
STAGE = "document.querySelector('.stage').pagewalk"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: it makes the scripted run"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {**os.environ, "PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False"}
    process = subprocess.Popen([sys.executable, "-m", "tests.viz.harness"], cwd=ROOT, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(address, timeout=1).read(1)
                break
            except OSError:
                time.sleep(0.25)
        yield address
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def open_page(new_tab, url):
    """Opens the harness; fails the test on a console error or warning, or an uncaught exception."""
    errors = []

    def go(query: str = "", width: int = 1440, height: int = 900, wait: bool = True):
        page = new_tab({"width": width, "height": height})
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("dialog", lambda d: (errors.append(f"dialog: {d.message}"), d.dismiss()))
        page.goto(f"{url}/{query}")
        if wait:
            there = "document.querySelector('.stage')?.pagewalk?.state && document.querySelector('#rate input')"
            page.wait_for_function(f"{there} && !{STAGE}.charts.pending", timeout=30_000)
        return page

    yield go
    assert errors == []


def run(page, scenario: str, rate: float = 0, until: int | None = None) -> None:
    """Plays a scenario: all at once (rate 0) or `rate` steps a second; waits for step `until`, default the last."""
    page.evaluate(
        "v => { const e = document.querySelector('#rate input'); e.value = v;"
        " e.dispatchEvent(new Event('input', { bubbles: true })) }",
        str(rate),
    )
    page.evaluate(f"{STAGE}.clock.pace = Infinity")  # the picture follows as fast as it comes
    page.fill("#examples textarea", scenario)
    page.click("#generate")
    step = until if until is not None else int(scenario.split(":")[1])
    page.wait_for_function(
        f"([name, step]) => {STAGE}.bus.run?.startsWith(name) && {STAGE}.state?.step >= step",
        arg=[scenario, step],
        timeout=60_000,
    )


def click_slot(page, block: int, offset: int) -> None:
    """A click on the pixel where Plotly's axes put the slot."""
    point = page.evaluate(
        """([block, offset]) => {
          const S = document.querySelector('.stage').pagewalk, pool = document.querySelector('.pool'), g = S.pool.g;
          const s = g.slot(block, offset);
          const box = pool.getBoundingClientRect(), x = pool._fullLayout.xaxis, y = pool._fullLayout.yaxis;
          return [box.left + x._offset + x.l2p(g.toX(s.x + s.w / 2)), box.top + y._offset + y.l2p(g.toY(s.y + s.h / 2))];
        }""",
        [block, offset],
    )
    page.mouse.move(*point)
    page.mouse.move(point[0] + 0.5, point[1])
    page.wait_for_timeout(60)
    page.mouse.click(*point)


def click_token(page, request: str, position: int) -> None:
    """A click on the token; opens the fold that hides it, if one does."""
    token = page.locator(f'.tok[data-request="{request}"][data-position="{position}"]')
    if not token.count():
        folds = page.locator(f'.fold[data-request="{request}"]')
        for i in range(folds.count()):
            first, last = (int(folds.nth(i).get_attribute(f"data-{end}")) for end in ("first", "last"))
            if first <= position // 16 <= last:
                folds.nth(i).click()
                break
    token.click()


def field(page, name: str) -> str | None:
    return page.get_attribute(f'.lookup [data-field="{name}"]', "data-value")


def wait_answer(page) -> None:
    page.wait_for_function("document.querySelector('.lookup [data-field=\"weight\"]')?.dataset.value")


def test_a_click_on_a_token_fills_the_lookup(open_page):
    page = open_page()
    run(page, "mid:72")
    click_token(page, "A", 17)
    wait_answer(page)
    rows = {
        name: field(page, name)
        for name in ("logical_block", "block_offset", "physical_block", "slot", "byte_offset", "address")
    }
    assert rows == {
        "logical_block": "1",
        "block_offset": "1",
        "physical_block": "12",
        "slot": "193",
        "byte_offset": "148224",
        "address": "0x7f2e4a024300",
    }
    assert page.inner_text(".lookup .say") == "Query A:75 reads the key of A:17 “has”."
    assert page.locator(".tok.pinned").count() == 1
    assert page.locator('.cell.pinned[data-physical="12"]').count() == 1
    assert page.locator(".walk .line").count() == 4


def test_the_picture_answers_before_python_does(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate(f"{STAGE}.server = {{ stage_lookup: () => new Promise(() => {{}}) }}")
    click_token(page, "A", 17)
    page.wait_for_selector('.lookup [data-field="slot"]')
    assert field(page, "slot") == "193"
    assert page.inner_text('.lookup [data-field="weight"] .val') == "····"


def test_a_click_on_a_slot_pins_its_token(open_page):
    page = open_page()
    run(page, "mid:72")
    click_slot(page, 12, 9)
    wait_answer(page)
    assert page.locator('.tok.pinned[data-request="A"][data-position="25"]').count() == 1
    assert field(page, "slot") == str(12 * 16 + 9)


def test_a_click_on_a_free_or_reserved_slot_says_so(open_page):
    page = open_page()
    run(page, "mid:72")
    click_slot(page, 1, 3)
    page.wait_for_function("document.querySelector('.lookup').textContent.includes('Block 1 is free: no sequence maps to it.')")
    block = page.evaluate(f"{STAGE}.state.request('A').table[4]")
    click_slot(page, block, 15)
    page.wait_for_function("document.querySelector('.lookup').textContent.includes('Reserved for A, not written yet.')")
    page.keyboard.press("Escape")
    page.wait_for_function("document.querySelector('.lookup').textContent.includes('Click any token')")


def test_a_zoom_stays_while_tokens_stream_and_no_frame_is_blank(open_page):  # P58
    page = open_page()
    run(page, "mid:60", rate=12, until=5)
    box = page.locator(".pool").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    for _ in range(3):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(80)
    page.wait_for_timeout(300)
    before = page.evaluate(RANGES)
    assert before[1] - before[0] < 4
    blank = page.evaluate(
        """async () => {
          let blank = 0; const end = performance.now() + 1500;
          while (performance.now() < end) {
            await new Promise(requestAnimationFrame);
            const image = document.querySelector('.pool image');
            const href = image?.getAttributeNS('http://www.w3.org/1999/xlink', 'href') ?? '';
            if (!href.startsWith('data:image/png') || image.getBBox().width < 300) blank++;
          }
          return blank;
        }"""
    )
    assert blank == 0
    page.wait_for_function(f"{STAGE}.state.step >= 20")
    after = page.evaluate(RANGES)
    assert after == before
    page.dblclick(".pool", position={"x": 250, "y": 250})
    page.wait_for_function("document.querySelector('.pool')._fullLayout.xaxis.range[1] === 8")


def test_a_range_set_through_plotly_is_adopted_and_painted_sharp(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate("Plotly.relayout(document.querySelector('.pool'), { 'xaxis.range': [4, 5], 'yaxis.range': [4, 0] })")
    page.wait_for_function(f"{STAGE}.pool.g.level === 'tokens' && {STAGE}.pool.view.x0 === 4")
    page.wait_for_function("document.querySelector('[data-level=\"tokens\"]').getAttribute('aria-pressed') === 'true'")


def test_dragging_pans_and_does_not_pick(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate(f"{STAGE}.pool.zoomToBlock(12, 'tokens')")
    page.wait_for_function(f"{STAGE}.pool.g.level === 'tokens'")
    before = page.evaluate(f"{STAGE}.pool.view.x0")
    box = page.locator(".pool").bounding_box()
    page.mouse.move(box["x"] + 250, box["y"] + 250)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 250, steps=5)
    page.mouse.up()
    page.wait_for_timeout(200)
    assert page.evaluate(f"{STAGE}.pool.view.x0") == pytest.approx(before + 100 / page.evaluate(f"{STAGE}.pool.g.px"))
    assert page.locator(".tok.pinned").count() == 0


def test_below_six_pixels_a_click_picks_the_block_and_zooms_in(open_page):
    page = open_page()
    run(page, "big:3")
    assert page.evaluate(f"{STAGE}.pool.g.level") == "blocks"
    block = page.evaluate(f"{STAGE}.state.request('B').table[40]")
    click_slot(page, block, 0)
    page.wait_for_function(f"{STAGE}.pool.g.level === 'slots'")
    page.wait_for_selector('.tok.pinned[data-request="B"][data-position="640"]')


def test_hostile_token_texts_are_literal_everywhere(open_page):  # P63 P64 P66
    page = open_page()
    run(page, "hostile:30")
    texts = page.evaluate("[...document.querySelectorAll('.tok[data-request=\"A\"]')].slice(0, 20).map(t => t.textContent)")
    assert texts[:8] == ["<b>", "<br>", "&lt;", "$x^2$", "$100-$200", "<img src=x onerror=alert(1)>", "${alert(1)}", "`"]
    assert texts[8:13] == ["⏎", "␣", "∅", "⇥", "e2 80"]
    assert texts[13] == "U+202E"
    assert page.locator(".stage img, .stage script, .rows b, .rows br").count() == 0
    click_token(page, "A", 3)
    page.click('[data-level="tokens"]')
    page.wait_for_function(f"{STAGE}.pool.g.level === 'tokens'")
    page.wait_for_selector(".pool .annotation")
    assert page.locator(".pool .MathJax, .pool .annotation a, mjx-container").count() == 0
    assert page.evaluate("document.querySelector('.seq .prompt-of').textContent").startswith("<b><br>&lt;$x^2$")
    chips = page.evaluate("document.querySelectorAll('.tok[data-request=\"A\"][data-position]').length")
    assert chips == page.evaluate(f"{STAGE}.state.request('A').length")


def test_a_stage_first_shown_in_a_second_tab_has_its_full_size(open_page):  # G4
    page = open_page(wait=False)
    page.wait_for_selector("#pw-tabs")
    page.get_by_role("tab", name="About").click()
    page.reload()
    page.get_by_role("tab", name="About").click()
    page.wait_for_timeout(800)
    page.get_by_role("tab", name="Playground").click()
    page.wait_for_function("document.querySelector('.stage')?.pagewalk?.state", timeout=30_000)
    run(page, "mid:72")
    page.get_by_role("tab", name="About").click()
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_timeout(200)
    page.get_by_role("tab", name="Playground").click()
    page.wait_for_timeout(500)
    pool, wrap = page.locator(".pool svg.main-svg").first.bounding_box(), page.locator(".poolwrap").bounding_box()
    assert abs(pool["width"] - wrap["width"]) <= 1
    assert abs(pool["height"] - wrap["height"]) <= 1
    assert page.locator(".stage").bounding_box()["width"] == pytest.approx(1280 - 48, abs=2)


def test_scrubbing_shows_the_past_and_newest_comes_back(open_page):
    page = open_page()
    run(page, "mid:72", rate=4, until=8)  # 18 s in all: it still goes on when the page is slow
    page.evaluate(f"{STAGE}.seek(5)")
    page.wait_for_function("document.querySelector('.notice').textContent.includes('You are at step 5.')")
    assert "The run goes on" in page.inner_text(".notice")
    tokens = page.locator('.tok[data-request="A"][data-position]').count()
    assert tokens == 5 + 5
    page.wait_for_function(f"{STAGE}.bus.mirror.newest >= 12")
    assert page.evaluate(f"{STAGE}.state.step") == 5
    page.click("text=Back to newest")
    page.wait_for_function(f"{STAGE}.state.step === {STAGE}.bus.mirror.newest")
    assert page.locator(".notice").is_hidden()


def test_keys_step_find_and_clear(open_page):
    page = open_page()
    run(page, "mid:72")
    page.focus(".pool")
    page.keyboard.press("[")
    page.wait_for_function(f"{STAGE}.state.step === 71")
    page.keyboard.press("]")
    page.wait_for_function(f"{STAGE}.state.step === 72")
    page.keyboard.press("/")
    page.keyboard.type("French")
    page.keyboard.press("Enter")
    page.wait_for_selector('.tok.pinned[data-request="A"][data-position="44"]')
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('.tok.pinned')")
    page.focus('.rows button[tabindex="0"]')
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.position") == "1"
    page.keyboard.press("Enter")
    page.wait_for_selector('.tok.pinned[data-request="A"][data-position="1"]')
    assert page.locator('.rows button[tabindex="0"]').count() == 1
    page.focus(".scrub")
    page.keyboard.press("Home")
    page.wait_for_function(f"{STAGE}.state.step === 0")
    page.focus(".pool")
    page.keyboard.press("?")
    page.wait_for_selector(".keybox")


def test_arrows_move_over_the_pool_and_enter_looks_up(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate(f"{STAGE}.pinToken('A', 17)")
    page.wait_for_selector(".tok.pinned")
    page.focus(".pool")
    page.keyboard.press("ArrowRight")  # the cursor starts at the pinned block
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelector('.announce').textContent.startsWith('block 12, slot 201')")
    page.keyboard.press("Enter")
    page.wait_for_selector('.tok.pinned[data-request="A"][data-position="25"]')


def test_a_lost_message_asks_for_a_snapshot_and_the_pin_stays(open_page):
    page = open_page()
    run(page, "mid:40", rate=10, until=20)
    click_token(page, "A", 3)
    page.evaluate(f"{STAGE}.bus.n -= 1")  # as if one had been lost
    page.wait_for_function(f"{STAGE}.gaps >= 1 && {STAGE}.state.step >= 40", timeout=30_000)
    assert page.locator('.tok.pinned[data-request="A"][data-position="3"]').count() == 1
    assert page.evaluate(f"{STAGE}.state.request('A').length") == 45


def test_600_updates_leave_the_dom_as_large_as_before(open_page):  # G2
    page = open_page()
    run(page, "long:900", rate=60, until=300)  # rows, folds and events have reached their caps
    click_token(page, "A", 3)
    wait_answer(page)
    page.wait_for_timeout(600)
    count = "document.querySelectorAll('*').length"
    before = page.evaluate(count)
    page.wait_for_function(f"{STAGE}.state.step >= 900", timeout=90_000)
    page.wait_for_timeout(700)
    assert page.evaluate(count) <= before + 80  # two folds still grow, to 48 tiles each
    assert page.locator(".ev").count() <= 40


def test_the_phone_stacks_panes_and_nothing_scrolls_sideways(open_page):
    page = open_page(width=390, height=844)
    run(page, "mid:72")
    click_token(page, "A", 17)
    wait_answer(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    panes = page.evaluate("[...document.querySelectorAll('.pane')].map(p => p.getBoundingClientRect().top)")
    assert panes == sorted(panes)
    assert len(set(panes)) == 3


def test_dark_mode_repaints_without_a_reload(open_page):
    page = open_page()
    run(page, "mid:72")
    light = page.evaluate(f"{STAGE}.pool.url")
    page.evaluate("document.body.classList.add('dark')")
    page.wait_for_function(f"url => {STAGE}.pool.url !== url", arg=light)
    assert page.evaluate("getComputedStyle(document.querySelector('.stage')).backgroundColor") == "rgb(19, 22, 27)"


def test_every_control_has_a_name_and_a_role(open_page):
    page = open_page()
    run(page, "mid:72")
    click_token(page, "A", 17)
    wait_answer(page)
    nameless = page.evaluate(
        """[...document.querySelectorAll('.stage button, .stage select, .stage input, .stage [tabindex="0"]')]
          .filter(e => e.offsetParent && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
          .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    duplicates = page.evaluate(
        "(() => { const ids = [...document.querySelectorAll('.stage [id]')].map(e => e.id);"
        " return ids.filter((id, i) => ids.indexOf(id) !== i) })()"
    )
    assert [d for d in duplicates if not d.startswith(("clip", "g", "legend", "topdefs", "defs"))] == []
    assert page.get_attribute(".scrub", "aria-valuenow") == "72"
    assert page.get_attribute('.cell[data-physical="12"]', "aria-label") == "A logical block 1 is physical block 12"


def test_a_notice_is_text_and_bold_up_to_its_colon(open_page):
    page = open_page()
    run(page, "mid:72")
    page.fill("#prompt textarea", "bad|Pool full: <b>256</b> of 256 blocks in use; add blocks.")
    page.press("#prompt textarea", "Enter")
    page.wait_for_selector(".notice.bad")
    assert page.inner_text(".notice b") == "Pool full:"
    assert "<b>256</b>" in page.inner_text(".notice")


def test_a_dry_pool_is_explained_at_the_step_where_a_sequence_waits(open_page):
    import random

    from tests.viz.fold import fold, random_log
    from viz.stage.stage import figures

    def first_preemption(log):
        for step in range(1, log[-1].step):
            for name, request in fold([e for e in log if e.step <= step], 12, 4)["requests"].items():
                if request["status"] == "waiting" and request["preempted"] is not None:
                    return step, name, request["preempted"]
        return None

    log = next(log for seed in range(40) if first_preemption(log := random_log(random.Random(seed))))
    step, name, at = first_preemption(log)
    page = open_page()
    header = {**HEADER, "num_blocks": 12, "block_size": 4}
    message = deltas.snapshot("dry", 1, [e for e in log if e.step <= step], header, "s", False)
    page.evaluate(f"m => {STAGE}.bus.receive(m)", {**message, "figures": figures(12, 4)})
    page.wait_for_selector(".notice.bad")
    assert page.inner_text(".notice > span").startswith(
        f"Pool full: 12 of 12 blocks in use; sequence {name} was preempted at step {at}. Add blocks or shorten a prompt."
    )
    page.click(f"text=Show step {at - 1}")
    page.wait_for_function(f"{STAGE}.state.step === {at - 1}")


def test_a_finished_run_can_still_be_looked_up(open_page):
    page = open_page()
    run(page, "finished:72")
    click_token(page, "A", 17)
    wait_answer(page)
    assert field(page, "slot") == "193"
    assert page.locator('.cell.former.pinned[data-physical="12"]').count() == 1


def test_a_link_restores_step_and_token(open_page):
    page = open_page("?step=41&tok=A:17&layer=3&head=2")
    run(page, "mid:72", until=41)
    page.wait_for_function(f"{STAGE}.state.step === 41")
    wait_answer(page)
    assert page.inner_text(".lookup .say").startswith("Query A:44 reads the key of A:17")
    assert page.evaluate("[...document.querySelectorAll('.lookup select')].map(s => s.value)") == ["3", "2"]


def test_a_large_pool_repainted_block_by_block_is_the_picture_painted_at_once(open_page):
    page = open_page()
    run(page, "big:12", rate=8)
    page.wait_for_function(f"{STAGE}.settled")
    assert page.evaluate(f"{STAGE}.pool.looks !== null")
    differing = page.evaluate(
        """async () => {
          const S = document.querySelector('.stage').pagewalk, { pool } = S;
          const source = [...document.scripts].find(s => s.src.endsWith('/stage.js')).src;
          const { paintPool } = await import(source.replace(/stage\\.js$/, 'painter.js'));
          const fresh = document.createElement('canvas'), { width, height } = pool.canvas;
          paintPool(fresh, S.state, pool.g, S.skin, {});
          const [a, b] = [pool.canvas, fresh].map(c => c.getContext('2d').getImageData(0, 0, width, height).data);
          let n = 0;   // a last digit may differ where several edges share a pixel
          for (let i = 0; i < a.length; i++) if (Math.abs(a[i] - b[i]) > 4) n++;
          return [n, fresh.width === width && fresh.height === height, a.some(v => v > 0)];
        }"""
    )
    assert differing == [0, True, True]


def test_the_pool_is_seen_once_and_the_figures_own_picture_follows_it(open_page):
    page = open_page()
    run(page, "mid:72")
    page.evaluate(f"{STAGE}.seek(41)")  # the notice takes a line from the pool's height
    page.wait_for_selector(".notice:not([hidden])")
    page.wait_for_function(
        """() => {
          const { pool } = document.querySelector('.stage').pagewalk, image = pool.div.querySelector('.imagelayer image');
          const now = pool.canvas.toDataURL(), href = image.getAttributeNS('http://www.w3.org/1999/xlink', 'href');
          return !pool.busy && !pool.encoding && href === now && pool.div.data[0].source === now;
        }"""
    )
    assert page.evaluate("getComputedStyle(document.querySelector('.pool .imagelayer image')).visibility") == "hidden"
    expect(page.locator(".poolwrap > canvas.picture")).to_be_visible()
