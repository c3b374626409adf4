"""Settings that cannot act are refused, so that no two trials differ in name only."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.effects import needs
from pipeline.config.loading import load_config
from pipeline.config.trial import TrialConfig
from pipeline.errors import UserError

BASE = {"model.base": "some/model"}
LOCAL = {"data.source": "local", "data.local.path": "/reviews"}
GIVEN = {"reward.preferences": "pairs.jsonl"}
OWN_TRUNK = {"reward.learned.trunk": "scratch"}
ENSEMBLE = {"reward.learned.ensemble": 4}
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
HUB = {"data.source": "hub", "data.hub.name": "a/b", "data.hub.revision": "0" * 40}
FROM_THE_START = {"kl.control": "piecewise", "kl.stages": [[0, 0.1]]}
BONUS = {"entropy.coef": 0.1, "entropy.control": "piecewise", "entropy.stages": [[0.5, 0.0]]}
HELD = {"entropy.coef": 0.1, "entropy.control": "adaptive"}
INSULTS = {"data.builtin.insults": 0.5, "judge.also": {"harmless": {"kind": "harmless"}}}
TWO = {
    **INSULTS,
    "reward.kind": "composite",
    "reward.parts": {
        "helpful": {"kind": "learned"},
        "harmless": {"kind": "learned", "preferences": "judge:harmless", "weight": 0.0},
    },
}
FLOOR = {**TWO, "floor.part": "harmless"}
LATER = {"kl.control": "piecewise", "kl.stages": [[0.5, 0.1]]}

OCR = {"reward.kind": "ocr"}
CLASSIFIER = {"reward.kind": "classifier", "reward.classifier.model": "a/b"}
JUDGING_CLASSIFIER = {"judge.kind": "classifier", "judge.classifier.model": "a/b"}
Changes = dict[str, Any]
KNOBS: dict[str, tuple[Any, Changes, Changes]] = {
    "data.local.path": ("/reviews", {}, {"data.source": "local"}),
    "data.hub.name": ("c/d", {}, HUB),
    "data.builtin.insults": (0.5, LOCAL, {}),
    "floor.at": (-0.5, TWO, FLOOR),
    "data.vocab_size": (500, BASE, {}),
    "model.revision": ("0" * 40, {}, BASE),
    "sft.batch_size": (32, {"sft.steps": 0}, {}),
    "sft.seed": (1, {**BASE, "sft.steps": 0}, {"sft.steps": 0}),
    "reward.settings": ({"longest": 3}, {}, {"reward.kind": "mine:Short"}),
    "judge.settings": ({"longest": 3}, {}, {"judge.kind": "mine:Short"}),
    "reward.preferences": ("pairs.jsonl", VADER, {}),
    "reward.parts": (TWO["reward.parts"], INSULTS, TWO),
    "reward.classifier.model": ("a/c", {}, CLASSIFIER),
    "judge.classifier.output": ("logit", {}, JUDGING_CLASSIFIER),
    "reward.ocr.blur": (1.0, {}, OCR),
    "judge.ocr.noise": (1.0, OCR, {"judge.kind": "ocr"}),
    "reward.learned.pairs": (64, VADER, {}),
    "reward.learned.ranking_loss": ("plackett_luce", {}, {"reward.learned.ranked": 3}),
    "reward.learned.label_noise": (0.1, GIVEN, {}),
    "reward.learned.scratch.hidden_size": (64, {}, OWN_TRUNK),
    "reward.learned.combine": ("minimum", {}, ENSEMBLE),
    "reward.learned.uncertainty_weight": (0.1, ENSEMBLE, {**ENSEMBLE, "reward.learned.combine": "uncertainty"}),
    "reward.learned.rounds": (2, GIVEN, {}),
    "reward.learned.keep_pairs": ("newest", {}, {"reward.learned.rounds": 2}),
    "reward.learned.max_tokens": (64, {}, GIVEN),
    "reward.opponents": (2, {}, {"reward.against": "reference"}),
    "reward.pairwise.dimension": (6, {"reward.against": "reference"}, PAIRWISE),
    "critic.head_lr": (0.1, NO_CRITIC, {}),
    "critic.warmup_steps": (16, TRPO, {}),
    "critic.pretraining_steps": (10, RLOO, {}),
    "replay.continuations": (2, {}, REPLAY),
    "critic.kind": ("separate", NO_CRITIC, {**NO_CRITIC, "critic.init": "reward"}),
    "critic.init": ("reward", {}, SEPARATE),
    "critic.lr": (0.1, {**SEPARATE, "critic.init": "reward", **NO_CRITIC}, SEPARATE),
    "critic.quantize": ("8bit", SEPARATE, LORA_CRITIC),
    "algorithm.gamma": (0.9, RLOO, {"algorithm": "reinforce_pp"}),
    "algorithm.clip.epsilon": (0.1, UNBOUNDED, {}),
    "algorithm.cispo.cap": (2.0, {}, {"algorithm.trust_region": "cispo"}),
    "algorithm.kl_penalty.coef": (2.0, {}, PENALTY),
    "algorithm.trpo.delta": (0.02, {}, TRPO),
    "algorithm.target_kl": (0.02, TRPO, {}),
    "optimiser.lr": (0.1, {**TRPO, "critic.lr": 0.2, "critic.head_lr": 0.2}, TRPO),
    "algorithm.gae_lambda": (0.9, RLOO, {}),
    "algorithm.whiten_rewards": (True, RLOO, {}),
    "optimiser.clip_norms": ("together", {}, SEPARATE),
    "train.missing_eos": ("subtract", {"algorithm": "dpo"}, {}),
    "train.overlong_penalty": (2.0, {}, {"train.overlong_share": 0.2}),
    **{key: (value, {}, V_STAR) for key, value in (("algorithm.v_star.beta", 2.0), ("algorithm.v_star.samples", 8))},
    **{key: (value, RLOO, V_STAR) for key, value in (("values.samples", 32),)},
    "kl.reward_estimator": ("k3", LOSS, {}),
    "train.missing_eos_penalty": (2.0, {"train.missing_eos": "none"}, {}),
    "kl.beta": (0.3, FROM_THE_START, LATER),
    "kl.place": ("loss", NO_PENALTY, {}),
    "kl.loss_estimator": ("k3", {}, LOSS),
    "kl.group": ("clause", {"kl.place": "score"}, LOSS),
    "kl.group_credit": ("last", LOSS, {"kl.group": "sentence"}),
    "kl.end": (0.3, ADAPTIVE, {"kl.control": "cosine", **NO_PENALTY}),
    "kl.adaptive.target": (3.0, {}, ADAPTIVE),
    "entropy.coef": (0.3, {"entropy.control": "piecewise", "entropy.stages": [[0, 0.1]]}, {}),
    "entropy.control": ("linear", {}, {"entropy.coef": 0.1}),
    "entropy.end": (0.3, BONUS, {"entropy.control": "cosine"}),
    "entropy.adaptive.target": (0.5, {"entropy.coef": 0.1}, HELD),
    "optimiser.guard_kl": (0.1, {}, {"optimiser.guard": True}),
    "evaluate.texts": (1025, {}, {"data.heldout_prompts": 1025}),
    "adapter.rank": (4, SEPARATE, LORA_CRITIC),
}
"""A value of one knob for each condition, where it has no effect, and where it has one."""


@pytest.mark.parametrize("key", KNOBS)
def test_a_setting_acts_or_is_refused_in_one_line(key: str) -> None:
    value, off, on = KNOBS[key]
    load_config("tiny", {**on, key: value})
    with pytest.raises(UserError) as error:
        load_config("tiny", {**off, key: value})
    made = key if isinstance(value, dict) else f"{key} = {str(value).lower() if value is True else value}"
    assert f"{made} has no effect while " in str(error.value)
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
        load_config("tiny", {"kl.adaptive.target": 3, "optimiser.guard_steps": 10})
    assert str(error.value).splitlines() == [
        (
            "--set: kl.adaptive.target = 3.0 has no effect while kl.control is fixed: it needs kl.control: adaptive; "
            "change that, or leave kl.adaptive.target out"
        ),
        (
            "--set: optimiser.guard_steps = 10 has no effect while optimiser.guard is false: it needs optimiser.guard:"
            " true; change that, or leave optimiser.guard_steps out"
        ),
    ]
    assert needs(TrialConfig, "kl.loss_estimator").startswith("kl.place: loss and a KL penalty")
    assert needs(TrialConfig, "evaluate.prompts") == ""


def test_what_a_profile_holds_for_a_switch_that_is_off_may_stay_and_may_be_repeated() -> None:
    profile = load_config("tiny")
    assert (profile.kl.control, profile.kl.adaptive.target) == ("fixed", 2.0)
    assert load_config("tiny", {"kl.adaptive.target": 2, "kl.adaptive.horizon": 300, "adapter.rank": 16}) == profile
    with pytest.raises(
        UserError, match=r"kl\.adaptive\.target = 6\.0 has no effect"
    ):  # the default, and another than the profile's
        load_config("tiny", {"kl.adaptive.target": 6.0})


def test_what_stands_below_may_wait_for_a_switch() -> None:
    below = {"kl.adaptive.target": 3.0}
    assert load_config("tiny", {"kl.control": "adaptive"}, below=below).kl.adaptive.target == 3.0
    assert load_config("tiny", below=below).kl.adaptive.target == 3.0


UNTRAINED = {"algorithm": "best_of_n"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimiser.lr", 0.1),
        ("kl.beta", 0.3),
        ("train.steps", 64),
        ("algorithm.clip.epsilon", 0.1),
        ("adapter.rank", 4),
    ],
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
