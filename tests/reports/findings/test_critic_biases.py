"""What is made of diagnosed critics: known biases and errors are found, and noise is no error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reports.findings.critic_bias import PlaceBias, critic_biases
from reports.records.load import StudyRecords


def diagnosed(records: StudyRecords, arm: str, seed: int, bias: float, key: str | None = None) -> Path:
    """600 prompts at two places: the truth varies with sd 1, its estimate with sd 0.5 around it, and the critic says
    0.8 of it and `bias` more."""
    numbers = np.random.default_rng(seed)
    truth = numbers.normal(size=1200)
    table = pd.DataFrame(
        {
            "prompt_id": np.tile(np.arange(600), 2),
            "place": np.repeat([0, 4], 600),
            "value": 0.8 * truth + bias,
            "worth": truth + 0.5 * numbers.normal(size=1200),
            "noise": 0.25,
            "prompts": 600,
            "continuations": 4,
            "every": 4,
            "train": key or records.records[arm, seed].stages["train"].key,
        }
    )
    path = records.folder.critic_bias_file(arm, seed)
    path.parent.mkdir(exist_ok=True)
    table.to_parquet(path, index=False)
    return path


@pytest.fixture
def found(records: StudyRecords) -> tuple[PlaceBias, ...]:
    arm, seeds = records.study.baseline, records.numbers
    paths = [diagnosed(records, arm, seed, 0.3) for seed in seeds if (arm, seed) in records.records]
    try:
        return critic_biases(records)
    finally:
        for path in paths:
            path.unlink()


def test_bias_error_and_spread_are_those_that_were_put_in(found: tuple[PlaceBias, ...]) -> None:
    assert [row.place for row in found] == [None, 0, 4]
    for row in found:
        assert row.bias.value == pytest.approx(0.3, abs=0.05)
        assert row.error.value == pytest.approx(0.3**2 + 0.2**2, abs=0.05), "the noise of the worth is left out"
        assert row.spread.value == pytest.approx(1.0, abs=0.1)
        assert row.explained == pytest.approx(1 - 0.13, abs=0.05)
        assert row.bias.low is not None
        assert row.bias.low < 0.3 < (row.bias.high or 0.0)


def test_a_diagnosis_of_another_training_is_left_out(records: StudyRecords) -> None:
    path = diagnosed(records, records.study.baseline, records.numbers[0], 0.3, key="another")
    try:
        assert critic_biases(records) == ()
    finally:
        path.unlink()
