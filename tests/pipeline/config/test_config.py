"""Profiles, algorithms as settings, keys by other names, and the YAML that is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.loading import dotted_keys, load_config, parse_set
from pipeline.config.names import SYMBOLS, WORDS
from pipeline.config.presets import PRESETS
from pipeline.config.yaml_files import MOST_BYTES, PlainDumper, line_of, read_value, read_yaml
from pipeline.errors import UserError


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("b: 1\na: &a [x]\nc: [*a, *a]", ", line 2: anchors and aliases ('a') are not read"),
        ("a: " + "[" * 3_000, ": not valid YAML: "),
        ("a: 1\nb: !!int 'x'", ", line 2: the tag '!!int' is not read; leave it out"),
        ("a: !!python/object/apply:os.system [id]", ", line 1: the tag '!!python/object/apply:os.system' is not read"),
        ("a: 0x" + "f" * 4_000, ", line 1: 0xfff"),
        ("a: 9223372036854775808", ", line 1: 9223372036854775808 is beyond 64 bits"),
        ('a: "\\e[31m"', r", line 1: '\x1b[31m' holds the control character \x1b"),
        ('"\\a": 1', r", line 1: '\x07' holds the control character \x07"),
        ('a: "\\U99999999"', ": not valid YAML: Python int too large"),
        ("null: 1", ", line 1: a key must be a text or a number"),
        ("? [a]\n: 1", ", line 1: a key must be a text or a number"),
        ("a: 1\na: 2", ", line 2: not valid YAML: key 'a' is written twice"),
        ("a: 1".encode("utf-16"), ": not valid YAML: "),
        ("a:\n\tb: 1\n", ", line 2: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: what: why\n", ", line 1: not valid YAML: mapping values are not allowed here"),
        ("# nothing yet\n", ": the file is empty"),
        ("- 1\n", ": must be a mapping"),
        ("#" * (MOST_BYTES + 1), ": cannot be read: it has 1,048,577 bytes, and at most 1,048,576 are read"),
    ],
)  # fmt: skip
def test_yaml_that_is_not_plain_is_refused_at_its_line(tmp_path: Path, content: str | bytes, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as refused:
        read_yaml(path)
    assert line_of(path, ("a", 0)) in (None, 1)
    assert str(refused.value).removeprefix(str(path)).startswith(says)


def test_plain_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("\ufeffdate: 2026-02-30\nis: =\ntext: !!str 5\nlast: 9223372036854775807\nlines: |\n  a\n  b\n")
    assert read_yaml(path) == {"date": "2026-02-30", "is": "=", "text": "5", "last": 2**63 - 1, "lines": "a\nb\n"}


def test_settings_have_the_same_limits() -> None:
    assert read_value("[1, 0.5, null, 2026-01-01]") == [1, 0.5, None, "2026-01-01"]
    for value, says in {"!!int x": "the tag '!!int' is not read", "{": "is not a YAML value"}.items():
        with pytest.raises(UserError, match=says):
            parse_set([f"kl.beta={value}"])
    with pytest.raises(UserError) as refused:
        parse_set(["\x1b]0;title\x07"])
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ["1e-5", "1E5", "-2.5e3", ".5e3"])
def test_a_plain_number_with_an_exponent_is_a_number_and_a_quoted_one_a_text(text: str) -> None:
    assert read_value(text) == float(text)
    assert read_value(f"'{text}'") == text
    assert read_value(yaml.dump([text], Dumper=PlainDumper)) == [text]
    assert read_value(f"{{{text}: 0}}") == {text: 0}, "an arm's name is a text"


@pytest.mark.parametrize("text", ["e5", "1e", "1e-5x", "12345678901234567890e12345678901234567890"])
def test_what_only_resembles_one_is_a_text(text: str) -> None:
    assert read_value(text) == text
