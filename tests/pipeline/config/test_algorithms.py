"""Algorithms as settings: what a name stands for, what goes together, and records from before there were knobs."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.config.presets import PRESETS
from pipeline.errors import UserError


@pytest.mark.parametrize("profile", ["smoke", "tiny", "t4", "t4-256"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_algorithm_takes_as_many_episodes_and_steps(profile: str, name: str) -> None:
    plain, chosen = load_config(profile), load_config(profile, {"algorithm": name})
    assert chosen.algorithm.name == name
    assert (chosen.train.updates, chosen.train.steps) == (plain.train.updates, plain.train.steps)
    assert chosen.train.batch_size == plain.train.batch_size
    assert (chosen.critic.kind == "none") == (chosen.algorithm.advantage != "gae")


def test_names_mean_the_published_settings() -> None:
    found = {
        name: (config.advantage, config.ratio, config.trust_region, config.aggregation, config.epsilons)
        for name in PRESETS
        if name != "best_of_n"  # which trains nothing
        if (config := load_config("tiny", {"algorithm": name}).algorithm)
    }
    tokens, both = ("token", "clip"), (0.2, 0.2)
    assert found == {
        "ppo": ("gae", *tokens, "token_mean", both),
        "ppo_penalty": ("gae", "token", "kl_penalty", "token_mean", both),
        "trpo": ("gae", "token", "trpo", "token_mean", both),
        "reinforce": ("reinforce", "none", "none", "seq_mean_token_sum", both),
        "remax": ("remax", "none", "none", "seq_mean_token_sum", both),
        "rloo": ("rloo", "sequence_sum", "clip", "seq_mean_token_mean", both),
        "grpo": ("group_norm", *tokens, "seq_mean_token_mean", both),
        "dr_grpo": ("group_mean", *tokens, "constant", both),
        "lite_ppo": ("group_mean_batch_std", *tokens, "token_mean", both),
        "reinforce_pp": ("reinforce_pp", *tokens, "token_mean", both),
        "vine_ppo": ("replay", *tokens, "token_mean", both),
        "gspo": ("group_norm", "sequence_mean", "clip", "seq_mean_token_mean", (3e-4, 4e-4)),
        "cispo": ("group_norm", "token", "cispo", "token_mean", both),
        "dapo": ("group_norm", *tokens, "token_mean", (0.2, 0.28)),
        "a_star_po": ("v_star", "none", "none", "seq_mean_token_sum", both),
        "dpo": ("preference", "sequence_sum", "dpo", "seq_mean_token_mean", both),
        "ipo": ("preference", "sequence_mean", "ipo", "seq_mean_token_mean", both),
        "online_dpo": ("preference", "sequence_sum", "dpo", "seq_mean_token_mean", both),
    }


def test_an_algorithm_of_one_epoch_takes_smaller_steps_unless_told_otherwise() -> None:
    train = load_config("tiny", {"algorithm": "reinforce"}).train
    assert (train.num_epochs, train.num_mini_batches, train.steps_per_update) == (1, 16, 16)
    train = load_config("tiny", {"algorithm": "reinforce", "train.num_mini_batches": 4}).train
    assert (train.num_epochs, train.num_mini_batches) == (1, 4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"algorithm.ratio": "none"},
            "ratio 'none' leaves trust_region 'clip' nothing to bound; use trust_region: none",
        ),
        (
            {"algorithm.ratio": "none", "algorithm.trust_region": "cispo"},
            "leaves trust_region 'cispo' nothing to bound",
        ),
        (
            {"algorithm.ratio": "sequence_sum"},
            "ratio 'sequence_sum' needs one advantage for a whole response, and advantage 'gae' gives every token",
        ),
        (
            {"algorithm": "reinforce_pp", "algorithm.ratio": "sequence_sum"},
            "and advantage 'reinforce_pp' gives every token its own; use ratio: token or none",
        ),
        (
            {"algorithm": "rloo", "kl.place": "reward"},
            "and a KL penalty in the reward gives every token its own; use kl.place: score or loss",
        ),
        (
            {"algorithm": "gspo", "algorithm.cliprange": 0.2},
            "cliprange 0.2 never clips a ratio that is averaged over a response",
        ),
        (
            {"algorithm": "gspo", "algorithm.cliprange_high": 0.2},
            "cliprange 0.2 never clips a ratio that is averaged over a response",
        ),
        ({"algorithm": "grpo", "train.responses_per_prompt": 1}, "so it needs at least 2"),
        (
            {"algorithm": "reinforce", "train.num_epochs": 2},
            "algorithm.ratio 'none' does not correct a second pass over a rollout, and train.num_epochs is 2",
        ),
        (
            {"algorithm": "grpo", "train.responses_per_prompt": 5},
            "batch_size 64 is no multiple of responses_per_prompt",
        ),
        ({"algorithm": "grpo", "critic.kind": "shared"}, "critic.kind 'shared' is not for advantage 'group_norm'"),
        (
            {"algorithm": "a_star_po", "algorithm.v_star_samples": 17},
            "algorithm.v_star_samples 17 is more than values.samples 16; raise the latter to at least 17",
        ),
        ({"algorithm": "a_star_po", "critic.kind": "shared"}, "critic.kind 'shared' is not for advantage 'v_star'"),
        ({"b1": 0.5}, "b1 is the key 'algorithm.v_star_beta'"),
        ({"β₂": 0.5}, "β₂ is the key 'kl.beta'"),
        (
            {"algorithm": "rloo", "algorithm.trust_region": "kl_penalty"},
            "trust_region 'kl_penalty' bounds the KL per token, and ratio 'sequence_sum' is that of a whole response",
        ),
        (
            {"algorithm.ratio": "none", "algorithm.trust_region": "trpo"},
            "leaves trust_region 'trpo' nothing to bound",
        ),
        (
            {"kl.place": "margin"},
            "kl.place 'margin' is the beta of a loss of pairs, and algorithm.trust_region is 'clip'",
        ),
        (
            {"algorithm": "dpo", "kl.place": "loss"},
            "kl.place 'loss' does not fit; use kl.place: margin, or algorithm: dpo",
        ),
        (
            {"algorithm": "dpo", "algorithm.advantage": "rloo"},
            "algorithm.advantage 'rloo' does not fit; use algorithm.advantage: preference",
        ),
        ({"algorithm": "ipo", "algorithm.aggregation": "constant"}, "algorithm.aggregation 'constant' does not fit"),
        (
            {"algorithm": "ipo", "algorithm.ratio": "token"},
            "compares whole responses, and ratio is 'token'; use sequence",
        ),
        ({"algorithm": "dpo", "train.responses_per_prompt": 4}, "advantage 'preference' is of pairs; use 2"),
        ({"algorithm": "dpo", "algorithm.whiten_advantages": True}, "destroys these signs; use false"),
        (
            {"algorithm": "dpo", "kl.beta": 0.0},
            "weighs its margin by kl.beta, which must stay above 0; it goes through 0",
        ),
        ({"algorithm": "online_dpo", "kl.control": "linear"}, "which must stay above 0; it goes through 0.05, 0"),
        (
            {"algorithm": "dpo", "reward.kind": "lexicon"},
            "that a reward was learned from, and reward.kind is 'lexicon'",
        ),
        (
            {"algorithm": "dpo", "algorithm.target_kl": 0.02},
            "it would freeze the policy near the reference",
        ),
        ({"algorithm": "ipo", "kl.hinge": 0.02}, "kl.hinge 0.02 bounds what is measured on rollouts"),
        (
            {"algorithm": "dpo", "reward.preferences": "labels", "data.source": "local", "data.path": "/reviews"},
            "reward.preferences 'labels' pairs reviews that have nothing else in common",
        ),
        ({"train.data": "pairs"}, "train.data 'pairs' needs a loss of pairs, and algorithm.trust_region is 'clip'"),
        ({"algorithm": "dpo", "train.num_mini_batches": 64}, "and a mini-batch has 1 episodes"),
        ({"algorithm": "trpo", "critic.kind": "shared"}, "would move the values of a shared critic too"),
        ({"algorithm": "grpo", "algorithm.trust_region": "trpo"}, "use advantage: gae and critic.kind: separate"),
        (
            {"algorithm": "trpo", "kl.place": "loss", "kl.group": "clause"},
            "kl.group 'clause' in the loss is of several; use kl.group: token, or kl.place: reward",
        ),
        (
            {"algorithm": "grpo", "kl.loss_estimator": "ratio_k3", "kl.group": "sentence"},
            "kl: loss_estimator 'ratio_k3' weighs k3 by the ratio of a token, and group is 'sentence'; use k2 or k3",
        ),
        ({"kl.group": "clauses"}, "kl.group = 'clauses': must be 'token', 'clause', 'sentence' or 'sequence'"),
        (
            {"algorithm": "a_star_po", "train.num_epochs": 2, "kl.group": "clause"},
            "algorithm.ratio 'none' does not correct a second pass over a rollout, and train.num_epochs is 2",
        ),
        ({"algorithm": "trpo", "critic.vf_coef": 0}, "and critic.vf_coef 0 does not train it"),
        (
            {"algorithm": "trpo", "adapter.kind": "lora", "adapter.quantize": "4bit"},
            "needs forward-mode derivatives, which adapter.quantize '4bit' does not have",
        ),
        (
            {"algorithm": "best_of_n", "critic.kind": "shared"},
            "critic.kind 'shared' is not for advantage 'none': use none",
        ),
        *(
            (
                {"algorithm.whiten_rewards": True, key: value, **beside},
                f"the critic has score units ({key}{suffix}), and algorithm.whiten_rewards divides its rewards",
            )
            for key, value, suffix, beside in (
                ("critic.pretraining_steps", 8, "", {}),
                ("critic.target", "replay", " 'replay'", {}),
                ("critic.init", "reward", " 'reward'", {"critic.kind": "separate"}),
            )
        ),
        ({"evaluate.best_of": 0}, "evaluate.best_of = 0: must be greater than 0"),
        ({"bon": 4}, "bon is the key 'evaluate.best_of'"),
        ({"algorithm": "grop"}, "did you mean 'grpo'"),
        ({"loss_type": "dapo"}, "loss_type is the key 'algorithm.aggregation'"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", settings)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"algorithm.ent_coef": 0.01}, "--set: unknown key 'algorithm.ent_coef'; ent_coef is the key 'entropy.coef'"),
        ({"ent_coef": 0.01}, "ent_coef is the key 'entropy.coef'"),
        ({"c2": 0.01}, "c2 is the key 'entropy.coef'"),
        ({"entropy.control": "adaptive"}, "coef 0 stays 0 with control: adaptive, which multiplies it; start above 0"),
        ({"entropy.coef": 0.1, "entropy.control": "piecewise"}, "coef_stages and control: piecewise need each other"),
        ({"entropy.coef_stages": [[0.5, 0.1]]}, "coef_stages and control: piecewise need each other"),
        (
            {"entropy.control": "piecewise", "entropy.coef_stages": [[0.5, 0.1], [0.5, 0.2]]},
            "coef_stages: the fractions [0.5, 0.5] must rise",
        ),
        ({"entropy.coef": -0.1}, "entropy.coef = -0.1: must be greater than or equal to 0"),
        (
            {"entropy.coef": 0.1, "entropy.control": "adaptive", "entropy.target": 0},
            "entropy.target = 0: must be great",
        ),
        ({"algorithm": "best_of_n", "entropy.coef": 0.1}, "entropy.coef = 0.1 has no effect while algorithm.advantage"),
    ],
)
def test_an_entropy_bonus_that_makes_no_sense_is_refused_in_one_line(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", settings)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bonus_acts_where_it_is_above_0_at_some_time() -> None:
    falling = {"entropy.control": "linear", "entropy.coef": 0.05}
    rising = {"entropy.control": "cosine", "entropy.coef_end": 0.05}
    later = {"entropy.control": "piecewise", "entropy.coef_stages": [[0.5, 0.05]]}
    for settings in ({"entropy.coef": 0.01}, falling, rising, later):
        assert load_config("tiny", settings).entropy.acts
    assert not load_config("tiny").entropy.acts
    assert not load_config("tiny", {"entropy.coef": 0.0}).entropy.acts


@pytest.mark.parametrize("place", ["reward", "score"])
def test_the_group_of_a_preset_goes_with_a_penalty_in_the_loss(place: str) -> None:
    named = {"algorithm": "a_star_po"}
    assert load_config("tiny", named).kl.group == "sequence"
    assert load_config("tiny", {**named, "kl.place": "loss"}).kl.group == "sequence"
    moved = load_config("tiny", {**named, "kl.place": place})
    assert (moved.kl.place, moved.kl.group, moved.kl.reward_estimator) == (place, "token", "k1")
    assert load_config("tiny", named, below={"kl.place": place}).kl.group == "token"
    assert load_config("tiny", {**named, "kl.place": "loss"}, below={"kl.place": place}).kl.group == "sequence"
    grouped = load_config("tiny", {**named, "kl.place": "reward", "kl.group": "clause"})
    assert grouped.kl.group == "clause", "what is set beside the name wins"


@pytest.mark.parametrize(
    ("beta", "squares"),
    [
        ({}, True),
        ({"kl.beta": 0.0}, False),
        ({"kl.control": "linear"}, False),
        ({"kl.control": "linear", "kl.beta_end": 0.01}, True),
        ({"kl.control": "piecewise", "kl.beta_stages": [[0.5, 0.0]]}, False),
        ({"kl.control": "piecewise", "kl.beta_stages": [[0.0, 0.1]]}, True),
    ],
)
def test_a_second_pass_without_a_ratio_needs_the_square_at_all_times(beta: dict[str, Any], squares: bool) -> None:
    settings = {"algorithm": "a_star_po", "train.num_epochs": 4, **beta}
    if squares:
        assert load_config("tiny", settings).kl.squares_throughout
        return
    with pytest.raises(UserError) as error:
        load_config("tiny", settings)
    assert "train.num_epochs is 4; use 1, or ratio: token, or a kl.beta above 0 in every update" in str(error.value)
    load_config("tiny", {**settings, "train.num_epochs": 1})


def test_a_penalty_on_groups_in_the_reward_is_allowed_where_one_in_the_loss_is_not() -> None:
    assert load_config("tiny", {"algorithm": "trpo", "kl.group": "clause"}).kl.grouped_in("reward")
    assert load_config("tiny", {"algorithm": "a_star_po", "train.num_epochs": 2}).kl.by_sequence
