"""Bounds: from the environment, for the two kinds of hosts."""

from __future__ import annotations

import dataclasses

import pytest

from engine.errors import ConfigError
from engine.limits import PUBLIC, Limits, is_public, physical_memory


def test_strangers_get_less_than_oneself() -> None:
    assert Limits.from_environment({}) == Limits()
    assert Limits.from_environment({"PAGEWALK_PUBLIC": "1"}) == Limits.from_environment({"SPACE_ID": "a/b"}) == PUBLIC
    for field in dataclasses.fields(Limits):
        mine, theirs = getattr(Limits(), field.name), getattr(PUBLIC, field.name)
        assert theirs <= mine or mine == 0, field.name


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_every_bound_can_be_set_by_its_variable(field: dataclasses.Field) -> None:
    limits = Limits.from_environment({f"PAGEWALK_{field.name.upper()}": " 7 ", "SPACE_ID": "a/b"})
    assert (
        getattr(limits, field.name) == 7 and dataclasses.replace(limits, **{field.name: getattr(PUBLIC, field.name)}) == PUBLIC
    )


def test_a_variable_that_is_no_number_or_too_small_is_named() -> None:
    with pytest.raises(ConfigError, match="PAGEWALK_MAX_NEW_TOKENS is 'many'; give a number"):
        Limits.from_environment({"PAGEWALK_MAX_NEW_TOKENS": "many"})
    with pytest.raises(ConfigError, match="max_sessions is 0; give 1 or more"):
        Limits.from_environment({"PAGEWALK_MAX_SESSIONS": "0"})


@pytest.mark.parametrize(
    "environment, public",
    [
        ({}, False),
        ({"SPACE_ID": "a/b"}, True),
        ({"PAGEWALK_PUBLIC": "yes"}, True),
        ({"PAGEWALK_PUBLIC": "0", "SPACE_ID": "a/b"}, False),
        ({"PAGEWALK_PUBLIC": ""}, False),
    ],
)
def test_who_is_public(environment: dict[str, str], public: bool) -> None:
    assert is_public(environment) is public


def test_the_budget_is_a_quarter_of_the_machine_unless_it_is_said() -> None:
    assert Limits(memory_mb=300).memory_bytes == 300 << 20
    assert Limits().memory_bytes == max(1 << 30, physical_memory() // 4)
