from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import trl_logs
from trl_logs import Rows

from pipeline.errors import UserError
from pipeline.run.layout import Layout, TrialRecord
from reports.findings.findings import Findings, analyse
from reports.records.load import find_study, load_records
from studies.claims.verdicts import verdicts
from studies.definition.design import planned
from studies.definition.schema import Study, load_study
from studies.importing.run import import_folder

Run = Callable[..., str]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return trl_logs.folder(tmp_path / "logs")


def bring(logs: Path, layout: Layout, map_: str = "trl-ppo", per: int | None = 16, **changes: Any) -> Study:
    return import_folder(logs, "trl", layout, map_, per, **changes)[0]


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.endswith(".lock"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files if ".locks" not in path.parts}


def claim(threshold: float, before: int) -> None:
    text = Path("trl.yaml").read_text()
    name = "{name: drift, claim: it stays near, metric: objective/kl, op: '>', threshold: %s, before_step: %s}"
    assert "imported:" in text
    Path("trl.yaml").write_text(text.replace("imported:", f"falsifiers: [{name % (threshold, before)}]\nimported:"))


def test_a_folder_becomes_a_study(logs: Path, layout: Layout, tmp_path: Path) -> None:
    bring(logs, layout)
    before = contents(tmp_path)
    bring(logs, layout)
    assert contents(tmp_path) == before, "the same again changes nothing"
    study = load_study("trl.yaml")
    assert (study.kind, study.profile, study.baseline, study.seeds) == ("imported", "imported", "beta_0.05", (0, 1))
    assert list(study.arm_overrides()) == ["beta_0.05", "beta_0.2"]
    assert (study.objective.metric, study.objective.direction) == ("objective/scores", "maximize")
    found = layout.study("trl", "imported").record("beta_0.2", 1)
    assert found is not None
    assert (found.status, found.steps) == ("complete", 12 * 16)
    assert found.config["imported"]["file"] == "beta_0.2/seed_1.jsonl"
    assert found.config["mapping"] == {"program": "trl-ppo", "steps_per_update": 16}
    stored = layout.root / found.stages["train"].path
    rows = [json.loads(line) for line in (stored / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(0, 193, 16))
    assert (rows[0]["objective/kl"], "policy/lr" in rows[0]) == (0.0, False)
    assert rows[-1]["policy/lr"] == trl_logs.rows(0.2, 1)[-1]["lr"]


def test_recorded_trials_are_only_replaced_on_demand(logs: Path, layout: Layout) -> None:
    bring(logs, layout)
    before = contents(layout.root / "studies")
    trl_logs.write(logs / "beta_0.05" / "seed_1.jsonl", trl_logs.rows(0.05, 1, updates=20))
    (logs / "beta_0.2" / "seed_1.jsonl").unlink()
    with pytest.raises(UserError, match=r"beta_0.05 seed 1, beta_0.2 seed 1: recorded from other logs"):
        bring(logs, layout)
    with pytest.raises(UserError, match=r"beta_0.05 seed 0, beta_0.05 seed 1, beta_0.2 seed 0, beta_0.2 seed 1: rec"):
        bring(logs, layout, per=4)
    assert contents(layout.root / "studies") == before
    folder = layout.study("trl", "imported")
    folder.trial_file("beta_0.2", 0).write_text("damaged")
    folder.study_file.write_text("damaged")
    bring(logs, layout, replace=True)
    assert {(one.arm, one.seed): one.steps for one in folder.records()} == {
        ("beta_0.05", 0): 192, ("beta_0.05", 1): 320, ("beta_0.2", 0): 192,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("beta_0.2/seed_1.jsonl", "not JSON\n{}\n", r"beta_0\.2/seed_1\.jsonl, line 1: cannot be read as jsonl"),
        ("beta_0.2-seed1.csv", "step,lr\n1,1\n", "'beta_0.2-seed1.csv' and 'beta_0.2/seed_1.jsonl' are of one arm"),
    ],
)
def test_one_bad_file_and_nothing_is_touched(
    logs: Path, layout: Layout, tmp_path: Path, name: str, text: str, words: str
) -> None:
    (logs / name).write_text(text)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=words):
        bring(logs, layout)
    assert contents(tmp_path) == before


def test_no_claim_survives_on_what_was_left_out(tmp_path: Path, layout: Layout) -> None:
    def put(key: str, value: Any, *lines: int) -> Callable[[Rows], Rows]:
        return lambda made: [{**row, key: value} if at in lines else row for at, row in enumerate(made)]

    changes = {
        "a__0": put("loss/policy_avg", math.nan, 5),
        "a__1": put("objective/kl", "?", 5),
        "a__2": put("objective/kl", 0.0, *range(12)),
    }
    study = bring(trl_logs.folder(tmp_path / "logs", {"a": 0.05}, (0, 1, 2, 3), **changes), layout)
    claim(1e3, 100)
    found = verdicts(load_study("trl.yaml"), layout.study("trl", "imported"), planned(study))
    absent = "no record of objective/kl before step 100"
    assert [one.reason for one in found][:3] == ["the run came to 80 of 100 gradient steps", absent, absent]
    assert [one.outcome for one in found] == [*["NOT TESTED"] * 3, "SURVIVED"]
    assert layout.study("trl", "imported").record("a", 0).status == "diverged"  # type: ignore[union-attr]


