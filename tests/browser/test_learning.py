"""Tour, questions, predict mode and the first visit's mark, in Chromium on the scripted run and on small real runs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.test_stage import STAGE, click_slot, click_token, open_page, run, url  # noqa: F401
from tests.viz.example_runs import example_runs, header_of
from viz import deltas
from viz.stage.stage import figures

pytestmark = pytest.mark.browser

RECORDINGS = """messages => {
  const stage = document.querySelector('.stage').pagewalk, own = stage.open.bind(stage);
  stage.open = async view => {
    if (view.example && view.example !== stage.bus.header?.recording?.id) {
      if (!messages[view.example]) return false;
      stage.server = { stage_lookup: async () => ({ ok: false, reason: 'These runs keep no keys.' }) };
      stage.bus.receive(messages[view.example]);
    }
    return own({ ...view, example: undefined });
  };
}"""
BOXES = """() => {
  const box = s => { const b = document.querySelector(s).getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] };
  return [box('.ring'), box('.guide')];
}"""
ASKED = f"""(() => {{
  const {{ learn, state }} = {STAGE}, {{ request, position }} = learn.predict.token, size = state.blockSize;
  return [request, position, state.request(request).table[Math.floor(position / size)], position % size];
}})()"""
SETTLED = f"() => {STAGE}.settled"


@pytest.fixture(scope="session")
def messages(tiny):
    """Recording id -> the snapshot that shows it."""
    out = {}
    for name, trace in example_runs(tiny).items():
        header = header_of(trace, name)
        message = deltas.snapshot(name, 1, trace.events, header, "s", False)
        out[name] = {**message, "figures": figures(header["num_blocks"], header["block_size"])}
    return out


def give_recordings(page, messages) -> None:
    """Lets `stage.open` find these recordings, as the app's own does its shipped ones."""
    page.evaluate(RECORDINGS, messages)


def guide_is_open(page) -> None:
    expect(page.locator(".guide")).to_be_visible()
    page.wait_for_function(SETTLED)


def words(page) -> str:
    return page.inner_text("#pw-guide-text")


def overlap(a, b) -> float:
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


# ---- tour


def test_the_tour_moves_the_view_says_its_numbers_and_gives_the_focus_back(open_page, messages):  # noqa: F811
    page = open_page()
    give_recordings(page, messages)
    run(page, "mid:72")
    tour = page.locator("[data-action=tour]")
    tour.focus()
    page.keyboard.press("Enter")
    guide_is_open(page)
    assert page.evaluate(f"{STAGE}.bus.header.recording.id") == "shared-prompt"
    assert page.evaluate("document.activeElement.className") == "guide"
    seen = []
    for stop in range(1, 9):
        expect(page.locator(".guide .progress")).to_have_text(f"{stop} of 8")
        page.wait_for_function(SETTLED)
        expect(page.locator(".ring")).to_be_visible()
        ring, card = page.evaluate(BOXES)
        assert overlap(ring, card) == 0, f"stop {stop}"
        assert card[0] >= 0 and card[2] <= 1440 and card[1] >= 0 and card[3] <= 900
        state = page.evaluate(f"({{ step: {STAGE}.state.step, used: {STAGE}.state.counts.used, pin: {STAGE}.pin.target }})")
        facts = dict(
            page.evaluate("[...document.querySelectorAll('.guide [data-fact]')].map(b => [b.dataset.fact, b.textContent])")
        )
        assert facts, words(page)
        for name, value in (("step", state["step"]), ("used", state["used"]), ("id", state["pin"]["request"])):
            if name in facts:
                assert facts[name] == str(value)
        seen.append(
            (page.evaluate(f"{STAGE}.bus.header.recording.id"), state["step"], page.get_attribute(".poolwrap", "data-level"))
        )
        page.keyboard.press("ArrowRight")
    assert {level for _, _, level in seen} == {"slots", "tokens"}
    assert len({step for _, step, _ in seen}) >= 3
    assert seen[7][0] == "preemption"
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".guide .progress")).to_have_text("7 of 8")
    page.keyboard.press("Escape")
    expect(page.locator(".guide")).to_be_hidden()
    expect(page.locator(".ring")).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.action") == "tour"
    expect(tour).to_have_attribute("aria-pressed", "false")


