from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config import TrialConfig, load_config
from pipeline.errors import UserError
from pipeline.preflight import changed, check_budget, knobs, predict, variants


def t4(**changes: object) -> TrialConfig:
    return load_config("t4", {key.replace("__", "."): value for key, value in changes.items()})


def test_every_shipped_profile_is_predicted_to_fit() -> None:
    for profile in ("smoke", "tiny", "t4"):
        found = predict(load_config(profile))
        assert found is not None
        assert found.fits, profile


def test_a_separate_critic_on_a_t4_is_refused_in_one_line_with_what_would_fit() -> None:
    config = t4(ppo__critic="separate")
    with pytest.raises(UserError) as refused:
        check_budget(config, "full, seed 0")
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith("full, seed 0 cannot fit: ")
    assert "ppo.max_memory_gib = 14.6" in said
    assert "ppo.critic=shared (" in said
    for knob in knobs(config):
        found = predict(changed(config, knob.changes))
        assert found is not None
        assert found.fits
        assert f"({found.total_gib:.1f} GiB, {found.t4_hours:.2f} h)" in str(knob)


def test_knobs_that_change_no_result_come_first_and_each_takes_the_mildest_setting() -> None:
    config = t4(runtime__micro_batch_size=64, runtime__gradient_checkpointing=False, ppo__max_wall_clock_h=10.0)
    found = knobs(config)
    keys = [next(iter(knob.changes)) for knob in found]
    assert keys[0] == "runtime.micro_batch_size"
    assert keys.index("runtime.gradient_checkpointing") < keys.index("ppo.adapter")
    rows = found[0].changes["runtime.micro_batch_size"]
    twice = predict(changed(config, {"runtime.micro_batch_size": 2 * rows}))
    assert twice is not None
    assert not twice.fits


def test_where_no_single_knob_is_enough_several_are_named_together() -> None:
    config = t4(ppo__critic="separate", ppo__response_length=100, ppo__max_memory_gib=8.0)
    found = knobs(config)
    assert len(found) == 1
    assert found[0].found.fits
    assert len(found[0].changes) > 2


def test_what_nothing_helps_is_said_to_be_so() -> None:
    with pytest.raises(UserError, match="take a smaller base, or raise the cap"):
        check_budget(t4(ppo__max_memory_gib=0.5), "greedy")


def test_raising_the_cap_lets_a_trial_through() -> None:
    check_budget(t4(ppo__critic="separate", ppo__max_memory_gib=40.0, ppo__max_wall_clock_h=20.0), "rich")


def test_time_alone_is_refused_too() -> None:
    with pytest.raises(UserError, match=r"predicted on a T4, ppo.max_wall_clock_h = 2.5\. .*ppo.steps="):
        check_budget(t4(ppo__steps=6_000), "long")


def test_the_four_ways_to_train_are_ordered_as_they_must_be() -> None:
    found = {name: one for name, one in variants(t4()).items() if one is not None}
    assert len(found) == 4
    memory = [one.total_gib for one in found.values()]
    assert memory[1] > memory[0] > memory[2] > memory[3]
    assert found["full, shared critic"].fits
    assert not found["full, separate critic"].fits


def test_a_local_base_is_sized_by_its_own_configuration_and_an_unknown_one_not_at_all(tmp_path: Path) -> None:
    sizes = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500, "n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    found = predict(t4(model__base=str(tmp_path)))
    assert found is not None
    assert found.parameters == 500 * 64 + 128 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64
    assert predict(t4(model__base="someone/unknown")) is None
    check_budget(t4(model__base="someone/unknown"), "unknown")