def test_the_command(logs: Path, run: Run) -> None:
    assert "Missing option '--map'" in run(2, "import", logs, "--name", "trl")
    made = trl_logs.rows(0.05, 0)
    made[3]["policy/clipfrac_avg"], made[3]["objectiv/kl"] = 7.5, 1.0
    trl_logs.write(logs / "beta_0.05" / "seed_0.jsonl", made)
    trl_logs.write(logs / "notes.csv", trl_logs.rows())
    output = run(0, "import", logs, "--name", "trl", "--map", "trl-ppo", "--steps-per-update", 16)
    assert "beta_0.05/seed_0.jsonl, line 4: policy/clipfrac_avg (policy/pg_clipfrac) = 7.5: no number from 0" in output
    assert "Taken: objective/kl (objective/kl)" in output
    assert "Not taken: eps, val/ratio_var, val/num_eos_tokens, episode, epoch, objectiv/kl" in output
    assert "Not read: notes.csv: neither its name nor columns hold an arm and a seed" in output
    assert "trl: 4 trials of 2 arms, up to 192 gradient steps Study:" in output
    claim(1.0, 192)
    run(1, "falsify", "trl")
    assert "its trials were run elsewhere, so nothing runs here" in run(2, "study", "trl")


PROMPTS = 60


def outcomes(arms: dict[str, float], seeds: tuple[int, ...] = (0, 1, 2)) -> pd.DataFrame:
    """Gold and proxy with an effect of each arm, on prompts that differ much more than arms do."""
    rng = np.random.default_rng(5)
    hard, made = rng.normal(0.0, 3.0, PROMPTS), []
    for arm, gain in arms.items():
        for seed in seeds:
            gold = hard + gain + rng.normal(0.0, 0.3, PROMPTS) + 0.02 * seed
            columns = {"prompt_id": np.arange(PROMPTS), "gold": gold, "win": (gold > hard).astype(float)}
            columns |= {"kl": 2.0 + gain + 0.1 * rng.random(PROMPTS), "length": rng.integers(20, 40, PROMPTS)}
            made.append(pd.DataFrame({"arm": arm, "seed": seed, **columns}))
    return pd.concat(made, ignore_index=True)


def imported(layout: Layout, table: pd.DataFrame, map_: str = "plain") -> list[TrialRecord]:
    table.to_csv("prompts.csv", index=False)
    import_folder(Path("prompts.csv"), "paper", layout, map_)
    return layout.study("paper", "imported").records()


def analysed(layout: Layout) -> Findings:
    return analyse(load_records(*find_study(layout, "paper.yaml")))


def test_published_paired_results_are_computed_again(layout: Layout) -> None:
    table = outcomes({"base": 0.0, "tuned": 0.4})
    imported(layout, table)
    (effect,) = analysed(layout).effects_on("eval/gold")
    wide = table.pivot_table(index=["seed", "prompt_id"], columns="arm", values="gold")
    assert effect.estimate is not None
    assert effect.estimate.value == pytest.approx((wide["tuned"] - wide["base"]).mean())
    assert (effect.estimate.seeds, effect.estimate.prompts, effect.outcome) == (3, PROMPTS, "better")
    assert effect.estimate.high is not None
    assert effect.estimate.low is not None
    unpaired = np.sqrt(2 * table["gold"].var() / (3 * PROMPTS))
    assert effect.estimate.high - effect.estimate.low < 2 * unpaired, "prompts are paired"
    base, own = analysed(layout).arm("base"), table[table["arm"] == "base"]
    assert base.estimates["eval/win_rate"].value == pytest.approx(own["win"].mean())
    sums = own.groupby("seed")[["kl", "length"]].sum()
    assert base.estimates["eval/kl_per_token"].value == pytest.approx((sums["kl"] / sums["length"]).mean())
    assert "eval/proxy" not in base.estimates


def test_names_and_units_are_mapped(layout: Layout) -> None:
    table = outcomes({"base": 0.0}, (0,)).rename(columns={"gold": "judge", "length": "n", "prompt_id": "item"})
    Path("map.yaml").write_text(
        "prompts: {prompt_id: item, policy_gold: {key: judge, subtract: 1, factor: 2}, policy_length: n,"
        " kl: {key: kl, unit: nats per token}}\n"
    )
    (record,) = imported(layout, table.assign(kl=table["kl"] / table["n"]), "map.yaml")
    assert record.summary["eval/gold"] == pytest.approx(2 * (table["judge"].mean() - 1))
    assert record.summary["eval/kl_per_sequence"] == pytest.approx(table["kl"].mean())


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "prompt_id = 1: stands a second time"), ("", "without it a prompt cannot be paired with itself elsewhere")],
)
def test_prompts_that_cannot_be_paired(layout: Layout, value: Any, words: str) -> None:
    table = outcomes({"base": 0.0}, (0,)).astype({"prompt_id": object})
    table.loc[3, "prompt_id"] = value
    with pytest.raises(UserError, match=rf"prompts.csv \(base seed 0\), line 5: .*{words}"):
        imported(layout, table)
