"""What the page offers to see with one click: prompts and settings that show one thing each, and where to look.

scripts/record_examples.py runs each on the real model and ships the recording; Generate runs it again on the visitor's machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.config import EngineConfig, SamplingParams
from engine.run_settings import RunSettings

STORM = (
    "It was a stormy night in the old lighthouse at the end of the island. The lamp turned, the windows shook, and the three "
    "friends by the fire agreed that each of them would tell one story before the morning came. "
)
SAILOR = STORM + "The sailor began: Far out at sea, where the water is almost black,"
BAKER = STORM + "The baker began: One winter, when flour was dear and the snow lay high,"
CLOCKMAKER = STORM + "The clockmaker began: In a town where every clock was wrong,"
PARIS = "The capital of France is Paris, a city that"
DRAGON = "Once upon a time, a small dragon who lived on a mountain"
PIE = "My grandmother's recipe for apple pie begins with"
CLAY = (
    "The history of paper. Before paper, people wrote on clay, on bones, on strips of bamboo and on silk. Clay was "
    "heavy, bones were small, bamboo needed much room and silk cost a fortune. "
)
PAPER = CLAY + (
    "About two thousand years ago a servant of the Chinese court mashed bark, hemp, rags and old fishing nets in water, "
    "spread the pulp on a screen and let it dry in the sun. The sheet was light, it was cheap, and it took ink well. "
    "For centuries the method stayed in the East. Then it travelled along the roads of the traders, from one city to "
    "the next, until mills on the rivers of Spain and Italy beat rags into pulp by the power of water. When printing "
    "came, books needed more paper than rags could give, and in the end wood took their place. Today"
)


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a recording opens: it plays from `step`, with a token pinned if `request` names one."""

    step: int = 0
    request: str | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """sentence: what to see, in one sentence. layers, heads: whose vectors its recording ships. family: scenarios that are
    compared with each other; their first one stands for all in a list."""

    id: str
    title: str
    sentence: str
    run: RunSettings
    opening: Opening = field(default_factory=Opening)
    layers: tuple[int, ...] = (14,)
    heads: tuple[int, ...] = (1, 4, 7)
    family: str = ""


def _sampled(max_tokens: int, seed: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, n=n, temperature=0.8, top_p=0.95, seed=seed)


_SIZES = RunSettings((SAILOR, BAKER, PARIS), EngineConfig(), _sampled(40, 1), stagger=2)
_SLOTS = 1024  # of the pool, whatever the size of its blocks


def _block_size(size: int, sentence: str) -> Scenario:
    run = replace(_SIZES, config=EngineConfig(block_size=size, num_blocks=_SLOTS // size))
    heads = (1, 4, 7) if size == 16 else (1,)
    return Scenario(f"block-size-{size}", f"Block size {size}", sentence, run, heads=heads, family="block-size")


SCENARIOS: dict[str, Scenario] = {
    scenario.id: scenario
    for scenario in (
        Scenario(
            "first",
            "Three sequences share a pool",
            "Three sequences share one pool of 128 blocks; two of them start with the same words.",
            RunSettings(
                (PARIS, SAILOR, BAKER), EngineConfig(), _sampled(88, 1), stagger=2
            ),
        ),
        Scenario(
            "plain",
            "One sequence grows",
            "Every 16 tokens the sequence takes one more block, wherever the pool has a free one.",
            RunSettings((PARIS,), EngineConfig(), _sampled(56, 1)),
            layers=(0, 14, 29),
        ),
        Scenario(
            "shared-prompt",
            "A shared system prompt",
            "The first sequence computes the system prompt; the others find its blocks in the pool and read them.",
            RunSettings((SAILOR, BAKER, CLOCKMAKER), EngineConfig(), _sampled(40, 8), stagger=4),
        ),
        Scenario(
            "fork",
            "One prompt, three answers",
            "Three samples of one prompt share its blocks; whoever writes into the part-filled one copies it first.",
            RunSettings(
                (BAKER,), EngineConfig(), _sampled(48, 1, n=3)
            ),
        ),
        Scenario(
            "preemption",
            "The pool is too small",
            "When no block is left the youngest sequence gives its own back, waits, is computed again and says the same.",
            RunSettings((PARIS, DRAGON, PIE), EngineConfig(num_blocks=13), _sampled(80, 1)),
        ),
        Scenario(
            "chunked",
            "A long prompt in chunks",
            "A long prompt is computed in chunks of at most 32 tokens a step, beside a sequence that goes on generating.",
            RunSettings((DRAGON, PAPER), EngineConfig(max_num_batched_tokens=32), _sampled(48, 1), stagger=8),
        ),
        Scenario(
            "eviction",
            "A cached prefix is evicted",
            "B repeats A and reuses its blocks; C needs room and evicts most; D repeats A again and finds only the first.",
            RunSettings(
                (CLOCKMAKER, CLOCKMAKER, CLAY, CLOCKMAKER), EngineConfig(num_blocks=6), _sampled(24, 8), stagger=24
            ),
        ),
        _block_size(16, "Blocks of 16: at most 15 slots of a sequence wait unused, and a table stays short."),
        _block_size(1, "Blocks of 1: no slot is wasted, but a table names every single token."),
        _block_size(4, "Blocks of 4: little waste, and tables four times as long as with 16."),
        _block_size(64, "Blocks of 64: short tables, many slots unused, and only long beginnings can be shared."),
    )
}  # fmt: skip


def family(scenario: Scenario) -> list[Scenario]:
    """The scenarios it is compared with, itself among them, smallest block first; alone: none."""
    if not scenario.family:
        return []
    return sorted((s for s in SCENARIOS.values() if s.family == scenario.family), key=lambda s: s.run.config.block_size)


def listed() -> list[Scenario]:
    """One entry a list shows for each scenario or family."""
    seen: set[str] = set()
    out = []
    for scenario in SCENARIOS.values():
        if not scenario.family or scenario.family not in seen:
            out.append(scenario)
        seen.add(scenario.family)
    return out
