from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from trl_logs import GROUPS, GRPO, Rows, rows, write

from pipeline.errors import UserError
from studies.importing.logs import KEPT, Growing, find_logs, read_table
from studies.importing.maps import Map, load_map
from studies.importing.run import lines
from studies.importing.trials import ImportedTrial, doubts


@pytest.mark.parametrize(
    ("name", "arm", "seed"),
    [
        ("beta_0.05/seed_3.jsonl", "beta_0.05", 3),
        ("beta_0.05/3.csv", "beta_0.05", 3),
        ("kl/beta_0.05/seed3.csv", "kl-beta_0.05", 3),
        ("beta_0.05-seed3/checkpoint-500/trainer_state.json", "beta_0.05", 3),
    ],
)
def test_arm_and_seed_stand_in_the_path(tmp_path: Path, name: str, arm: str, seed: int) -> None:
    write(tmp_path / "runs" / name, rows(updates=1), state=name.endswith("trainer_state.json"))
    found, unread = find_logs(tmp_path / "runs", Map())
    assert ([*found], unread) == ([(arm, seed)], {})


@pytest.mark.parametrize("head", ["", "step,reward\n"])
def test_a_growing_log_is_read_from_where_the_last_look_ended(tmp_path: Path, head: str) -> None:
    path, log = tmp_path / f"log.{'csv' if head else 'jsonl'}", Growing()
    written = [f"{n},{n / 2}\n" if head else f'{{"step": {n}, "reward": {n / 2}}}\n' for n in range(3 * KEPT)]
    for end, first in ((KEPT, 0), (KEPT + 1, 0), (3 * KEPT, 1), (2, 0)):  # the last is another run's, and shorter
        path.write_text(head + "".join(written[:end]) + written[0][:2])
        assert [*log.rows(path)["step"].astype(int)] == [*range(first, end)]


def test_a_trainers_folder_is_one_trial_of_its_newest_state(tmp_path: Path) -> None:
    run = tmp_path / "logs" / "a" / "seed_0"
    for updates, folder in ((1, "checkpoint-90"), (2, "checkpoint-500"), (3, "")):
        write(run / folder / "trainer_state.json", rows(updates=updates), state=True)
        write(run / folder / "config.json", [])
        assert len(find_logs(tmp_path / "logs", Map())[0]["a", 0]) == updates


def test_what_is_not_read_is_listed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for name in ("a-seed0.csv", ".cache/b-seed0.csv", ".c-seed0.csv", "x/other.csv", "2024/1.csv"):
        write(logs / name, rows(updates=1))
    (logs / "config.json").write_text('{"beta": 0.05}')
    (logs / "2024" / "1.csv").write_text("day,steps_done\n1,2\n")
    (logs / "weights-seed0.pkl").write_bytes(b"\x80\x04.")
    found, unread = find_logs(logs, Map())
    assert [*found] == [("a", 0)]
    assert [*unread] == ["2024/1.csv", "config.json", "x/other.csv"]
    assert "did you mean 'steps_done'?, and no prompt_id; columns: day, steps_done" in unread["2024/1.csv"]
    assert "with 'log_history', is expected" in unread["config.json"]
    with pytest.raises(
        UserError, match=r"no log \(other.csv: neither its name nor columns hold an arm and a seed\); name"
    ):
        find_logs(logs / "x", Map())


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "trainer_state.json"])
def test_every_form_holds_the_same(tmp_path: Path, name: str) -> None:
    made, path = rows(updates=3), tmp_path / name
    pd.DataFrame(made).to_parquet(path) if name == "a.parquet" else write(path, made, state=name.startswith("trainer"))
    table = read_table(path)
    assert table.astype(float).to_dict("records") == made
    assert table.index[0] == {"a.csv": "line 2", "a.jsonl": "line 1"}.get(name, "row 1"), "the place in the file"


