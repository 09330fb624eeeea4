"""Settings out of range are refused in a sentence with the numbers."""

from __future__ import annotations

import dataclasses
import math

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import ConfigError, PagewalkError


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"block_size": 0}, "block_size is 0; give a whole number from 1 to 1,024."),
        ({"block_size": 2048}, "block_size is 2048; give a whole number from 1 to 1,024."),
        ({"block_size": 16.0}, "block_size is 16.0; give a whole number from 1 to 1,024."),
        ({"block_size": True}, "block_size is True; give a whole number from 1 to 1,024."),
        ({"block_size": "16"}, "block_size is '16'; give a whole number from 1 to 1,024."),
        ({"num_blocks": 0}, "num_blocks is 0; give a whole number from 1 to 1,048,576."),
        ({"num_blocks": -5}, "num_blocks is -5; give a whole number from 1 to 1,048,576."),
        ({"num_blocks": 10**30}, f"num_blocks is {10**30}; give a whole number from 1 to 1,048,576."),
        ({"num_blocks": None}, "num_blocks is None; give a whole number from 1 to 1,048,576."),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; give a whole number from 1 to 4,096."),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0; give a whole number from 1 to 1,048,576."),
        ({"max_model_len": 0}, "max_model_len is 0; give a whole number from 1 to 16,777,216."),
        ({"watermark": 1.0}, "watermark is 1.0; give a share of the pool from 0 up to, not including, 1."),
        ({"watermark": -0.1}, "watermark is -0.1; give a share"),
        ({"watermark": math.nan}, "watermark is nan; give a share"),
        ({"watermark": "0.1"}, "watermark is '0.1'; give a share"),
        ({"free_order": "random"}, "free_order is 'random'; give 'shuffled' or 'ascending'."),
        ({"attention_backend": "flash"}, "attention_backend is 'flash'; give 'auto', 'triton', 'torch' or 'reference'."),
        ({"capture_bytes": -1}, "capture_bytes is -1; give a whole number from 0 to"),
        ({"capture": "no"}, "capture is 'no'; give True or False."),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching is 1; give True or False."),
        ({"seed": -1}, "seed is -1; give a whole number from 0 to"),
    ],
)
def test_an_absurd_engine_setting_is_refused_with_the_numbers(settings, words):
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**settings)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"max_tokens": 0}, "max_tokens is 0; give a whole number from 1 to 16,777,216."),  # E3
        ({"max_tokens": -3}, "max_tokens is -3; give a whole number from 1 to 16,777,216."),
        ({"max_tokens": 10**18}, f"max_tokens is {10**18}; give a whole number from 1 to 16,777,216."),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; give a whole number"),
        ({"temperature": -1.0}, "temperature is -1.0; give a number from 0 to 100."),
        ({"temperature": math.inf}, "temperature is inf; give a number from 0 to 100."),
        ({"temperature": math.nan}, "temperature is nan; give a number from 0 to 100."),
        ({"temperature": None}, "temperature is None; give a number from 0 to 100."),
        ({"top_p": 0.0}, "top_p is 0.0; give a number above 0 and up to 1."),
        ({"top_p": 1.1}, "top_p is 1.1; give a number above 0 and up to 1."),
        ({"top_k": -1}, "top_k is -1; give a whole number from 0 to"),
        ({"min_p": 2.0}, "min_p is 2.0; give a number from 0 to 1."),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; give a number from 0.01 to 100."),
        ({"repetition_penalty": 1e-300}, "repetition_penalty is 1e-300; give a number from 0.01 to 100."),
        ({"seed": -1}, "seed is -1; give a whole number from 0 to"),
        ({"seed": 1 << 63}, f"seed is {1 << 63}; give a whole number from 0 to"),
        ({"stop": "END"}, "stop is 'END'; give a list of strings, none of them empty."),
        ({"stop": [""]}, "stop is ['']; give a list of strings, none of them empty."),
        ({"stop": [3]}, "stop is [3]; give a list of strings, none of them empty."),
        ({"stop_token_ids": [-1]}, "stop_token_ids is [-1]; give a list of token ids."),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; give a list of token ids."),
        ({"stop_token_ids": "12"}, "stop_token_ids is '12'; give a list of token ids."),
        ({"ignore_eos": "yes"}, "ignore_eos is 'yes'; give True or False."),
    ],
)
def test_an_absurd_sampling_setting_is_refused_with_the_numbers(settings, words):
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**settings)
    assert str(caught.value).startswith(words)


def test_every_engine_setting_is_held_to_its_type():
    for field in dataclasses.fields(EngineConfig):
        with pytest.raises(ConfigError, match=field.name):
            EngineConfig(**{field.name: object()})


def test_every_sampling_setting_is_held_to_its_type():
    for field in dataclasses.fields(SamplingParams):
        with pytest.raises(ConfigError, match=field.name):
            SamplingParams(**{field.name: object()})


def test_a_config_error_can_be_shown_on_the_page_and_caught_as_a_value_error():
    assert issubclass(ConfigError, PagewalkError)
    assert issubclass(ConfigError, ValueError)


def test_the_watermark_is_a_share_of_the_pool_in_whole_blocks():
    assert [
        EngineConfig(num_blocks=n, watermark=w).watermark_blocks for n, w in ((6, 0.5), (128, 0.01), (10, 0.0), (1, 0.99))
    ] == [3, 1, 0, 0]


def test_the_smallest_settings_are_allowed():
    config = EngineConfig(
        block_size=1, num_blocks=1, max_num_seqs=1, max_num_batched_tokens=1, max_model_len=1, capture_bytes=0
    )
    assert config.num_slots == 1


def test_a_pool_that_no_memory_holds_is_refused_with_its_size(tiny):
    with pytest.raises(
        ConfigError, match=r"A pool of 1,048,576 blocks of 1024 takes 512\.0 GiB, which cpu cannot give\. Use fewer"
    ):
        Engine(tiny, EngineConfig(block_size=1024, num_blocks=1 << 20))


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().block_size = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().max_tokens = 3
