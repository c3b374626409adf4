"""Settings that cannot act are refused, so that no two trials differ in name only."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.effects import ACTS, needs
from pipeline.config.loading import dotted_keys, load_config
from pipeline.errors import UserError

BASE = {"model.base": "some/model"}
LOCAL = {"data.source": "local", "data.path": "/reviews"}
LABELS = {**LOCAL, "reward.preferences": "labels"}
VADER = {"reward.kind": "lexicon"}
LOSS = {"ppo.kl_in": "loss"}
ADAPTIVE = {"ppo.kl_control": "adaptive"}
SEPARATE = {"ppo.critic": "separate"}
NO_CRITIC = {"ppo.vf_coef": 0.0}
NO_PENALTY = {"ppo.kl_coef": 0.0}
HUB = {"data.source": "hub", "data.name": "a/b", "data.revision": "0" * 40}
FROM_THE_START = {"ppo.kl_control": "piecewise", "ppo.kl_coef_stages": [[0, 0.1]]}
LATER = {"ppo.kl_control": "piecewise", "ppo.kl_coef_stages": [[0.5, 0.1]]}

Changes = dict[str, Any]
KNOBS: dict[str, tuple[Any, Changes, Changes]] = {
    "data.path": ("/reviews", {}, {"data.source": "local"}),
    "data.name": ("c/d", {}, HUB),
    "data.revision": ("1" * 40, {}, HUB),
    "data.vocab_size": (500, BASE, {}),
    "model.revision": ("0" * 40, {}, BASE),
    "model.hidden_size": (64, BASE, {}),
    "model.layers": (3, BASE, {}),
    "model.heads": (2, BASE, {}),
    "model.intermediate_size": (64, BASE, {}),
    "sft.batch_size": (32, {"sft.steps": 0}, {}),
    "sft.lr": (0.1, {"sft.steps": 0}, {}),
    "sft.warmup": (0.5, {"sft.steps": 0}, {}),
    "sft.weight_decay": (0.5, {"sft.steps": 0}, {}),
    "sft.seed": (1, {**BASE, "sft.steps": 0}, {"sft.steps": 0}),
    "reward.pairs": (64, VADER, {}),
    "reward.heldout_pairs": (64, VADER, {}),
    "reward.epochs": (3, VADER, {}),
    "reward.batch_size": (32, VADER, {}),
    "reward.lr": (0.1, VADER, {}),
    "reward.label_noise": (0.1, LABELS, {}),
    "reward.max_tokens": (64, {}, LABELS),
    "ppo.value_head_lr": (0.1, NO_CRITIC, {}),
    "ppo.cliprange_value": (0.1, NO_CRITIC, {}),
    "ppo.critic": ("separate", NO_CRITIC, {**NO_CRITIC, "ppo.critic_init": "reward"}),
    "ppo.critic_init": ("reward", {}, SEPARATE),
    "ppo.critic_lr": (0.1, {**SEPARATE, "ppo.critic_init": "reward", **NO_CRITIC}, SEPARATE),
    "ppo.clip_norms": ("together", {}, SEPARATE),
    "ppo.missing_eos_penalty": (2.0, {"ppo.missing_eos": "none"}, {}),
    "ppo.kl_coef": (0.3, FROM_THE_START, LATER),
    "ppo.kl_in": ("loss", NO_PENALTY, {}),
    "ppo.kl_loss_estimator": ("k3", {}, LOSS),
    "ppo.kl_control": ("adaptive", NO_PENALTY, {}),
    "ppo.kl_coef_end": (0.3, ADAPTIVE, {"ppo.kl_control": "cosine", **NO_PENALTY}),
    "ppo.kl_target": (3.0, {}, ADAPTIVE),
    "ppo.kl_horizon": (500.0, {"ppo.kl_control": "linear"}, ADAPTIVE),
    "ppo.lr_guard_kl": (0.1, {}, {"ppo.lr_guard": True}),
    "ppo.lr_guard_factor": (0.1, {}, {"ppo.lr_guard": True}),
    "ppo.lr_guard_steps": (10, {}, {"ppo.lr_guard": True}),
    "ppo.lora_rank": (4, {}, {"ppo.adapter": "lora"}),
    "ppo.lora_alpha": (4.0, {}, {"ppo.adapter": "lora"}),
}
"""A value of each knob, where it has no effect, and where it has one."""


def test_every_knob_with_a_condition_is_covered_below() -> None:
    assert KNOBS.keys() == ACTS.keys()
    assert ACTS.keys() <= set(dotted_keys())
    assert {condition.switch for conditions in ACTS.values() for condition in conditions} <= set(dotted_keys())


@pytest.mark.parametrize("key", KNOBS)
def test_a_setting_acts_or_is_refused_in_one_line(key: str) -> None:
    value, off, on = KNOBS[key]
    load_config("tiny", {**on, key: value})
    with pytest.raises(UserError) as error:
        load_config("tiny", {**off, key: value})
    assert f"{key} = {value} has no effect while " in str(error.value)
    assert f"or leave {key} out" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_line_names_the_switch_its_value_and_what_is_needed() -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", {"ppo.kl_target": 3, "ppo.lr_guard_steps": 10})
    assert str(error.value).splitlines() == [
        "--set: ppo.kl_target = 3.0 has no effect while ppo.kl_control is fixed: it needs ppo.kl_control: adaptive; "
        "change that, or leave ppo.kl_target out",
        "--set: ppo.lr_guard_steps = 10 has no effect while ppo.lr_guard is false: it needs ppo.lr_guard: true; "
        "change that, or leave ppo.lr_guard_steps out",
    ]
    assert needs("ppo.kl_loss_estimator").startswith("ppo.kl_in: loss and a KL penalty")
    assert needs("ppo.lr") == ""


def test_what_a_profile_holds_for_a_switch_that_is_off_may_stay_and_may_be_repeated() -> None:
    profile = load_config("tiny")
    assert (profile.ppo.kl_control, profile.ppo.kl_target) == ("fixed", 2.0)
    assert load_config("tiny", {"ppo.kl_target": 2, "ppo.kl_horizon": "300", "ppo.lora_rank": 16}) == profile
    with pytest.raises(
        UserError, match=r"ppo\.kl_target = 6\.0 has no effect"
    ):  # the default, and another than the profile's
        load_config("tiny", {"ppo.kl_target": 6.0})


def test_what_stands_below_may_wait_for_a_switch() -> None:
    below = {"ppo.kl_target": 3.0}
    assert load_config("tiny", {"ppo.kl_control": "adaptive"}, below=below).ppo.kl_target == 3.0
    assert load_config("tiny", below=below).ppo.kl_target == 3.0


@pytest.mark.parametrize("setting", ["reward.revision", "reward.label", "judge.revision", "judge.label"])
def test_a_classifiers_settings_need_a_classifier(setting: str) -> None:
    with pytest.raises(UserError, match=rf"{setting.split('.')[1]} 'abc' is for kind: classifier, kind is '.*'; leave"):
        load_config("tiny", {setting: "abc"})
    part = {"kind": "lexicon", setting.split(".")[1]: "abc"}
    with pytest.raises(UserError, match="is for kind: classifier, kind is 'lexicon'"):
        load_config("tiny", {"reward.kind": "composite", "reward.parts": {"one": part}})
