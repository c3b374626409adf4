from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_trial import STUDY
from rich.console import Console

from pipeline.run.layout import Layout, StudyFolder, TrialRecord
from pipeline.run.symptoms import Health
from studies.claims.falsifiers import overall
from studies.claims.registration import read_chain
from studies.claims.verdicts import verdicts
from studies.definition.design import cells
from studies.definition.schema import Study
from studies.execution import executors
from studies.execution.driver import StudyResult, run_study
from studies.tracking import study_runs
from studies.tracking import trial_run as mlflow_sink
from studies.tracking.study_runs import StudySinks

ROOT = Path(__file__).parents[3]


def go(study: Study, layout: Layout, profile: str | None = None) -> tuple[StudyResult, str]:
    text = io.StringIO()
    layout.root.mkdir(parents=True, exist_ok=True)
    executor = executors.executor("inline")
    console = Console(file=text, width=200)
    return run_study(
        study, layout, profile, {"train.steps": 64}, executor, 1, console, trials="fake_trial"
    ), text.getvalue()


def runs(layout: Layout, experiment: str, query: str = "") -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(layout.mlflow_uri)
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id], query))


def sinks_of(study: Study, layout: Layout) -> StudySinks:
    return StudySinks(study, "tiny", layout, layout.study(study.name, "tiny"), {}, print)


def test_the_health_of_a_trial_is_a_tag_and_a_line_of_its_description(
    write_study: Callable[..., Study], layout: Layout
) -> None:
    """At 0.01 nats per token a step the fake trial passes 0.5 nats after 55 steps; its entropy falls below 0.2 at the
    end."""
    text, study = io.StringIO(), write_study()
    layout.root.mkdir(parents=True)
    executor, console = executors.executor("inline"), Console(file=text, width=250)
    run_study(study, layout, None, {"train.steps": 256}, executor, 1, console, trials="fake_trial")
    found = {run.info.run_name: run.data.tags for run in runs(layout, "small", "tags.arm != ''")}
    assert found["weak seed 0"]["health"] == "objective/kl_exact_per_token 75 %, policy/entropy 25 %"
    assert found["strong seed 0"]["health"] == "objective/kl_exact_per_token 38 %, policy/entropy 25 %"
    sentence = "objective/kl_exact_per_token above 0.5 in 75 % of 16 records, first at step 64"
    assert f"- {sentence}" in found["weak seed 0"]["mlflow.note.content"]
    assert f"weak seed 0: {sentence}" in text.getvalue()


