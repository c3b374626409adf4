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
OWN_TRUNK = {"reward.trunk": "scratch"}
ENSEMBLE = {"reward.ensemble": 4}
VADER = {"reward.kind": "lexicon"}
PAIRWISE = {"reward.kind": "pairwise", "reward.against": "reference"}
LOSS = {"kl.place": "loss"}
ADAPTIVE = {"kl.control": "adaptive"}
SEPARATE = {"critic.kind": "separate"}
LORA_CRITIC = {**SEPARATE, "critic.adapter": "lora"}
NO_CRITIC = {"critic.vf_coef": 0.0}
NO_PENALTY = {"kl.beta": 0.0}
RLOO = {"algorithm": "rloo"}
V_STAR = {"algorithm": "a_star_po"}
PENALTY = {"algorithm": "ppo_penalty"}
TRPO = {"algorithm": "trpo"}
REPLAY = {"critic.target": "replay"}
UNBOUNDED = {"algorithm.trust_region": "none"}
HUB = {"data.source": "hub", "data.name": "a/b", "data.revision": "0" * 40}
FROM_THE_START = {"kl.control": "piecewise", "kl.beta_stages": [[0, 0.1]]}
BONUS = {"entropy.coef": 0.1, "entropy.control": "piecewise", "entropy.coef_stages": [[0.5, 0.0]]}
HELD = {"entropy.coef": 0.1, "entropy.control": "adaptive"}
INSULTS = {"data.insults": 0.5, "judge.also": {"harmless": {"kind": "harmless"}}}
TWO = {
    **INSULTS,
    "reward.kind": "composite",
    "reward.parts": {
        "helpful": {"kind": "learned"},
        "harmless": {"kind": "learned", "preferences": "judge:harmless", "weight": 0.0},
    },
}
FLOOR = {**TWO, "floor.part": "harmless"}
LATER = {"kl.control": "piecewise", "kl.beta_stages": [[0.5, 0.1]]}

