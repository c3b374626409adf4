from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import loading
from pipeline.config.loading import dotted_keys, load_config, profile_names
from pipeline.config.names import SYMBOLS, WORDS
from pipeline.config.trial import TrialConfig
from pipeline.config.yaml_files import line_of
from pipeline.errors import UserError


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_is_complete_and_valid(profile: str) -> None:
    config = load_config(profile)
    assert config.profile == profile
    assert config.train.updates * config.train.steps_per_update == config.train.steps


def test_a_profile_may_leave_a_section_to_its_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare.yaml").write_text("model: {layers: 1}\n")
    monkeypatch.setattr(loading, "PROFILES", tmp_path)
    assert load_config("bare").train == TrialConfig(profile="bare").train


def test_a_profile_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(UserError, match="no profile 'tinny'; did you mean 'tiny'"):
        load_config("tinny")


def test_the_digest_ignores_what_cannot_change_a_result_and_nothing_else() -> None:
    base = load_config("tiny")
    assert load_config("tiny", {"runtime.threads": 2, "runtime.rollout_batch_size": 8}).digest() == base.digest()
    assert load_config("tiny", {"kl.beta": 0.123}).digest() != base.digest()


@pytest.mark.parametrize(
    ("own", "below", "same"),
    [
        ({"reward.kind": "lexicon"}, {"reward.learned.pairs": 64}, True),
        ({}, {"reward.learned.pairs": 64}, False),
        ({}, {"algorithm.trpo.delta": 0.1}, True),
        ({"algorithm": "trpo"}, {"algorithm.trpo.delta": 0.1}, False),
        ({}, {"kl.adaptive.target": 3.0}, True),
        ({"kl.control": "adaptive"}, {"kl.adaptive.target": 3.0}, False),
        ({}, {"judge.ocr.size": 32}, True),
        ({"judge.kind": "ocr"}, {"judge.ocr.size": 32}, False),
        ({}, {"replay.share": 0.5}, True),
        ({"algorithm": "best_of_n"}, {"optimiser.lr": 0.1}, True),
        ({"algorithm": "best_of_n"}, {"algorithm.clip.epsilon": 0.1}, True),
        ({"algorithm": "best_of_n"}, {"train.response_length": 8}, False),
    ],
)
def test_a_section_that_does_not_act_is_part_of_no_key(own: dict[str, Any], below: dict[str, Any], same: bool) -> None:
    assert (load_config("tiny", own, below=below).digest() == load_config("tiny", own).digest()) is same


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("beta", "beta is the key 'kl.beta'"),
        ("ppo.beta", "beta is the key 'kl.beta'"),
        ("lambda", "lambda is the key 'algorithm.gae_lambda'"),
        ("epsilon", "epsilon is the key 'algorithm.clip.epsilon'"),
        ("c1", "c1 is the key 'critic.vf_coef'"),
        ("learning_rate", "learning_rate is the key 'optimiser.lr', 'sft.lr' or 'reward.learned.lr'"),
        ("sft.learning_rate", "learning_rate is the key 'sft.lr'"),
        ("kl_coef", "kl_coef is the key 'kl.beta'"),
        ("klcoef", "did you mean 'kl.beta'?"),
        ("steps", "did you mean 'train.steps' or 'sft.steps'?"),
        ("train", "'train' is a section: name its keys with a dot, for example 'train."),
        ("lora_rank", "lora_rank is the key 'adapter.rank'"),
    ],
)
def test_a_key_by_another_name_is_answered_with_the_key_that_is_meant(key: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", {key: 1})
    assert f"--set: unknown key '{key}'; {says}" in str(error.value)
    assert "\n" not in str(error.value)


def test_words_lead_to_keys_that_exist() -> None:
    keys = set(dotted_keys())
    assert keys.issuperset(key for meant in WORDS.values() for key in meant)
    assert all(WORDS[word][0] == key for word, key in (part.split(" = ") for part in SYMBOLS.split(", ")))


def test_all_faults_of_several_settings_come_at_once() -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", {"beta": 1, "kl.beta": -1, "critic.kind": "seperate", "data.prompt_length": 3})
    assert str(error.value).splitlines() == [
        "--set: unknown key 'beta'; beta is the key 'kl.beta'",
        "--set: data.prompt_length = 3: must be a list, such as [1, 2]",
        "--set: kl.beta = -1: must be greater than or equal to 0",
        "--set: critic.kind = 'seperate': must be 'shared', 'separate' or 'none'; did you mean 'separate'?",
    ]


def test_lines_of_entries(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb:\n  c: {d: 2}\n  e:\n    - 5\n    - f: 6\n")
    places: list[tuple[tuple[str | int, ...], int | None]] = [
        (("a",), 1), (("b",), 2), (("b", "c", "d"), 3), (("b", "e", 1, "f"), 6), (("b", "e", 7), 4), (("x",), None)
    ]  # fmt: skip
    assert [(where, line_of(path, where)) for where, _ in places] == places
