"""On the profile smoke every shipped study is small, and its real sizes are those of its file."""

from __future__ import annotations

import pytest

from studies.definition.checks import shrunk
from studies.definition.design import cells
from studies.definition.schema import load_study, study_names


@pytest.mark.parametrize("name", study_names())
def test_a_study_on_smoke_is_as_small_as_smoke(name: str) -> None:
    for cell in cells(load_study(name), "smoke"):
        config = cell.config
        assert config.train.steps <= 96, "with smoke's 32, three times as many where an arm has more epochs"
        assert config.train.updates <= 16
        assert config.critic.warmup_steps + config.critic.pretraining_steps <= 16
        assert config.reward.pairs <= 512
        assert config.reward.kind != "ocr" or config.evaluate.prompts <= 16


def test_sizes_of_arms_shrink_as_the_steps_of_the_profile_do() -> None:
    own = {"train.steps": 3000, "train.num_epochs": 3, "reward.pairs": 1024, "critic.warmup_steps": 8, "kl.beta": 0.5}
    small = shrunk(own, "tiny")
    assert small == {**own, "train.steps": 48, "reward.pairs": 16}, (
        "3000 / 64, in updates of 6; a warm-up of 8 is small"
    )
    assert shrunk(own, "smoke") == own
    assert shrunk({"evaluate.prompts": 64, "reward.calibration_samples": 4}, "tiny") == {
        "evaluate.prompts": 8,
        "reward.calibration_samples": 4,
    }
