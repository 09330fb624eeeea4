"""The page as a visitor meets it: real app, real model, real browser."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

OpenPage = Any  # Callable[..., Page], with the list `problems`
FIELDS = ("logical_block", "block_offset", "physical_block", "slot", "address", "score", "weight", "max_abs_difference")
STAGE = "document.querySelector('.stage').pagewalk"
OWN = f"!{STAGE}.bus.header?.recording"  # a run of this page is shown, not a recording


def setting(page: Page, name: str, value: object) -> None:
    """Types a number into the settings panel."""
    panel = page.locator("#settings")
    if not panel.is_visible():
        page.click("#settings-toggle")
    box = panel.locator(f"#{name} input")
    if isinstance(value, bool):
        box.set_checked(value)
    else:
        box.fill(str(value))
        box.press("Tab")


def type_prompt(page: Page, text: str) -> None:
    page.locator("#prompt textarea, #prompt input").first.fill(text)


def running(page: Page) -> bool:
    return bool(page.evaluate(f"{STAGE}.bus.running"))


def newest(page: Page) -> int:
    return int(page.evaluate(f"{STAGE}.bus.mirror && {OWN} ? {STAGE}.bus.mirror.newest : 0"))


def session_of(page: Page) -> str:
    return str(page.evaluate(f"{STAGE}.bus.session"))


def wait_until_done(page: Page, timeout: float = 120) -> None:
    """The run has ended and its last token is drawn."""
    done = f"{OWN} && {STAGE}.bus.mirror?.newest > 0 && !{STAGE}.bus.running && {STAGE}.settled"
    page.wait_for_function(done, timeout=timeout * 1000)


def wait_for_step(page: Page, step: int, timeout: float = 60) -> None:
    page.wait_for_function(f"{OWN} && {STAGE}.bus.mirror?.newest >= {step}", timeout=timeout * 1000)


def generate(page: Page, prompt: str, max_tokens: int = 24) -> None:
    setting(page, "max-tokens", max_tokens)
    setting(page, "ignore-eos", True)
    page.click("#settings-toggle")
    type_prompt(page, prompt)
    page.click("#generate")


def lookup_fields(page: Page) -> dict[str, str]:
    """data-value of every row of the lookup panel, once the numbers have come."""
    page.wait_for_function("document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value", timeout=15_000)
    rows = page.locator(".lookup [data-field]")
    return {str(row.get_attribute("data-field")): str(row.get_attribute("data-value")) for row in rows.all()}


def assert_equal_to_api(fields: dict[str, str], answer: dict[str, Any]) -> None:
    assert answer["ok"], answer
    for name in FIELDS:
        if name == "address":
            assert fields[name] == answer[name]
        elif isinstance(answer[name], int):
            assert int(fields[name]) == answer[name], name
        else:
            assert float(fields[name]) == pytest.approx(answer[name], rel=1e-6, abs=1e-12), name


def ask_api(page: Page, api: Client, key_position: int) -> dict[str, Any]:
    """The same lookup through /lookup: query, layer and head as the panel says."""
    query = re.search(r"Query A:(\d+)", page.locator(".lookup .say").inner_text())
    assert query
    layer, head = (int(page.locator(".lookup select").nth(i).input_value()) for i in (0, 1))
    return api.predict(
        session=session_of(page), request_id="A", key_position=key_position, query_position=int(query.group(1)),
        layer=layer, head=head, api_name="/lookup",
    )  # fmt: skip


def pixel_of_slot(page: Page, slot: int) -> tuple[float, float]:
    """The middle of a slot in the pool, in page pixels, by Plotly's own axes."""
    x, y = page.evaluate(
        """slot => { const stage = document.querySelector('.stage').pagewalk, g = stage.pool.g, size = stage.state.blockSize;
             const r = g.slot(Math.floor(slot / size), slot % size), pool = document.querySelector('.pool');
             const box = pool.getBoundingClientRect(), { xaxis, yaxis } = pool._fullLayout;
             const x = g.toX(r.x + r.w / 2), y = g.toY(r.y + r.h / 2);
             return [box.left + xaxis._offset + xaxis.l2p(x), box.top + yaxis._offset + yaxis.l2p(y)]; }""",
        slot,
    )
    return float(x), float(y)


def click_pixel(page: Page, x: float, y: float) -> None:
    page.mouse.move(x - 2, y)
    page.mouse.move(x, y)
    page.wait_for_timeout(60)
    page.mouse.click(x, y)


