"""Many visitors of one host: some in Chromium, the rest through gradio_client. Prints what each gets and what it costs.

    python benchmarks/visitors.py --visitors 1 5 20 --seconds 180
    python benchmarks/visitors.py --rough                 # slow readers, closed tabs, a full queue, kill -9 and restart

Every visitor generates again and again (64 new tokens; every third with 4 sequences a prompt) and looks tokens up meanwhile.
Columns: tokens/s in all; tokens/s of the least and of the best served visitor, among those with equal work, and their ratio
(fairness); seconds to the first message, median and worst; seconds from a click on a token to its numbers on the page, and from
an API lookup to its answer, while runs are busy: median, 95th percentile, worst; behind: steps a page is behind the engine;
memory of the process before, at its peak and after all have left, in MiB; errors. Below: memory over time, and tokens/s of each
visitor. Needs the packages of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.clicks import click_to_numbers
from tests.browser.conftest import CHROMIUM_FLAGS
from tests.web.conftest import App, free_port

STAGE = "document.querySelector('.stage').pagewalk"
OWN_TOKENS = (  # a page opens with a recording, whose tokens are nobody's
    f"({STAGE}.bus.header?.recording ? [] : {STAGE}.bus.mirror?.log ?? []).filter(event => event[0] === 'TokenSampled').length"
)
RUNS = f"{STAGE}.bus.running && {STAGE}.bus.mirror.newest > 1"
PROMPTS = ("The capital of France is", "Numbers: 1, 2, 3,", "Once upon a time there was a fox who", "Water boils when")
NEW_TOKENS = 64
LEAVE_SECONDS = 25  # gradio_client hangs up within 15 s of close(); then PAGEWALK_CLOSED_SECONDS of 2, and the sweep


@dataclass
class Visitor:
    """What one visitor got. sequences: of each of its runs."""

    sequences: int
    tokens: int = 0
    runs: int = 0
    first: list[float] = field(default_factory=list)
    clicks: list[float] = field(default_factory=list)
    lookups: list[float] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def client_visitor(app: App, visitor: Visitor, number: int, until: float) -> None:
    """Through gradio_client, in a thread of its own."""
    client = app.client()
    while time.monotonic() < until:
        began, seen, heard, job = time.monotonic(), 0, False, None
        try:
            job = client.submit(
                prompt=PROMPTS[number % len(PROMPTS)], max_tokens=NEW_TOKENS, n=visitor.sequences, seed=number, temperature=0.8,
                api_name="/generate",
            )  # fmt: skip
            for message in job:
                if not heard:
                    visitor.first.append(time.monotonic() - began)
                    heard = True
                now = sum(map(len, message["token_ids"]))
                visitor.tokens, seen = visitor.tokens + now - seen, now
                if message["running"] and now:
                    asked = time.monotonic()
                    client.predict(session=message["session"], request_id="A", key_position=0, api_name="/lookup")
                    visitor.lookups.append(time.monotonic() - asked)
                if time.monotonic() > until:
                    job.cancel()
                    break
            visitor.runs += 1
        except Exception as error:  # counted, whatever it is
            visitor.errors[f"{type(error).__name__}: {str(error)[:60]}"] += 1
            time.sleep(0.5)
    client.close()


def page_visitors(app: App, visitors: list[Visitor], until: float) -> None:
    """In Chromium, all from one thread: Playwright is single-threaded."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        pages = [open_page(browser.new_context().new_page(), app, visitor) for visitor in visitors]
        watcher = app.client()
        seen = [0] * len(pages)
        while time.monotonic() < until:
            for i, (page, visitor) in enumerate(zip(pages, visitors, strict=True)):
                try:
                    state = page.evaluate(
                        f"({{running: {STAGE}.bus.running, newest: {STAGE}.bus.mirror?.newest ?? 0,"
                        f"session: {STAGE}.bus.session, tokens: {OWN_TOKENS}}})"
                    )
                    visitor.tokens += max(0, state["tokens"] - seen[i])
                    seen[i] = state["tokens"]
                    if not state["running"]:
                        visitor.runs += 1
                        seen[i] = 0
                        page.click("#generate")
                        page.wait_for_function(f"{STAGE}.bus.running", timeout=20_000)
                    elif state["newest"] > 2:
                        step = watcher.predict(session=state["session"], api_name="/state")["step"]
                        visitor.behind.append(max(0, step - page.evaluate(f"{STAGE}.bus.mirror.newest")))
                        visitor.clicks.append(click_to_numbers(page, position=1))
                except Exception as error:
                    visitor.errors[f"{type(error).__name__}: {str(error)[:60]}"] += 1
            time.sleep(0.2)
        browser.close()


def open_page(page: Page, app: App, visitor: Visitor) -> Page:
    page.on("pageerror", lambda error: visitor.errors.update([f"page: {str(error)[:60]}"]))
    page.goto(app.url)
    page.wait_for_function("document.querySelector('.stage')?.pagewalk?.bus?.session", timeout=60_000)
    page.click("#settings-toggle")
    page.locator("#max-tokens input").fill(str(NEW_TOKENS))
    page.locator("#ignore-eos input").set_checked(True)
    page.click("#settings-toggle")
    return page


