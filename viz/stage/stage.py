"""The Stage: one gr.HTML that owns tokens, block table, pool, lookup, usage and events.

`value` is a message bus (see `viz.deltas`), not content: the template never shows it. JavaScript folds the messages
into a mirror of the run and draws from there; `server_functions` answer a lookup's numbers.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from viz.board import Board, defaults_of, plain
from viz.palette import SEQUENCES
from viz.pool import pool_figure
from viz.usage import usage_figure

HERE = Path(__file__).parent


@lru_cache(maxsize=32)
def figures(num_blocks: int, block_size: int) -> dict[str, Any]:
    """The base Plotly figures as JSON values."""
    return {"pool": plain(pool_figure(num_blocks, block_size)), "usage": plain(usage_figure(num_blocks))}


class Stage(Board):
    """See the module. Events: `resync` (the page lost a message), `open_recording` ({"example": id}), `export_run`,
    `import_run`.

    Gradio calls `cls(**kwargs)` again for every property update, so the constructor takes every keyword.
    """

    def __init__(self, value: Any = None, **kwargs: Any) -> None:
        defaults = {**defaults_of(HERE, "stage", "stage"), "actions": [], "palette": list(SEQUENCES)}
        super().__init__(value if value is not None else {"kind": "none"}, **{**defaults, **kwargs})

    def postprocess(self, value: Any) -> Any:
        """Messages that begin a view carry the base figures of their pool."""
        if isinstance(value, dict) and value.get("kind") in ("snapshot", "empty"):
            header = value["header"]
            return {**value, "figures": figures(header["num_blocks"], header["block_size"])}
        return value

    def api_info(self) -> dict[str, Any]:
        return {"type": "object", "description": "A message of the Stage's bus (viz.deltas)."}
