"""The page in Chromium: draws a second, bytes an update, time to open, lag, click to numbers, memory over minutes.

    python -m benchmarks.page [--minutes 10]

The Stage is the real one in the real app; the large states are scripted, since no small machine computes 262,144 tokens.
Draws are counted while an update comes with every animation frame. Lag: 50 tokens a second for four seconds in a pool of
512 x 16, and how long after it came a step is drawn. Ten minutes at ten updates a second watch DOM nodes and heap (after a
garbage collection; the run's own log stays in it). The last part generates with the real model and clicks tokens meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import time
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Page, sync_playwright

from app import launch
from benchmarks.clicks import click_to_numbers
from engine.events import BlockAllocated, Event, RequestAdded, SlotsWritten, StepTimed, TokenSampled
from viz import deltas
from viz.stage.stage import figures
from web.host import Host

STAGE = "document.querySelector('.stage').pagewalk"
READY = "document.querySelector('.stage')?.pagewalk?.bus?.session"
RECEIVE = f"log => {STAGE}.bus.receive({{ kind: 'delta', run: {STAGE}.bus.run, n: {STAGE}.bus.n + 1, log, running: true }})"
BLOCK_SIZE = 16
NAMES = "ABCDEFG"


def header(num_blocks: int) -> dict[str, Any]:
    return {
        "block_size": BLOCK_SIZE, "num_blocks": num_blocks, "model": "scripted", "device": "cpu", "dtype": "float32",
        "backend": "torch", "backend_reason": "", "num_layers": 30, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64,
        "slot_bytes": 768, "bytes_per_block": 737280, "version": "0",
    }  # fmt: skip


def scripted(num_blocks: int, share: float, names: str) -> Iterator[list[Event]]:
    """Prompts of these names fill `share` of the pool; then one token of each a step, until the pool is full."""
    length = int(num_blocks * BLOCK_SIZE * share) // len(names)
    free = iter((i * 7919) % num_blocks for i in range(num_blocks))  # 7919 is prime: every block once, in no order
    tables: dict[str, list[int]] = {name: [] for name in names}

    def write(step: int, name: str, start: int, stop: int) -> list[Event]:
        out: list[Event] = []
        for index in range(len(tables[name]), -(-stop // BLOCK_SIZE)):
            tables[name].append(next(free))
            out.append(BlockAllocated(step, name, index, tables[name][index], f"token {index * BLOCK_SIZE} starts a block"))
        slots = tuple(tables[name][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, stop))
        return [*out, SlotsWritten(step, name, start, slots), TokenSampled(step, name, stop, 1, " word")]

    first: list[Event] = []
    for name in names:
        words = tuple(f" {name.lower()}{i % 1000}" for i in range(length))
        first.append(RequestAdded(0, name, "scripted", tuple(range(length)), words, 1 << 20))
    yield first
    step, done = 1, 0
    while True:
        try:
            events = [e for name in names for e in write(step, name, done, length if step == 1 else done + 1)]
        except StopIteration:
            return
        yield [*events, StepTimed(step, len(names), len(names), 0.1, 2.0, 0.1)]
        done, step = (length if step == 1 else done + 1), step + 1


def open_state(page: Page, num_blocks: int, share: float, names: str = NAMES) -> tuple[Iterator[list[Event]], float]:
    """Shows the scripted state; seconds from the message to the drawn picture."""
    run = scripted(num_blocks, share, names)
    events = [*next(run), *next(run)]
    message = deltas.snapshot(f"bench-{num_blocks}-{time.monotonic()}", 0, events, header(num_blocks), "s", True)
    message["figures"] = figures(num_blocks, BLOCK_SIZE)
    ms = page.evaluate(
        f"""async message => {{
          const S = {STAGE}, began = performance.now();
          S.bus.receive(message);
          while (!S.settled || !S.state?.requests.length) await new Promise(requestAnimationFrame);
          await new Promise(requestAnimationFrame);
          return performance.now() - began;
        }}""",
        message,
    )
    return run, ms / 1e3


def draws(page: Page, run: Iterator[list[Event]], seconds: float) -> tuple[float, list[int]]:
    """Draws a second while an update waits for every frame; bytes of each update."""
    batch = [json.dumps(deltas.log_text(events)) for events in itertools.islice(run, 600)]
    sizes = [len(text.encode()) for text in batch]
    rate = page.evaluate(
        f"""async ([batch, seconds]) => {{
          const S = {STAGE}, receive = {RECEIVE}, from = S.frames, began = performance.now();
          for (const text of batch) {{
            if (performance.now() - began > seconds * 1000) break;
            receive(JSON.parse(text));
            await new Promise(requestAnimationFrame);
          }}
          return (S.frames - from) / ((performance.now() - began) / 1000);
        }}""",
        [batch, seconds],
    )
    return rate, sizes


def lag(page: Page, tokens: int = 200) -> tuple[list[float], list[int]]:
    """Milliseconds from a step's arrival to the frame that shows it, one step every 20 ms; bytes of each token's update."""
    run, _ = open_state(page, 512, 0.1, "A")
    batch = [json.dumps(deltas.log_text(events)) for events in itertools.islice(run, tokens)]
    waits = page.evaluate(
        f"""async batch => {{
          const S = {STAGE}, receive = {RECEIVE}, came = new Map(), waits = [], pace = S.clock.pace;
          S.clock.pace = Infinity;
          let shown = S.clock.step;
          const timer = setInterval(() => {{
            if (!batch.length) return clearInterval(timer);
            receive(JSON.parse(batch.shift()));
            came.set(S.bus.mirror.newest, performance.now());
          }}, 20);
          while (batch.length || shown < S.bus.mirror.newest) {{
            await new Promise(requestAnimationFrame);
            const now = performance.now(), drawn = S.state?.step ?? 0;
            for (; shown < drawn; shown++) if (came.has(shown + 1)) waits.push(now - came.get(shown + 1));
          }}
          S.clock.pace = pace;
          return waits;
        }}""",
        batch,
    )
    return waits, [len(text.encode()) for text in batch]


def watch_memory(page: Page, minutes: float) -> None:
    """Ten updates a second; nodes and heap every tenth of the time."""
    run, _ = open_state(page, 16384, 0.1)
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    print(f"\n{'minute':>7} {'updates':>8} {'DOM nodes':>10} {'listeners':>10} {'heap MB':>8}")
    for part in range(11):
        if part:
            end = time.monotonic() + minutes * 6
            while time.monotonic() < end:
                page.evaluate(
                    RECEIVE,
                    deltas.log_text(next(run)),
                )
                time.sleep(0.095)
        client.send("HeapProfiler.collectGarbage")
        found = {m["name"]: m["value"] for m in client.send("Performance.getMetrics")["metrics"]}
        updates = page.evaluate(f"{STAGE}.bus.n")
        print(
            f"{part * minutes / 10:>7.1f} {updates:>8} {found['Nodes']:>10.0f} {found['JSEventListeners']:>10.0f} "
            f"{found['JSHeapUsedSize'] / 1e6:>8.1f}",
            flush=True,
        )  # fmt: skip


def clicks_while_generating(page: Page, clicks: int = 30) -> list[float]:
    """Milliseconds from the click on a token to its weight on the page, while the real model generates."""
    page.locator("#prompt textarea, #prompt input").first.fill("The history of the city begins long before the first stone")
    page.click("#settings-toggle")
    page.locator("#max-tokens input").fill("400")
    page.locator("#ignore-eos input").set_checked(True)
    page.click("#settings-toggle")
    page.click("#generate")
    page.wait_for_function(f"{STAGE}.bus.running && {STAGE}.bus.mirror?.newest > 8", timeout=120_000)
    times = []
    for i in range(clicks):
        times.append(1e3 * click_to_numbers(page, position=i % 10))
        page.wait_for_timeout(150)
    if not page.evaluate(f"{STAGE}.bus.running"):
        raise RuntimeError("The run ended before the last click.")
    page.click("#stop")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    args = parser.parse_args()
    host = Host()
    host.shelf.get(None)
    demo = launch(host, "127.0.0.1")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    flags = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=flags)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(demo.local_url)
        page.wait_for_function(f"{READY} && !{STAGE}.charts.pending", timeout=60_000)
        print(f"{'slots':>10} {'filled':>7} {'opens in':>9} {'draws/s':>8} {'bytes an update':>16} {'most':>6}")
        for num_blocks, share in ((128, 0.1), (16384, 0.1), (16384, 0.9), (62500, 0.1), (62500, 0.9)):
            run, seconds = open_state(page, num_blocks, share)
            rate, sizes = draws(page, run, 5.0)
            print(
                f"{num_blocks * BLOCK_SIZE:>10,} {share:>7.0%} {seconds:>7.2f} s {rate:>8.1f} "
                f"{statistics.median(sizes):>16,.0f} {max(sizes):>6,}",
                flush=True,
            )  # fmt: skip
        waits, sizes = lag(page)
        print(
            f"\n50 tokens a second: drawn {statistics.median(waits):.0f} ms after they came, {max(waits):.0f} ms at most; "
            f"{statistics.median(sizes):.0f} bytes a token, {max(sizes)} at most"
        )
        if args.minutes:
            watch_memory(page, args.minutes)
        page.reload()
        page.wait_for_function(READY, timeout=60_000)
        times = clicks_while_generating(page)
        print(f"\nclick to numbers while generating: median {statistics.median(times):.0f} ms, most {max(times):.0f} ms")
        browser.close()
    demo.close()


if __name__ == "__main__":
    main()
