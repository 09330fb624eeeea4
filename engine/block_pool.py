"""Who holds which physical block: reference counts, the free queue, and what freed blocks still remember."""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from engine.config import FreeOrder
from engine.errors import BlockPoolError


@dataclass(frozen=True, slots=True, eq=False)
class BlockContent:
    """What a full block holds, told apart by identity: its tokens, and the content of the block before it.

    Two blocks have equal content exactly if they share this object, so that a hit never rests on a hash alone.
    """

    parent: BlockContent | None
    token_ids: tuple[int, ...]
    block_hash: str


def hash_block(parent_hash: str | None, token_ids: Sequence[int]) -> str:
    """A short name for a block's content: a digest of its tokens chained on its parent's (vLLM's scheme)."""
    digest = hashlib.sha256((parent_hash or "").encode())
    digest.update(b"".join(t.to_bytes(8, "little", signed=True) for t in token_ids))
    return digest.hexdigest()[:16]


class BlockPool:
    """`num_blocks` physical blocks, each either free or referenced by at least one block table.

        allocate             free (ref_cnt 1 -> 0)
        free queue:  [ least recently freed ... most recently freed ]      allocate takes from the left

    A freed block goes to the right end and keeps its content, which `cached_block` finds, until it is taken again.
    `free` takes a sequence's blocks tail first, so that the tail is reused before the head others may share.
    Removal from the middle (a hit on a free block) is O(1): the queue is an OrderedDict.
    """

    def __init__(
        self,
        num_blocks: int,
        free_order: FreeOrder = "ascending",
        seed: int = 0,
        on_removed: Callable[[int, str], None] = lambda block_id, block_hash: None,
    ) -> None:
        order = list(range(num_blocks))
        if free_order == "shuffled":
            random.Random(seed).shuffle(order)
        self.num_blocks = num_blocks
        self.ref_cnt = [0] * num_blocks
        self.content: list[BlockContent | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(order)
        self._by_hash: dict[str, dict[int, None]] = {}
        self._after: dict[BlockContent | None, dict[int, None]] = {}  # parent -> the blocks whose content follows it
        self.on_removed = on_removed

    @property
    def num_free_blocks(self) -> int:
        """Blocks no table names, cached ones included."""
        return len(self._free)

    def free_block_ids(self) -> list[int]:
        """The free queue, next to be taken first."""
        return list(self._free)

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of `block_ids` stand in the free queue: touching them uses those up."""
        return sum(1 for block_id in block_ids if self.ref_cnt[block_id] == 0)

    def allocate(self, num: int) -> list[int]:
        """Takes `num` free blocks, all or none. What they held is forgotten. Raises BlockPoolError when too few are free."""
        if num > len(self._free):
            raise BlockPoolError(f"{num} blocks are needed and {len(self._free)} of {self.num_blocks} are free.")
        block_ids = [self._free.popitem(last=False)[0] for _ in range(num)]
        for block_id in block_ids:
            self._forget(block_id)
            self.ref_cnt[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """One more table names each block; a free one leaves the free queue with its content."""
        for block_id in block_ids:
            if self.ref_cnt[block_id] == 0:
                del self._free[block_id]
            self.ref_cnt[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """One table fewer names each block, in this order (tail of the sequence first).

        Raises BlockPoolError, with nothing changed, if that would free a block more often than it is held.
        """
        spare: dict[int, int] = {}
        for block_id in block_ids:
            spare[block_id] = spare.get(block_id, self.ref_cnt[block_id]) - 1
            if spare[block_id] < 0:
                raise BlockPoolError(f"Block {block_id} is free already; it cannot be freed again.")
        for block_id in block_ids:
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0:
                self._free[block_id] = None

    def store(self, block_id: int, parent: BlockContent | None, token_ids: Sequence[int]) -> BlockContent:
        """Remembers that a full, computed block holds `token_ids` after `parent`, and makes it findable."""
        tokens = tuple(token_ids)
        block_hash = hash_block(parent.block_hash if parent else None, tokens)
        twin = self._find(block_hash, parent, tokens)
        content = self.content[twin] if twin is not None else None
        content = content or BlockContent(parent, tokens, block_hash)
        self.content[block_id] = content
        self._by_hash.setdefault(block_hash, {})[block_id] = None
        self._after.setdefault(parent, {})[block_id] = None
        return content

    def cached_block(self, parent: BlockContent | None, token_ids: Sequence[int]) -> int | None:
        """A block that holds exactly these tokens after exactly this parent, or None. Changes nothing."""
        tokens = tuple(token_ids)
        return self._find(hash_block(parent.block_hash if parent else None, tokens), parent, tokens)

    def closest_block(self, parent: BlockContent | None, token_ids: Sequence[int], limit: int = 64) -> tuple[int, int] | None:
        """(block, how many first tokens it shares) of the likest of the newest `limit` blocks after this parent, or None."""
        best: tuple[int, int] | None = None
        for block_id in islice(reversed(self._after.get(parent, {})), limit):
            content = self.content[block_id]
            pairs = zip(content.token_ids if content else (), token_ids, strict=False)
            num = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if best is None or num > best[1]:
                best = (block_id, num)
        return best

    def cached_blocks(self) -> list[int]:
        """Free blocks whose content can still be hit, next to be reused first."""
        return [block_id for block_id in self._free if self.content[block_id] is not None]

    def hash_index(self) -> dict[str, list[int]]:
        """Block hash -> the blocks filed under it."""
        return {block_hash: list(holders) for block_hash, holders in self._by_hash.items()}

    def clear_cache(self) -> None:
        """Forgets all content. Raises BlockPoolError while any block is in use."""
        used = self.num_blocks - len(self._free)
        if used:
            raise BlockPoolError(f"The prefix cache cannot be reset while {used} blocks are in use; stop the requests first.")
        self.content = [None] * self.num_blocks
        self._by_hash.clear()
        self._after.clear()

    def _find(self, block_hash: str, parent: BlockContent | None, tokens: tuple[int, ...]) -> int | None:
        for block_id in self._by_hash.get(block_hash, ()):
            content = self.content[block_id]
            if content is not None and content.parent is parent and content.token_ids == tokens:
                return block_id
        return None

    def _forget(self, block_id: int) -> None:
        content = self.content[block_id]
        if content is None:
            return
        self.content[block_id] = None
        holders = self._by_hash[content.block_hash]
        del holders[block_id]
        if not holders:
            del self._by_hash[content.block_hash]
        followers = self._after[content.parent]
        del followers[block_id]
        if not followers:
            del self._after[content.parent]
        self.on_removed(block_id, content.block_hash)