def test_the_tour_can_be_taken_from_the_empty_lookup_and_left_with_its_close_button(open_page):  # noqa: F811
    page = open_page()
    give_recordings(page, {})
    run(page, "mid:72")
    page.click("text=Take the tour")
    guide_is_open(page)
    expect(page.locator("#pw-guide-text")).to_have_text(
        "Sequence A has 77 tokens at step 72, drawn 16 to a logical block. "
        "A solid bar means that the key and the value of a token are stored: 76 of them are."
    )
    expect(page.locator(".guide >> text=Back")).to_be_disabled()
    for _ in range(4):
        page.click(".guide >> text=Next")
    expect(page.locator(".guide .progress")).to_have_text("5 of 8")
    expect(page.locator("#pw-guide-text")).to_contain_text(
        "Here the weight is 0.0320, and the whole head equals dense attention to within 1.2e-07."
    )  # late, and it comes
    assert page.evaluate("document.activeElement.textContent") == "Next"
    page.click(".guide [aria-label=Close]")
    expect(page.locator(".guide")).to_be_hidden()
    assert page.locator(".tok.pinned").count() == 1, "the view stays where the tour left it"


def test_a_stop_that_the_run_cannot_show_says_how_to_get_it(open_page):  # noqa: F811
    page = open_page()
    give_recordings(page, {})
    run(page, "mid:72")
    page.keyboard.press("t")
    guide_is_open(page)
    for stop in range(1, 8):
        expect(page.locator(".guide .progress")).to_have_text(f"{stop} of 8")
        page.keyboard.press("ArrowRight")
    expect(page.locator(".guide p.sub")).to_have_text(
        re.compile("^The run on screen has nothing of the kind. Set a small pool")
    )


def test_while_the_tour_is_open_everything_else_can_be_used(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    page.keyboard.press("t")
    guide_is_open(page)
    click_token(page, "A", 1)
    page.wait_for_selector('.tok.pinned[data-position="1"]')
    page.keyboard.press("Escape")
    expect(page.locator(".guide")).to_be_hidden()
    assert page.locator(".tok.pinned").count() == 1
    page.keyboard.press("Escape")
    expect(page.locator(".tok.pinned")).to_have_count(0)


def test_on_a_phone_the_card_stands_below_and_its_target_above_it(open_page, messages):  # noqa: F811
    page = open_page(width=390, height=844)
    give_recordings(page, messages)
    run(page, "mid:72")
    page.locator("[data-act=tour]").click()
    guide_is_open(page)
    for stop in range(1, 9):
        expect(page.locator(".guide .progress")).to_have_text(f"{stop} of 8")
        page.wait_for_function(SETTLED)
        ring, card = page.evaluate(BOXES)
        assert card[0] >= 0 and card[2] <= 390 and card[3] <= 844
        assert -8 <= ring[1] < card[1] - 24, f"stop {stop}: the target begins above the card"
        if ring[3] - ring[1] < 300:
            assert overlap(ring, card) == 0, f"stop {stop}"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        if stop < 8:
            page.locator(".guide .primary").click()


def test_a_token_that_is_markup_is_said_as_text(open_page):  # noqa: F811
    page = open_page()
    give_recordings(page, {})
    run(page, "hostile:30")
    page.evaluate(f"{STAGE}.state.texts.get('A')[17] = '<img src=x onerror=alert(1)>'")
    page.locator("[data-action=tour]").click()
    guide_is_open(page)
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#pw-guide-text")).to_contain_text("A:17 “<img src=x onerror=alert(1)>” is at offset 1 of block")
    assert page.locator(".guide img").count() == 0


# ---- the first visit


def test_the_coach_mark_points_at_a_token_until_one_was_followed(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    coach = page.locator(".coach")
    expect(coach).to_have_text("Click a token to follow it")
    expect(coach).to_be_visible()
    mark, token = coach.bounding_box(), page.locator('.tok[data-request="A"][data-position="17"]').bounding_box()
    assert 0 < mark["y"] - (token["y"] + token["height"]) < 16
    assert mark["x"] < token["x"] + 20 < mark["x"] + mark["width"]
    click_token(page, "A", 17)
    expect(coach).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator(".tok.pinned")).to_have_count(0)
    expect(coach).to_be_hidden()
    page.reload()
    page.wait_for_function("document.querySelector('.stage')?.pagewalk?.state", timeout=30_000)
    run(page, "mid:72")
    expect(page.locator(".emptyl .begin")).to_be_visible()
    expect(page.locator(".coach")).to_be_hidden()


def test_without_storage_the_mark_comes_and_goes_all_the_same(open_page):  # noqa: F811
    page = open_page(wait=False)
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('switched off') } })")
    page.goto(page.url)
    page.wait_for_function("document.querySelector('.stage')?.pagewalk?.state", timeout=30_000)
    run(page, "mid:72")
    expect(page.locator(".coach")).to_be_visible()
    click_token(page, "A", 3)
    expect(page.locator(".coach")).to_be_hidden()


# ---- ask the picture


