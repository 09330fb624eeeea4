"""Why the scheduler did something: the sentences that its events carry. The numbers come in, nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence


def block_starts(position: int, block_size: int) -> str:
    """Why a block was taken."""
    return f"token {position} starts logical block {position // block_size} ({position} % {block_size} = 0)"


def prefix_hit(num_cached: int, num_tokens: int, num_blocks: int) -> str:
    blocks = "1 full block" if num_blocks == 1 else f"{num_blocks} full blocks"
    return f"the first {num_cached} of {num_tokens} tokens are in the pool, in {blocks}"


def prefix_miss(logical_index: int, block_size: int, closest: int | None, num_shared: int, evicted_step: int | None) -> str:
    """closest: the block that shares the most first tokens, `num_shared`, with the one looked for."""
    first = logical_index * block_size
    last = first + block_size - 1
    if evicted_step is not None:
        return f"the block that held tokens {first} to {last} was evicted at step {evicted_step}"
    if closest is not None and num_shared:
        shared = f"only {num_shared} of {block_size} tokens shared with block {closest}"
        return f"block {logical_index} differs at token {first + num_shared}: {shared}"
    return f"no block holds tokens {first} to {last} after the same beginning"


def block_evicted(needing: str) -> str:
    return f"least recently used of the cached blocks; {needing} needs a block"


def forked(num_sequences: int, block_ids: Sequence[int], ref_counts: set[int]) -> str:
    """ref_counts: those of the blocks now that one more sequence reads them."""
    who = "both" if num_sequences == 2 else "all"
    rise = f"to {next(iter(ref_counts))}" if len(ref_counts) == 1 else "by 1"
    return f"n = {num_sequences}, {who} read {_blocks(block_ids)}; reference counts rise {rise}"


def fork_waits(child: str, num_sequences: int, seats: tuple[int, int], blocks: tuple[int, int]) -> str:
    """seats, blocks: (wanted, free)."""
    (wanted, free), what = (seats, "seats") if seats[0] > seats[1] else (blocks, "blocks")
    wants = f"wants {wanted} more {what} of which {free} are free"
    return f"n = {num_sequences} {wants}; {child} waits and will compute the prompt itself"


def block_copied(position: int, readers: Sequence[str], num_slots: int) -> str:
    """readers: who still reads the block that `position` would have been written into."""
    names = readers[0] if len(readers) == 1 else f"{', '.join(readers[:-1])} and {readers[-1]}"
    read, slots = ("reads" if len(readers) == 1 else "read"), ("slot" if num_slots == 1 else "slots")
    return f"token {position} lands in a part-filled block that {names} still {read}; {num_slots} {slots} copied"


def preempted(
    victim: str, num_running: int, num_blocks: int, num_shared: int, num_tokens: int, needing: str, position: int, copies: bool
) -> str:
    """num_blocks: what the victim gives back, besides num_shared that others read. copies: the block is to be a copy."""
    what = "a copy of a block" if copies else "a block"
    stay = f"{num_shared} more stay with others, " if num_shared else ""
    return (
        f"the pool is dry: {needing} needs {what} for token {position}; {victim} is the youngest of {num_running} running "
        f"and gives {num_blocks} blocks back, {stay}{num_tokens} tokens to recompute"
    )


def _blocks(block_ids: Sequence[int]) -> str:
    head = ", ".join(map(str, block_ids[:3]))
    if len(block_ids) == 1:
        return f"block {head}"
    return f"blocks {', '.join(map(str, block_ids))}" if len(block_ids) <= 4 else f"blocks {head} … {block_ids[-1]}"
