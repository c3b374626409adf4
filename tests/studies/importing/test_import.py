"""`ablate import` from folder to verdict: what it writes, that it writes all or nothing, and nothing twice."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl_logs
from trl_logs import Rows
from typer.testing import CliRunner

from ablate import app
from pipeline.errors import UserError
from pipeline.run.layout import Layout
from studies.claims.falsifiers import Verdict
from studies.claims.verdicts import verdicts
from studies.definition.design import Foreign, planned
from studies.definition.schema import load_study
from studies.importing import records
from studies.importing.run import Imported, import_folder

CLAIM = """
falsifiers:
  - {name: drift, claim: it stays near, metric: objective/kl, op: '>', threshold: %s, before_step: %s}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return trl_logs.folder(tmp_path / "logs")


def bring(logs: Path, layout: Layout, **changes: Any) -> Imported:
    return import_folder(logs, "trl", layout, **{"steps_per_update": 16, **changes})


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.endswith(".lock"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files if ".locks" not in path.parts}


def judged(layout: Layout) -> list[Verdict]:
    study = load_study("trl.yaml")
    return verdicts(study, layout.study("trl", "imported"), planned(study))


def claim(threshold: float, before: int) -> None:
    path = Path("trl.yaml")
    path.write_text(path.read_text().partition("falsifiers")[0].removesuffix("# ") + CLAIM % (threshold, before))


def test_a_folder_becomes_a_study(logs: Path, layout: Layout) -> None:
    done = bring(logs, layout)
    assert done.written
    study = load_study("trl.yaml")
    assert (study.kind, study.profile, study.baseline, study.seeds) == ("imported", "imported", "beta_0.05", (0, 1))
    assert list(study.arm_overrides()) == ["beta_0.05", "beta_0.2"]
    assert (study.objective.metric, study.objective.direction) == ("objective/scores", "maximize")
    folder = layout.study("trl", "imported")
    found = folder.record("beta_0.2", 1)
    assert found is not None
    assert (found.status, found.steps, found.profile) == ("complete", 12 * 16, "imported")
    assert found.config_digest == Foreign("beta_0.2", 1).digest
    assert found.config["imported"]["file"] == "beta_0.2/seed_1.jsonl"
    stored = layout.root / found.stages["train"].path
    rows = [json.loads(line) for line in (stored / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(0, 193, 16))
    assert rows[0]["objective/kl"] == 0.0
    assert "policy/lr" not in rows[0]
    assert rows[-1]["policy/lr"] == trl_logs.rows(0.2, 1)[-1]["lr"]


def test_the_same_again_changes_nothing(logs: Path, layout: Layout, tmp_path: Path) -> None:
    bring(logs, layout)
    before = contents(tmp_path)
    for path in logs.rglob("*.jsonl"):
        os.utime(path, (1e9, 1e9))
    done = bring(logs, layout)
    assert contents(tmp_path) == before
    assert (done.change.added, done.change.changed, done.change.removed, done.change.unchanged) == ((), (), (), 4)


def test_changed_data_is_updated_and_the_rest_is_left(logs: Path, layout: Layout) -> None:
    bring(logs, layout)
    folder = layout.study("trl", "imported")
    kept = folder.trial_file("beta_0.05", 0).read_bytes()
    trl_logs.write(logs / "beta_0.05" / "seed_1.jsonl", trl_logs.rows(0.05, 1, updates=20))
    (logs / "beta_0.2" / "seed_1.jsonl").unlink()
    done = bring(logs, layout, over=True)
    assert done.change.changed == ("beta_0.05 seed 1",)
    assert done.change.removed == ("beta_0.2 seed 1",)
    assert folder.record("beta_0.05", 1).steps == 320  # type: ignore[union-attr]
    assert folder.trial_file("beta_0.05", 0).read_bytes() == kept
    assert folder.record("beta_0.2", 1) is None


def test_another_mapping_is_another_import(logs: Path, layout: Layout) -> None:
    bring(logs, layout)
    with pytest.raises(UserError, match="are recorded from other files or with another mapping; nothing was changed"):
        bring(logs, layout, steps_per_update=4)
    assert len(bring(logs, layout, steps_per_update=4, over=True).change.changed) == 4


@pytest.mark.parametrize("text", ["not JSON\n{}\n", '{"step": 1}\n', '{"loss": 1, "step": 1}\n'])
def test_one_bad_file_and_nothing_is_touched(logs: Path, layout: Layout, tmp_path: Path, text: str) -> None:
    bring(logs, layout)
    trl_logs.write(logs / "beta_0.05" / "seed_0.jsonl", trl_logs.rows(0.05, 0, updates=20))
    (logs / "beta_0.2" / "seed_1.jsonl").write_text(text)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"beta_0\.2/seed_1\.jsonl"):
        bring(logs, layout, over=True)
    assert {path: text for path, text in contents(tmp_path).items() if path != "trl.map.yaml"} == before


