from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.loading import dotted_keys, profile_names
from pipeline.config.names import SYMBOLS
from pipeline.errors import UserError
from pipeline.run.metrics import METRICS
from studies.definition import editor_schema
from studies.definition.design import cells
from studies.definition.editor_schema import SCHEMA, header, study_schema
from studies.definition.schema import SEED_KEY, STOP_KEY, STUDIES, load_study, study_names
from studies.definition.template import DESIGNS, new_study, template

ROOT = Path(__file__).parents[3]
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> Iterator[str]:
    """As much of JSON schema as ours uses; an unknown keyword is a fault of this test."""
    known = {
        "$ref",
        "$defs",
        "$schema",
        "type",
        "enum",
        "anyOf",
        "oneOf",
        "required",
        "properties",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
    }
    known |= {
        "minProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "pattern",
    }
    assert set(schema) <= known | {"description", "default", "title", "enumDescriptions"}, set(schema) - known
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        yield from faults(value, target, root, at)
    if "type" in schema and (
        not isinstance(value, TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean")
    ):
        yield f"{at}: {value!r} is no {schema['type']}"
        return
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{at}: {value!r} is not {schema['pattern']}"
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{at}: {len(value)} characters"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not in the list"
    for word, needed in (("anyOf", range(1, 99)), ("oneOf", range(1, 2))):
        if word in schema and sum(not list(faults(value, one, root, at)) for one in schema[word]) not in needed:
            yield f"{at}: {word}"
    if isinstance(value, dict):
        yield from _object_faults(value, schema, root, at)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 999):
            yield f"{at}: {len(value)} items"
        for index, one in enumerate(value):
            fixed = schema.get("prefixItems", [])
            yield from faults(
                one, fixed[index] if index < len(fixed) else schema.get("items", {}), root, f"{at}.{index}"
            )
    if isinstance(value, int | float) and not isinstance(value, bool):
        bounds = (
            value < schema.get("minimum", value),
            value > schema.get("maximum", value),
            value <= schema.get("exclusiveMinimum", value - 1),
            value >= schema.get("exclusiveMaximum", value + 1),
        )
        if any(bounds):
            yield f"{at}: {value} is out of range"


