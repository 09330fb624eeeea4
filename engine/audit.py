"""The books of the cache, checked on one page. A failure is a bug in the engine, never in the input."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.errors import AuditError
from engine.request import Request, RequestStatus

if TYPE_CHECKING:
    from engine.engine import Engine


def audit(engine: Engine) -> None:
    """Raises AuditError at the first thing that does not hold. Valid between any two steps."""
    scheduler, pool, state = engine.scheduler, engine.scheduler.pool, engine.trace.latest
    size = engine.config.block_size
    requests = [engine.requests[request_id] for request_id in engine.requests]

    free = pool.free_block_ids()
    if len(set(free)) != len(free):
        raise AuditError("A block stands twice in the free queue.")
    used = {block_id for block_id, count in enumerate(pool.ref_cnt) if count > 0}
    if used & set(free) or len(used) + len(free) != pool.num_blocks:
        raise AuditError("Free and used blocks do not partition the pool.")

    named = Counter(block_id for request in requests for block_id in request.block_table.block_ids)
    for block_id, count in enumerate(pool.ref_cnt):
        if named[block_id] != count:
            raise AuditError(f"Block {block_id}: ref_cnt is {count}, and {named[block_id]} tables name it.")

    first_reader: dict[int, tuple[Request, int]] = {}
    for request in requests:
        name, table = request.request_id, request.block_table
        if request.status is not RequestStatus.RUNNING and len(table):
            raise AuditError(f"{name} is {request.status.value} and holds {len(table)} blocks.")
        if request.status is RequestStatus.RUNNING and len(table) != -(-request.num_computed_tokens // size):
            raise AuditError(f"{name}: {len(table)} blocks for {request.num_computed_tokens} tokens with a slot.")
        if len(set(table.block_ids)) != len(table):
            raise AuditError(f"{name}: a block stands twice in the table.")
        if request.num_computed_tokens > request.num_tokens:
            raise AuditError(f"{name}: {request.num_computed_tokens} computed of {request.num_tokens} tokens.")
        for index, block_id in enumerate(table.block_ids):
            other, at = first_reader.setdefault(block_id, (request, index))
            begin, end = index * size, (index + 1) * size
            mine, theirs = (r.token_ids[begin : min(end, r.num_computed_tokens)] for r in (request, other))
            if at != index or mine != theirs:
                raise AuditError(f"Block {block_id}: {other.request_id} and {name} read it for different tokens.")
        for index, content in enumerate(request.block_contents[: len(table)]):
            if pool.content[table[index]] is not content:
                raise AuditError(f"{name}: block {table[index]} holds other content than logical block {index} recorded.")
            if content.token_ids != tuple(request.token_ids[index * size : (index + 1) * size]):
                raise AuditError(f"{name}: logical block {index} is hashed for other tokens.")
        if request.parent_id is not None:
            parent, num = engine.requests.get(request.parent_id), request.num_prompt_tokens
            prompt = parent.token_ids[: parent.num_prompt_tokens] if parent and name in parent.child_ids else None
            if request.token_ids[:num] != prompt:
                raise AuditError(f"{name} is no child of {request.parent_id} with the same prompt.")
    if len(scheduler.running) > engine.config.max_num_seqs:
        raise AuditError(f"{len(scheduler.running)} requests run; max_num_seqs is {engine.config.max_num_seqs}.")
    queued = Counter(r.request_id for r in (*scheduler.waiting, *scheduler.running))
    if queued != Counter(r.request_id for r in requests if r.status is not RequestStatus.FINISHED):
        raise AuditError("The queues do not hold each unfinished request exactly once.")
    for queue, status in ((scheduler.waiting, RequestStatus.WAITING), (scheduler.running, RequestStatus.RUNNING)):
        if [r.request_id for r in queue if r.status is not status]:
            raise AuditError(f"A request in the {status.value} queue has another status.")

    indexed = {(name, block_id) for name, holders in pool.hash_index().items() for block_id in holders}
    held = {(c.block_hash, block_id) for block_id, c in enumerate(pool.content) if c is not None}
    if indexed != held:
        raise AuditError(f"Hash index and block hashes differ on {sorted(indexed ^ held)[:3]}.")

    for what, replayed, live in (
        ("ref_cnt", state.ref_cnt, pool.ref_cnt),
        ("hashes", state.block_hash, [c.block_hash if c else None for c in pool.content]),
        ("tables", [state.requests[r.request_id].block_table for r in requests], [r.block_table.block_ids for r in requests]),
        ("computed", [state.requests[r.request_id].num_computed_tokens for r in requests if r.status is RequestStatus.RUNNING],
         [r.num_computed_tokens for r in requests if r.status is RequestStatus.RUNNING]),
        ("tokens", [state.requests[r.request_id].tokens for r in requests], [r.token_texts for r in requests]),
        ("parents", [state.requests[r.request_id].parent_id for r in requests], [r.parent_id for r in requests]),
        ("status", [state.requests[r.request_id].status for r in requests], [r.status.value for r in requests]),
    ):  # fmt: skip
        if replayed != live:
            raise AuditError(f"Replaying the trace gives other {what} than the live engine has.")
