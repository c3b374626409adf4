"""Every number and truth value of a setting, a study or a mapping of logs: nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.config.base import Section
from pipeline.config.trial import TrialConfig
from studies.definition.schema import Study
from studies.importing.maps import Map

SHAPES: tuple[Callable[[Any], Any], ...] = (
    lambda value: value,
    lambda value: [value],
    lambda value: [value, value],
    lambda value: [[value, value]],
    lambda value: {"a": value},
)
"""A value alone, in lists of one and two, in a list of pairs, and under a name."""
OPEN = (
    "Dimension.values", "Map.seed",
    *(f"{scorer}.settings" for scorer in ("Scorer", "PartConfig", "RewardConfig", "FurtherJudge", "JudgeConfig")),
)  # fmt: skip
"""Fields that take the value of any knob, a number or a name, or the settings of a class of the user's own."""


def sections(base: type[Section]) -> Iterator[type[Section]]:
    for one in base.__subclasses__():
        yield one
        yield from sections(one)


def accepts(section: type[Section], name: str, value: Any) -> bool:
    """Whether a field takes a value, whatever else the section lacks."""
    try:
        section.model_validate({name: value})
    except ValidationError as error:
        return all(fault["loc"][:1] != (name,) for fault in error.errors())
    return True


def taken(values: tuple[Any, ...]) -> dict[str, tuple[type[Section], str, Callable[[Any], Any]]]:
    """The fields that take one of these values, and in which shape."""
    return {
        f"{section.__name__}.{name}": (section, name, shape)
        for section in {*sections(Section)}
        for name in section.model_fields
        for shape in SHAPES
        if f"{section.__name__}.{name}" not in OPEN and any(accepts(section, name, shape(value)) for value in values)
    }


NUMBERS = (1, 2, 0.5, 10)
NUMERIC, SWITCHES = taken(NUMBERS), taken((True,))


def test_all_fields_are_found() -> None:
    assert {TrialConfig, Study, Map} <= {*sections(Section)}
    assert len(NUMERIC) > 120
    assert {"KlConfig.beta", "KlConfig.stages", "Falsifier.threshold", "Study.seeds", "Map.length"} <= {*NUMERIC}
    assert {"AlgorithmConfig.whiten_rewards", "Falsifier.stop"} <= {*SWITCHES}


@pytest.mark.parametrize("field", sorted(NUMERIC))
def test_a_number_is_neither_a_truth_value_nor_a_text(field: str) -> None:
    section, name, shape = NUMERIC[field]
    for value in (True, False, *map(str, NUMBERS), "1e-5", float("nan"), float("inf"), 9e18):
        assert not accepts(section, name, shape(value)), value


@pytest.mark.parametrize("field", sorted(SWITCHES))
def test_a_truth_value_is_neither_a_number_nor_a_text(field: str) -> None:
    section, name, shape = SWITCHES[field]
    for value in (0, 1, "true", "yes", "on", "1"):
        assert not accepts(section, name, shape(value)), value