def test_the_health_of_a_trial_that_mlflow_knows_is_not_judged_again(
    write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study()
    result, _ = go(study, layout)
    judged = list[TrialRecord]()

    def health(folder: StudyFolder, record: TrialRecord) -> Health:
        judged.append(record)
        return Health((), ("policy/entropy",))

    monkeypatch.setattr(study_runs, "health_of", health)
    assert sinks_of(study, layout).sync(result.records)
    assert judged == []
    longer = result.records[0].model_copy(update={"reason": "another ending"})
    assert sinks_of(study, layout).finish(longer)
    assert judged == [longer]
    found = {run.info.run_name: run.data.tags for run in runs(layout, "small", "tags.arm != ''")}
    tags = found[f"{longer.arm} seed {longer.seed}"]
    assert (tags["health"], tags["reason"]) == ("ok", "another ending")
    assert "**Health.** ok.\n\n**Verdicts**" in tags["mlflow.note.content"]


def test_a_study_in_mlflow(write_study: Callable[..., Study], layout: Layout) -> None:
    study = write_study()
    result, _ = go(study, layout)
    found = {run.info.run_name: run for run in runs(layout, "small")}
    parent = found.pop("study small")
    assert set(found) == {"weak seed 0", "weak seed 1", "strong seed 0", "strong seed 1"}
    assert parent.info.status == "FINISHED"
    assert "**Question.** Does it work?" in parent.data.tags["mlflow.note.content"]
    assert "> 0.5 before step 32`. *registered before the data*" in parent.data.tags["mlflow.note.content"]
    assert parent.data.tags["badge.drift"] == parent.data.tags["badge"] == "registered before the data"
    assert parent.data.tags["registration"] == read_chain(result.folder)[-1].digest
    one = found["strong seed 1"]
    assert one.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert {key: one.data.tags[key] for key in ("arm", "seed", "status", "profile")} == {
        "arm": "strong",
        "seed": "1",
        "status": "complete",
        "profile": "tiny",
    }
    assert (
        one.data.tags["stage.train"]
        == next(r for r in result.records if (r.arm, r.seed) == ("strong", 1)).stages["train"].key
    )
    assert one.data.params["kl.beta"] == "0.2"
    assert one.data.metrics["eval/win_rate"] == 0.6
    assert one.data.metrics["policy/entropy"] == pytest.approx(2.0 - 0.48)

    again = verdicts(study, layout.study("small", "tiny"), cells(study, None, {"train.steps": 64}))
    for verdict in again:
        run = found[f"{verdict.arm} seed {verdict.seed}"]
        assert run.data.tags["falsifier.drift"] == f"{verdict.outcome}: {verdict.reason}"
        assert run.data.metrics["falsifier/drift"] == (verdict.outcome == "FALSIFIED")
    assert again == result.verdicts
    assert parent.data.tags["verdict"] == parent.data.tags["falsifier.drift"].partition(":")[0] == overall(again)
    assert {key: value for key, value in parent.data.metrics.items() if key.startswith("falsifier")} == {
        "falsifier/survived": 4.0
    }

    about = one.data.tags["mlflow.note.content"]
    assert "It differs from the baseline `weak` in `kl.beta` = 0.2 (baseline: 0.01)." in about
    assert "- **drift**: SURVIVED; " in about
    assert "`evaluate/samples.csv` and `train/samples.csv` under Artifacts" in about
    assert "`studies/small/tiny/report/index.html` under the output root" in about
    assert "It is the baseline." in found["weak seed 0"].data.tags["mlflow.note.content"]
    assert one.data.tags["health"] == "not judged"  # of four rollouts
    assert "**Health.** not judged." in about
    assert one.data.tags["versions"] == "git_commit unknown, python 3"
    assert not [key for key in one.data.tags if key.startswith("version.")]

    sinks = sinks_of(study, layout)
    assert sinks.sync(result.records)
    assert sinks.metrics_sent == 0
    assert sinks._opening is None, "a second sync must not even open MLflow"

    text = Path(study.source).read_text().replace("strong: {kl.beta: 0.2}", "strong: {kl.beta: 0.3}")
    go(write_study(text), layout)
    again = [run.info.run_name for run in runs(layout, "small")]
    assert again.count("study small") == 1
    assert again.count("strong seed 1") == 2
    assert again.count("weak seed 1") == 1

    lower = (
        Path(study.source)
        .read_text()
        .replace("threshold: 0.5", "threshold: 0.1")
        .replace("name: drift", "name: 'drift: 10 %'")
    )
    go(write_study(lower), layout)
    weak = [run for run in runs(layout, "small") if run.info.run_name == "weak seed 1"]
    assert [run.data.tags["falsifier.drift_ 10 _"] for run in weak] == ["FALSIFIED: 0.1455 at step 16"], (
        "an edited claim is told again"
    )
    refuted = runs(layout, "small", "tags.arm != '' AND tags.verdict = 'FALSIFIED'")
    assert sorted(run.info.run_name for run in refuted) == ["weak seed 0", "weak seed 1"]


@pytest.mark.parametrize("harm", ["garbage", "folder", "flipped bit"])
def test_a_damaged_state_file_is_set_aside_and_its_run_made_again(
    write_study: Callable[..., Study], layout: Layout, harm: str
) -> None:
    study = write_study()
    result, _ = go(study, layout)
    state = layout.study("small", "tiny").mlflow_file("weak", 0)
    content = state.read_text()
    if harm == "folder":
        state.unlink()
        state.mkdir()
    else:
        state.write_text("garbage" if harm == "garbage" else content.replace('"finished": true', '"finished": false'))
    said: list[str] = []
    sinks = StudySinks(study, "tiny", layout, layout.study("small", "tiny"), {}, said.append)
    assert sinks.sync(result.records)
    sinks.close("complete")
    assert [line.endswith("its run is sent to MLflow again") for line in said] == [True], said
    assert str(state) in said[0]
    assert len(list((state.parent / ".damaged").iterdir())) == 1
    assert sorted(run.info.run_name for run in runs(layout, "small", "tags.arm = 'weak'")) == [
        "weak seed 0",
        "weak seed 1",
    ]
    assert json.loads(state.read_text())["sent_bytes"] == json.loads(content)["sent_bytes"]


def test_a_study_survives_mlflow_being_away_and_sync_catches_up(
    write_study: Callable[..., Study], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(uri: str) -> Any:
        raise ConnectionError("no route to MLflow")

    with monkeypatch.context() as patch:
        patch.setattr(mlflow_sink, "_client", away)
        result, text = go(write_study(), layout)
    assert {record.status for record in result.records} == {"complete"}
    assert text.count("MLflow") <= 2
    assert "ablate sync" in text
    sinks = sinks_of(write_study(), layout)
    assert sinks.sync(result.records)
    sinks.close("complete")
    assert sinks.metrics_sent == 4 * (4 * 5 + 4 + 1)  # series, evaluation, one claim
    assert len(runs(layout, "small")) == 5


def test_another_profile_is_another_experiment(write_study: Callable[..., Study], layout: Layout) -> None:
    study = write_study()
    folder = layout.study(study.name, "smoke")
    assert StudySinks(study, "smoke", layout, folder, {}, print).experiment == "small (smoke)"
    assert sinks_of(study, layout).experiment == "small"


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["garbled", "gone"])
def test_a_store_that_is_lost_is_told_everything_again(
    write_study: Callable[..., Study], layout: Layout, harm: str
) -> None:
    """All trials, and not only the one that is told before the new database is there."""
    study = write_study()
    go(study, layout)
    garbage = b"no database" * 100
    layout.mlflow_file.write_bytes(garbage) if harm == "garbled" else layout.mlflow_file.unlink()
    # MLflow keeps databases open within a process, so another one looks at what is there now.
    command = [sys.executable, str(ROOT / "ablate.py"), "sync", study.source, "--out", str(layout.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"MLflow has all 4 trials of small; {4 * 25} metrics were sent now" in done.stdout
    assert ("it is no SQLite database; set aside" in done.stdout) == (harm == "garbled")
    if harm == "garbled":
        assert (layout.root / ".damaged" / "mlflow.db-1").read_bytes() == garbage


def test_what_the_baselines_end_decides_is_told_in_the_end(write_study: Callable[..., Study], layout: Layout) -> None:
    """`weak` ends before its baseline `strong`: its verdict is known, and sent, when both have."""
    claim = 'op: ">", threshold: 0.1, before_step: 60, relative_to: baseline}'
    text = STUDY.replace("baseline: weak", "baseline: strong").partition("op:")[0] + claim + "\n"
    result, _ = go(write_study(text), layout)
    found = {run.info.run_name: run for run in runs(layout, "small")}
    said = {f"{one.arm} seed {one.seed}": f"{one.outcome}: {one.reason}" for one in result.verdicts}
    assert set(said) == {"weak seed 0", "weak seed 1"}
    assert {name: found[name].data.tags["falsifier.drift"] for name in said} == said
    assert found["weak seed 0"].data.tags["verdict"] == "FALSIFIED"
    assert found["study small"].data.tags["falsifier.drift"] == "FALSIFIED: 2 FALSIFIED"
    assert "falsifier.drift" not in found["strong seed 0"].data.tags, "the baseline is not compared with itself"
    sinks = sinks_of(write_study(text), layout)
    sinks.plan = result.plan
    assert sinks.sync(result.records)
    assert sinks.metrics_sent == 0
