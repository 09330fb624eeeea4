"""An independent fold of events into cache state, as plain dicts: what mirror.js must agree with (tests only)."""

from __future__ import annotations

from typing import Any

from engine.events import (
    AllBlocksCleared,
    BlockAllocated,
    BlockCopied,
    BlockFreed,
    BlockRemoved,
    BlockStored,
    BlockTouched,
    Event,
    PrefixHit,
    RequestAdded,
    RequestFinished,
    RequestForked,
    RequestPreempted,
    SlotsWritten,
    StepTimed,
    TokenSampled,
)  # fmt: skip


def fold(events: list[Event], num_blocks: int, block_size: int) -> dict[str, Any]:
    blocks = [{"ref": 0, "owner": None, "filled": 0, "hashed": False} for _ in range(num_blocks)]
    requests: dict[str, dict[str, Any]] = {}
    step, fresh = 0, []
    for e in events:
        if e.step > step:
            step, fresh = e.step, []
        match e:
            case RequestAdded():
                tokens = [{"hex": t.hex()} if isinstance(t, bytes) else t for t in e.token_texts]
                requests[e.request_id] = {
                    "tokens": tokens,
                    "prompt": len(tokens),
                    "status": "waiting",
                    "table": [],
                    "computed": 0,
                    "preempted": None,
                    "finish": None,
                }
            case PrefixHit():
                requests[e.request_id]["computed"] = e.num_tokens
            case BlockAllocated():
                requests[e.request_id]["table"].append(e.block_id)
                requests[e.request_id]["status"] = "running"
                blocks[e.block_id] = {"ref": 1, "owner": e.request_id, "filled": 0, "hashed": False}
            case BlockTouched():
                requests[e.request_id]["table"].append(e.block_id)
                requests[e.request_id]["status"] = "running"
                b = blocks[e.block_id]
                if b["ref"] == 0:
                    b["owner"] = e.request_id
                b["ref"] += 1
            case BlockCopied():
                requests[e.request_id]["table"][e.logical_index] = e.block_id
                blocks[e.block_id] = {"ref": 1, "owner": e.request_id, "filled": e.num_slots, "hashed": False}
                left = blocks[e.source_block_id]
                left["ref"] -= 1
                if left["owner"] == e.request_id:
                    left["owner"] = next(name for name, r in requests.items() if e.source_block_id in r["table"])
            case RequestForked():
                parent = requests[e.parent_id]
                requests[e.request_id] = {
                    "tokens": parent["tokens"][: parent["prompt"]],
                    "prompt": parent["prompt"],
                    "status": "running" if e.block_ids else "waiting",
                    "table": list(e.block_ids),
                    "computed": parent["computed"] if e.block_ids else 0,
                    "preempted": None,
                    "finish": None,
                }
                for i in e.block_ids:
                    blocks[i]["ref"] += 1
            case BlockStored():
                for i in e.block_ids:
                    blocks[i]["hashed"] = True
                    if blocks[i]["ref"] == 0:
                        blocks[i].update(filled=block_size, owner=None)
            case BlockRemoved():
                for i in e.block_ids:
                    blocks[i].update(hashed=False, owner=None, filled=0)
            case AllBlocksCleared():
                for b in blocks:
                    if b["hashed"] and b["ref"] == 0:
                        b.update(owner=None, filled=0)
                    b["hashed"] = False
            case BlockFreed():
                requests[e.request_id]["table"] = []
                for i in e.block_ids:
                    b = blocks[i]
                    b["ref"] -= 1
                    if b["ref"] == 0:
                        if not b["hashed"]:
                            b.update(owner=None, filled=0)
                    elif b["owner"] == e.request_id:
                        b["owner"] = next(name for name, r in requests.items() if i in r["table"])
            case SlotsWritten():
                requests[e.request_id]["computed"] = e.start_position + len(e.slots)
                for s in e.slots:
                    b = blocks[s // block_size]
                    b["filled"] = max(b["filled"], s % block_size + 1)
                fresh += e.slots
            case TokenSampled():
                requests[e.request_id]["tokens"].append({"hex": e.text.hex()} if isinstance(e.text, bytes) else e.text)
            case RequestPreempted():
                requests[e.request_id].update(status="waiting", computed=0, preempted=e.step)
            case RequestFinished():
                requests[e.request_id].update(status="finished", finish=e.finish_reason)
            case StepTimed():
                pass
    used = [b for b in blocks if b["ref"]]
    counts = {
        "used": len(used), "shared": sum(b["ref"] > 1 for b in used), "reserved": sum(block_size - b["filled"] for b in used),
        "cached": sum(b["ref"] == 0 and b["hashed"] for b in blocks),
        "free": sum(b["ref"] == 0 and not b["hashed"] for b in blocks),
    }  # fmt: skip
    return {"step": step, "fresh": fresh, "blocks": blocks, "requests": requests, "counts": counts}


def random_log(rng: Any, num_blocks: int = 12, block_size: int = 4, steps: int = 60) -> list[Event]:
    """A legal random run: admission with prefix hits, forks, copies, growth, preemption, finishing, eviction, odd tokens."""
    free, cached, log = list(range(num_blocks)), [], []
    ref: dict[int, int] = {}
    alive: dict[str, dict[str, Any]] = {}
    names = iter([*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *(f"A{c}" for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")])
    words = ["<b>", " the", "\n", "", b"\xe2\x80", "$x$"]

    def take(step: int, name: str, copy_of: int | None = None) -> int | None:
        if not free:
            if not cached:
                return None
            block = cached.pop(0)
            log.append(BlockRemoved(step, ("h",), (block,), "least recently used"))
        else:
            block = free.pop(rng.randrange(len(free)))
        ref[block] = 1
        table = alive[name]["table"]
        if copy_of is None:
            log.append(BlockAllocated(step, name, len(table), block, "grows"))
            table.append(block)
        else:
            log.append(BlockCopied(step, name, len(table) - 1, copy_of, block, alive[name]["computed"] % block_size, "shared"))
            table[-1] = block
            ref[copy_of] -= 1
        return block

    def release(step: int, name: str) -> None:
        table = alive[name]["table"]
        log.append(BlockFreed(step, name, tuple(reversed(table)), "done"))
        for i, block in reversed(list(enumerate(table))):
            ref[block] -= 1
            if ref[block] == 0:
                (cached if block in alive[name]["stored"] or i < alive[name]["touched"] else free).append(block)
        alive[name]["table"] = []

    for step in range(steps):
        if rng.random() < 0.2 and len(alive) < 4 and (name := next(names, None)):
            n = rng.randint(1, 9)
            log.append(RequestAdded(step, name, "p", tuple(range(n)), tuple(rng.choice(words) for _ in range(n)), 20))
            donors = [r for r in alive.values() if r["stored"] and r["table"]]
            alive[name] = {"length": n, "computed": 0, "table": [], "stored": set(), "touched": 0, "prompt": n}
            if donors and n > block_size and (block := donors[0]["table"][0]) in donors[0]["stored"]:
                log.append(PrefixHit(step, name, block_size, (block,), "found"))
                log.append(BlockTouched(step, name, 0, block))
                ref[block] += 1
                alive[name].update(table=[block], computed=block_size, touched=1)
        for name in list(alive):
            r = alive[name]
            slots, start, dry = [], r["computed"], False
            for p in range(start, r["length"]):
                copy_of = r["table"][-1] if p == start and p % block_size and ref[r["table"][-1]] > 1 else None
                if (copy_of is not None or p // block_size == len(r["table"])) and take(step, name, copy_of) is None:
                    dry = True
                    break
                slots.append(r["table"][p // block_size] * block_size + p % block_size)
            if slots:
                log.append(SlotsWritten(step, name, start, tuple(slots)))
                r["computed"] = start + len(slots)
                new = [b for b in r["table"][: r["computed"] // block_size] if b not in r["stored"] and ref[b] == 1]
                if new:
                    log.append(BlockStored(step, tuple("h" for _ in new), None, (), block_size, tuple(new)))
                    r["stored"] |= set(new)
            if not dry and r["computed"] == r["prompt"] == r["length"] and rng.random() < 0.5 and (child := next(names, None)):
                table = list(r["table"]) if rng.random() < 0.8 else []
                log.append(RequestForked(step, child, name, tuple(table), "n = 2"))
                for block in table:
                    ref[block] += 1
                alive[child] = {**r, "table": table, "computed": r["computed"] if table else 0, "stored": set(r["stored"])}
                if not table:
                    alive[child].update(stored=set(), touched=0)
            if dry:
                log.append(RequestPreempted(step, name, r["length"], "pool dry"))
                release(step, name)
                r.update(computed=0, stored=set(), touched=0)
            elif rng.random() < 0.1:
                log.append(RequestFinished(step, name, "stop", "end of text"))
                release(step, name)
                del alive[name]
            elif r["computed"] == r["length"]:
                log.append(TokenSampled(step, name, r["length"], 1, rng.choice(words)))
                r["length"] += 1
        log.append(StepTimed(step, 1, len(alive), 0.1, 1.0, 0.1))
    return log
