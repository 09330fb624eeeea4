"""A scripted run as engine events, without an engine: the page's own stand-in, with the policy of the real one.

Three sequences share one pool of 128 blocks: A, B, and C, whose prompt begins like B's and so touches B's first blocks.
Tokens, keys and weights of `mid_run.json` are those of a real SmolLM2-135M-Instruct run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.events import (
    BlockAllocated,
    BlockFreed,
    BlockStored,
    BlockTouched,
    Event,
    PrefixHit,
    RequestAdded,
    RequestFinished,
    SlotsWritten,
    StepTimed,
    TokenSampled,
)  # fmt: skip

BLOCK_SIZE, NUM_BLOCKS = 16, 128
FIRST_IDS = [95, 31, 104, 58, 77, 44, 3, 12, 120, 66, 26, 111, 88, 17, 71, 50]
EARLIER = (9, 23, 38, 40, 57, 61, 82, 85, 98, 107, 115, 126, 34, 70)
RUN: dict[str, Any] = json.loads((Path(__file__).parent / "mid_run.json").read_text(encoding="utf-8"))

HEADER: dict[str, Any] = {
    "block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS, "model": "SmolLM2-135M-Instruct", "device": "cpu", "dtype": "float32",
    "backend": "torch", "backend_reason": "No GPU: running the reference path on CPU.", "num_layers": 30, "num_heads": 9,
    "num_kv_heads": 3, "head_dim": 64, "slot_bytes": 768, "bytes_per_block": 737280, "version": "0",
}  # fmt: skip


def fake_run(
    texts: dict[str, list[Any]] | None = None, prompt_lengths: dict[str, int] | None = None, steps: int = 72,
    num_blocks: int = NUM_BLOCKS, block_size: int = BLOCK_SIZE, finish: bool = False, seed: int = 7,
) -> Iterator[list[Event]]:  # fmt: skip
    """The events of each step in turn, from step 0 (requests added) to `steps`."""
    texts = texts or RUN["tokens"]
    lengths = prompt_lengths or RUN["prompt_lengths"]
    rng = random.Random(seed)
    earlier = [b for b in EARLIER if b < num_blocks]
    head = [b for b in FIRST_IDS if b < num_blocks]
    rest = [b for b in range(num_blocks) if b not in {*head, *earlier}]
    rng.shuffle(rest)
    free = head + rest + earlier
    tables: dict[str, list[int]] = {}
    computed: dict[str, int] = {}
    length: dict[str, int] = {}
    done: set[str] = set()

    first: list[Event] = (
        [BlockStored(0, tuple(f"e{b}" for b in earlier), None, (), block_size, tuple(earlier))] if earlier else []
    )
    for name in ("A", "B"):
        if name in texts:
            first.append(_added(0, name, texts, lengths))
            tables[name], computed[name], length[name] = [], 0, lengths[name]
    yield first

    for step in range(1, steps + 1):
        events: list[Event] = []
        if step == 2 and "C" in texts:
            events.append(_added(step, "C", texts, lengths))
            shared = tables["B"][: (lengths["C"] - 1) // block_size][:2]
            hit = len(shared) * block_size
            events.append(
                PrefixHit(
                    step, "C", hit, tuple(shared), f"the first {hit} tokens are those of B, found in {len(shared)} blocks"
                )
            )
            events += [BlockTouched(step, "C", i, b) for i, b in enumerate(shared)]
            tables["C"], computed["C"], length["C"] = list(shared), hit, lengths["C"]
        written = 0
        for name in list(tables):
            if name in done:
                continue
            start, slots = computed[name], []
            for p in range(start, length[name]):
                index = p // block_size
                if index == len(tables[name]):
                    if not free:
                        return
                    block = free.pop(0)
                    tables[name].append(block)
                    why = (
                        f"token {p} starts logical block {index} ({p} % {block_size} = 0)"
                        if p
                        else f"{length[name]} prompt tokens"
                    )
                    events.append(BlockAllocated(step, name, index, block, why))
                slots.append(tables[name][index] * block_size + p % block_size)
            events.append(SlotsWritten(step, name, start, tuple(slots)))
            written += len(slots)
            full_before, full_now = start // block_size, length[name] // block_size
            if full_now > full_before:
                blocks = tuple(tables[name][full_before:full_now])
                events.append(BlockStored(step, tuple(f"{name}{b}" for b in blocks), None, (), block_size, blocks))
            computed[name] = length[name]
            if length[name] < len(texts[name]) and not (finish and step == steps):
                events.append(TokenSampled(step, name, length[name], 1, _text(texts[name][length[name]])))
                length[name] += 1
            else:
                done.add(name)
                events.append(
                    RequestFinished(step, name, "length", f"max_tokens reached after {length[name] - lengths[name]} tokens")
                )
                events.append(BlockFreed(step, name, tuple(reversed(tables[name])), "finished"))
        events.append(StepTimed(step, written, len(tables) - len(done), 0.1, 2.0, 0.1))
        yield events


def hostile_texts() -> dict[str, list[Any]]:
    """Tokens that break pages: markup, entities, MathJax, template strings, and text that cannot be seen."""
    hard = ["<b>", "<br>", "&lt;", "$x^2$", "$100-$200", "<img src=x onerror=alert(1)>", "${alert(1)}", "`", "\n", " ",
            "", "\t", b"\xe2\x80", "\u202e", '"', "'", "\\", "</script>", "{{x}}", "\u200b"]  # fmt: skip
    return {"A": hard * 4, "B": [f" w{i}" for i in range(80)]}


def lookup_answer(request: str, query: int, key: int, layer: int, head: int, table: list[int]) -> dict[str, Any]:
    """What `stage_lookup` sends, with the numbers of the real lookup A:75 -> A:17 stretched to any length."""
    real = RUN["lookup"]
    weights = (real["w"] * (query // len(real["w"]) + 1))[: query + 1]
    block, offset = table[key // BLOCK_SIZE], key % BLOCK_SIZE
    slot = block * BLOCK_SIZE + offset
    words = RUN["tokens"].get(request, [])
    return {
        "ok": True, "request_id": request, "query_position": query, "key_position": key, "layer": layer, "head": head,
        "kv_head": head // 3, "token_text": words[key] if key < len(words) else "?", "query_text": "?",
        "block_size": BLOCK_SIZE, "block_table": list(table),
        "logical_block": key // BLOCK_SIZE, "block_offset": offset, "physical_block": block, "slot": slot,
        "byte_offset": slot * 768, "address": hex(0x7F2E4A000000 + slot * 768), "slot_bytes": 768, "dtype": "float32",
        "head_dim": 64, "key": real["k"], "query": real["q"], "key_norm": real["norm"], "raw_dot": real["raw"], "scale": 0.125,
        "score": real["score"], "weight": weights[key], "weights": weights, "value": real["k"],
        "output_paged": real["paged"], "output_dense": real["dense"], "max_abs_difference": 1.2e-07,
        "slot_state": "captured", "slot_sentence": f"Slot {slot} still holds the captured bytes.",
    }  # fmt: skip


def _added(step: int, name: str, texts: dict[str, list[Any]], lengths: dict[str, int]) -> RequestAdded:
    prompt = tuple(_text(t) for t in texts[name][: lengths[name]])
    words = "".join(t for t in prompt if isinstance(t, str))
    return RequestAdded(step, name, words, tuple(range(len(prompt))), prompt, 1024)


def _text(value: Any) -> str | bytes:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