def test_a_resumed_run_has_its_latest_events(tmp_path: Path) -> None:
    writer = pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard is not installed")
    for steps, shift in ((range(1, 5), 0.0), (range(3, 6), 0.5)):
        with writer.SummaryWriter(str(tmp_path)) as log:
            for step in steps:
                log.add_scalar("train/reward", math.inf if step == 5 else step + shift, step)
    assert read_table(tmp_path).to_dict("records") == [
        {"step": step, "reward": reward} for step, reward in enumerate([1.0, 2.0, 3.5, 4.5, "NaN"], 1)
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.jsonl",
            '{"step": 1}\nnonsense\n{"step": 2}\n',
            "a.jsonl, line 2: cannot be read as jsonl: JSONDec",
        ),
        ("a.json", '{"step": [1, 2]}', "'log_history', is expected"),
        ("a.csv", "step,step\n1,2\n", "two columns have one name: step, step"),
        ("a.csv", "step,x\n1,2,3\n", "line 2: .* more cells than there are columns"),
        ("a.parquet", "PAR1", "cannot be read as parquet"),
    ],
)
def test_damage_is_one_line_with_its_place(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=words) as caught:
        read_table(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_line_at_the_end_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_table(tmp_path / "a.jsonl")["step"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("entries", "arm", "seed"),
    [
        ({}, "arm", "seed"),
        ({"arm": "model", "seed": "run"}, "model", "run"),
        ({"arm": "model", "seed": 7}, "model", "x"),
    ],
)
def test_a_table_of_many_trials(tmp_path: Path, entries: dict[str, Any], arm: str, seed: str) -> None:
    made = [{arm: name, seed: 7, "step": step, "reward": 0.5} for step in (1, 2) for name in ("a", "b")]
    path = write(tmp_path / "all.csv", [*made, {**made[0], arm: "c", seed: "one"}])
    found, unread = find_logs(path, Map(**entries))
    assert [*found["b", 7].index] == [("all.csv (b seed 7)", "line 3"), ("all.csv (b seed 7)", "line 5")]
    assert [*unread] == ([] if seed == "x" else ["all.csv (c seed one)"])


@pytest.mark.parametrize("axis", ["Step", "train/global_step"])
def test_panels_of_wandb_are_trials_of_all_their_metrics(tmp_path: Path, axis: str) -> None:
    for number, metric in enumerate(("train/objective/scores", "train/objective/kl")):
        names = [f"{run} - {metric}{end}" for run in ("a-seed0", "b - c") for end in ("", "__MIN", "__MAX")]
        lines = [[step, number + step, 0, 99, number + step, 0, 99] for step in (3, 1, 2)]
        text = "".join(",".join(map(str, line)) + "\n" for line in ([axis, *names], *lines, [4, *[""] * 6]))
        (tmp_path / f"wandb_export_{number}.csv").write_text(text)
    found, unread = find_logs(tmp_path, Map())
    assert [*found] == [("a", 0)]
    assert [*unread] == ["wandb_export_0.csv (b - c)", "wandb_export_1.csv (b - c)"]
    assert found["a", 0].count().to_dict() == {axis.removeprefix("train/"): 6, "objective/scores": 3, "objective/kl": 3}


Read = Callable[..., ImportedTrial]
PPO = {key: value for key, value in rows()[3].items() if key != "step"}
OF_PPO = {
    **{key: value for key, value in PPO.items() if key.startswith("objective/")}, "policy/lr": PPO["lr"],
    "policy/approxkl": PPO["policy/approxkl_avg"], "policy/pg_clipfrac": PPO["policy/clipfrac_avg"],
    "policy/entropy": PPO["policy/entropy_avg"], "policy/pg_loss": -0.01, "value/vf_loss": 0.1,
    "value/vf_clipfrac": 0.0, "policy/ratio": PPO["val/ratio"],
}  # fmt: skip
OF_GROUPS = {
    "objective/scores": 0.7, "objective/scores_std": 0.2, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
    "objective/length": 48.0, "objective/eos_rate": 0.75, "policy/lr": 1e-6, "policy/grad_norm": 0.5,
    "reward/accuracy_reward": 0.4,
}  # fmt: skip
VERL = {
    "critic/score/mean": 0.7, "critic/score/max": 1.0, "critic/rewards/mean": 0.6, "critic/vf_explained_var": 0.4,
    "critic/vf_loss": 0.8, "critic/vf_clipfrac": 0.05, "critic/grad_norm": 2.0, "actor/kl_loss": 0.08,
    "actor/entropy": 1.2, "actor/pg_clipfrac": 0.03, "actor/pg_clipfrac_lower": 0.0, "actor/grad_norm": 0.5,
    "actor/lr": 1e-6, "actor/reward_kl_penalty": 0.02, "actor/reward_kl_penalty_coeff": 0.05,
    "response_length/mean": 48.0, "timing_s/gen": 3.0, "val-core/gsm8k/reward/mean@1": 0.5,
}  # fmt: skip
OF_VERL = {
    "objective/scores": 0.7, "objective/rlhf_reward": 0.6, "objective/kl_per_token": 0.02, "objective/kl_coef": 0.05,
    "objective/length": 48.0, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
    "policy/grad_norm": 0.5, "policy/lr": 1e-6, "value/vf_clipfrac": 0.05, "value/explained_variance": 0.4,
    "value/grad_norm": 2.0,
}  # fmt: skip
OPENRLHF = {
    "policy_loss": 0.02, "entropy_loss": 1.2, "actor_lr": 1e-6, "actor_grad_norm": 0.5, "reward": 0.7, "kl": 0.01,
    "logprobs_diff": 0.02, "ppo_clip_ratio": 0.03, "response_length": 48.0, "truncated": 0.25, "critic_loss": 0.4,
    "critic_grad_norm": 2.0,
}  # fmt: skip
OF_OPENRLHF = {
    "objective/kl_per_token": 0.02, "policy/pg_loss": 0.02, "policy/entropy": 1.2, "policy/pg_clipfrac": 0.03,
    "policy/lr": 1e-6, "policy/grad_norm": 0.5, "value/vf_loss": 0.4, "value/grad_norm": 2.0, "objective/scores": 0.7,
    "objective/length": 48.0, "objective/eos_rate": 0.75,
}  # fmt: skip
ROLLOUT = {
    "rollout/reward_mean": 0.71, "rollout/reward_std": 0.2, "rollout/response_length_mean": 49.0,
    "rollout/truncated_rate": 0.24,
}  # fmt: skip
OF_ROLLOUT = {
    "objective/scores": 0.71,
    "objective/scores_std": 0.2,
    "objective/length": 49.0,
    "objective/eos_rate": 0.76,
}
PLAIN = {"reward": 0.7, "proxy": 9.0, "lr": 1e-6, "kl": 0.1, "value_loss": 0.2, "objective/kl": 3.0}
OF_PLAIN = {"objective/scores": 0.7, "objective/kl": 3.0, "policy/lr": 1e-6, "value/vf_loss": 0.2}


@pytest.mark.parametrize("prefix", ["", "train/"])
@pytest.mark.parametrize(
    ("program", "row", "metrics"),
    [
        ("trl-ppo", PPO, OF_PPO),
        ("trl-grpo", GRPO, {**OF_GROUPS, "objective/kl_k3_per_token": 0.02, "eval/proxy": 0.8}),
        ("trl-rloo", GROUPS, {**OF_GROUPS, "objective/kl_per_token": 0.02, "policy/pg_loss": 0.01}),
        ("verl", VERL, OF_VERL),
        ("openrlhf", OPENRLHF, OF_OPENRLHF),
        ("openrlhf", OPENRLHF | ROLLOUT, OF_OPENRLHF | OF_ROLLOUT),
        ("plain", PLAIN, OF_PLAIN),
    ],
)
def test_columns_become_metrics(
    read: Read, program: str, row: dict[str, float], metrics: dict[str, float], prefix: str
) -> None:
    logged = {f"{prefix}{key}": value for key, value in row.items()}
    found = read([{"step": 1, **logged}, {"step": 2, **logged}], program=program, steps_per_update=4)
    assert {ours: series.iloc[-1] for ours, series in found.series.items()} | found.summary == pytest.approx(metrics)
    assert found.problems == []
    columns = {text.partition(" (")[0] for text in found.taken} | {*found.left}
    assert columns == {*row}, "each is accounted for"


def test_a_file_changes_the_map_that_it_names(read: Read) -> None:
    changed = read(
        [{"step": 1, "data": VERL}],  # as verl's file logger writes
        program="verl",
        metrics={
            "objective/kl_k3_per_token": {"key": "actor/kl_loss", "factor": 0.25},
            "eval/gold": ["none", "val-core/gsm8k/reward/mean@1"],
            "policy/lr": None,
        },
    )
    assert changed.series["objective/kl_k3_per_token"].tolist() == [0.02]
    assert changed.summary == {"eval/gold": 0.5}
    assert "policy/lr" not in changed.series
    assert changed.series["policy/entropy"].tolist() == [1.2]


@pytest.mark.parametrize(
    ("x", "per", "sampled"),
    [([1, 2, 3], 1, [0, 1, 2]), ([2, 4, 6], 2, [0, 2, 4]), ([1, 2], 2, [0, 1]), ([16], 2, [14])],
)
def test_rows_of_gradient_steps(read: Read, x: list[int], per: int, sampled: list[int]) -> None:
    found = read([{"step": step, **GRPO} for step in x], program="trl-grpo", steps_per_update=per)
    assert found.series["objective/kl_k3_per_token"].index.tolist() == sampled, "no rollout is before the last one"
    assert found.series["policy/entropy"].index.tolist() == x


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"metrics": {"objective/kll": "kl"}}, r"metrics: unknown 'objective/kll'; did you mean 'objective/kl'\?"),
        ({"metrics": {"objective/kl": {"key": "kl", "unit": "bans"}}}, "no way from 'bans' to 'nats per sequence'"),
        ({"steps_per_updates": 4}, r"unknown key 'steps_per_updates'; did you mean 'steps_per_update'\?"),
        ({"metrics": {"objective/gold": "epoc"}}, r"metrics.objective/gold: no log has 'epoc'; did you mean 'epoch'\?"),
        ({"step": "steep"}, r"no column 'steep'; did you mean 'step'\?"),
        (
            {"metrics": {"objective/kl": {"key": "lr", "unit": "nats per token"}}},
            "needs a column of lengths, or `length`",
        ),
        ({"steps_per_update": None}, "'step' counts updates; say how many gradient steps one takes: --steps-per-up"),
    ],
)
def test_faults_of_a_map(read: Read, entries: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read(rows(updates=2), **entries)
    assert "\n" not in str(caught.value)


Edit = Callable[[dict[str, Any]], dict[str, Any]]


def changed(key: str, values: dict[int, Any] | float) -> Rows:
    """The usual log with other values of a column, on single lines or on all."""
    made = rows()
    for line in values if isinstance(values, dict) else range(1, len(made) + 1):
        made[line - 1][key] = values[line] if isinstance(values, dict) else values
    return made


@pytest.mark.parametrize(
    ("edit", "entries", "rollout", "trained"),
    [
        (lambda row: row, {}, [0, 16, 32], [16, 32, 48]),
        (lambda row: {**row, "step": row["step"] - 1}, {"first_update": 0}, [0, 16, 32], [16, 32, 48]),
        (lambda row: {**row, "step": row["step"] * 16}, {"counts": "gradient_steps"}, [0, 16, 32], [16, 32, 48]),
        (lambda row: row, {"counts": "gradient_steps", "steps_per_update": None}, [1, 2, 3], [1, 2, 3]),
        (lambda row: {**row, "t": row["step"] + 7}, {"step": "t"}, [112, 128, 144], [128, 144, 160]),
        (lambda row: {f"train/{key}": value for key, value in row.items()}, {}, [0, 16, 32], [16, 32, 48]),
    ],
)
def test_an_update_stands_at_two_places(
    read: Read, edit: Edit, entries: dict[str, Any], rollout: list[int], trained: list[int]
) -> None:
    found = read([edit(row) for row in rows(updates=3)], **entries)
    assert found.series["objective/kl"].index.tolist() == rollout, "what the policy had taken when it sampled"
    assert found.series["policy/approxkl"].index.tolist() == trained, "the last gradient step of the update"
    assert found.steps == trained[-1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "line 1: step = 0: updates count from 1; if the first is 0, say `first_update: 0` in a map"),
        *((value, f"line 1: step = {value}: a whole number is expected") for value in (1.5, None, "x")),
    ],
)
def test_rows_without_a_place(read: Read, value: Any, words: str) -> None:
    with pytest.raises(UserError, match=f"a-seed0.jsonl, {words}".replace("None", "(None|nan)")):
        read([{**rows(updates=1)[0], "step": value}, *rows(updates=2)[1:]])


