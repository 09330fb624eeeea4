"""Choosing the next token, with transformers' own logits processors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.config import SamplingParams
from engine.request import Request, TokenLogprobs

_GREEDY_BELOW = 1e-4
"""A lower temperature draws the best token anyway, and dividing by it overflows."""
_LEAST_PARTS, _MOST_PARTS, _SHORTEST_PART = 64, 512, 64
"""Of a vocabulary, in `best_tokens`: 128,256 is 501 parts of 256, 151,936 is 128 of 1,187."""


class Sampler:
    """One generator a request, so that a request's draws depend on its seed alone and not on its batch mates."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[str, torch.Generator] = {}
        self._processors: dict[str, LogitsProcessorList] = {}

    def sample(
        self, logits: torch.Tensor, requests: list[Request], best: Sequence[int | None] | None = None
    ) -> list[int | None]:
        """logits [len(requests), vocab], any float dtype; returns one token id a request, None where no choice is possible:

        a logit is NaN or +inf, or all are -inf. best: the likeliest token of each, None likewise, where it is known already.
        """
        chosen = list(likeliest(best_tokens(logits)) if best is None else best)
        drawn: dict[int, torch.Tensor] = {}
        for row, request in enumerate(requests):
            if chosen[row] is not None and not _is_greedy(request.params):
                drawn[row] = self._draw(logits[row : row + 1], request)
        if drawn:
            for row, token_id in zip(drawn, torch.stack(list(drawn.values())).tolist(), strict=True):  # one wait for all
                chosen[row] = token_id
        return chosen

    def forget(self, request_id: str) -> None:
        self._generators.pop(request_id, None)
        self._processors.pop(request_id, None)

    def _draw(self, logits: torch.Tensor, request: Request) -> torch.Tensor:
        """A token id, [] int64 on the device of the logits; nothing waits for it."""
        params, key = request.params, request.request_id
        if key not in self._processors:
            self._processors[key] = processors_for(params)
        penalised = request.token_ids if params.repetition_penalty != 1.0 else []
        seen = torch.tensor([penalised], dtype=torch.int64, device=logits.device)
        scores = self._processors[key](seen, logits.float())[0]
        if params.temperature < _GREEDY_BELOW:
            return scores.argmax()
        if key not in self._generators:
            seed = params.seed if params.seed is not None else self._seed + _letters_to_number(key)
            self._generators[key] = torch.Generator(logits.device).manual_seed(seed)
        generator = self._generators[key]
        if logits.device.type == "cpu":
            return torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)[0]
        # multinomial would wait for the device; dividing by exponential draws and taking the largest has the same distribution
        return scores.softmax(dim=-1).div_(torch.empty_like(scores).exponential_(generator=generator)).argmax()


def best_tokens(logits: torch.Tensor) -> torch.Tensor:
    """[2, n] int64 on the device of logits [n, vocab]: the best token of each row, and 1 where its logit is finite.

    NaN counts as the largest, and of equals the first is taken. In two stages where the vocabulary divides into parts: a
    reduction runs a row in one block of a GPU, or in a few, and so leaves most of it idle when the rows are few.
    """
    parts = _parts_of(logits.shape[1])
    if parts == 1:
        value, best = logits.max(dim=-1)
    else:
        values, places = logits.unflatten(1, (parts, -1)).max(dim=-1)
        value, part = values.max(dim=-1)
        best = part * (logits.shape[1] // parts) + places.gather(1, part[:, None])[:, 0]
    return torch.stack((best, value.isfinite().long()))


@lru_cache
def _parts_of(vocab: int) -> int:
    """The most equal parts, 512 at most, in which a vocabulary can be searched; 1 where those are too few or too short."""
    most = min(_MOST_PARTS, vocab // _SHORTEST_PART)
    parts = max((n for n in range(1, most + 1) if vocab % n == 0), default=1)
    return parts if parts >= _LEAST_PARTS else 1


def likeliest(best: torch.Tensor) -> list[int | None]:
    """What `best_tokens` found, for the host: None where the best logit is not finite. Waits for the device."""
    token_ids, finite = best.tolist()
    return [token_id if ok else None for token_id, ok in zip(token_ids, finite, strict=True)]


def logprobs_of(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """logits [vocab], as the model gave them (vLLM's default, "raw_logprobs"); log-softmax in float32."""
    scores = logits.float().log_softmax(dim=-1)
    best = scores.topk(min(num_top, len(scores)))
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return TokenLogprobs(token_id, float(scores[token_id]), top)


def processors_for(params: SamplingParams) -> LogitsProcessorList:
    """In transformers' order: penalty, temperature, top-k, top-p, min-p; only those that do something."""
    chosen = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        chosen.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature >= _GREEDY_BELOW:
        if params.temperature != 1.0:
            chosen.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k > 0:
            chosen.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1.0:
            chosen.append(TopPLogitsWarper(params.top_p))
        if params.min_p > 0.0:
            chosen.append(MinPLogitsWarper(params.min_p))
    return chosen


def _is_greedy(params: SamplingParams) -> bool:
    return params.temperature < _GREEDY_BELOW and params.repetition_penalty == 1.0


def _letters_to_number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 31 + ord(letter)
    return number