Changes = dict[str, Any]
KNOBS: dict[str, tuple[Any, Changes, Changes]] = {
    "data.path": ("/reviews", {}, {"data.source": "local"}),
    "data.name": ("c/d", {}, HUB),
    "data.revision": ("1" * 40, {}, HUB),
    "data.insults": (0.5, LOCAL, {}),
    "floor.at": (-0.5, TWO, FLOOR),
    "floor.lr": (0.1, {}, FLOOR),
    "floor.weight": (1.0, TWO, FLOOR),
    "floor.max_weight": (5.0, {}, FLOOR),
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
    "reward.ranked": (4, VADER, {}),
    "reward.ranking_loss": ("plackett_luce", {}, {"reward.ranked": 3}),
    "reward.heldout_pairs": (64, VADER, {}),
    "reward.pairs_seed": (1, VADER, {}),
    "reward.epochs": (3, VADER, {}),
    "reward.batch_size": (32, VADER, {}),
    "reward.lr": (0.1, VADER, {}),
    "reward.label_noise": (0.1, LABELS, {}),
    "reward.trunk": ("scratch", VADER, {}),
    "reward.ensemble": (4, VADER, {}),
    "reward.hidden_size": (64, {}, OWN_TRUNK),
    "reward.layers": (1, {}, OWN_TRUNK),
    "reward.heads": (2, {}, OWN_TRUNK),
    "reward.intermediate_size": (64, {}, OWN_TRUNK),
    "reward.pretraining_steps": (40, {}, OWN_TRUNK),
    "reward.combine": ("minimum", {}, ENSEMBLE),
    "reward.worst_k": (3, ENSEMBLE, {**ENSEMBLE, "reward.combine": "worst_k"}),
    "reward.uncertainty_weight": (0.1, ENSEMBLE, {**ENSEMBLE, "reward.combine": "uncertainty"}),
    "reward.rounds": (2, LABELS, {}),
    "reward.keep_pairs": ("newest", {}, {"reward.rounds": 2}),
    "reward.max_tokens": (64, {}, LABELS),
    "reward.opponents": (2, {}, {"reward.against": "reference"}),
    "reward.dimension": (6, {"reward.against": "reference"}, PAIRWISE),
    "critic.head_lr": (0.1, NO_CRITIC, {}),
    "critic.cliprange": (0.1, NO_CRITIC, {}),
    "algorithm.value_lambda": (1.0, NO_CRITIC, {}),
    "critic.warmup_steps": (16, TRPO, {}),
    "critic.pretraining_steps": (10, RLOO, {}),
    "critic.pretraining_lr": (0.1, {}, {"critic.pretraining_steps": 10}),
    "critic.target": ("replay", NO_CRITIC, {}),
    "replay.continuations": (2, {}, REPLAY),
    "replay.every": (4, RLOO, {"algorithm": "vine_ppo"}),
    "replay.share": (0.5, {}, REPLAY),
    "critic.kind": ("separate", NO_CRITIC, {**NO_CRITIC, "critic.init": "reward"}),
    "critic.init": ("reward", {}, SEPARATE),
    "critic.lr": (0.1, {**SEPARATE, "critic.init": "reward", **NO_CRITIC}, SEPARATE),
    "critic.adapter": ("lora", {}, SEPARATE),
    "critic.quantize": ("8bit", SEPARATE, LORA_CRITIC),
    "critic.adapter_rank": (4, SEPARATE, LORA_CRITIC),
    "critic.adapter_alpha": (4.0, SEPARATE, LORA_CRITIC),
    "critic.vf_coef": (0.2, RLOO, {}),
    "algorithm.gamma": (0.9, RLOO, {"algorithm": "reinforce_pp"}),
    "algorithm.cliprange": (0.1, UNBOUNDED, {}),
    "algorithm.cliprange_high": (0.3, UNBOUNDED, {}),
    "algorithm.dual_clip": (3.0, UNBOUNDED, {}),
    "algorithm.ratio_cap": (2.0, {}, {"algorithm.trust_region": "cispo"}),
    "algorithm.old_kl_coef": (2.0, {}, PENALTY),
    "algorithm.old_kl_target": (0.02, UNBOUNDED, PENALTY),
    "algorithm.trpo_delta": (0.02, {}, TRPO),
    "algorithm.trpo_damping": (0.2, PENALTY, TRPO),
    "algorithm.trpo_cg_iterations": (15, {}, TRPO),
    "algorithm.trpo_line_search": (5, {}, TRPO),
    "algorithm.target_kl": (0.02, TRPO, {}),
    "kl.hinge": (0.02, TRPO, {}),
    "optimiser.guard": (True, TRPO, {}),
    "optimiser.lr": (0.1, {**TRPO, "critic.lr": 0.2, "critic.head_lr": 0.2}, TRPO),
    "algorithm.gae_lambda": (0.9, RLOO, {}),
    "algorithm.whiten_rewards": (True, RLOO, {}),
    "optimiser.clip_norms": ("together", {}, SEPARATE),
    "train.missing_eos": ("subtract", {"algorithm": "dpo"}, {}),
    "train.overlong_share": (0.2, {"algorithm": "dpo"}, {"algorithm": "online_dpo"}),
    "train.overlong_penalty": (2.0, {}, {"train.overlong_share": 0.2}),
    **{key: (value, {}, V_STAR) for key, value in (("algorithm.v_star_beta", 2.0), ("algorithm.v_star_samples", 8))},
    **{key: (value, RLOO, V_STAR) for key, value in (("values.samples", 32), ("values.seed", 1))},
    "kl.reward_estimator": ("k3", LOSS, {}),
    "train.missing_eos_penalty": (2.0, {"train.missing_eos": "none"}, {}),
    "kl.beta": (0.3, FROM_THE_START, LATER),
    "kl.place": ("loss", NO_PENALTY, {}),
    "kl.loss_estimator": ("k3", {}, LOSS),
    "kl.group": ("clause", {"kl.place": "score"}, LOSS),
    "kl.group_credit": ("last", LOSS, {"kl.group": "sentence"}),
    "kl.control": ("adaptive", NO_PENALTY, {}),
    "kl.beta_end": (0.3, ADAPTIVE, {"kl.control": "cosine", **NO_PENALTY}),
    "kl.target": (3.0, {}, ADAPTIVE),
    "kl.horizon": (500.0, {"kl.control": "linear"}, ADAPTIVE),
    "entropy.coef": (0.3, {"entropy.control": "piecewise", "entropy.coef_stages": [[0, 0.1]]}, {}),
    "entropy.control": ("linear", {}, {"entropy.coef": 0.1}),
    "entropy.coef_end": (0.3, BONUS, {"entropy.control": "cosine"}),
    "entropy.target": (0.5, {"entropy.coef": 0.1}, HELD),
    "entropy.horizon": (500.0, BONUS, HELD),
    "optimiser.guard_kl": (0.1, {}, {"optimiser.guard": True}),
    "optimiser.guard_factor": (0.1, {}, {"optimiser.guard": True}),
    "optimiser.guard_steps": (10, {}, {"optimiser.guard": True}),
    "evaluate.texts": (1025, {}, {"data.heldout_prompts": 1025}),
    "train.frozen_dtype": ("fp16", {**VADER, "adapter.kind": "lora"}, {"adapter.kind": "lora"}),
    "runtime.offload_reference": (True, {}, {"runtime.device": "auto"}),
    "adapter.rank": (4, {}, {"adapter.kind": "lora"}),
    "adapter.alpha": (4.0, {}, {"adapter.kind": "lora"}),
}
"""A value of each knob, where it has no effect, and where it has one."""


