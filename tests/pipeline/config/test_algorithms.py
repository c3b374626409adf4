"""Algorithms as settings: what a name stands for, and how its settings merge with others."""

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
        name: (config.advantage, config.ratio, config.trust_region, config.aggregation, config.clip.epsilons)
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


@pytest.mark.parametrize("place", ["reward", "score"])
def test_the_group_of_a_preset_goes_with_a_penalty_in_the_loss(place: str) -> None:
    named = {"algorithm": "a_star_po"}
    assert load_config("tiny", named).kl.group == "sequence"
    assert load_config("tiny", {**named, "kl.place": "loss"}).kl.group == "sequence"
    moved = load_config("tiny", {**named, "kl.place": place})
    assert (moved.kl.place, moved.kl.group) == (place, "token")
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
        ({"kl.control": "linear", "kl.end": 0.01}, True),
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
