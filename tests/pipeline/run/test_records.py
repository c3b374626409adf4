"""Records of trials on disk: read as written, and with former names as those of today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.trial import TrialConfig
from pipeline.errors import Damaged
from pipeline.run.layout import read_record, sealed

STAGE = {"key": "k", "path": "store/ppo/k", "digest": "d"}
OLD: dict[str, Any] = {
    "study": "s",
    "profile": "tiny",
    "arm": "a",
    "seed": 0,
    "config": {"profile": "tiny", "ppo": {"steps": 32, "lr_guard": True, "critic": "separate"}, "evaluate": {}},
    "config_digest": "0",
    "status": "complete",
    "steps": 32,
    "stages": {"sft": {**STAGE, "path": "store/sft/k"}, "ppo": STAGE},
    "summary": {},
    "cost": {},
    "environment": {},
    "finished": "2026-01-01T00:00:00+00:00",
}


def test_a_record_with_former_names_is_read_with_those_of_today(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(sealed(OLD))
    record = read_record(tmp_path / "a.json")
    assert record.stages["train"].path == "store/ppo/k", "the artifact stays where it is"
    config = TrialConfig.model_validate(record.config)
    assert (config.train.steps, config.optimiser.guard, config.critic.kind) == (32, True, "separate")
    assert record.config_digest == config.digest()
    assert record.ends == {}


@pytest.mark.parametrize("config", [{"ppo": "x"}, {"ppo": {"steps": "many"}}, {"train": "x", "ppo": {"steps": 32}}])
def test_a_record_whose_former_configuration_makes_no_sense_is_damaged(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "a.json").write_text(sealed({**OLD, "config": config}))
    with pytest.raises(Damaged):
        read_record(tmp_path / "a.json")


def test_a_record_of_an_unknown_version_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(sealed({**OLD, "mood": "good"}))
    with pytest.raises(Damaged, match="mood: Extra inputs are not permitted"):
        read_record(tmp_path / "a.json")