@pytest.mark.parametrize(
    ("key", "ours", "value", "bounds"),
    [
        ("objective/entropy", "objective/entropy", -3.25, "0 to inf nats per sequence"),
    ],
)
def test_an_impossible_value_takes_its_series_out(read: Read, key: str, ours: str, value: Any, bounds: str) -> None:
    found = read(changed(key, {4: value, 9: value}))
    (problem,) = found.problems
    assert problem[:3] == ("range", key, "a-seed0.jsonl")
    why = f"no number from {bounds}; its name or unit must be wrong, so all of it is left out; 2 of 12 values"
    assert lines([problem]) == [f"a-seed0.jsonl, line 4: {key} = {value}: {why}"]
    assert set(found.series) == set(load_map("trl-ppo")[0].metrics) - {ours}
    assert found.diverged is None


@pytest.mark.parametrize("value", [-math.inf, "NaN"])
def test_not_finite_is_divergence_and_ends_the_trial_there(read: Read, value: Any) -> None:
    found = read(changed("objective/kl", {8: value, 11: value}))
    assert found.diverged == "not finite from line 8 of a-seed0.jsonl"
    assert found.steps == 7 * 16, "no claim about later steps can survive on rows that came before"
    assert all(len(series) == 7 for series in found.series.values())
    (problem,) = found.problems
    assert (problem.kind, problem.words.count(", line 8: "), problem.words.count("; 2 of ")) == ("diverged", 1, 1)
    assert "5 rows from it on are left out" in problem.words