def test_a_visitor_generates_clicks_a_token_and_a_cell_and_reads_what_the_api_says(open_page: OpenPage, api: Client) -> None:
    page = open_page()
    generate(page, "The capital of France is", max_tokens=24)
    wait_until_done(page)
    assert page.locator('[data-request="A"][data-position]').count() == 29
    assert page.locator('[data-request="A"][data-position="3"]').inner_text().strip() == "France"

    page.click('[data-request="A"][data-position="17"]')
    fields = lookup_fields(page)
    assert_equal_to_api(fields, ask_api(page, api, key_position=17))
    assert int(fields["slot"]) == int(fields["physical_block"]) * 16 + 1
    cell = page.locator('[data-request="A"][data-logical="1"]')
    assert cell.get_attribute("data-physical") == fields["physical_block"]

    table = api.predict(session=session_of(page), step=newest(page) - 1, api_name="/state")["requests"]["A"]["block_table"]
    page.get_by_role("button", name="Back one step").click()  # before A finished and gave its blocks back
    page.wait_for_function(f"{STAGE}.state.step === {STAGE}.bus.mirror.newest - 1")
    click_pixel(page, *pixel_of_slot(page, table[0] * 16 + 4))
    page.wait_for_function("document.querySelector('.lookup [data-field=block_offset]')?.dataset.value === '4'")
    fields = lookup_fields(page)
    assert fields["physical_block"] == str(table[0]) and fields["slot"] == str(table[0] * 16 + 4)
    assert_equal_to_api(fields, ask_api(page, api, key_position=4))
    page.keyboard.press("Escape")
    expect(page.locator(".lookup [data-field=slot]")).to_have_count(0)


def test_a_click_on_a_free_block_says_so_and_the_session_goes_on(open_page: OpenPage) -> None:
    page = open_page()
    generate(page, "One two three", max_tokens=4)
    wait_until_done(page)
    free = page.evaluate(f"[...Array(128).keys()].find(b => {STAGE}.state.ref[b] === 0 && !{STAGE}.state.hash?.[b])")
    click_pixel(page, *pixel_of_slot(page, free * 16 + 3))
    expect(page.locator(".lookup")).to_contain_text(f"{free} is free: no sequence maps to it.", ignore_case=True)
    page.click("#generate")
    page.wait_for_function(f"{STAGE}.bus.running")
    wait_until_done(page)


def test_stop_frees_every_block_within_one_step(open_page: OpenPage, api: Client) -> None:  # P54
    page = open_page()
    generate(page, "Count for ever: 1, 2, 3,", max_tokens=200)
    wait_for_step(page, 3)
    seen = newest(page)
    page.click("#stop")
    page.wait_for_function(f"!{STAGE}.bus.running", timeout=15_000)
    state = api.predict(session=session_of(page), api_name="/state")
    assert state["used"] == 0 and sum(state["ref_cnt"]) == 0
    assert state["requests"]["A"]["status"] == "finished"
    # what the page had seen lags the engine by one update (0.1 s) and the click; the engine itself adds one step at most
    stopped_at = newest(page)
    assert stopped_at == state["step"] < 200 and stopped_at >= seen
    page.wait_for_timeout(1500)
    assert api.predict(session=session_of(page), api_name="/state")["step"] == stopped_at


def test_step_runs_exactly_one_forward_pass(open_page: OpenPage, api: Client) -> None:
    page = open_page()
    setting(page, "max-tokens", 3)
    setting(page, "ignore-eos", True)
    type_prompt(page, "One step at a time")
    for step in (1, 2):
        page.click("#step")
        page.wait_for_function(f"{STAGE}.bus.mirror?.newest === {step} && !{STAGE}.bus.running", timeout=30_000)
        assert api.predict(session=session_of(page), api_name="/state")["step"] == step
    page.click("#generate")  # the same run goes on
    page.wait_for_function(f"{STAGE}.bus.mirror.newest === 3 && !{STAGE}.bus.running", timeout=30_000)


def test_stop_ends_a_run_that_waits_between_two_steps(open_page: OpenPage, api: Client) -> None:
    page = open_page()
    type_prompt(page, "One step, then stop")
    page.click("#step")
    page.wait_for_function(f"{STAGE}.bus.mirror?.newest === 1 && !{STAGE}.bus.running", timeout=30_000)
    page.click("#stop")
    page.wait_for_function(f"{STAGE}.state.request('A').status === 'finished'", timeout=15_000)
    assert page.evaluate(f"{STAGE}.bus.mirror.live.counts.used") == 0
    assert api.predict(session=session_of(page), api_name="/state")["used"] == 0
    expect(page.locator("#stop")).to_be_disabled()