def _object_faults(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    for key in schema.get("required", []):
        if key not in value:
            yield f"{at}: {key} is missing"
    others = schema.get("additionalProperties", True)
    for key, one in value.items():
        patterns = [found for pattern, found in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
        if key in schema.get("properties", {}):
            yield from faults(one, schema["properties"][key], root, f"{at}.{key}")
        elif patterns:
            yield from faults(one, patterns[0], root, f"{at}.{key}")
        elif others is False:
            yield f"{at}: unknown key {key}"
        elif others is not True:
            yield from faults(one, others, root, f"{at}.{key}")


def test_a_new_study_comes_with_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor_schema, "SCHEMA", tmp_path / "there.json")
    path = new_study("mine", "arms", tmp_path)
    assert path.read_text().splitlines()[0] == f"# yaml-language-server: $schema={editor_schema.SCHEMA.name}"
    assert json.loads(editor_schema.SCHEMA.read_text("utf-8")) == study_schema()
    editor_schema.SCHEMA.unlink()
    editor_schema.SCHEMA.mkdir()  # cannot be written
    assert new_study("other", "arms", tmp_path).exists()


@pytest.mark.parametrize("name", study_names())
def test_shipped_studies_follow_the_schema_and_name_it(name: str) -> None:
    path = STUDIES / f"{name}.yaml"
    assert path.read_text().splitlines()[0] == header(path) == "# yaml-language-server: $schema=study.schema.json"
    assert list(faults(yaml.safe_load(path.read_text()), study_schema(), study_schema())) == []


@pytest.mark.parametrize("design", DESIGNS)
def test_a_new_study_is_valid_as_it_stands(tmp_path: Path, design: str) -> None:
    path = new_study("mine", design, tmp_path)
    study = load_study(path)
    assert study.kind == design
    assert cells(study)
    assert list(faults(yaml.safe_load(path.read_text()), study_schema(), study_schema())) == []
    assert path.read_text().startswith(f"# yaml-language-server: $schema={SCHEMA}\n")
    assert path.read_text().endswith("\n")
    assert f"# {SYMBOLS}." in path.read_text()


def test_what_is_commented_out_is_valid_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for design, comment in (
        ("factors", "# interactions"),
        ("arms", "# stop: true"),
        ("arms", "# confirm"),
        ("grid", "# constraints"),
    ):
        path.write_text(template(path, design).replace(comment, comment.removeprefix("# ")))
        load_study(path)
    text = template(path, "arms")
    for line in re.findall(r"(?m)^  # ((?:- name:|  [a-z_]+:).*)$", text.partition("falsifiers:")[2]):
        text = text.replace(f"  # {line}", f"  {line}")
    path.write_text(text)
    forms = [(claim.relative, claim.bound) for claim in load_study(path).falsifiers]
    assert forms == [(None, None), ("difference", None), (None, "low")]
    assert list(faults(yaml.safe_load(text), study_schema(), study_schema())) == []
    text = template(path, "search").replace("  # objectives:", "  objectives:").replace("  #   - {", "    - {")
    path.write_text(text)
    search = load_study(path).search
    assert search is not None
    assert len(search.objectives) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("algorithm.cliprange: 0.05", "reward.parts.harmless.weight: -0.5"),
        ("metric: objective/kl_exact_per_token", "metric: reward/harmless"),
        ("metric: eval/win_rate", "metric: eval/reward/harmless"),
    ],
)
def test_the_schema_knows_names_that_the_user_gives(tmp_path: Path, old: str, new: str) -> None:
    text = template(tmp_path / "mine.yaml", "arms")
    assert old in text
    assert not list(faults(yaml.safe_load(text.replace(old, new)), study_schema(), study_schema()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("algorithm.cliprange: 0.05", "ppo.clip: 0.05"),
        ("algorithm.cliprange: 0.05", "algorithm.cliprange: -1"),
        ("algorithm.cliprange: 0.05", "algorithm.cliprange: many"),
        ("algorithm.cliprange: 0.05", "train.seed: 1"),
        ("question:", "qestion:"),
        ("profile: tiny", "profile: tinny"),
        ("metric: objective/kl_exact_per_token", "metric: eval/win_rate"),
        ("metric: eval/win_rate", "metric: policy/entropy"),
        ("seeds: [0, 1, 2, 3, 4]", "seeds: []"),
        ("seeds: [0, 1, 2, 3, 4]", "seeds: [0.5]"),
        ("arms:\n", "grid: {optimiser.lr: [1]}\narms:\n"),
        ("consecutive: 3", "consecutive: 0"),
        ("consecutive: 3", "in_a_row: 3"),
        ("before_step: 2000", "bound: low"),
        ("before_step: 2000", "before_step: 2000\n    bound: low"),
        ("before_step: 2000", "before_step: 2000\n    relative_to: epsilon_0.2"),
    ],
)
def test_the_schema_sees_mistakes(tmp_path: Path, old: str, new: str) -> None:
    text = template(tmp_path / "mine.yaml", "arms")
    assert old in text
    assert list(faults(yaml.safe_load(text.replace(old, new)), study_schema(), study_schema()))


def test_arms_complete_every_knob_with_type_bounds_and_words() -> None:
    schema = study_schema()
    knobs = schema["$defs"]["Overrides"]["properties"]
    assert set(knobs) == {*dotted_keys(), "algorithm"} - {SEED_KEY, STOP_KEY}
    assert all(knob["description"] and ({"type", "enum", "anyOf", "$ref"} & knob.keys()) for knob in knobs.values())
    assert knobs["kl.beta"] == {
        "default": 0.05,
        "minimum": 0.0,
        "maximum": 10**12,
        "type": "number",
        "description": (
            "weight of the penalty; the starting value when control is not fixed; acts only with kl.control other than"
            " piecewise, or a first stage that begins after 0 (tiny 0.05, t4 0.01)"
        ),
    }
    for kind in ("grid", "factors"):
        assert set(schema["properties"][kind]["properties"]) == set(knobs)
    assert set(schema["$defs"]["Search"]["properties"]["space"]["properties"]) == set(knobs)
    listed = [schema["$defs"][part]["anyOf"][0]["enum"] for part in ("Evaluation", "Series")]
    assert {key for keys in listed for key in keys} == set(METRICS)
    assert schema["properties"]["profile"]["enum"] == profile_names()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("precious")
    with pytest.raises(UserError, match=r"mine\.yaml exists and is not overwritten"):
        new_study("mine", "arms", tmp_path)
    assert (tmp_path / "mine.yaml").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "design", "message"),
    [
        ("mine", "factor", r"--design 'factor'; did you mean 'factors'\?"),
        ("kl_ablation", "arms", "is the name of a study that comes with the project"),
        ("../mine", "arms", "cannot be used"),
        ("", "arms", "cannot be used"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, design: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        new_study(name, design, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written: No such file"):
        new_study("mine", "arms", tmp_path / "absent")


def test_the_command_writes_here_and_says_what_next(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "ablate.py"), "new-study", "mine", "--design", "factors"]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == [str(tmp_path / "mine.yaml"), "Edit it, then: ablate plan mine"], done.stderr
    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert again.returncode == 2
    assert len(again.stderr.splitlines()) == 1
