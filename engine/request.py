"""One sequence on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from engine.block_pool import BlockContent
from engine.block_table import BlockTable
from engine.config import SamplingParams
from engine.events import TokenText


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """Tokens, table and progress. There is no prefill or decode phase: `num_computed_tokens` catches up with `token_ids`."""

    request_id: str
    prompt: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    block_table: BlockTable
    token_texts: list[TokenText] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    block_contents: list[BlockContent] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