def test_zoom_survives_a_stream(open_page: OpenPage) -> None:  # P58
    page = open_page()
    generate(page, "A long story about a small dragon", max_tokens=400)
    wait_for_step(page, 2)
    x, y = pixel_of_slot(page, 60 * 16)
    page.mouse.move(x, y)
    for _ in range(4):
        page.mouse.wheel(0, -240)
        page.wait_for_timeout(80)
    page.wait_for_timeout(300)
    view = f"JSON.stringify([{STAGE}.pool.g.cw, {STAGE}.pool.g.ch].map(v => Math.round(v * 100)))"
    zoomed, before = page.evaluate(view), newest(page)
    wait_for_step(page, before + 10)
    page.wait_for_timeout(200)
    assert page.evaluate(view) == zoomed
    assert page.locator(".pool image").count() >= 1
    page.click("#stop")
    wait_until_done(page)
    assert page.evaluate(view) == zoomed


def test_two_windows_and_a_private_one_share_nothing(open_page: OpenPage, browser: Browser, api: Client) -> None:  # P53
    together = browser.new_context(viewport={"width": 1280, "height": 800})
    first, second, private = open_page(together), open_page(together), open_page()
    tokens = {session_of(page) for page in (first, second, private)}
    assert len(tokens) == 3
    generate(first, "Apples are red and", max_tokens=8)
    generate(second, "The sea is deep and", max_tokens=8)
    wait_until_done(first)
    wait_until_done(second)
    assert (
        first.locator('[data-request="A"][data-position="0"]').inner_text().strip() == "App"[:3]
        or "App" in first.locator(".rows").inner_text()
    )
    assert "sea" in second.locator(".rows").inner_text() and "sea" not in first.locator(".rows").inner_text()
    prompts = " ".join(private.locator(".prompt-of").all_inner_texts())  # of the recording that a new page shows
    assert prompts and "The sea is deep" not in prompts and "Apples are red" not in prompts
    assert api.predict(session="not-a-token", request_id="A", api_name="/lookup") == {
        "ok": False, "reason": "This session expired. Press Generate for a new run.",
    }  # fmt: skip
    together.close()


def test_closing_the_tab_stops_the_run_and_frees_its_blocks(open_page: OpenPage, api: Client) -> None:  # P55
    page = open_page()
    generate(page, "Numbers: 1, 2, 3,", max_tokens=400)
    wait_for_step(page, 2)
    session = session_of(page)
    page.close()
    deadline = time.monotonic() + 10
    while (state := api.predict(session=session, api_name="/state"))["used"] and time.monotonic() < deadline:
        time.sleep(0.3)
    assert state["used"] == 0 and state["step"] < 400


def test_a_reload_in_mid_run_comes_back_to_the_session(open_page: OpenPage) -> None:  # G8
    page = open_page()
    generate(page, "Numbers: 1, 2, 3,", max_tokens=300)
    wait_for_step(page, 3)
    session = session_of(page)
    page.reload()
    open_page.problems.clear()  # Gradio logs the stream that the reload cut off; the new page must be silent
    page.wait_for_function(f"{STAGE.replace('.pagewalk', '?.pagewalk')}?.bus?.session", timeout=60_000)
    if session_of(page) == session:
        page.wait_for_function(f"{STAGE}.bus.mirror?.newest >= 3", timeout=20_000)
        expect(page.locator('[data-request="A"][data-position="0"]')).to_have_count(1)
    else:
        expect(page.locator(".notice")).to_contain_text("This session expired")


def test_equal_words_are_tokens_of_their_own(open_page: OpenPage) -> None:  # P61
    page = open_page()
    generate(page, "the cat the dog the", max_tokens=1)
    wait_until_done(page)
    texts = [page.locator(f'[data-request="A"][data-position="{i}"]').inner_text().strip() for i in range(5)]
    assert texts == ["the", "cat", "the", "dog", "the"]


@pytest.mark.parametrize(
    "prompt",
    [
        "<img src=x onerror=alert(1)>",
        "${alert(1)} `back` ${'tick'}",
        "<b>bold</b> <br> &lt;",
        "$x^2$ and $100-$200",
        "🙂 café\tתור",
    ],
)
def test_hostile_text_is_shown_as_text(open_page: OpenPage, prompt: str) -> None:  # P63 P64 P66
    page = open_page()
    generate(page, prompt, max_tokens=2)
    wait_until_done(page)
    said = page.evaluate(f"{STAGE}.bus.mirror.log.find(e => e[0] === 'RequestAdded')[2 + 0]")
    assert said == "A"
    shown = page.evaluate("[...document.querySelectorAll('.stage [data-request=\"A\"][data-position]')].map(e => e.title)")
    assert len(shown) >= 3
    assert page.locator(".stage .prompt-of").first.inner_text() == re.sub(r"\s+", " ", prompt) or prompt in page.locator(
        ".stage .prompt-of"
    ).first.evaluate("e => e.textContent")
    assert page.locator(".stage .rows img, .stage .rows br").count() == 0
    nothing = page.locator("img[src=x], .stage .prompt-of > *, .stage .tok :is(img, b, br, script)")
    assert nothing.count() == 0  # of the prompt became an element


