"""What the page offers to see with one click: prompts and settings that show one thing each, and where to look.

scripts/record_examples.py runs each on the real model and ships the recording; Generate runs it again on the visitor's machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.config import EngineConfig, SamplingParams
from engine.run_settings import RunSettings

TEACHER = (
    "You are a patient science teacher. You explain things to a class of children in plain words and in short sentences, and "
    "you give one example for each of them, from the kitchen or from the garden. "
)
SKY = "Why is the sky blue? The sky is blue because"
BREAD = "Why does bread rise? Bread rises because"
ICE = "Why does ice float? Ice floats because"
PARIS = "The capital of France is Paris, a city that"
DRAGON = "Once upon a time, a small dragon who lived on a mountain"
LIGHTHOUSE = "The old lighthouse stood at the end of the island, and every evening"
PIE = "My grandmother's recipe for apple pie begins with"
PAPER = (
    "The history of paper. Before paper, people wrote on clay, on bones, on strips of bamboo and on silk. Clay was "
    "heavy, bones were small, bamboo needed much room and silk cost a fortune. About two thousand years ago a servant of "
    "the Chinese court mashed bark, hemp, rags and old fishing nets in water, spread the pulp on a screen and let it dry "
    "in the sun. The sheet was light, it was cheap, and it took ink well. For centuries the method stayed in the East. "
    "Then it travelled along the roads of the traders, from one city to the next, until mills on the rivers of Spain and "
    "Italy beat rags into pulp by the power of water. When printing came, books needed more paper than rags could give, "
    "and in the end wood took their place. Today"
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


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0)


_SIZES = RunSettings((TEACHER + SKY, TEACHER + BREAD, DRAGON), EngineConfig(), _greedy(40), stagger=2)
_SLOTS = 1024  # of the pool, whatever the size of its blocks


def _block_size(size: int, sentence: str) -> Scenario:
    run = replace(_SIZES, config=EngineConfig(block_size=size, num_blocks=_SLOTS // size))
    return Scenario(f"block-size-{size}", f"Block size {size}", sentence, run, family="block-size")


SCENARIOS: dict[str, Scenario] = {
    scenario.id: scenario
    for scenario in (
        Scenario(
            "first",
            "Three sequences share a pool",
            "Three sequences share one pool of 128 blocks; two of them start with the same words.",
            RunSettings(
                (PARIS, TEACHER + SKY, TEACHER + BREAD),
                EngineConfig(),
                SamplingParams(max_tokens=96, temperature=0.7, top_p=0.9, seed=1),
                stagger=2,
            ),
        ),
        Scenario(
            "plain",
            "One sequence grows",
            "Every 16 tokens the sequence takes one more block, wherever the pool has a free one.",
            RunSettings((PARIS,), EngineConfig(), _greedy(56)),
        ),
        Scenario(
            "shared-prompt",
            "A shared system prompt",
            "The first sequence computes the system prompt; the others find its blocks in the pool and read them.",
            RunSettings(tuple(TEACHER + question for question in (SKY, BREAD, ICE)), EngineConfig(), _greedy(40), stagger=4),
        ),
        Scenario(
            "fork",
            "One prompt, three answers",
            "Three samples of one prompt share its blocks; whoever writes into the part-filled one copies it first.",
            RunSettings(
                (TEACHER + BREAD,), EngineConfig(), SamplingParams(max_tokens=48, n=3, temperature=0.9, top_p=0.9, seed=3)
            ),
        ),
        Scenario(
            "preemption",
            "The pool is too small",
            "When no block is left the youngest sequence gives its own back, waits, is computed again and says the same.",
            RunSettings((PARIS, DRAGON, LIGHTHOUSE), EngineConfig(num_blocks=14), _greedy(80)),
        ),
        Scenario(
            "chunked",
            "A long prompt in chunks",
            "A long prompt is computed in chunks of at most 32 tokens a step, beside a sequence that goes on generating.",
            RunSettings((DRAGON, PAPER), EngineConfig(max_num_batched_tokens=32), _greedy(48), stagger=8),
        ),
        Scenario(
            "eviction",
            "A cached prefix is evicted",
            "B repeats A and reuses its blocks; C needs room and evicts them; D repeats A once more and has to compute.",
            RunSettings(
                (TEACHER + ICE, TEACHER + ICE, DRAGON, TEACHER + ICE), EngineConfig(num_blocks=8), _greedy(40), stagger=44
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