def drive(app: App, num: int, num_pages: int, seconds: float) -> None:
    """One line of the table, and the memory over time below it."""
    process = psutil.Process(app.process.pid)
    visitors = [Visitor(sequences=4 if i % 3 == 2 else 1) for i in range(num)]
    pages = visitors[: min(num_pages, num)]
    for visitor in pages:
        visitor.sequences = 1
    before, began, until = process.memory_info().rss, time.monotonic(), time.monotonic() + seconds
    threads = [threading.Thread(target=page_visitors, args=(app, pages, until))] if pages else []
    threads += [
        threading.Thread(target=client_visitor, args=(app, visitor, i, until))
        for i, visitor in enumerate(visitors)
        if i >= len(pages)
    ]
    for thread in threads:
        thread.start()
    memory: list[float] = []
    while any(thread.is_alive() for thread in threads):
        memory.append(process.memory_info().rss / 2**20)
        time.sleep(min(5.0, seconds / 12))
    took = time.monotonic() - began
    time.sleep(LEAVE_SECONDS)
    after = process.memory_info().rss / 2**20
    rates = [visitor.tokens / took for visitor in visitors]
    equal = [rates[i] for i in range(len(pages), num) if visitors[i].sequences == 1] or rates
    firsts, clicks, lookups, behind = (
        [value for visitor in visitors for value in getattr(visitor, name)] for name in ("first", "clicks", "lookups", "behind")
    )
    least, best = min(equal), max(equal)
    print(
        f"{num:8d} {len(pages):5d} {sum(rates):9.1f} {least:7.2f} {best:7.2f} {least / max(best, 1e-9):8.2f}"
        f"   {spread(firsts)}   {spread(clicks, p95=True)}   {spread(lookups, p95=True)}   {spread(behind, 0)}"
        f"   {before / 2**20:6.0f} {max(memory):6.0f} {after:6.0f}"
        f"   {sum(sum(v.errors.values()) for v in visitors):6d}"
    )
    print(f"         memory over time, MiB: {' '.join(f'{m:.0f}' for m in memory)}; sessions left: {app.health()['sessions']}")
    kinds = ["*" if i < len(pages) else f"/{visitor.sequences}" for i, visitor in enumerate(visitors)]
    each = (f"{rate:.2f}{kind}" for rate, kind in zip(rates, kinds, strict=True))
    print(f"         tokens/s of each (*: a page, else /sequences): {' '.join(each)}")
    for text, count in sum((v.errors for v in visitors), Counter()).most_common(5):
        print(f"         {count} x {text}")


def spread(values: list[Any], digits: int = 2, p95: bool = False) -> str:
    """Median, 95th percentile if asked for, and the largest."""
    if not values:
        return " ".join([f"{'-':>6}"] * (2 + p95))
    middle = [sorted(values)[int(0.95 * (len(values) - 1))]] if p95 else []
    return " ".join(f"{value:6.{digits}f}" for value in (statistics.median(values), *middle, max(values)))


def rough(app: App) -> App:
    """What goes wrong out there, one after the other; each prints what was seen. Returns the app that runs in the end."""
    story = {"prompt": "Numbers: 1, 2, 3,", "max_tokens": 300, "temperature": 1.0, "api_name": "/generate"}

    slow = app.client().submit(**story)
    while not slow.outputs():
        time.sleep(0.1)
    slow.cancel()  # its stream is not read any more
    fast = app.client().predict(**{**story, "max_tokens": 16})
    print(f"a client that stopped reading: another one got {len(fast['token_ids'][0])} tokens meanwhile")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        pages = [open_page(browser.new_context().new_page(), app, Visitor(1)) for _ in range(3)]
        for page in pages:
            page.click("#generate")
            page.wait_for_function(RUNS, timeout=60_000)
        began = time.monotonic()
        for page in pages:
            page.context.close()
        while app.health()["running"]:
            time.sleep(0.05)
        print(f"three tabs closed in mid-run: nothing ran any more after {time.monotonic() - began:.2f} s")

        page = open_page(browser.new_context().new_page(), app, Visitor(1))
        page.click("#generate")
        page.wait_for_function(RUNS, timeout=60_000)
        port = int(app.url.rsplit(":", 1)[1])
        app.process.kill()
        app.process.wait()
        began = time.monotonic()
        app = start(port)
        print(f"kill -9: the next process was ready after {time.monotonic() - began:.1f} s")
        page.reload()
        page.wait_for_function("document.querySelector('.stage')?.pagewalk?.bus?.session", timeout=60_000)
        print(f"  the page says after a reload: {page.locator('.notice').inner_text()!r}")
        page.click("#generate")
        page.wait_for_function(RUNS, timeout=60_000)
        print("  and generates again")
        browser.close()

    narrow = start(free_port(), PAGEWALK_MAX_RUNNING="2", PAGEWALK_MAX_WAITING="1")
    seen: Counter[str] = Counter()

    def ask() -> None:
        try:
            narrow.client().predict(**{**story, "max_tokens": 40})
            seen["done"] += 1
        except Exception as error:
            seen[str(error)] += 1

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"a full queue (2 run, 1 waits, 6 ask): {dict(seen)}")
    narrow.stop()
    return app


def start(port: int, **environment: str) -> App:
    settings = {"PAGEWALK_PUBLIC": "1", "PAGEWALK_REQUESTS_PER_MINUTE": "0", "PAGEWALK_CLOSED_SECONDS": "2", **environment}
    return App(Path(mkdtemp(prefix="visitors-")), [], settings, port).wait_until_ready()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visitors", type=int, nargs="*", default=[1, 5, 20])
    parser.add_argument("--pages", type=int, default=3, help="of the visitors, those in Chromium")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rough", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    app = start(args.port or free_port())
    try:
        app.client().predict(prompt="Hi", max_tokens=2, api_name="/generate")
        if args.visitors:
            print(
                "visitors pages  tokens/s   least    best fairness    first  worst    click   95 %  worst"
                "   lookup   95 %  worst   behind  worst   memory   peak  after   errors"
            )
        for num in args.visitors:
            drive(app, num, args.pages, args.seconds)
        if args.rough:
            app = rough(app)
    finally:
        with contextlib.suppress(Exception):
            app.stop()


if __name__ == "__main__":
    main()
