"""The profile t4-256: it fits a T4, and its comment states what is predicted."""

from __future__ import annotations

import re

import pytest

from pipeline.config.loading import PROFILES, load_config
from pipeline.forecast.advice import Forecast, predict
from studies.console.plan import total_line
from studies.definition.design import cells
from studies.definition.schema import Study, load_study

KEYS = ("train.batch_size", "train.num_epochs", "train.steps", "runtime.micro_batch_size")
ROWS = re.findall(
    r"^# +(\d+) +(\d) +(\d+) +(\d+) +(yes|no) +([\d.]+) +([\d.]+)(.*)$",
    (PROFILES / "t4-256.yaml").read_text("utf-8"),
    re.M,
)
"""Rows of the comment: settings, GiB, hours, and whether that fits."""


def forecast(changes: dict[str, object]) -> Forecast:
    found = predict(load_config("t4-256", changes))
    assert found is not None
    return found


def test_a_seed_takes_what_its_comment_and_the_study_say() -> None:
    """The samples before training are most of what the trials of a seed share."""
    found = forecast({})
    other = dict(found.other_hours)
    own = found.t4_hours + other.pop("evaluate")
    assert sum(other.values()) == pytest.approx(1.5, abs=0.02)
    study = load_study("recipe")
    total = in_all(study)
    assert total == pytest.approx(30.9, abs=0.1)
    assert total == pytest.approx(5 * sum(other.values()) + 10 * own, abs=0.01)
    fewer = forecast({"reward.learned.pairs": 4096}).other_hours
    arms = {"reward": {}, "loss": {"reward.learned.pairs": 4096}}
    apart = in_all(study.model_copy(update={"arms": arms}))
    assert apart == pytest.approx(total + 5 * (fewer["reward"] + fewer["reference"]), abs=0.01), "SFT is shared"


def in_all(study: Study) -> float:
    (total,) = re.findall(r"trials in all: ([\d.]+) h", total_line(study, cells(study, None, {})))
    return float(total)


def test_its_comment_states_what_is_predicted() -> None:
    assert len(ROWS) == 17
    for *numbers, again, gib, hours, fits in ROWS:
        changes = dict(zip(KEYS, map(int, numbers), strict=True)) | {"runtime.gradient_checkpointing": again == "yes"}
        found = forecast(changes)
        assert (f"{found.total_gib:.2f}", f"{found.t4_hours:.2f}", found.fits) == (gib, hours, "fits" in fits)
        assert (load_config("t4-256", changes) == load_config("t4-256")) is fits.endswith("the profile")