def test_frozen_networks_are_not_moved_where_there_are_none_and_not_rounded_where_ratios_are_to_them() -> None:
    card = {"runtime.device": "cuda", "runtime.offload_reference": True}
    for without in ({"adapter.kind": "lora"}, {"algorithm": "best_of_n"}):
        with pytest.raises(UserError, match=r"runtime\.offload_reference = true has no effect while"):
            load_config("tiny", {**card, **without})
    with pytest.raises(UserError, match=r"train\.frozen_dtype 'bf16' rounds the reference, and train\.data 'pairs'"):
        load_config("tiny", {"algorithm": "dpo", "train.frozen_dtype": "bf16"})
    assert load_config("tiny", {**card, "algorithm": "dpo"}).runtime.offload_reference
    with pytest.raises(UserError, match=r"frozen_dtype is the key 'train\.frozen_dtype'|'train\.frozen_dtype'"):
        load_config("tiny", {"runtime.frozen_dtype": "fp16"})


def test_too_few_held_out_texts_are_refused_by_their_key() -> None:
    with pytest.raises(UserError, match=r"it needs data\.heldout_prompts to be at least evaluate\.texts; change that"):
        load_config("tiny", {"evaluate.texts": 1025})


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
    assert f"{key} = {str(value).lower() if value is True else value} has no effect while " in str(error.value)
    assert f"or leave {key} out" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("place", ["reward", "loss"])
def test_groups_of_tokens_act_in_the_reward_and_in_the_loss_alone(place: str) -> None:
    grouped = {"kl.group": "sequence", "kl.group_credit": "last"}
    assert load_config("tiny", {"kl.place": place, **grouped}).kl.grouped_in(place)
    for elsewhere in ({"kl.place": "score"}, NO_PENALTY, {"algorithm": "dpo"}, {"algorithm": "best_of_n"}):
        with pytest.raises(UserError, match=r"kl\.group = sequence has no effect while"):
            load_config("tiny", {**elsewhere, **grouped})


def test_the_line_names_the_switch_its_value_and_what_is_needed() -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", {"kl.target": 3, "optimiser.guard_steps": 10})
    assert str(error.value).splitlines() == [
        (
            "--set: kl.target = 3.0 has no effect while kl.control is fixed: it needs kl.control: adaptive; "
            "change that, or leave kl.target out"
        ),
        (
            "--set: optimiser.guard_steps = 10 has no effect while optimiser.guard is false: it needs optimiser.guard:"
            " true; change that, or leave optimiser.guard_steps out"
        ),
    ]
    assert needs("kl.loss_estimator").startswith("kl.place: loss and a KL penalty")
    assert needs("optimiser.adam_eps") == ""


def test_what_a_profile_holds_for_a_switch_that_is_off_may_stay_and_may_be_repeated() -> None:
    profile = load_config("tiny")
    assert (profile.kl.control, profile.kl.target) == ("fixed", 2.0)
    assert load_config("tiny", {"kl.target": 2, "kl.horizon": 300, "adapter.rank": 16}) == profile
    with pytest.raises(
        UserError, match=r"kl\.target = 6\.0 has no effect"
    ):  # the default, and another than the profile's
        load_config("tiny", {"kl.target": 6.0})


