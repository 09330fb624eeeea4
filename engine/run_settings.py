"""Everything a run depends on, in one value: what the page's controls make, what a scenario names, what two runs compare."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import EngineConfig, SamplingParams
from engine.errors import ConfigError

MAX_STAGGER = 10_000


@dataclass(frozen=True, slots=True)
class RunSettings:
    """stagger: forward passes between the arrivals of two prompts; 0: all wait from the start.

    A prompt whose time has not come joins early where nothing else is left to compute.
    """

    prompts: tuple[str, ...]
    config: EngineConfig = field(default_factory=EngineConfig)
    params: SamplingParams = field(default_factory=SamplingParams)
    chat: bool = False
    stagger: int = 0

    def __post_init__(self) -> None:
        if type(self.stagger) is not int or not 0 <= self.stagger <= MAX_STAGGER:
            raise ConfigError(f"The steps between prompts are {self.stagger!r}; give a whole number from 0 to {MAX_STAGGER:,}.")
