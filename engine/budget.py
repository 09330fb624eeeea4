"""One budget of bytes for the pools and captured vectors of every session together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from engine.errors import RequestError
from engine.limits import MIB


class Budget:
    """Who holds how many bytes. `make_room(num_bytes, owner)`, set by the session store, gives up what idle ones hold.

    An owner that is gone holds nothing.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.make_room: Callable[[int, Any], None] = lambda num_bytes, owner: None
        self._held: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Held by all owners together."""
        with self._lock:
            return sum(self._held.values())

    @property
    def num_owners(self) -> int:
        with self._lock:
            return sum(1 for held in self._held.values() if held)

    def held(self, owner: Any) -> int:
        with self._lock:
            return self._held.get(owner, 0)

    def hold(self, owner: Any, num_bytes: int) -> None:
        """From now on `owner` holds `num_bytes`, instead of what it held. Holding less always succeeds.

        Raises RequestError, with the numbers, if the others hold too much and none of them is idle; then nothing is changed.
        """
        missing = self._try(owner, num_bytes)
        if missing:
            self.make_room(missing, owner)
            missing = self._try(owner, num_bytes)
        if missing:
            others = self.num_bytes - self.held(owner)
            raise RequestError(
                f"This run needs {_mib(num_bytes)} MiB for pool and vectors; {_mib(others)} of the host's {_mib(self.total)} "
                "MiB are in use by others. Use a smaller pool or fewer new tokens, or try again in a minute."
            )

    def _try(self, owner: Any, num_bytes: int) -> int:
        """0 if it is done, else the bytes that are missing."""
        with self._lock:
            before = self._held.get(owner, 0)
            missing = sum(self._held.values()) - before + num_bytes - self.total
            if num_bytes > before and missing > 0:
                return missing
            self._held[owner] = num_bytes
            return 0


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f}"
