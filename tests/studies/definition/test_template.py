"""New studies are valid as they stand, and the JSON schema by which editors complete them fits all study files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipeline.config.loading import dotted_keys, profile_names
from pipeline.config.names import SYMBOLS
from pipeline.errors import UserError
from pipeline.run.metrics import METRICS
from studies.definition.authoring import DESIGNS, SCHEMA, header, new_study, study_schema, template
from studies.definition.design import cells
from studies.definition.fields import FIXED
from studies.definition.schema import STUDIES, load_study, study_names

Faults = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def faults() -> Faults:
    checker = jsonschema.Draft202012Validator(study_schema())
    checker.check_schema(checker.schema)
    return lambda text: [error.message for error in checker.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_follow_the_schema_and_name_it(faults: Faults, name: str) -> None:
    path = STUDIES / f"{name}.yaml"
    assert path.read_text().splitlines()[0] == header(path) == "# yaml-language-server: $schema=study.schema.json"
    assert faults(path.read_text()) == []


@pytest.mark.parametrize("design", DESIGNS)
def test_a_new_study_is_valid_as_it_stands(faults: Faults, tmp_path: Path, design: str) -> None:
    study = load_study(new_study("mine", design, tmp_path))
    text = Path(study.source).read_text()
    assert study.kind == design
    assert cells(study)
    assert faults(text) == []
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA}\n")
    assert f"# {SYMBOLS}." in text


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("algorithm.clip.epsilon: 0.05", "reward.parts.harmless.weight: -0.5", False),
        ("algorithm.clip.epsilon: 0.05", "ppo.clip: 0.05", True),
        ("algorithm.clip.epsilon: 0.05", "train.seed: 1", True),
        ("question:", "qestion:", True),
        ("metric: eval/win_rate", "metric: eval/winrate", True),
        ("arms:\n", "grid: {optimiser.lr: [1]}\narms:\n", True),
    ],
)
def test_the_schema_finds_mistakes_and_allows_names_of_the_users(
    faults: Faults, tmp_path: Path, old: str, new: str, wrong: bool
) -> None:
    text = template(tmp_path / "mine.yaml", "arms")
    assert old in text
    assert bool(faults(text.replace(old, new))) == wrong


def test_the_schema_completes_every_knob_and_metric_with_bounds_and_words() -> None:
    schema = study_schema()
    parts, fields = schema["$defs"], schema["properties"]
    knobs = parts["Overrides"]["properties"]
    assert set(knobs) == {*dotted_keys(), "algorithm"} - {*FIXED}
    assert all(knob["description"] and ({"type", "enum", "anyOf", "$ref"} & knob.keys()) for knob in knobs.values())
    assert (knobs["kl.beta"]["minimum"], knobs["kl.beta"]["type"]) == (0.0, "number")
    assert set(parts["Search"]["properties"]["space"]["properties"]) == set(knobs)
    assert parts["Metric"]["anyOf"][0]["enum"] == [*METRICS]
    assert fields["profile"]["enum"] == profile_names()


@pytest.mark.parametrize(
    ("name", "design", "message"),
    [
        ("mine", "factor", r"--design 'factor'; did you mean 'factors'\?"),
        ("kl_ablation", "arms", "is the name of a study that comes with the project"),
        ("mine+confirm", "arms", "choose another"),
        ("there", "arms", r"there\.yaml exists and is not overwritten"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, design: str, message: str) -> None:
    (tmp_path / "there.yaml").write_text("precious")
    with pytest.raises(UserError, match=message):
        new_study(name, design, tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("there.yaml", "precious")]
