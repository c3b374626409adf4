"""Records of trials on disk: read as written, and with former names as those of today."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
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


@pytest.mark.parametrize("name", ["ppo", "a_star_po"])
def test_a_record_from_before_groups_of_tokens_is_of_todays_configuration(tmp_path: Path, name: str) -> None:
    today = load_config("smoke", {"algorithm": name})
    content = today.model_dump(mode="json")
    del content["kl"]["group"], content["kl"]["group_credit"]
    if name == "a_star_po":
        content["kl"]["loss_estimator"] = "sequence_k2"
    (tmp_path / "a.json").write_text(sealed({**OLD, "stages": {"train": STAGE}, "config": content}))
    record = read_record(tmp_path / "a.json")
    assert record.config == today.model_dump(mode="json")
    assert record.config_digest == today.digest()


def test_a_record_from_before_a_knob_of_the_evaluation_is_of_todays_configuration(tmp_path: Path) -> None:
    today = load_config("smoke")
    content = today.model_dump(mode="json")
    del content["evaluate"]["texts"]
    (tmp_path / "a.json").write_text(sealed({**OLD, "stages": {"train": STAGE}, "config": content}))
    record = read_record(tmp_path / "a.json")
    assert (record.config, record.config_digest) == (today.model_dump(mode="json"), today.digest())
    content["evaluate"]["texts"] = 5
    (tmp_path / "a.json").write_text(sealed({**OLD, "stages": {"train": STAGE}, "config": content}))
    assert read_record(tmp_path / "a.json").config_digest == OLD["config_digest"], "one of today is left as it is"


def test_a_record_from_before_the_knobs_of_an_algorithm_is_of_todays_configuration(tmp_path: Path) -> None:
    """Its digest is that of the configuration which does the same, so that reports still read it."""
    for name in ("ppo", "rloo"):
        today = load_config("smoke", {"algorithm": name})
        content = today.model_dump(mode="json")
        for key in ("advantage", "ratio", "trust_region", "aggregation", "cliprange_high", "ratio_cap"):
            del content["algorithm"][key]
        content["kl"] |= {"place": "reward"}
        del content["kl"]["reward_estimator"], content["train"]["overlong_share"], content["train"]["overlong_penalty"]
        (tmp_path / "a.json").write_text(sealed({**OLD, "stages": {"train": STAGE}, "config": content}))
        record = read_record(tmp_path / "a.json")
        assert record.config == today.model_dump(mode="json")
        assert record.config_digest == today.digest()


@pytest.mark.parametrize("coef", [0.0, 0.02])
def test_a_record_from_before_the_section_of_the_bonus_is_of_todays_configuration(tmp_path: Path, coef: float) -> None:
    today = load_config("smoke", {"entropy.coef": coef}).model_dump(mode="json")
    old = {section: content for section, content in today.items() if section != "entropy"}
    old["algorithm"] = {**old["algorithm"], "ent_coef": coef}
    (tmp_path / "a.json").write_text(sealed({**OLD, "stages": {"train": STAGE}, "config": old}))
    record = read_record(tmp_path / "a.json")
    assert record.config == today
    assert record.config_digest == load_config("smoke", {"entropy.coef": coef}).digest()


@pytest.mark.parametrize("source", ["local", "builtin"])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_record_from_before_the_guarded_judge_names_the_lexicon(tmp_path: Path, source: str, guarded: bool) -> None:
    config = load_config("smoke", {"data.source": "local", "data.path": "reviews.csv"} if source == "local" else {})
    stages = dict.fromkeys(("prompts", "reward", *(["judge"] * guarded)), STAGE)
    whole = {**OLD, "config": config.model_dump(mode="json"), "config_digest": config.digest(), "stages": stages}
    (tmp_path / "a.json").write_text(sealed(whole))
    record = read_record(tmp_path / "a.json")
    older = source == "local" and not guarded
    assert record.config["judge"]["kind"] == ("lexicon" if older else "auto")
    assert (record.config_digest != config.digest()) is older, "judged otherwise, so no result of today's configuration"
    assert record.config_digest == TrialConfig.model_validate(record.config).digest()


def test_a_pipe_in_the_place_of_a_record_is_damaged(tmp_path: Path) -> None:
    """To open it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(Damaged, match="it is a pipe"):
        read_record(tmp_path / "x.json")