def test_each_question_opens_the_state_that_answers_it(open_page, messages):  # noqa: F811
    page = open_page()
    give_recordings(page, messages)
    page.evaluate(f"{STAGE}.open({{ example: 'plain' }})")
    page.keyboard.press("a")
    expect(page.locator(".ask")).to_be_visible()
    ids = page.evaluate("[...document.querySelectorAll('.question')].map(q => q.dataset.question)")
    assert len(ids) == 24
    opened = set()
    for question in ids:
        page.click(f'[data-question="{question}"]')
        guide_is_open(page)
        expect(page.locator("#pw-guide-title")).to_have_text(page.locator(f'[data-question="{question}"]').text_content())
        expect(page.locator(".guide p.sub")).to_be_hidden()
        assert len(words(page).split()) > 30, question
        expect(page.locator(".ring")).to_be_visible()
        ring, card = page.evaluate(BOXES)
        assert overlap(ring, card) == 0, question
        assert page.evaluate(f"{STAGE}.pin.target") is not None
        opened.add(page.evaluate(f"{STAGE}.bus.header.recording.id"))
        page.click(".guide >> text=All questions")
        expect(page.locator(f'[data-question="{question}"]')).to_be_focused()
    assert opened == {"plain", "shared-prompt", "fork", "preemption", "eviction", "block-size-16", "block-size-64"}