def test_newlines_spaces_and_pieces_of_emoji_have_visible_marks(open_page: OpenPage) -> None:  # P41 P67
    page = open_page()
    type_prompt(page, "x")
    generate(page, "a  b 🧿", max_tokens=1)
    wait_until_done(page)
    texts = page.locator('.stage [data-request="A"][data-position]').all_inner_texts()
    assert all(text.strip() for text in texts), texts
    assert "�" not in "".join(texts)
    assert any(re.fullmatch(r"(?:[0-9a-f]{2} ?)+", text.strip()) for text in texts), texts


def test_bad_input_gets_its_sentence_and_the_next_run_works(open_page: OpenPage) -> None:
    page = open_page()
    notice = page.locator(".stage .notice")
    type_prompt(page, "   ")
    page.click("#generate")
    expect(notice).to_contain_text("The prompt is empty.")
    type_prompt(page, "hello " * 200)
    setting(page, "num-blocks", 4)
    page.click("#generate")
    expect(notice).to_contain_text("the pool has 4")
    setting(page, "num-blocks", -3)
    page.click("#generate")
    expect(notice).to_contain_text("num_blocks is -3")
    setting(page, "num-blocks", 64)
    setting(page, "max-tokens", 0)
    page.click("#generate")
    expect(notice).to_contain_text("max_tokens is 0")
    generate(page, "Now a good one", max_tokens=2)
    wait_until_done(page)
    expect(page.locator('[data-request="A"][data-position]').first).to_be_visible()


def test_an_unknown_model_is_named_and_the_default_still_works(open_page: OpenPage) -> None:
    page = open_page()
    box = page.locator("#model input")
    box.fill("no/such-model-anywhere")
    box.press("Enter")
    type_prompt(page, "Hello")
    page.click("#generate")
    expect(page.locator(".stage .notice")).to_contain_text("no/such-model-anywhere", timeout=30_000)
    box.fill("SmolLM2-135M-Instruct")
    box.press("Enter")
    generate(page, "Hello", max_tokens=2)
    wait_until_done(page)


def test_several_prompts_run_together(open_page: OpenPage) -> None:
    page = open_page()
    type_prompt(page, "The first prompt")
    page.click("#prompt-add")
    box = page.locator("#prompt-B textarea, #prompt-B input").first
    expect(box).to_be_visible()
    box.fill("And a second one")
    setting(page, "max-tokens", 3)
    page.click("#generate")
    wait_until_done(page)
    for letter in "AB":
        assert page.locator(f'[data-request="{letter}"][data-position]').count() >= 4


def test_a_fork_shares_blocks_and_the_first_writer_copies(open_page: OpenPage, api: Client) -> None:
    page = open_page()
    setting(page, "max-tokens", 6)
    setting(page, "n", 2)
    setting(page, "temperature", 1)
    setting(page, "ignore-eos", True)
    type_prompt(page, "You are a patient science tutor. Answer in plain words. Why does bread rise when it is warm?")
    page.click("#generate")
    wait_until_done(page)
    log = page.evaluate(f"{STAGE}.bus.mirror.log.map(e => e[0])")
    assert log.count("RequestForked") == 1 and log.count("BlockCopied") == 1
    expect(page.locator(".stage .seq", has_text="fork of A")).to_have_count(1)
    page.get_by_role("button", name="Back one step").click()
    state = api.predict(session=session_of(page), step=newest(page) - 1, api_name="/state")
    assert state["shared"] == 1
    expect(page.locator('.fold[data-request="B"]').first).to_contain_text("shared by A and B")


def test_the_stage_fits_when_it_is_first_shown_in_another_tab(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_role("tab", name="About").click()
    page.set_viewport_size({"width": 1100, "height": 800})
    page.get_by_role("tab", name="Playground").click()
    page.wait_for_timeout(500)
    pool, pane = page.locator(".pool").bounding_box(), page.locator(".stage").bounding_box()
    assert pool and pane and pool["width"] > 300 and pool["height"] > 200 and pane["width"] > 900


def test_a_phone_never_scrolls_sideways(open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    generate(page, "The capital of France is", max_tokens=8)
    wait_until_done(page)
    page.click('[data-request="A"][data-position="2"]')
    lookup_fields(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_visit_by_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("#prompt textarea, #prompt input").first.focus()
    page.keyboard.type(" and the river")
    page.keyboard.press("Enter")
    wait_for_step(page, 4, timeout=30)
    wait_until_done(page)
    page.locator('[data-request="A"][data-position="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert lookup_fields(page)["block_offset"] == "2"
    page.keyboard.press("[")
    assert int(page.evaluate(f"{STAGE}.clock.step")) == newest(page) - 1
    page.keyboard.press("Escape")
    expect(page.locator(".lookup [data-field=slot]")).to_have_count(0)
