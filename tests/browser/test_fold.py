"""The Stage in Chromium folds a run's messages, however they are cut, doubled, lost or overtaken, to Python's state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from engine.events import Event
from tests.browser.test_stage import STAGE, open_page, url  # noqa: F401
from tests.viz.example_runs import header_of
from tests.viz.fold import fold, random_log
from tests.viz.traces import trace_of
from viz import deltas
from viz.stage.stage import figures

pytestmark = pytest.mark.browser

NUM_BLOCKS, BLOCK_SIZE = 12, 4
PLAIN = (
    (Path(__file__).parents[1] / "viz" / "plain_state.mjs").read_text(encoding="utf-8").split("plain = ", 1)[1].rstrip(";\n")
)
FEED = f"""messages => {{
  const stage = {STAGE}, gaps = [];
  stage.clock.pace = Infinity;                    // the picture follows as fast as it comes
  stage.bus.onGap = have => gaps.push(have);      // the Stage would ask the server for the whole run
  for (const message of messages) stage.bus.receive(message);
  return gaps;
}}"""
STATES = f"""steps => {{
  const plain = {PLAIN};
  return steps.map(step => structuredClone(plain({STAGE}.bus.mirror.stateAt(step))));
}}"""


def messages_of(seed: int, log: list[Event], rng: random.Random) -> tuple[list[dict[str, Any]], list[int]]:
    """Those that a page might see of a run, and after which of them it must have asked anew (then the whole run follows)."""
    run = f"run {seed}"
    header = header_of(trace_of(log, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE), "random")
    start = rng.randint(0, len(log) // 2)
    whole = {"figures": figures(NUM_BLOCKS, BLOCK_SIZE)}
    messages: list[dict[str, Any]] = [{**deltas.snapshot(run, 0, log[:start], header, "s", True), **whole}]
    n, at, asked = 0, start, []
    while at < len(log):
        size, fate = rng.randint(1, 40), rng.random()
        n, part, at = n + 1, log[at : at + size], at + size
        if fate < 0.1 and at < len(log):  # lost: the next one finds a gap, and a snapshot comes
            n, part, at = n + 1, log[at : at + 5], at + 5
            messages.append(deltas.delta(run, n, part))
            asked.append(len(messages) - 1)
            messages.append({**deltas.snapshot(run, n, log[:at], header, "s", True), **whole})
        else:
            messages += [deltas.delta(run, n, part)] * (2 if fate < 0.3 else 1)  # Gradio sends a last yield again
    return [*messages, deltas.end(run, n), deltas.end(run, n)], asked


def feed(page: Page, messages: list[dict[str, Any]]) -> int:
    """How often the page asked for the whole run."""
    return len(page.evaluate(FEED, messages))


def test_any_step_of_any_run_is_the_same_in_the_page_and_in_python(open_page) -> None:  # noqa: F811
    page, lost = open_page(wait=False), 0
    page.wait_for_function("document.querySelector('.stage')?.pagewalk")
    for seed in range(24):
        rng = random.Random(seed)
        log = random_log(rng)
        messages, asked = messages_of(seed, log, rng)
        assert feed(page, messages) == len(asked), f"seed {seed}"
        lost += len(asked)
        newest = log[-1].step
        steps = [newest, 0, *(rng.randint(0, newest) for _ in range(8)), newest]
        for step, state in zip(steps, page.evaluate(STATES, steps), strict=True):
            expected = fold([event for event in log if event.step <= step], NUM_BLOCKS, BLOCK_SIZE)
            assert state == {**expected, "step": step}, f"seed {seed}, step {step}"
        if seed % 8 == 7:
            page.wait_for_function(f"{STAGE}.settled && !{STAGE}.bus.running")  # and all of it can be drawn
    assert lost > 10