def test_questions_are_found_by_words_and_chosen_by_keys(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    page.focus(".pool")
    page.keyboard.press("a")
    expect(page.locator(".ask input")).to_be_focused()
    page.keyboard.type("Gather  KERNEL")
    expect(page.locator(".question:visible")).to_have_text(
        ["Is paged output bit for bit the same?", "Paged cache or paged attention?"]
    )
    expect(page.locator(".ask .count")).to_have_text("2 of 24")
    page.keyboard.press("Control+a")
    page.keyboard.type("zebra")
    expect(page.locator(".ask .count")).to_have_text("No question has these words. Try fewer.")
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.press("ArrowDown")
    expect(page.locator('[data-question="where"]')).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    guide_is_open(page)
    expect(page.locator("#pw-guide-text")).to_contain_text("so the slot is 12 × 16 + 1 = 193.")
    page.keyboard.press("Escape")
    expect(page.locator(".guide")).to_be_hidden()
    expect(page.locator(".pool")).to_be_focused()


def test_a_visitors_own_run_answers_where_it_can_and_stays(open_page, messages):  # noqa: F811
    page = open_page()
    give_recordings(page, messages)
    run(page, "mid:72")
    page.keyboard.press("a")
    page.click('[data-question="waste"]')
    guide_is_open(page)
    assert page.evaluate(f"{STAGE}.bus.run").startswith("mid:72")
    page.click(".guide >> text=All questions")
    page.click('[data-question="copy-on-write"]')
    expect(page.locator("#pw-guide-text")).to_contain_text("copied the")
    assert page.evaluate(f"{STAGE}.bus.header.recording.id") == "fork"


# ---- predict


def asked(page) -> tuple[str, int, int, int]:
    """Request, position, block and offset of the token that is asked for."""
    return tuple(page.evaluate(ASKED))


def start_predict(page, seed: int = 5) -> None:
    page.evaluate(f"{STAGE}.learn.predict.seed = {seed}")
    page.locator("[data-action=predict]").click()
    expect(page.locator(".quiz")).to_be_visible()
    page.wait_for_selector(".tok[data-asked]")
    page.wait_for_function(SETTLED)


def test_the_right_slot_draws_the_walk_and_a_wrong_one_shows_the_arithmetic(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    start_predict(page)
    request, position, block, offset = asked(page)
    click_slot(page, block, offset)
    expect(page.locator(".quiz p")).to_have_text(
        f"Right. {position} // 16 = {position // 16} and {position} % 16 = {offset}; table[{position // 16}] = {block}; "
        f"slot {block} × 16 + {offset} = {block * 16 + offset:,}."
    )
    expect(page.locator(f'.tok.pinned[data-request="{request}"][data-position="{position}"]')).to_have_count(1)
    expect(page.locator(".walk .line")).to_have_count(4)
    expect(page.locator(".quiz .score")).to_have_text("1 of 1 right")
    page.click("text=Next token")
    expect(page.locator(".tok.pinned")).to_have_count(0)
    page.wait_for_function(SETTLED)
    request, position, block, offset = asked(page)
    click_slot(page, 1, 3)  # a free block
    expect(page.locator(".quiz p")).to_contain_text("Not there. Block 1 is free: no table names it.")
    expect(page.locator(".quiz p")).to_contain_text(f"table[{position // 16}] = {block}; slot {block} × 16 + {offset} = ")
    expect(page.locator(".walk .line")).to_have_count(0)
    expect(page.locator(".quiz .score")).to_have_text("1 of 2 right")
    page.click("text=Show the walk")
    expect(page.locator(f'.tok.pinned[data-request="{request}"][data-position="{position}"]')).to_have_count(1)


def test_a_round_has_five_tokens_and_the_same_seed_asks_for_the_same(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    rounds = []
    for _ in range(2):
        start_predict(page, seed=11)
        tokens = []
        for i in range(5):
            request, position, block, offset = asked(page)
            tokens.append((request, position))
            click_slot(page, block, offset if i != 2 else (offset + 1) % 16)
            expect(page.locator(".quiz .score")).to_contain_text("right")
            if i < 4:
                page.click("text=Next token")
                page.wait_for_selector(".tok[data-asked]")
                page.wait_for_function(SETTLED)
        expect(page.locator(".quiz .score")).to_have_text("Round over: 4 of 5 right")
        expect(page.locator("text=New round")).to_be_visible()
        rounds.append(tokens)
        page.keyboard.press("Escape")
        expect(page.locator(".quiz")).to_be_hidden()
    assert rounds[0] == rounds[1]
    assert len(set(rounds[0])) == 5


def test_nothing_tells_the_answer_while_a_token_is_asked_for(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    start_predict(page)
    request, position, block, _ = asked(page)
    page.evaluate(f"{STAGE}.pool.div.focus()")
    page.keyboard.press("ArrowRight")
    said = page.locator(".stage > .announce")
    expect(said).to_have_text(re.compile(r"^block \d+, slot \d+ \. Is it here\?$"))
    assert page.locator("[data-hover]").count() == 0
    assert page.locator(".cell.pinned, .tok.pinned").count() == 0
    click_token(page, request, position)  # giving up by looking it up is no answer
    expect(page.locator(".quiz p")).to_contain_text(f"is in block {block}:")
    expect(page.locator(".quiz .score")).to_have_text("0 of 1 right")


def test_predict_mode_works_with_keys_alone_and_escape_leaves_it(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    page.locator("[data-action=predict]").focus()
    page.evaluate(f"{STAGE}.learn.predict.seed = 3")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tok[data-asked]")
    expect(page.locator(".pool")).to_be_focused()
    _, _, block, offset = asked(page)
    page.keyboard.press("ArrowRight")
    where = "(() => { const h = document.querySelector('.stage').pagewalk.hover; return [h.block, h.offset] })()"
    for _ in range(400):
        at, slot = page.evaluate(where)
        columns = (slot % 8, slot // 8 + 2 * (at // 8)), (offset % 8, offset // 8 + 2 * (block // 8))
        across = 8 * (at % 8) + columns[0][0], 8 * (block % 8) + columns[1][0]
        if across[0] != across[1]:
            page.keyboard.press("ArrowRight" if across[0] < across[1] else "ArrowLeft")
        elif columns[0][1] != columns[1][1]:
            page.keyboard.press("ArrowDown" if columns[0][1] < columns[1][1] else "ArrowUp")
        else:
            break
    page.keyboard.press("Enter")
    expect(page.locator(".quiz p")).to_contain_text("Right.")
    page.keyboard.press("Escape")
    expect(page.locator(".quiz")).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.action") == "predict"
    expect(page.locator("[data-action=predict]")).to_have_attribute("aria-pressed", "false")


def test_a_finished_run_is_asked_about_at_a_step_where_it_held_blocks(open_page):  # noqa: F811
    page = open_page()
    run(page, "finished:40")
    start_predict(page)
    assert page.evaluate(f"{STAGE}.state.step") == 39
    page.keyboard.press("[")
    page.wait_for_function(f"{STAGE}.state.step === 38")
    assert page.evaluate(f"{STAGE}.state.requests.some(r => r.table.length)")


def test_without_a_run_predict_mode_says_what_to_do(open_page):  # noqa: F811
    page = open_page()
    page.keyboard.press("p")
    expect(page.locator(".quiz p")).to_have_text("No tokens yet. Pick an example or press Generate, then come back.")
    page.click(".quiz [aria-label='Leave predict mode']")
    expect(page.locator(".quiz")).to_be_hidden()


def test_only_one_of_tour_questions_and_predict_is_open(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    page.keyboard.press("p")
    expect(page.locator(".quiz")).to_be_visible()
    page.keyboard.press("a")
    expect(page.locator(".quiz")).to_be_hidden()
    expect(page.locator(".ask")).to_be_visible()
    page.click("[data-action=tour]")
    guide_is_open(page)
    expect(page.locator(".ask")).to_be_hidden()
    page.keyboard.press("t")
    expect(page.locator(".guide")).to_be_hidden()


# ---- what was found on the way


def test_a_token_that_is_pinned_again_gets_its_numbers_again(open_page):  # noqa: F811
    page = open_page()
    run(page, "mid:72")
    weight = page.locator('.lookup [data-field="weight"]')
    for _ in range(2):
        click_token(page, "A", 17)
        expect(weight).to_have_attribute("data-value", re.compile(r"^0\.03"))
        page.keyboard.press("Escape")
        expect(page.locator(".tok.pinned")).to_have_count(0)
