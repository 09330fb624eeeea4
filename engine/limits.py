"""What one process grants its visitors, each bound with the sentence that refuses what exceeds it.

On a computer of one's own the bounds keep the machine alive; on a public host (a Space, or PAGEWALK_PUBLIC=1) they also keep it
fair. Every field may be set by an environment variable: `max_new_tokens` by PAGEWALK_MAX_NEW_TOKENS, and so on.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig, SamplingParams
from engine.errors import ConfigError, RequestError

MIB = 1 << 20
_MAY_BE_ZERO = {"memory_mb", "max_capture_mb", "max_waiting", "requests_per_minute"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one process's visitors; the defaults are those of a computer of one's own.

    A run: max_prompt_chars of one prompt, max_prompt_tokens and max_new_tokens of one sequence, max_sequences in all (prompts
    times n), max_pool_mb and max_blocks of its pool, max_capture_mb of captured vectors.
    The host: memory_mb for all pools and captures together (0: a quarter of the machine's memory, 1 GiB at least), max_sessions
    open at once, max_running that share the forward passes, max_waiting in the queue behind them, turn_seconds of compute
    before a run makes room for one that waits, idle_seconds and closed_seconds until a session is forgotten (not seen; its page
    closed), requests_per_minute from one address (0: any number), max_upload_mb of one file.
    """

    max_prompt_chars: int = 1_000_000
    max_prompt_tokens: int = 131_072
    max_new_tokens: int = 131_072
    max_sequences: int = 256
    max_pool_mb: int = 8192
    max_blocks: int = 262_144
    max_capture_mb: int = 1024
    memory_mb: int = 0
    max_sessions: int = 64
    max_running: int = 12
    max_waiting: int = 32
    turn_seconds: float = 1.0
    idle_seconds: float = 1800.0
    closed_seconds: float = 30.0
    requests_per_minute: int = 0
    max_upload_mb: int = 256

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 0 if field.name in _MAY_BE_ZERO else 1e-3 if field.type == "float" else 1
            if value < least:
                raise ConfigError(f"{field.name} is {value}; give {least:g} or more.")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Limits:
        """The defaults of this kind of host, changed by PAGEWALK_* variables. ConfigError names one that is no number."""
        environment = os.environ if environment is None else environment
        limits = PUBLIC if is_public(environment) else cls()
        changes: dict[str, float] = {}
        for field in dataclasses.fields(cls):
            variable = f"PAGEWALK_{field.name.upper()}"
            text = environment.get(variable, "").strip()
            if text:
                try:
                    changes[field.name] = int(text) if field.type == "int" else float(text)
                except ValueError:
                    raise ConfigError(f"{variable} is {text!r}; give a number.") from None
        return dataclasses.replace(limits, **changes)  # type: ignore[arg-type]

    @property
    def memory_bytes(self) -> int:
        """For the pools and captures of all sessions together."""
        return self.memory_mb * MIB if self.memory_mb else max(1024 * MIB, physical_memory() // 4)

    def check_run(self, prompts: Sequence[str], params: SamplingParams) -> None:
        """Raises RequestError, naming the number and the remedy, if the run asks for more than it may."""
        for prompt in prompts:
            if len(prompt) > self.max_prompt_chars:
                raise RequestError(
                    f"The prompt has {len(prompt):,} characters; this host takes {self.max_prompt_chars:,}. Shorten it."
                )
        if params.max_tokens > self.max_new_tokens:
            raise RequestError(
                f"{params.max_tokens:,} new tokens were asked for; this host gives {self.max_new_tokens:,} at most."
            )
        if len(prompts) * params.n > self.max_sequences:
            raise RequestError(
                f"{len(prompts)} x {params.n} sequences were asked for; this host runs {self.max_sequences} at once. "
                "Use fewer prompts or fewer sequences a prompt."
            )

    def check_prompt_tokens(self, num_tokens: int) -> None:
        if num_tokens > self.max_prompt_tokens:
            raise RequestError(f"The prompt has {num_tokens:,} tokens; this host takes {self.max_prompt_tokens:,}. Shorten it.")

    def check_pool(self, config: EngineConfig, slot_bytes: int) -> int:
        """Bytes of the pool that `config` asks for, `slot_bytes` being K and V of one slot in every layer."""
        num_bytes = config.num_slots * slot_bytes
        if config.num_blocks > self.max_blocks:
            raise RequestError(
                f"A pool of {config.num_blocks:,} blocks was asked for; this host gives {self.max_blocks:,} at most."
            )
        if num_bytes > self.max_pool_mb * MIB:
            raise RequestError(
                f"A pool of {config.num_blocks:,} blocks x {config.block_size:,} takes {num_bytes / MIB:,.0f} MiB; "
                f"this host gives {self.max_pool_mb:,} MiB at most. Use fewer or smaller blocks."
            )
        return num_bytes


PUBLIC = Limits(
    max_prompt_chars=20_000,
    max_prompt_tokens=4096,
    max_new_tokens=512,
    max_sequences=16,
    max_pool_mb=512,
    max_blocks=16_384,
    max_capture_mb=256,
    idle_seconds=900.0,
    requests_per_minute=600,
    max_upload_mb=32,
)


def is_public(environment: Mapping[str, str] | None = None) -> bool:
    """Whether strangers use this process: in a Hugging Face Space, or where PAGEWALK_PUBLIC says so."""
    environment = os.environ if environment is None else environment
    said = environment.get("PAGEWALK_PUBLIC", "").strip().lower()
    return said in ("1", "true", "yes", "on") if said else bool(environment.get("SPACE_ID"))


def physical_memory() -> int:
    """Bytes this process may use: the machine's, or the container's share of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [8 << 30]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(file).read_text()))
        except (OSError, ValueError):
            continue
    return min(found)
