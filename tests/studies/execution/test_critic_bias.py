"""The diagnosis of critics: what it writes of a stored trial, and what it leaves alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from smoke_record import artifacts, recorded
from tinytrial import preset

from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError
from pipeline.run.layout import Layout
from pipeline.run.store import Artifact
from pipeline.stages.critic_bias import COLUMNS, Replaying, critic_bias
from studies.execution.critic_bias import NEEDED, diagnose

HOW = Replaying(prompts=6, continuations=3, every=4)


def test_every_state_of_a_stored_trial_has_a_value_and_a_worth(smoke_layout: Layout) -> None:
    record = recorded(smoke_layout)
    folder, said = smoke_layout.study("demo", "smoke"), list[str]()
    (path,) = diagnose(folder, HOW, said.append)
    table = pd.read_parquet(path)
    assert list(table.columns) == [*COLUMNS, "prompts", "continuations", "every", "train"]
    assert set(table["prompt_id"]) == set(range(6))
    assert (table["place"] % 4 == 0).all()
    assert table.groupby("prompt_id")["place"].min().eq(0).all()
    assert (table["noise"] >= 0).all()
    assert set(table["train"]) == {record.stages["train"].key}
    assert said == ["base seed 0: diagnosed (1 of 1 trials, about 0 s left)"]

    before = path.stat().st_mtime_ns
    diagnose(folder, HOW, said.append)
    assert path.stat().st_mtime_ns == before
    assert said[-1].startswith("base seed 0: kept")
    diagnose(folder, Replaying(prompts=6, continuations=2, every=4), said.append)
    assert path.stat().st_mtime_ns != before, "other settings are another diagnosis"


def test_states_within_a_group_of_tokens_owe_what_it_has_not_paid(smoke_layout: Layout) -> None:
    """From the prompt on k1 costs the same whoever pays; within a sentence whose last token pays, more is to come."""
    record = recorded(smoke_layout)
    config, needed = TrialConfig.model_validate(record.config), artifacts(smoke_layout, record, NEEDED)
    last = {"group": "sentence", "group_credit": "last"}
    grouped = config.model_copy(update={"kl": config.kl.model_copy(update=last)})
    plain, owing = (critic_bias(cfg, HOW, **needed) for cfg in (config, grouped))
    at_once = (plain["place"] == 0).to_numpy()
    apart = (owing["worth"] - plain["worth"]).abs().to_numpy()
    assert apart[at_once].max() < 1e-5
    assert apart[~at_once].max() > 1e-4


def test_the_values_are_those_of_the_stored_critic(smoke_layout: Layout, tmp_path: Path) -> None:
    """A constant on top of the value head moves all values by it, and no worth."""
    record = recorded(smoke_layout)
    config = TrialConfig.model_validate(record.config)
    needed = artifacts(smoke_layout, record, NEEDED)
    plain = critic_bias(config, HOW, **needed)
    moved = tmp_path / "train"
    shutil.copytree(needed["train"].path, moved)
    tensors = load_file(moved / "critic.safetensors")
    tensors["value_head.bias"] = tensors["value_head.bias"] + 0.75
    save_file(tensors, moved / "critic.safetensors")
    shifted = critic_bias(config, HOW, **{**needed, "train": Artifact("train", "k", moved, "d")})
    np.testing.assert_allclose(shifted["value"] - plain["value"], 0.75, atol=1e-5)
    pd.testing.assert_frame_equal(shifted.drop(columns="value"), plain.drop(columns="value"))


def test_beta_is_that_of_the_end_and_bad_requests_are_refused(
    smoke_layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(smoke_layout)
    config, needed = TrialConfig.model_validate(record.config), artifacts(smoke_layout, record, NEEDED)
    plain = critic_bias(config, HOW, **needed)
    monkeypatch.setattr("pipeline.stages.critic_bias._last", lambda train, series: 100.0)
    assert critic_bias(config, HOW, **needed)["worth"].mean() < plain["worth"].mean()
    with pytest.raises(UserError, match=f"only {config.evaluate.prompts} were evaluated"):
        critic_bias(config, Replaying(10_000, 2, 4), **needed)
    whitened = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"whiten_rewards": True})})
    with pytest.raises(UserError, match="other units"):
        critic_bias(whitened, HOW, **needed)


def test_a_part_with_a_floor_has_the_weight_that_it_had_at_the_end(smoke_layout: Layout) -> None:
    two = {"ours": {"kind": "learned"}, "theirs": {"kind": "grammar", "weight": 0.0}}
    held = {"floor__part": "theirs", "floor__weight": 3.0, "floor__lr": 1e-9}
    record = recorded(smoke_layout, study="floor", reward__kind="composite", reward__parts=two, **held)
    needed = artifacts(smoke_layout, record, NEEDED)

    def worth(part: str | None) -> np.ndarray[Any, Any]:
        changed = TrialConfig.model_validate({**record.config, "floor": {**record.config["floor"], "part": part}})
        return critic_bias(changed, HOW, **needed)["worth"].to_numpy()

    np.testing.assert_allclose(worth("ours"), worth(None), atol=1e-5, err_msg="the reward is this part alone")
    assert np.abs(worth("theirs") - worth(None)).max() > 0.1


def test_a_study_without_critics_is_refused(smoke_layout: Layout) -> None:
    recorded(smoke_layout, study="free", **preset("rloo"))
    with pytest.raises(UserError, match="no finished trial has a critic"):
        diagnose(smoke_layout.study("free", "smoke"), HOW, lambda line: None)
