from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import TrialConfig, dotted_keys, load_config, parse_set, profile_names, read_yaml
from pipeline.errors import UserError


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_is_complete_and_valid(profile: str) -> None:
    config = load_config(profile)
    assert config.profile == profile
    assert config.ppo.updates * config.ppo.steps_per_update == config.ppo.steps


def test_tiny_takes_at_least_2000_gradient_steps_and_judges_512_prompts() -> None:
    config = load_config("tiny")
    assert config.ppo.steps >= 2_000
    assert config.evaluate.prompts >= 512


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("ppo.kl_coeff=1", "unknown key 'ppo.kl_coeff'; did you mean 'ppo.kl_coef'?"),
        ("pppo.kl_coef=1", "unknown key 'pppo.kl_coef'; did you mean 'ppo.kl_coef'?"),
        ("ppo.kl_coef=-1", "ppo.kl_coef = -1"),
        ("ppo.kl_coef=.nan", "ppo.kl_coef = nan"),
        ("ppo.gae_lambda=1.5", "ppo.gae_lambda = 1.5"),
        ("ppo.critic=none_such", "ppo.critic = 'none_such'"),
        ("ppo.steps=100", "nearest: 96 or 112"),
        ("ppo.num_mini_batches=7", "batch_size 64 is no multiple of num_mini_batches 7"),
        ("data.prompt_length=[5, 3]", "the range [5, 3] is empty"),
        ("data.source=local", "set data.path"),
        ("evaluate.prompts=100000", "raise the latter"),
        ("model.hidden_size=97", "even multiple of heads"),
        ("nonsense", "write it as section.key=value"),
        ("ppo.lr={", "is not a YAML value"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(change: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", parse_set([change]))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_profile_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(UserError, match="no profile 'tinny'; did you mean 'tiny'"):
        load_config("tinny")


def test_numbers_in_scientific_notation_are_numbers() -> None:
    # YAML 1.1 reads 1e-5 as a string.
    assert load_config("tiny", parse_set(["ppo.lr=1e-5"])).ppo.lr == 1e-5


def test_yaml_faults_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb: 2\n  c: 3\n")
    with pytest.raises(UserError, match=r"x\.yaml, line 3: not valid YAML"):
        read_yaml(path)
    path.write_text("a: 1\na: 2\n")
    with pytest.raises(UserError, match=r"line 2: .*key 'a' is written twice"):
        read_yaml(path)
    path.write_text("- 1\n")
    with pytest.raises(UserError, match="must be a mapping"):
        read_yaml(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not valid YAML"):
        read_yaml(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(tmp_path / "absent.yaml")


def test_yaml_never_builds_objects(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(UserError, match="not valid YAML"):
        read_yaml(path)


def test_the_digest_ignores_what_cannot_change_a_result_and_nothing_else() -> None:
    base = load_config("tiny")
    assert load_config("tiny", {"runtime.threads": 2, "runtime.rollout_batch_size": 8}).digest() == base.digest()
    assert load_config("tiny", {"ppo.kl_coef": 0.123}).digest() != base.digest()


def test_sections_are_immutable() -> None:
    config = load_config("tiny")
    with pytest.raises(ValueError, match="frozen"):
        config.ppo.lr = 1.0  # type: ignore[misc]


def test_dotted_keys_cover_every_section() -> None:
    keys = dotted_keys()
    sections = [name for name in TrialConfig.model_fields if name != "profile"]
    assert {key.split(".")[0] for key in keys} == set(sections)
    assert "ppo.gae_lambda" in keys
