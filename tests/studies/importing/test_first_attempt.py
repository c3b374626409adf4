"""What a new user does: two CSV files, import, the command that it names next; and every way to go wrong at first."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from pipeline.run.metrics import METRICS
from studies.definition.schema import load_study
from studies.importing.mapping import Axis, load_mapping

Run = Callable[..., str]
pytestmark = pytest.mark.usefixtures("no_mlflow")


def table(path: Path, head: list[str], rows: list[list[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """One seed per arm, with names that every log has."""
    for arm, gain in (("a", 0.1), ("b", 0.2)):
        rows = [[step, gain * step, 0.01 * step, 1e-5] for step in range(1, 21)]
        table(tmp_path / "logs" / f"{arm}-seed0.csv", ["step", "reward", "kl", "learning_rate"], rows)
    return tmp_path / "logs"


def test_two_files_then_the_command_that_is_named_next(logs: Path, succeeds: Run, layout: Layout) -> None:
    told = succeeds("import", logs, "--name", "mine")
    assert "objective/scores: reward" in told
    assert "kl: could be objective/kl_per_token (nats per token) or objective/kl (nats per sequence)" in told
    assert "x-axis 'step' counts gradient steps (assumed; if it counts updates, give --steps-per-update N)" in told
    following = told.rpartition("Next:")[2].split("   or")[0].split()
    assert following == ["ablate", "report", "mine"]
    assert "Report: " in succeeds(*following[1:])
    page = (layout.study("mine", "imported").path / "report" / "report.md").read_text()
    assert "b (+1.95 (no interval); 1 seed) is not tested against the baseline a" in page
    assert "a test needs at least two seeds per arm" in page


def test_the_starter_mapping_reads_the_same_and_grows_by_a_line(logs: Path, succeeds: Run, layout: Layout) -> None:
    succeeds("import", logs, "--name", "mine")
    starter = Path("mine.map.yaml")
    text = starter.read_text()
    assert all(f"#   {key}  [" in text for key in METRICS), "the metrics that there are"
    assert set(load_mapping(starter).metrics) == {"objective/scores", "policy/lr"}
    assert "Ignored:\n  kl: could be" in succeeds("import", logs, "--name", "mine", "--map", starter, "--replace")
    line = '# objective/kl_per_token: "kl"'
    assert line in text
    starter.write_text(text.replace(line, line.removeprefix("# ")))
    told = succeeds("import", logs, "--name", "mine", "--map", starter, "--replace")
    assert "objective/kl_per_token: kl" in told
    assert "Ignored" not in told
    record = layout.study("mine", "imported").record("a", 0)
    assert record is not None
    assert record.ends["objective/kl_per_token"] == pytest.approx((0.19 + 0.20) / 2)
    kept = starter.read_text()
    succeeds("import", logs, "--name", "mine", "--replace")
    assert starter.read_text() == kept, "an edited mapping is never written over"


@pytest.mark.parametrize("line", ["step: step", "step: {key: step}", "step: {key: step, counts: gradient_steps}"])
def test_the_x_axis_can_be_named_in_short(logs: Path, succeeds: Run, line: str) -> None:
    Path("map.yaml").write_text(f"{line}\nmetrics: {{objective/scores: reward}}\n")
    assert "x-axis 'step' counts gradient steps" in succeeds("import", logs, "--name", "mine", "--map", "map.yaml")


def test_columns_that_mean_nothing_here_bring_a_mapping_to_fill_in(tmp_path: Path, refused: Run, succeeds: Run) -> None:
    table(tmp_path / "logs" / "a-seed0.csv", ["step", "foo", "a: b\n#c"], [[1, 0.5, 2], [2, 0.6, 3]])
    told = refused("import", "logs", "--name", "mine")
    assert "a-seed0.csv: none of its keys is a known metric (step, foo," in told
    assert "mine.map.yaml, then import again with --map mine.map.yaml" in told
    assert not Path("mine.yaml").exists()
    starter = Path("mine.map.yaml")
    assert load_mapping(starter).metrics == {}
    text = starter.read_text()
    assert '# "foo": no metric is known by this name; to take it: METRIC: "foo"' in text
    starter.write_text(text.replace("metrics:    # ours: theirs", "metrics:\n  objective/gold: foo"))
    assert "objective/gold: foo" in succeeds("import", "logs", "--name", "mine", "--map", starter)


def test_a_mapping_of_other_logs(logs: Path, refused: Run) -> None:
    Path("map.yaml").write_text("metrics: {objective/scores: rewardd}\n")
    told = refused("import", logs, "--name", "mine", "--map", "map.yaml")
    assert "no log has a key 'rewardd'; did you mean 'reward'?; keys: kl, learning_rate, reward, step" in told
    assert 'objective/scores: "reward"' in Path("mine.map.yaml").read_text()


def test_a_metric_that_is_not_there_is_answered_with_those_that_are(logs: Path, refused: Run) -> None:
    Path("map.yaml").write_text("metrics: {reward: reward}\n")
    told = " ".join(refused("import", logs, "--name", "mine", "--map", "map.yaml").split())
    assert "no metric 'reward'" in told
    assert all(key in told for key in METRICS)


def test_two_columns_of_one_meaning_are_left_to_the_user(tmp_path: Path, succeeds: Run) -> None:
    table(tmp_path / "logs" / "a-seed0.csv", ["step", "reward", "score", "lr"], [[1, 0.5, 2, 1e-5], [2, 0.6, 3, 1e-5]])
    told = succeeds("import", "logs", "--name", "mine")
    assert "reward, score: reward and score could both be objective/scores; say which in the mapping" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step: 3", "step: must be a key or {key: ..., counts: ...}; it is 3"),
        ("step: [step]", "step: must be a key or {key: ..., counts: ...}; it is ['step']"),
        ("metrics: [a]", "metrics: must be a mapping of our metrics to their keys; it is ['a']"),
        (
            "metrics: {objective/kl: 3}",
            "metrics: objective/kl: must be a key, or {key: ..., unit: ...",
        ),
        ("metrics: {objective/kl: [kl]}", "metrics: objective/kl: must be a key, or"),
        ("prompts: 3", "prompts: must be a mapping of our columns to theirs; it is 3"),
        ("prompts: {golden: x}", "prompts: no column 'golden'"),
        ("columns: seed", "columns: must be a mapping of keys to values; it is 'seed'"),
        ("columns: {arms: x}", "unknown key 'columns.arms'; did you mean 'columns.arm'?"),
        ("arms: [a]", "arms: must be a mapping of keys to values; it is ['a']"),
        ("arms: {a: {files: x}}", "arms.a: 'files' cannot differ from arm to arm"),
        ("arms: {a: {step: 3}}", "arms.a: step: must be a key or {key: ..., counts: ...}; it is 3"),
        ("arms: {z*: {program: verl}}", "arms.z*: no arm fits it; arms: a, b"),
        ("length: [3]", "length: must be a number of tokens, or the key that logs it; it is [3]"),
        ("program: trl", "program: no program 'trl'"),
        ("environment: 3", "environment: must be a mapping of keys to values; it is 3"),
        ("include: 3", "include = 3: must be a list"),
    ],
)
def test_faults_are_told_in_the_users_words(logs: Path, refused: Run, text: str, words: str) -> None:
    Path("map.yaml").write_text(text + "\n")
    told = " ".join(refused("import", logs, "--name", "mine", "--map", "map.yaml").split())
    assert words in told
    for ours in ("instance of", "Axis", "Named", "Columns", "MappingFile", "pydantic", "dict", "tuple"):
        assert ours not in told


def test_gold_is_maximised_when_it_is_all_there_is(tmp_path: Path, succeeds: Run) -> None:
    for seed in (0, 1, 2):
        for arm, level in (("a", 1.0), ("b", 2.0)):
            rows = [[step, level + 0.01 * seed] for step in range(1, 6)]
            table(tmp_path / "logs" / f"{arm}-seed{seed}.csv", ["step", "gold"], rows)
    succeeds("import", "logs", "--name", "mine")
    objective = load_study("mine.yaml").objective
    assert (objective.metric, objective.direction) == ("objective/gold", "maximize")


@pytest.mark.parametrize(("metric", "direction"), [("objective/kl_per_token", "minimize"), ("eval/gold", "maximize")])
def test_a_direction_that_is_not_given_is_the_metrics_own(tmp_path: Path, metric: str, direction: str) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(
        "question: q\nhypothesis: h\nrefuted_if: r\nbaseline: a\nseeds: [0]\nimported: {a: {}}\n"
        f"objective: {{metric: {metric}}}\n"
    )
    assert load_study(file).objective.direction == direction


def test_a_mapping_is_written_with_the_axis_that_was_read(tmp_path: Path, succeeds: Run) -> None:
    rows = [[7 * step, step, 0.1 * step, 0.01] for step in range(1, 9)]
    table(tmp_path / "logs" / "a-seed0.csv", ["_step", "train/global_step", "reward", "kl"], rows)
    told = succeeds("import", tmp_path / "logs", "--name", "mine", "--steps-per-update", 2)
    assert "x-axis 'train/global_step' counts updates of 2 gradient steps" in told
    assert load_mapping(Path("mine.map.yaml")).step == Axis(key="train/global_step", counts="updates")


@pytest.mark.parametrize("metric", ["objective/rlhf_reward", "objective/non_score_reward"])
def test_no_arms_are_compared_by_a_penalised_reward(tmp_path: Path, metric: str) -> None:
    claim = "{name: n, claim: c, metric: %s, op: '<', threshold: 0, before_step: 9"
    file = tmp_path / "one.yaml"
    head = "question: q\nbaseline: a\nseeds: [0, 1]\nimported: {a: {}, b: {}}\n"
    own = f"{head}objective: {{metric: objective/scores}}\nfalsifiers: [{claim}}}]\n"
    for text in (
        f"{head}objective: {{metric: %s}}\n",
        f"{head}hypotheses: [{{name: h, claim: c, metric: %s, contrast: b - a, expect: higher}}]\n",
        own.replace("}]", ", relative_to: baseline}]"),
    ):
        file.write_text(text % metric)
        with pytest.raises(UserError, match="each arm's own KL penalty"):
            load_study(file)
    file.write_text(own % metric)
    assert load_study(file).falsifiers[0].metric == metric, "a bound for each arm on its own compares none"


@pytest.mark.parametrize("judge", ["eval/gold", "objective/gold"])
def test_a_judge_that_was_imported_is_not_said_to_be_absent(
    tmp_path: Path, succeeds: Run, drawn: Run, judge: str
) -> None:
    rows = [[arm, seed, step, 0.1 * step] for arm in "ab" for seed in (0, 1) for step in (1, 2)]
    succeeds("import", table(tmp_path / "all.csv", ["arm", "seed", "step", judge], rows), "--name", "mine")
    page = drawn("mine", "frontier")
    assert "no win rate against the reference" in page
    assert "no judge" not in page


def test_a_file_of_no_trial_is_listed_although_its_name_tells_arm_and_seed(logs: Path, succeeds: Run) -> None:
    table(logs / "notes" / "2024.csv", ["day", "text"], [[1, "began"]])
    told = succeeds("import", logs, "--name", "mine")
    assert "mine: 2 trials of 2 arms" in told
    assert "  notes/2024.csv: no column of it is an x-axis" in told