def test_what_stands_below_may_wait_for_a_switch() -> None:
    below = {"kl.target": 3.0}
    assert load_config("tiny", {"kl.control": "adaptive"}, below=below).kl.target == 3.0
    assert load_config("tiny", below=below).kl.target == 3.0


@pytest.mark.parametrize("setting", ["reward.revision", "reward.label", "judge.revision", "judge.label"])
def test_a_classifiers_settings_need_a_classifier(setting: str) -> None:
    with pytest.raises(UserError, match=rf"{setting.split('.')[1]} 'abc' is for kind: classifier, kind is '.*'; leave"):
        load_config("tiny", {setting: "abc"})
    part = {"kind": "lexicon", setting.split(".")[1]: "abc"}
    with pytest.raises(UserError, match="is for kind: classifier, kind is 'lexicon'"):
        load_config("tiny", {"reward.kind": "composite", "reward.parts": {"one": part}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judge.kind": "helpful"}, "judge.kind 'helpful' is about insults, and data.insults is 0"),
        ({"judge.also": {"x": {"kind": "harmless"}}}, "judge.also.x 'harmless' is about insults"),
        ({**LOCAL, "judge.also": {"x": {"kind": "grammar"}}}, "judge.also.x 'grammar' understands only built-in"),
        ({**LOCAL, "reward.kind": "harmless"}, "reward.kind 'harmless' understands only built-in reviews"),
        ({**INSULTS, "reward.preferences": "judge:harmles"}, "judge.also has no 'harmles'; did you mean 'harmless'?"),
        ({"reward.preferences": "judge:x"}, "reward.preferences 'judge:x': judge.also has no 'x'; there are: none"),
        ({"reward.preferences": "judge:"}, "must be judge, judge:NAME, labels, or the path"),
        ({**TWO, "floor.part": "harmles"}, "floor.part 'harmles': reward.parts has none of that name; did you mean"),
        ({"floor.part": "x"}, "there are: none, since reward.kind is not composite"),
        (
            {"reward.kind": "composite", "reward.parts": {"one": {"kind": "learned"}}, "floor.part": "one"},
            "floor.part 'one' is the only part of the reward",
        ),
        ({**FLOOR, "floor.weight": 11.0}, "floor.weight 11 is above floor.max_weight 10"),
        ({**FLOOR, "algorithm": "a_star_po"}, "use scores that were made before it"),
        ({"data.insults": 1.5}, "data.insults"),
    ],
)
def test_what_two_rewards_need_of_each_other(changes: Changes, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_reviews_that_insult_have_a_judge_who_understands_it() -> None:
    assert load_config("tiny").gold.kind == "grammar"
    assert load_config("tiny", INSULTS).gold.kind == "helpful"
    assert load_config("tiny", {**INSULTS, "judge.kind": "grammar"}).gold.kind == "grammar"


UNTRAINED = {"algorithm": "best_of_n"}


@pytest.mark.parametrize(
    ("key", "value"),
    [("optimiser.lr", 0.1), ("kl.beta", 0.3), ("train.steps", 64), ("algorithm.cliprange", 0.1), ("adapter.rank", 4)],
)
def test_a_knob_of_training_is_refused_where_nothing_is_trained(key: str, value: Any) -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", {**UNTRAINED, key: value})
    assert f"{key} = {value} has no effect while algorithm.advantage is none: it needs an algorithm that takes" in str(
        error.value
    )
    assert "\n" not in str(error.value)


def test_what_a_policy_answers_with_acts_whether_or_not_it_is_trained() -> None:
    for own in ({}, UNTRAINED):
        assert load_config("tiny", {**own, "evaluate.best_of": 4}).evaluate.best_of == 4
    assert load_config("tiny", UNTRAINED).gradient_steps == 0
    assert load_config("tiny", {**UNTRAINED, "train.response_length": 16}).train.response_length == 16
    assert load_config("tiny", UNTRAINED, below={"train.steps": 64}).train.steps == 64, "as --set below an arm does"
