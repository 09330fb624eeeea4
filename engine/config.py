"""The engine's settings, checked once, where they enter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import ConfigError

FreeOrder = Literal["shuffled", "ascending"]
Backend = Literal["auto", "triton", "torch", "reference"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and policies of one engine.

    block_size: slots a block. num_blocks: blocks in the pool. max_num_seqs: requests running at once.
    max_num_batched_tokens: tokens one forward pass may compute. max_model_len: longest prompt + output, None: the model's.
    watermark: share of the pool kept free when a waiting request is admitted, while others run.
    free_order: order in which a fresh pool hands out its blocks; "shuffled" (by `seed`) makes the indirection visible.
    capture: keep every token's q, k, v and attention output for exact lookups, up to `capture_bytes` on the model's device.
    """

    block_size: int = 16
    num_blocks: int = 128
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    watermark: float = 0.01
    free_order: FreeOrder = "shuffled"
    attention_backend: Backend = "auto"
    capture: bool = True
    capture_bytes: int = 1 << 30
    seed: int = 0

    def __post_init__(self) -> None:
        _whole("block_size", self.block_size, 1, 1024)
        _whole("num_blocks", self.num_blocks, 1, 1 << 20)
        _whole("max_num_seqs", self.max_num_seqs, 1, 4096)
        _whole("max_num_batched_tokens", self.max_num_batched_tokens, 1, 1 << 20)
        if self.max_model_len is not None:
            _whole("max_model_len", self.max_model_len, 1, 1 << 24)
        _whole("capture_bytes", self.capture_bytes, 0, 1 << 50)
        _whole("seed", self.seed, 0, (1 << 63) - 1)
        if not (_is_real(self.watermark) and 0.0 <= self.watermark < 1.0):
            raise ConfigError(f"watermark is {self.watermark!r}; give a share of the pool from 0 up to, not including, 1.")
        for name in ("enable_prefix_caching", "capture"):
            _flag(name, getattr(self, name))
        if self.free_order not in ("shuffled", "ascending"):
            raise ConfigError(f"free_order is {self.free_order!r}; give 'shuffled' or 'ascending'.")
        if self.attention_backend not in ("auto", "triton", "torch", "reference"):
            raise ConfigError(
                f"attention_backend is {self.attention_backend!r}; give 'auto', 'triton', 'torch' or 'reference'."
            )

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.num_blocks)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    temperature 0 is greedy; top_p, top_k and min_p cut the distribution (1.0, 0 and 0.0 switch them off).
    n: sequences drawn from one prompt, which is computed once: then n - 1 children fork from the request and share its blocks.
    seed makes one request's draws repeatable, child i drawing with seed + i; None draws from the engine's own seed.
    logprobs: log-probabilities of the sampled token and of this many likeliest ones come with each token; 0 switches them off.
    stop: strings that end the output and are not part of it. ignore_eos goes on past the model's end-of-text ids.
    """

    max_tokens: int = 32
    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int = 0

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1, 1 << 24)
        _whole("n", self.n, 1, 256)
        _whole("logprobs", self.logprobs, 0, 20)
        _whole("top_k", self.top_k, 0, 1 << 24)
        if self.seed is not None:
            _whole("seed", self.seed, 0, (1 << 63) - 1)
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _flag("ignore_eos", self.ignore_eos)
        if not isinstance(self.stop, list) or not all(isinstance(s, str) and s for s in self.stop):
            raise ConfigError(f"stop is {self.stop!r}; give a list of strings, none of them empty.")
        if not isinstance(self.stop_token_ids, list) or not all(type(t) is int and t >= 0 for t in self.stop_token_ids):
            raise ConfigError(f"stop_token_ids is {self.stop_token_ids!r}; give a list of token ids.")


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; give True or False.")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}; give a whole number from {low:,} to {high:,}.")


def _real(name: str, value: float, low: float, high: float, low_open: bool = False) -> None:
    if not _is_real(value) or not low <= value <= high or (low_open and value == low):
        words = f"above {low:g} and up to {high:g}" if low_open else f"from {low:g} to {high:g}"
        raise ConfigError(f"{name} is {value!r}; give a number {words}.")
