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


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one output position, before temperature, cuts and penalties.

    top: (token id, log-probability) of the likeliest tokens, best first; the sampled one need not be among them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(eq=False)
class Request:
    """Tokens, table and progress. There is no prefill or decode phase: `num_computed_tokens` catches up with `token_ids`.

    A request with `params.n` > 1 has n - 1 children once its prompt is computed; each child is a request of its own.
    """

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
    parent_id: str | None = None
    child_ids: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
