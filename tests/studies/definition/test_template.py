from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml
from fake_trial import SEARCH, STUDY
from helpers import smoke
from light_study import Write

from pipeline.config.loading import dotted_keys, profile_names
from pipeline.config.names import SYMBOLS
from pipeline.errors import UserError
from pipeline.run.layout import Layout
from pipeline.run.metrics import METRICS
from pipeline.trial import plan_trial
from studies.definition.authoring import DESIGNS, SCHEMA, header, new_study, study_schema, template
from studies.definition.design import cells
from studies.definition.fields import FIXED
from studies.definition.hypotheses import weights_of
from studies.definition.schema import STUDIES, Study, load_study, study_names
from studies.definition.testable import needs, untestable

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
    assert study.kind == ("arms" if design == "command" else design)
    assert cells(study)
    assert faults(text) == []
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA}\n")
    assert (f"# {SYMBOLS}." in text) == (design != "command")


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("arms:\n", "trainer: {command: [train]}\narms:\n  mine: {any: 1, name: x}\n", False),
        ("arms:\n", "trainer: {command: [train]}\narms:\n  mine: {any: [1]}\n", True),
        ("arms:\n", "trainer: null\narms:\n  mine: {any: 1}\n", True),
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


BASE = {"name": "n", "claim": "c", "op": ">", "threshold": 0.5}
SERIES = "metric: objective/kl, before_step: 32"
HEAD = STUDY.partition("falsifiers:")[0].replace("seeds: [0, 1]", "seeds: [0, 1]\nprofile: tiny")
PART = "  - {name: wins, claim: it wins, metric: eval/win_rate, contrast: strong - weak, expect: higher}\n"
SHORT = {"train.steps": 64}


def test_contrasts_and_orders(write_study: Write) -> None:
    study = write_study(f"{STUDY}hypotheses:\n{PART}")
    same = write_study(f"{STUDY}hypotheses:\n{PART.replace('strong - weak', '{strong: 1, weak: -1}')}")
    assert study.hypotheses == same.hypotheses
    (one,) = study.hypotheses
    assert (one.contrasts, one.condition) == (({"strong": 1.0, "weak": -1.0},), "eval/win_rate: strong - weak > 0")
    order = PART.replace("contrast: strong - weak, expect: higher", "order: [weak, strong], expect: lower, margin: 0.1")
    (one,) = write_study(f"{STUDY}hypotheses:\n{order}").hypotheses
    assert one.contrasts == ({"strong": 1.0, "weak": -1.0},), "each arm minus the one before it"
    assert one.condition == "eval/win_rate: weak > strong, each by more than 0.1"
    write_study(f"{SEARCH}hypotheses:\n{PART.replace('strong - weak', 'confirm-1 - baseline')}")
    assert weights_of("- a + b") == {"a": -1.0, "b": 1.0}
    silent = write_study(STUDY.replace("hypothesis: It does.\nrefuted_if: It does not.\n", ""))
    assert (silent.hypothesis, silent.refuted_if) == (None, None)


def plan_of(write_study: Write, line: str, weak: str = "kl.beta: 0.01", strong: str = "kl.beta: 0.2") -> Study:
    head = HEAD.replace("kl.beta: 0.01", weak).replace("kl.beta: 0.2", strong)
    return write_study(f"{head}falsifiers:\n  - {{name: n, claim: c, op: '>', threshold: 0.5, {line}}}\n")


@pytest.mark.parametrize(
    ("line", "arms", "expected"),
    [
        ("metric: objective/kl, before_step: 64", {}, ""),
        ("metric: objective/kl, before_step: 65", {}, "cannot survive: it covers the first 65 ... 64"),
        ("metric: objective/kl, before_step: 65, aggregation: mean", {}, "cannot be tested: it covers the first 65"),
        ("metric: objective/kl, before_step: 64, aggregation: {consecutive: 4}", {}, ""),
        ("metric: objective/kl, before_step: 64, aggregation: {consecutive: 5}", {}, "5 records ... at most 4"),
        ("metric: policy/kl_hinge, before_step: 64", {"strong": "kl.hinge: 0.2"}, "tested on weak: ... kl.hinge"),
        (f"{SERIES}, relative_to: baseline", {"weak": "algorithm: best_of_n"}, "baseline weak records ... only with"),
        (f"{SERIES}, relative_to: baseline", {"weak": "train.steps: 16"}, "cannot survive: ... train.steps is 16"),
        (
            "metric: objective/kl, before_step: 64, relative_to: baseline, aggregation: {consecutive: 3}",
            {"strong": "train.num_epochs: 3, train.steps: 2052"},
            "3 records in a row ... at most 2 come before step 64",
        ),
    ],
)  # fmt: skip
def test_claims_that_the_planned_trials_cannot_decide(
    write_study: Write, line: str, arms: dict[str, str], expected: str
) -> None:
    study = plan_of(write_study, line, **arms)
    found = untestable(study, cells(study, None, {} if "train.steps" in str(arms) else SHORT))
    if not expected:
        assert found == []
        return
    (warning,) = found
    assert warning.startswith("claim n ")
    position = 0
    for part in expected.split(" ... "):
        assert part in warning[position:], warning
        position = warning.index(part)


def test_a_hypothesis_that_the_planned_trials_cannot_decide(write_study: Write) -> None:
    one = write_study(f"{STUDY}hypotheses:\n{PART}")
    assert untestable(one, cells(one)) == []
    lonely = write_study(f"{STUDY.replace('[0, 1]', '[0]')}hypotheses:\n{PART}")
    assert "it needs at least 2 seeds" in untestable(lonely, cells(lonely))[0]
    silent = write_study(f"{STUDY}hypotheses:\n{PART.replace('eval/win_rate', 'policy/kl_loss')}")
    assert "records policy/kl_loss only with kl.place: loss" in untestable(silent, cells(silent))[0]


def test_a_part_of_the_reward_that_is_absent_or_alone_has_no_series() -> None:
    learned = {"kind": "learned"}
    one = smoke(reward__kind="composite", reward__parts={"helpful": learned})
    two = smoke(reward__kind="composite", reward__parts={"helpful": learned, "harmless": learned})
    for head in ("reward/", "eval/reward/"):
        assert needs(f"{head}helpful", two) is None
        assert needs(f"{head}helpfull", two) == "reward.parts.helpfull"
        assert needs(f"{head}helpful", one) == "a second part in reward.parts"


def test_series_are_recorded_as_the_warnings_say(smoke_layout: Layout) -> None:
    import pyarrow.parquet as pq

    keys = {one.stage: one.key for one in plan_trial(smoke(), smoke_layout)}
    table = smoke_layout.store / "train" / str(keys["train"]) / "metrics.parquet"
    series = {key for key in METRICS if not key.startswith(("eval/", "cost/"))}
    assert {key for key in series if needs(key, smoke()) is None} == series & set(pq.read_schema(table).names)
