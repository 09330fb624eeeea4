"""From a click on a token to its numbers on the page, as the benchmarks of the page and of its visitors time it."""

from __future__ import annotations

from playwright.sync_api import Page

CLICK = """async position => {
  const stage = document.querySelector('.stage').pagewalk, frame = () => new Promise(requestAnimationFrame);
  const value = () => document.querySelector('.lookup [data-field=max_abs_difference]')?.dataset.value;
  stage.clear();
  while (value()) await frame();
  const began = performance.now();
  document.querySelector(`.tok[data-request="A"][data-position="${position}"]`).click();
  while (!value()) {
    if (performance.now() - began > 20000) throw new Error('no numbers within 20 s');
    await frame();
  }
  return (performance.now() - began) / 1000;
}"""


def click_to_numbers(page: Page, position: int) -> float:
    """Seconds, measured in the page: a click on the token of sequence A, which is shown, to the last number of its lookup."""
    return page.evaluate(CLICK, position)