def test_a_first_import_that_fails_leaves_no_study_behind(logs: Path, layout: Layout) -> None:
    (logs / "beta_0.2" / "seed_1.jsonl").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        bring(logs, layout)
    assert not Path("trl.yaml").exists()
    assert not layout.root.exists()


def updated(logs: Path, layout: Layout) -> dict[str, bytes]:
    """Import, change every log, and give the records as they were."""
    bring(logs, layout)
    for path in logs.rglob("*.jsonl"):
        trl_logs.write(path, trl_logs.rows(0.1, 5, updates=9))
    return contents(layout.study("trl", "imported").path / "trials")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_fault_while_records_are_put_in_place_leaves_all_of_the_old_ones(
    logs: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before = updated(logs, layout)
    calls = 0
    real = Path.replace

    def fails(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += ".trials" in str(self) or ".trials" in str(target)
        if calls == step and step < 3:
            raise OSError("disk full")
        return real(self, target)

    def full(path: Path, text: str) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fails)
        if step == 3:
            patched.setattr(records, "write_atomic", full)
        with pytest.raises(OSError, match="disk full"):
            bring(logs, layout, over=True)
    assert contents(layout.study("trl", "imported").path / "trials") == before
    assert len(bring(logs, layout, over=True).change.changed) == 4


def test_a_kill_between_the_two_steps_is_repaired_by_the_next_import(logs: Path, layout: Layout) -> None:
    updated(logs, layout)
    trials = layout.study("trl", "imported").path / "trials"
    trials.replace(trials.with_name(".trials.old"))
    done = bring(logs, layout, over=True)
    assert len(done.change.changed) == 4
    assert len(layout.study("trl", "imported").records()) == 4
    assert not trials.with_name(".trials.old").exists()


def test_an_edited_study_file_is_kept_and_held_to(logs: Path, layout: Layout) -> None:
    bring(logs, layout)
    path = Path("trl.yaml")
    mine = path.read_text().replace("beta_0.05: {}", "beta_0.05: {kl_coef: 0.05}").replace("What do", "Mine what do")
    path.write_text(mine)
    done = bring(logs, layout)
    assert path.read_text() == mine
    assert done.study.question.startswith("Mine")
    assert done.problems == ()
    trl_logs.write(logs / "beta_0.1-seed0.csv", trl_logs.rows(0.1, 0))
    with pytest.raises(UserError, match=r"'beta_0\.1-seed0\.csv' is arm 'beta_0\.1', which .*trl\.yaml does not list"):
        bring(logs, layout)
    (logs / "beta_0.1-seed0.csv").rename(logs / "beta_0.2-seed9.csv")
    with pytest.raises(UserError, match=r"'beta_0\.2-seed9\.csv' is seed 9; the seeds of .*trl\.yaml are 0, 1"):
        bring(logs, layout)


def test_a_stated_kl_coef_checks_the_unit(logs: Path, layout: Layout, tmp_path: Path) -> None:
    bring(logs, layout)
    path = Path("trl.yaml")
    path.write_text(path.read_text().replace("beta_0.05: {}", "beta_0.05: {kl_coef: 0.05}"))
    for seed in (0, 1):
        bits = [{**row, "objective/kl": row["objective/kl"] / math.log(2)} for row in trl_logs.rows(0.05, seed)]
        trl_logs.write(logs / "beta_0.05" / f"seed_{seed}.jsonl", bits)
    done = bring(logs, layout, over=True)
    assert {problem.file for problem in done.problems if "KL is in bits" in problem.why} == {
        "beta_0.05/seed_0.jsonl",
        "beta_0.05/seed_1.jsonl",
    }
    written = (layout.study("trl", "imported").path / "problems.csv").read_text()
    assert written.count("KL is in bits") == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kl_ablation", "a study that comes with the project"),
        ("../../etc", "the name '../../etc' cannot be used"),
        ("a b.yaml", "the name 'a b' cannot be used"),
    ],
)
def test_names_that_cannot_be(logs: Path, layout: Layout, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        import_folder(logs, name, layout, steps_per_update=16)


def test_a_study_that_runs_its_own_trials_takes_no_records(logs: Path, layout: Layout) -> None:
    shipped = load_study("kl_ablation")
    Path("trl.yaml").write_text(Path(shipped.source).read_text())
    with pytest.raises(
        UserError, match=r"runs its own trials \(arms\); a study of imported ones lists its arms under `imported`"
    ):
        bring(logs, layout)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("profile: tiny\n", "profile: imported trials have none, 'tiny' is given"),
        ("arms: {a: {optimiser.lr: 1e-4}}\n", "both arms and imported are given"),
        ("objective: {metric: objective/scoers}\n", r"no metric 'objective/scoers'; did you mean 'objective/scores'\?"),
    ],
)
def test_study_files_that_contradict_themselves(extra: str, words: str) -> None:
    Path("trl.yaml").write_text(
        f"question: q\nhypothesis: h\nrefuted_if: r\nbaseline: a\nseeds: [0]\nimported: {{a: {{}}}}\n{extra}"
    )
    with pytest.raises(UserError, match=words):
        load_study("trl.yaml")