@pytest.mark.parametrize("more", [rows(updates=5)[3:], rows(updates=6)[5:]])
def test_of_two_values_at_one_step_the_last_counts(read: Read, more: Rows) -> None:
    found = read(rows(updates=6) + [{**row, "objective/kl": 99.0} for row in more])
    (problem,) = found.problems
    assert problem.kind == "repeated"
    assert re.search(f", line 7: .*; {len(more)} of ", problem.words)
    assert found.series["objective/kl"].index.tolist() == [0, 16, 32, 48, 64, 80]
    assert (found.series["objective/kl"] == 99.0).sum() == len(more)


@pytest.mark.parametrize(
    ("ours", "named", "theirs", "value"),
    [
        ("objective/kl", {"unit": "bits per sequence"}, 1.0, math.log(2)),
        ("objective/kl", {"unit": "nats per token"}, 2.0, 48.0),
        ("policy/pg_clipfrac", {"unit": "percent"}, 7.5, 0.075),
        ("objective/scores", {"subtract": 0.5, "factor": 2.0}, 1.25, 1.5),
    ],
)
@pytest.mark.parametrize("column", [True, False])
def test_units(read: Read, ours: str, named: dict[str, Any], theirs: float, value: float, column: bool) -> None:
    metrics = {ours: {"key": "x", **named}, **({"objective/length": "n"} if column else {})}
    found = read([{**row, "n": 24} for row in changed("x", theirs)], metrics=metrics, length=None if column else 24)
    np.testing.assert_allclose(found.series[ours], value, rtol=1e-12)
    np.testing.assert_allclose(found.series["objective/kl_per_token"], found.series["objective/kl"] / 24, rtol=1e-12)
    assert ("objective/length" in found.series) == column, "a stated length was not measured"


def edited(**edits: tuple[float, float]) -> Rows:
    """The usual log with ``value x factor + offset`` in some columns; ``__`` stands for a slash."""
    named = {key.replace("__", "/"): edit for key, edit in edits.items()}
    return [{**row, **{key: row.get(key, 0) * times + plus for key, (times, plus) in named.items()}} for row in rows()]


BITS, TOKENS = (1 / math.log(2), 0), (1 / 24, 0)


@pytest.mark.parametrize(
    ("made", "settings", "words"),
    [
        (rows(), {"kl.beta": 0.05}, ""),
        (edited(objective__kl_coef=(0, 0.05)), {}, ""),
        (edited(objective__kl=BITS), {"kl.beta": 0.05}, "KL is in bits"),
        (edited(objective__kl=TOKENS), {"kl.beta": 0.05}, "the penalty is 24 x kl_coef x KL: KL is per token"),
        (edited(objective__scores=(3, 0)), {}, "not the score plus the KL penalty"),
    ],
)
def test_series_that_contradict_each_other(read: Read, made: Rows, settings: dict[str, Any], words: str) -> None:
    found = [*doubts(read(made), settings)]
    assert [one.kind for one in found] == ["doubt"] * bool(words)
    assert all(words in one.words for one in found)
