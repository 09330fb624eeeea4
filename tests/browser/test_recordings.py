"""Recordings on the real page: alive before the model is, one click each, links, files down and up, the picture's pace."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from engine.scenarios import SCENARIOS, listed
from web.playground import _title

pytestmark = pytest.mark.browser

OpenPage = Callable[..., Page]
ROOT = Path(__file__).parents[2]
STAGE = "document.querySelector('.stage').pagewalk"
PICTURE = f"""() => {{
  const {{ mirror, header }} = {STAGE}.bus;
  return JSON.stringify([mirror.log, header.num_blocks, header.block_size, header.device, header.dtype]);
}}"""


def wait(page: Page, condition: str, seconds: float = 30) -> None:
    page.wait_for_function(condition.replace("$", STAGE), timeout=seconds * 1000)


def shows(page: Page, example: str) -> None:
    """The recording is on the page and drawn."""
    wait(page, f"$.bus.header?.recording?.id === '{example}' && !$.charts.pending && $.state?.step === $.clock.step")


def stand(page: Page, step: int) -> None:
    page.evaluate(f"{STAGE}.seek({step})")
    wait(page, f"$.settled && $.state.step === {step}")


@pytest.fixture(scope="module")
def slow_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The real app with a model that is not ready before this test lets it be: its loader waits for a file."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow_app.py").write_text(
        "import sys, time, pathlib\n"
        "import engine.model_shelf as shelf\n"
        "load = shelf.load_model\n"
        f"gate = pathlib.Path({str(folder / 'go')!r})\n"
        "def waiting(*args, **kwargs):\n"
        "    while not gate.exists():\n"
        "        time.sleep(0.05)\n"
        "    return load(*args, **kwargs)\n"
        "shelf.load_model = waiting\n"
        "import app\n"
        "app.main()\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(folder / "slow_app.py"), "--port", str(port)], cwd=ROOT, env=environment)
    url = f"http://127.0.0.1:{port}/"
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(url, timeout=2).read(1)
                break
            except OSError:
                time.sleep(0.2)
        yield url, folder / "go"
    finally:
        process.terminate()
        process.wait(20)


def test_a_newcomer_watches_a_recording_while_the_model_loads_and_generates_when_it_is_there(
    browser: Any, slow_app: tuple[str, Path]
) -> None:
    problems: list[str] = []
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    url, gate = slow_app
    page.goto(url)
    wait(page, "document.querySelector('.stage')?.pagewalk?.clock?.step >= 3", 60)
    status = page.locator("#status")
    expect(status).to_contain_text("Playing a recording")
    expect(status).to_contain_text("of 92")
    expect(status).to_contain_text("loading SmolLM2-135M")
    expect(status).to_contain_text("s so far; Generate works when it is ready")
    expect(status).to_contain_text("made on CPU, torch, float32")
    notice = page.locator(".stage .notice")
    expect(notice).to_contain_text("A recording of a real run. Three sequences share one pool of 128 blocks")
    page.locator('.tok[data-request="A"][data-position="3"]').click()
    wait(page, "document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value")
    assert float(page.locator('.lookup [data-field="max_abs_difference"]').get_attribute("data-value")) < 1e-5
    page.get_by_role("button", name="Start my own").click()
    before = page.evaluate(f"{STAGE}.bus.run")
    expect(status).to_contain_text("loading SmolLM2-135M")
    expect(notice).to_contain_text("A recording of a real run.")  # what is shown stays until the run begins
    assert page.evaluate(f"{STAGE}.bus.run") == before
    gate.touch()
    wait(page, "$.bus.header.recording === undefined && $.bus.mirror.newest > 2", 90)
    expect(notice).to_be_hidden()
    page.click("#stop")
    wait(page, "!$.bus.running")
    page.context.close()
    assert problems == []


def test_the_first_picture_does_not_wait_for_the_charts(browser: Any, app_url: str) -> None:
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    held: list[Any] = []
    page.route("**/plotly.min.js", lambda route: held.append(route))
    page.goto(app_url, wait_until="commit")
    wait(page, "document.querySelector('.stage')?.pagewalk?.state?.step >= 3", 60)
    assert page.evaluate("!window.Plotly")
    colours = "(c => new Set(new Uint32Array(c.getImageData(0, 0, c.canvas.width, c.canvas.height).data.buffer)).size)"
    assert page.evaluate(f"{colours}(document.querySelector('.poolwrap .picture').getContext('2d'))") > 10
    page.locator('.tok[data-request="A"][data-position="3"]').click()
    wait(page, "document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value")
    place = "(r => [r.x, r.y, r.width])(document.querySelector('.poolwrap .picture').getBoundingClientRect())"
    box = page.evaluate(place)
    for route in held:
        route.continue_()
    wait(page, "!$.charts.pending && document.querySelector('.usage .main-svg') && document.querySelector('.pool image')")
    assert box == page.evaluate(place)
    page.context.close()


def test_without_the_charts_the_page_says_so_and_goes_on(browser: Any, app_url: str) -> None:
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.route("**/plotly.min.js", lambda route: route.abort())
    page.goto(app_url)
    expect(page.locator(".stage .notice")).to_contain_text("The charts could not be loaded. Reload the page", timeout=30_000)
    page.locator('.tok[data-request="A"][data-position="3"]').click()
    wait(page, "document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value")
    page.context.close()


@pytest.mark.parametrize("scenario", listed(), ids=lambda scenario: scenario.id)
def test_an_example_opens_its_recording_and_its_settings_with_one_choice(open_page: OpenPage, scenario: Any) -> None:
    page = open_page()
    shows(page, "first")
    page.locator("#examples input").click()
    page.get_by_role("option", name=_title(scenario), exact=True).click()
    shows(page, scenario.id)
    wait(page, "$.clock.mode === 'playing' && $.clock.step > 0")
    expect(page.locator(".stage .notice")).to_contain_text(scenario.sentence)
    expect(page.locator("#prompt textarea, #prompt input").first).to_have_value(scenario.run.prompts[0])
    expect(page.locator("#num-blocks input")).to_have_value(str(scenario.run.config.num_blocks))
    expect(page.locator("#settings-toggle")).to_contain_text(f"{scenario.run.config.num_blocks} blocks")
    expect(page.locator("#examples input")).to_have_value("Examples")


def test_open_shows_the_step_and_the_token_it_was_asked_for(open_page: OpenPage) -> None:
    page = open_page()
    shows(page, "first")
    view = "{ example: 'fork', step: 10, request: 'B', position: 20, query: 50, layer: 14, head: 4 }"
    assert page.evaluate(f"{STAGE}.open({view})") is True
    state = page.evaluate(f"(s => [s.bus.header.recording.id, s.clock.step, s.state.step, s.pin.target])({STAGE})")
    assert state == ["fork", 10, 10, {"request": "B", "position": 20, "query": 50}]
    wait(page, "$.settled")
    expect(page.locator(".lookup .say")).to_contain_text("Query B:50 reads the key of B:20")
    assert page.evaluate(f"{STAGE}.open({{ step: 12 }})") is True  # of what is shown
    assert page.evaluate(f"[{STAGE}.clock.step, {STAGE}.pin.target]") == [12, None]
    assert page.evaluate(f"{STAGE}.open({{ example: 'nope', step: 3 }})") is False
    expect(page.locator(".stage .notice")).to_contain_text("There is no example 'nope'.")
    assert page.evaluate(f"{STAGE}.bus.header.recording.id") == "fork"


def test_a_link_restores_the_view_it_was_copied_from(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate(f"{STAGE}.open({{ example: 'preemption', step: 40, request: 'C', position: 17, layer: 14, head: 7 }})")
    page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve() }")
    share(page, "link")
    expect(page.locator('[data-action="link"]')).to_have_text("Copied")
    link = page.evaluate("window.copied")
    assert link.endswith("?example=preemption&seed=1&step=40&tok=C%3A17&layer=14&head=7")
    again = open_page(path=link.split("/", 3)[3])
    shows(again, "preemption")
    look = "(s => [s.clock.step, s.clock.mode, s.pin.target, s.layer, s.headIndex])"
    wait(again, "$.settled")
    assert again.evaluate(f"{look}({STAGE})") == page.evaluate(f"{look}({STAGE})") == [
        40, "standing", {"request": "C", "position": 17, "query": 47}, 14, 7,
    ]  # fmt: skip
    expect(again.locator("#num-blocks input")).to_have_value("13")
    wait(again, "document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value")
    wait(page, "document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value")
    values = "[...document.querySelectorAll('.lookup [data-field]')].map(e => [e.dataset.field, e.dataset.value])"
    assert again.evaluate(values) == page.evaluate(values)


def test_a_link_with_another_seed_says_what_it_cannot_show(open_page: OpenPage) -> None:
    page = open_page(path="?example=fork&seed=9&step=12")
    shows(page, "fork")
    expect(page.locator(".stage .notice")).to_contain_text(
        "The link is of a run with seed 9; this is the recording with seed 1."
    )
    expect(page.locator("#seed input")).to_have_value("9")
    assert page.evaluate(f"{STAGE}.clock.step") == 12


def test_a_link_to_nothing_is_told_and_the_page_is_alive(open_page: OpenPage) -> None:
    page = open_page(path="?example=nope&tok=A:3")
    shows(page, "first")
    expect(page.locator(".stage .notice")).to_contain_text("There is no example 'nope'. Pick one of: first")


def test_an_own_run_has_no_link_but_a_file(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page()
    page.locator("#prompt textarea, #prompt input").first.fill("A run of my own")
    page.click("#generate")
    wait(page, "$.bus.running && !$.bus.header.recording && $.bus.mirror.newest > 3", 60)
    share(page, "link")
    expect(page.locator('[data-action="link"]')).to_have_text("Own run: use Export")
    with page.expect_download() as running:  # while it goes on
        share(page, "export")
    running.value.save_as(tmp_path / "running.pagewalk")
    wait(page, "!$.bus.running && $.settled", 60)
    with page.expect_download() as whole:
        share(page, "export")
    path = tmp_path / whole.value.suggested_filename
    whole.value.save_as(path)
    picture = page.evaluate(PICTURE)

    import_file(page, path)
    wait(page, "$.bus.header.recording?.id === null")
    expect(page.locator(".stage .notice")).to_contain_text(f"A recording from a file. {path.name}")
    assert page.evaluate(PICTURE) == picture
    page.locator('.tok[data-request="A"][data-position="2"]').click()
    wait(page, "document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value")
    assert page.locator(".lookup select").first.locator("option").count() == 30  # every layer is in the file
    expect(page.locator('.lookup [data-field="address"]')).to_contain_text("not recorded")

    import_file(page, tmp_path / "running.pagewalk")
    wait(page, "$.bus.header.recording?.name === 'running.pagewalk'")
    part, log = json.loads(page.evaluate(PICTURE))[0], json.loads(picture)[0]
    assert 0 < len(part) < len(log) and part == log[: len(part)]


def share(page: Page, name: str) -> None:
    if page.locator(".time .savemenu").is_hidden():  # "Copied" leaves it open
        page.click(".time .save > button")
    page.click(f'[data-action="{name}"]')


def import_file(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        share(page, "import")
    chooser.value.set_files(path)


def test_a_broken_or_hostile_file_gets_its_sentence_and_what_is_shown_stays(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page()
    page.evaluate(f"{STAGE}.open({{ example: 'plain', step: 9 }})")
    picture, notice = page.evaluate(PICTURE), page.locator(".stage .notice")
    good = members(ROOT / "recordings" / "plain.pagewalk")
    newer = json.dumps({**json.loads(good["header.json"]), "version": 3}).encode()
    files = {
        "text.pagewalk": (b"hello", "Not a recording: 'text.pagewalk' is not a .pagewalk file, or it is damaged."),
        "<img src=x onerror=alert(1)>.pagewalk": (b"x", "Not a recording: '<img src=x onerror=alert(1)>.pagewalk' is not"),
        "newer.pagewalk": (packed({**good, "header.json": newer}), "Not a recording: expected version 1, got 3."),
        "cut.pagewalk": ((ROOT / "recordings" / "plain.pagewalk").read_bytes()[:5000], "Not a recording: 'cut.pagewalk'"),
        "bomb.pagewalk": (packed({**good, "events.jsonl": b"\n" * (60 << 20)}), "at most 16,777,216 are read"),
        "extra.pagewalk": (packed({**good, "evil.py": b"x"}), "it holds 'evil.py', which no recording holds."),
    }
    for name, (data, sentence) in files.items():
        (tmp_path / name).write_bytes(data)
        import_file(page, tmp_path / name)
        expect(notice).to_contain_text(sentence)
        assert notice.locator("img").count() == 0
        assert page.evaluate(PICTURE) == picture and page.evaluate(f"{STAGE}.clock.step") == 9
    page.evaluate(f"{STAGE}.props.max_import_bytes = 1 << 20")
    (tmp_path / "big.pagewalk").write_bytes(b"0" * ((1 << 20) + 1))
    import_file(page, tmp_path / "big.pagewalk")
    expect(notice).to_contain_text("The file is too large: 2 MiB, and at most 1 MiB are read.")


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_block_sizes_are_compared_and_switched_in_place(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate(f"{STAGE}.open({{ example: 'block-size-16' }})")
    page.get_by_role("button", name="Compare").click()
    box = page.get_by_role("dialog", name="Comparison of block sizes")
    expect(box.locator("tbody tr")).to_have_count(4)
    expect(box).to_contain_text("Measured when these were recorded: on CPU, torch, float32.")
    assert box.locator("tbody tr").nth(0).inner_text().split()[:3] == ["1", "0.0", "%"]
    page.keyboard.press("Escape")
    expect(box).to_have_count(0)
    expect(page.get_by_role("button", name="Compare")).to_be_focused()
    page.get_by_role("group", name="Block size").get_by_role("button", name="Block size 64").click()
    shows(page, "block-size-64")
    expect(page.locator("#block-size input")).to_have_value("64")
    expect(page.get_by_role("button", name="Block size 64")).to_have_attribute("aria-pressed", "true")


def test_other_recordings_opens_the_list_of_examples(open_page: OpenPage) -> None:
    page = open_page()
    shows(page, "first")
    page.get_by_role("button", name="Other recordings").click()
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(len(listed()) + 1)


def test_keys_and_buttons_go_from_event_to_event(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate(f"{STAGE}.open({{ example: 'plain', step: 0 }})")
    steps = sorted(set(page.evaluate(f"{STAGE}.bus.mirror.story.entries.map(e => e.step)")))
    seen = [0]
    page.locator("body").press("}")
    for _ in range(2):
        wait(page, f"$.settled && $.clock.step > {seen[-1]}")
        seen.append(page.evaluate(f"{STAGE}.clock.step"))
        page.get_by_role("button", name="Next event").click()
    assert seen == steps[:3]
    page.locator("body").press("{")
    assert page.evaluate(f"{STAGE}.clock.step") == steps[2]


def test_the_picture_follows_a_run_at_the_chosen_pace(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate(f"{STAGE}.open({{ example: 'plain', step: 0 }})")
    page.get_by_label("Pace of the picture").select_option("5")
    assert page.evaluate(f"{STAGE}.clock.pace") == 5
    page.get_by_label("Pace of the picture").select_option("as it comes")
    page.get_by_role("button", name="Play or pause").click()
    wait(page, "$.settled && $.clock.step === $.bus.mirror.newest")
    assert page.evaluate(f"{STAGE}.clock.pace") is None or page.evaluate(f"{STAGE}.clock.pace === Infinity")


def test_opening_a_recording_stops_the_run_that_is_in_progress(open_page: OpenPage, api: Client) -> None:
    page = open_page()
    shows(page, "first")
    page.locator("#settings-toggle").click()
    page.locator("#max-tokens input").fill("300")
    page.locator("#max-tokens input").press("Tab")
    page.click("#generate")
    wait(page, "$.bus.running && $.bus.mirror.newest > 2", 60)
    assert page.evaluate(f"{STAGE}.open({{ example: 'fork', step: 5 }})") is True
    page.wait_for_timeout(1000)  # whatever the run still had to say has come
    assert page.evaluate(f"[{STAGE}.bus.header.recording.id, {STAGE}.clock.step, {STAGE}.bus.running]") == ["fork", 5, False]
    expect(page.locator("#stop")).to_be_disabled()
    state = api.predict(session=page.evaluate(f"{STAGE}.bus.session"), step=5, api_name="/state")
    assert list(state["requests"]) == ["A", "B", "C"]


def test_the_api_lists_the_examples(api: Client) -> None:
    assert [entry["id"] for entry in api.predict(api_name="/scenarios")] == list(SCENARIOS)


def test_a_reload_comes_back_to_the_recording(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate(f"{STAGE}.open({{ example: 'fork', step: 5 }})")
    page.reload()
    wait(page, "document.querySelector('.stage')?.pagewalk?.bus?.header?.recording?.id === 'fork'", 60)


def test_a_phone_shows_the_recording_and_every_action(open_page: OpenPage) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    shows(page, "first")
    page.click(".time .save > button")
    for name in ("export", "import", "link"):
        expect(page.locator(f'[data-action="{name}"]')).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.evaluate(f"{STAGE}.open({{ example: 'block-size-16' }})")
    page.get_by_role("button", name="Compare").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