@pytest.mark.parametrize(
    ("threshold", "before", "outcome"), [(1e3, 192, "SURVIVED"), (1.0, 192, "FALSIFIED"), (1e3, 200, "NOT TESTED")]
)
def test_falsifiers_judge_imported_trials(
    logs: Path, layout: Layout, threshold: float, before: int, outcome: str
) -> None:
    bring(logs, layout)
    claim(threshold, before)
    assert {verdict.outcome for verdict in judged(layout)} == {outcome}


def test_no_claim_survives_on_a_series_that_was_left_out_or_a_trial_that_diverged(
    tmp_path: Path, layout: Layout
) -> None:
    def diverges(made: Rows) -> Rows:
        made[5]["loss/policy_avg"] = math.nan
        return made

    def text(made: Rows) -> Rows:
        made[5]["objective/kl"] = "?"
        return made

    bring(trl_logs.folder(tmp_path / "logs", **{"beta_0.05__0": diverges, "beta_0.05__1": text}), layout)
    claim(1e3, 100)
    found = {(one.arm, one.seed): one for one in judged(layout)}
    assert found["beta_0.05", 0].reason == "the run came to 80 of 100 gradient steps"
    assert found["beta_0.05", 1].reason == "no record of objective/kl before step 100"
    assert {one.outcome for cell, one in found.items() if cell[0] == "beta_0.2"} == {"SURVIVED"}
    assert layout.study("trl", "imported").record("beta_0.05", 0).status == "diverged"  # type: ignore[union-attr]


@pytest.fixture
def ablate(layout: Layout) -> Callable[..., Any]:
    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments), "--out", str(layout.root)])


@pytest.mark.usefixtures("no_mlflow")
def test_the_command(logs: Path, ablate: Callable[..., Any]) -> None:
    made = trl_logs.rows(0.05, 0)
    made[3]["policy/clipfrac_avg"], made[3]["objectiv/kl"] = 7.5, 1.0
    trl_logs.write(logs / "beta_0.05" / "seed_0.jsonl", made)
    done = ablate("import", logs, "--name", "trl", "--steps-per-update", 16)
    assert done.exit_code == 0, done.output
    assert (
        "beta_0.05/seed_0.jsonl, line 4: policy/clipfrac_avg (policy/pg_clipfrac) = 7.5: above 1 fraction"
        in done.output
    )
    assert "objectiv/kl (beta_0.05 seed 0): no metric of this name; did you mean 'objective/kl'?" in done.output
    assert "trl: 4 trials of 2 arms, 192 gradient steps" in done.output
    claim(1.0, 192)
    assert ablate("falsify", "trl").exit_code == 1
    refused = ablate("study", "trl")
    assert refused.exit_code == 2
    assert "its trials were run elsewhere, so nothing runs here" in refused.output
    refused = ablate("falsify", "trl", "--set", "optimiser.lr=1")
    assert refused.exit_code == 2
    assert "trl was imported; its trials cannot be changed" in refused.output


def test_imported_trials_are_runs_in_mlflow(logs: Path, ablate: Callable[..., Any], layout: Layout) -> None:
    assert ablate("import", logs, "--name", "trl", "--steps-per-update", 16).exit_code == 0
    from mlflow.tracking import MlflowClient

    client = MlflowClient(layout.mlflow_uri)
    found = {run.info.run_name: run for run in client.search_runs([client.get_experiment_by_name("trl").experiment_id])}
    assert set(found) == {"study trl", *(f"{arm} seed {seed}" for arm in ("beta_0.05", "beta_0.2") for seed in (0, 1))}
    one = found["beta_0.2 seed 1"]
    assert one.data.tags["profile"] == "imported"
    assert one.data.params["imported.file"] == "beta_0.2/seed_1.jsonl"
    assert [(point.step, point.value) for point in client.get_metric_history(one.info.run_id, "objective/kl")] == [
        (16 * (row["step"] - 1), row["objective/kl"]) for row in trl_logs.rows(0.2, 1)
    ]
    again = ablate("sync", "trl")
    assert "MLflow has all 4 trials of trl; 0 metrics were sent now" in again.output


@pytest.mark.parametrize("arm", ["2024-01-01", "1e-5", "on", "12"])
def test_an_arm_may_be_named_like_another_kind_of_value(tmp_path: Path, layout: Layout, arm: str) -> None:
    for name in (arm, "b"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        rows = [{"step": step, "objective/kl": 0.1 * step} for step in range(1, 4)]
        (tmp_path / "logs" / name / "seed_0.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    bring(tmp_path / "logs", layout, steps_per_update=1)
    assert {record.arm for record in layout.study("trl", "imported").records()} == {arm, "b"}
    assert arm in load_study("trl.yaml").arm_overrides()
