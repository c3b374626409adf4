"""Rows become series over gradient steps in our units; what cannot be is named with its place and never drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl_logs import Rows, rows

from pipeline.errors import UserError
from pipeline.run.metrics import METRICS
from studies.importing.doubts import doubts
from studies.importing.mapping import MappingFile, check_keys_exist, load_mapping
from studies.importing.problems import Problem, grouped
from studies.importing.programs import TRL
from studies.importing.rows import LogRow
from studies.importing.trajectory import Trajectory, trajectory


def read(made: Rows, name: str = "a-seed0.jsonl", **mapping: Any) -> Trajectory:
    settings = {"steps_per_update": 16, **mapping}
    return trajectory(
        [LogRow(line, row) for line, row in enumerate(made, 1)], MappingFile.model_validate(settings), name
    )


def changed(key: str, **values: Any) -> Rows:
    """The usual log with other values of a key at single lines, given as `line_N`."""
    made = rows()
    for line, value in values.items():
        made[int(line.removeprefix("line_")) - 1][key] = value
    return made


def test_every_trl_name_is_one_of_ours_and_has_its_values() -> None:
    found = read(rows())
    assert set(found.series) == set(TRL.values()) <= set(METRICS)
    for theirs, ours in TRL.items():
        np.testing.assert_array_equal(found.series[ours].values, [row[theirs] for row in rows()])
    assert found.problems == ()
    assert not any("no metric of this name" in why for why in found.read.ignored.values())
    assert not doubts(found, "a", {"kl_coef": 0.05})


def test_an_update_stands_at_two_places() -> None:
    found = read(rows(updates=3), steps_per_update=16)
    assert found.series["objective/kl"].steps.tolist() == [0, 16, 32], "what the policy had taken when it sampled"
    assert found.series["policy/approxkl"].steps.tolist() == [16, 32, 48], "its last gradient step"
    assert found.steps == 48


@pytest.mark.parametrize(
    ("edit", "mapping", "rollout", "trained"),
    [
        (lambda row: {**row, "step": row["step"] - 1}, {"step": {"first": 0}}, [0, 16, 32], [16, 32, 48]),
        (
            lambda row: {k: v for k, v in row.items() if k != "step"},
            {"episodes_per_update": 64},
            [0, 16, 32],
            [16, 32, 48],
        ),
        (
            lambda row: {**row, "step": row["step"] * 16},
            {"step": {"counts": "gradient_steps"}},
            [0, 16, 32],
            [16, 32, 48],
        ),
        (
            lambda row: {**row, "step": row["step"] * 16},
            {"step": {"counts": "gradient_steps"}, "steps_per_update": None},
            [16, 32, 48],
            [16, 32, 48],
        ),
        (lambda row: {**row, "t": row["step"]}, {"step": {"key": "t"}}, [0, 16, 32], [16, 32, 48]),
        (lambda row: {f"train/{k}": v for k, v in row.items()}, {}, [0, 16, 32], [16, 32, 48]),
    ],
)
def test_what_the_x_axis_counts(
    edit: Callable[[dict[str, Any]], dict[str, Any]], mapping: dict[str, Any], rollout: list[int], trained: list[int]
) -> None:
    found = read([edit(row) for row in rows(updates=3)], **mapping)
    assert found.series["objective/kl"].steps.tolist() == rollout
    assert found.series["policy/approxkl"].steps.tolist() == trained
    assert found.steps == 48


@pytest.mark.parametrize(
    ("edit", "mapping", "words"),
    [
        (
            {},
            {"steps_per_update": None},
            "x-axis 'step' counts updates; say how many gradient steps an update takes: --steps-per-update",
        ),
        ({"step": 0}, {}, "step begins at 0; if its first update is number 0, say `step: {first: 0}`"),
        ({"step": 1.5}, {}, "line 1: step = 1.5 is no place on an x-axis"),
        ({"step": None}, {}, "line 1: step = None is no place"),
        ({"step": -1}, {}, "line 1: step = -1 is no place"),
        ({"step": math.nan}, {}, "line 1: step = nan is no place"),
        (
            {"episode": 65},
            {"step": {"key": "episode"}, "episodes_per_update": 64},
            "line 1: episode = 65 is no whole number of updates of 64",
        ),
        ({}, {"step": {"key": "episode"}}, "counts episodes; give episodes_per_update"),
        ({}, {"step": {"key": "time"}}, "no key 'time' to place its rows by"),
    ],
)
def test_an_x_axis_that_cannot_be_understood(edit: dict[str, Any], mapping: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read([{**row, **edit} for row in rows(updates=1)], **mapping)


@pytest.mark.parametrize(
    ("key", "ours", "value", "why"),
    [
        ("objective/entropy", "objective/entropy", -3.25, "below 0 nats per sequence"),
        ("policy/entropy_avg", "policy/entropy", -0.5, "below 0 nats per token"),
        ("policy/clipfrac_avg", "policy/pg_clipfrac", 7.5, "above 1 fraction"),
        ("val/clipfrac_avg", "value/vf_clipfrac", -0.1, "below 0 fraction"),
        ("lr", "policy/lr", -1e-5, "below 0"),
        ("policy/approxkl_avg", "policy/approxkl", -0.1, "below 0 nats per token"),
        ("loss/value_avg", "value/vf_loss", -2.0, "below 0 squared score"),
        ("val/ratio", "policy/ratio", -1.0, "below 0"),
    ],
)
def test_impossible_values_take_the_whole_series_out(key: str, ours: str, value: float, why: str) -> None:
    found = read(changed(key, line_4=value, line_9=value))
    (problem,) = found.problems
    assert (problem.kind, problem.line, problem.key, problem.metric, problem.count, problem.of) == (
        "range",
        4,
        key,
        ours,
        2,
        12,
    )
    assert why in problem.why
    assert f"line 4: {key}" in problem.text
    assert f"= {value:.6g}: " in problem.text
    assert set(found.series) == set(TRL.values()) - {ours}
    assert found.diverged is None


def test_rounding_is_not_impossible() -> None:
    assert not read(changed("policy/clipfrac_avg", line_3=1.0000002)).problems


def test_what_is_no_number_takes_the_series_out() -> None:
    found = read(changed("lr", line_2="fast", line_3=True, line_4=None, line_5="1e-5"))
    (problem,) = found.problems
    assert (problem.kind, problem.line, problem.value, problem.count, problem.of) == ("text", 2, "'fast'", 2, 11)
    assert "policy/lr" not in found.series


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge"), "NaN"])
def test_not_finite_is_divergence_and_ends_the_trial_there(value: Any) -> None:
    found = read(changed("objective/kl", line_8=value, line_11=value))
    assert found.diverged == "not finite from line 8 of a-seed0.jsonl"
    assert found.steps == 7 * 16, "no claim about later steps can survive on rows that came before"
    assert all(len(one.values) == 7 for one in found.series.values())
    (problem,) = found.problems
    assert (problem.kind, problem.line, problem.count) == ("diverged", 8, 2)
    assert "5 rows from it on are left out" in problem.effect


def test_null_is_not_recorded() -> None:
    found = read(changed("objective/kl", line_8=None))
    assert found.problems == ()
    assert len(found.series["objective/kl"].values) == 11


def test_a_resumed_log_goes_back_and_the_last_value_counts() -> None:
    made = rows(updates=6) + [{**row, "objective/kl": 99.0} for row in rows(updates=5)[3:]]
    found = read(made)
    assert [(one.kind, one.line, one.count) for one in found.problems] == [("back", 7, 1)]
    assert "step = 4: goes back from 6" in found.problems[0].text
    assert found.series["objective/kl"].steps.tolist() == [0, 16, 32, 48, 64, 80]
    assert found.series["objective/kl"].values[[3, 4]].tolist() == [99.0, 99.0]


def test_a_repeated_step_is_told() -> None:
    found = read([*rows(updates=3), {**rows(updates=3)[2], "lr": 0.5}])
    assert [(one.kind, one.line, one.count) for one in found.problems] == [("repeated", 4, 1)]
    assert found.series["policy/lr"].values[-1] == 0.5


def test_rows_of_one_step_may_share_it_when_they_say_different_things() -> None:
    made = [{"step": 16, "objective/kl": 1.0}, {"step": 16, "policy/lr": 0.1}, {"train_runtime": 9.0}]
    assert read(made, step={"counts": "gradient_steps"}).problems == ()


@pytest.mark.parametrize(
    ("unit", "theirs", "ours"),
    [
        ("bits per sequence", 1.0, math.log(2)),
        ("nats per token", 2.0, 48.0),
        ("bits per token", 2.0, 48.0 * math.log(2)),
    ],
)
def test_units_are_converted_when_they_are_stated(unit: str, theirs: float, ours: float) -> None:
    found = read(
        changed("kl", **{f"line_{line}": theirs for line in range(1, 13)}),
        metrics={"objective/kl": {"key": "kl", "unit": unit}},
        length=24,
    )
    np.testing.assert_allclose(found.series["objective/kl"].values, ours, rtol=1e-12)
    np.testing.assert_allclose(found.series["objective/kl_per_token"].values, ours / 24, rtol=1e-12)


def test_factor_and_offset() -> None:
    named = {"key": "objective/scores", "subtract": 0.5, "factor": 2.0}
    found = read(rows(), metrics={"objective/scores": named})
    np.testing.assert_allclose(
        found.series["objective/scores"].values, [2 * (row["objective/scores"] - 0.5) for row in rows()]
    )


def test_percent() -> None:
    made = changed("clip", **{f"line_{line}": 7.5 for line in range(1, 13)})
    found = read(made, metrics={"policy/pg_clipfrac": {"key": "clip", "unit": "percent"}})
    np.testing.assert_allclose(found.series["policy/pg_clipfrac"].values, 0.075)


def test_kl_per_token_needs_a_length() -> None:
    assert "objective/kl_per_token" not in read(rows()).series
    by_constant = read(rows(), length=53)
    np.testing.assert_allclose(
        by_constant.series["objective/kl_per_token"].values, [row["objective/kl"] / 53 for row in rows()]
    )
    assert "objective/length" not in by_constant.series, "stated, not measured"
    logged = [{**row, "mean_len": 20 + row["step"]} for row in rows()]
    logged[4]["mean_len"] = 0
    by_key = read(logged, length="mean_len")
    wanted = [row["objective/kl"] / row["mean_len"] for row in logged if row["mean_len"]]
    np.testing.assert_allclose(by_key.series["objective/kl_per_token"].values, wanted)
    assert "range" in [one.kind for one in by_key.problems], "a length of 0 is impossible itself"


def test_a_series_can_be_left_out_and_renamed() -> None:
    found = read(rows(), metrics={"policy/ratio": "none", "objective/gold": "objective/scores"})
    assert "policy/ratio" not in found.series
    assert "objective/scores" not in found.series
    np.testing.assert_array_equal(found.series["objective/gold"].values, [row["objective/scores"] for row in rows()])


def test_final_measurements_become_the_summary() -> None:
    made = [*rows(updates=2), {"step": 2, "eval/win_rate": 0.625}]
    found = read(made)
    assert found.summary == {"eval/win_rate": 0.625}
    assert not any(key.startswith("eval/") for key in found.series)


def test_two_keys_of_one_metric_are_refused() -> None:
    with pytest.raises(
        UserError, match="'policy/approxkl_avg' and 'policy/approxkl' are both policy/approxkl; say which"
    ):
        read(changed("policy/approxkl", line_1=0.1))


def test_a_log_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match=r"none of its keys is a known metric \(loss, step\)"):
        read([{"loss": 1.0, "step": 1}])


def test_unknown_keys_come_with_the_nearest_name() -> None:
    ignored = read([{**row, "objective/klx": 1.0, "train/episode": 3} for row in rows()]).read.ignored
    assert ignored["objective/klx"] == "no metric of this name; did you mean 'objective/kl'?"
    assert ignored["train/episode"] == "another count of the x-axis"
    assert ignored["eps"] == "episodes per second"


def test_keys_that_no_log_has() -> None:
    with pytest.raises(
        UserError, match=r"mapping: metrics\.objective/kl: no log has a key 'kll'; did you mean 'kl'\?; keys: kl, step"
    ):
        check_keys_exist(MappingFile.model_validate({"metrics": {"objective/kl": "kll"}}), ["kl", "step"])
    with pytest.raises(UserError, match="mapping: length: no log has a key 'len'"):
        check_keys_exist(MappingFile.model_validate({"length": "len"}), ["kl"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("metrics: {objective/kll: kl}", r"metrics: no metric 'objective/kll'; did you mean 'objective/kl'\?"),
        (
            "metrics: {objective/kl: {key: kl, unit: bans}}",
            "metrics.objective/kl: no way from 'bans' to 'nats per sequence'; known: bits",
        ),
        ("metrics: {objective/kl: {key: kl, unit: nats per token}}", "needs `length`"),
        ("metrics: {eval/kl_per_sequence: {key: kl, unit: nats per token}}\nlength: 24", "give a factor"),
        ("metrics: {objective/kl: {kei: kl}}", "metrics.objective/kl.k"),
        ("metrics: [objective/kl]", "metrics"),
        ("episodes_per_update: 0", "episodes_per_update = 0"),
        ("steps_per_updates: 4", r"unknown key 'steps_per_updates'; did you mean 'steps_per_update'\?"),
        ("step: {counts: epochs}", "step.counts = 'epochs'"),
        ("length: -3", "length"),
        ("step: [", "line 1: not valid YAML"),
        ("steps_per_update: 4", "steps_per_update is 4 here but 16 on the command line"),
    ],
)
def test_mapping_files_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        load_mapping(path, steps_per_update=16)
    assert str(path) in str(caught.value)


def test_kl_in_bits_or_per_token_contradicts_the_penalty() -> None:
    bits = [{**row, "objective/kl": row["objective/kl"] / math.log(2)} for row in rows()]
    (doubt,) = doubts(read(bits), "a", {"kl_coef": 0.05})
    assert "KL is in bits" in doubt.text
    per_token = [{**row, "objective/kl": row["objective/kl"] / 24} for row in rows()]
    (doubt,) = doubts(read(per_token), "a", {"kl.beta": 0.05})
    assert "the KL penalty is 24 x kl_coef 0.05 x KL: KL is per token" in doubt.text
    assert not doubts(read(per_token), "a", {}), "nothing is known without kl_coef"
    logged = [{**row, "objective/kl_coef": 0.05} for row in bits]
    (doubt,) = doubts(read(logged), "a", {})
    assert "x the logged kl_coef x KL: KL is in bits" in doubt.text
    assert not doubts(read([{**row, "objective/kl_coef": 0.05} for row in rows()]), "a", {})


def test_a_reward_that_is_not_its_parts() -> None:
    found = read([{**row, "objective/scores": row["objective/scores"] * 3} for row in rows()])
    assert [one.metric == "objective/rlhf_reward" for one in doubts(found, "a", {})] == [True]


def test_a_kl_that_is_negative_on_average() -> None:
    made = [
        {
            **row,
            "objective/kl": -2.0,
            "objective/non_score_reward": 0.1,
            "objective/rlhf_reward": 0.1 + row["objective/scores"],
        }
        for row in rows()
    ]
    (doubt,) = doubts(read(made), "a", {})
    assert "negative on average" in doubt.text
    assert "12 of 12" in doubt.text


def test_per_token_and_per_sequence_mixed_up() -> None:
    found = read([{**row, "objective/entropy": 1.5, "policy/entropy_avg": 40.0} for row in rows()])
    (doubt,) = doubts(found, "a", {})
    assert "units are mixed up" in doubt.text


def test_equal_problems_of_many_logs_are_one_line() -> None:
    def one(file: str, kind: Any = "range") -> Problem:
        return Problem(kind, file, 4, "lr", "policy/lr", "-1", "below 0", 1, 3, "left out")

    lines = grouped([one("a"), one("b"), one("b", "text"), one("c")])
    assert len(lines) == 2
    assert lines[0].startswith("a, line 4: lr (policy/lr) = -1: below 0; 1 of 3 values; left out")
    assert lines[0].endswith("(and the same in 2 other logs)")
    assert lines[1].startswith("b, line 4")


VALUES = st.one_of(st.none(), st.floats(-2, 3), st.just(math.nan), st.text(max_size=3))


@given(
    st.lists(
        st.fixed_dictionaries(
            {"step": st.integers(1, 6), "policy/clipfrac_avg": VALUES, "objective/kl": st.floats(-1, 9)}
        ),
        min_size=1,
    )
)
def test_whatever_is_logged_what_is_kept_is_finite_ordered_and_possible(made: Rows) -> None:
    found = read(made)
    for key, one in found.series.items():
        assert np.isfinite(one.values).all()
        assert (np.diff(one.steps) > 0).all()
        assert one.values.min() >= METRICS[key].low - 1e-6
        assert one.values.max() <= METRICS[key].high + 1e-6
        assert one.steps.max() <= found.steps


@pytest.mark.parametrize(("x", "places"), [([1, 2, 3, 4], [0, 1, 2, 3]), ([2, 4, 6], [0, 2, 4]), ([16, 32], [14, 30])])
def test_no_rollout_overwrites_the_one_before_it(x: list[int], places: list[int]) -> None:
    rows = [{"step": step, "clip_ratio/low_mean": 0.0, "kl": 0.1 * step} for step in x]
    found = trajectory(
        [LogRow(line, row) for line, row in enumerate(rows, 1)],
        MappingFile(program="trl-grpo", steps_per_update=2),
        "a",
    ).series["objective/kl_k3_per_token"]
    assert found.steps.tolist() == places
    assert found.values.tolist() == [row["kl"] for row in rows]


@pytest.mark.parametrize(("per", "between"), [(4, {"policy/entropy": 2.0}), (16, {"eval/gold": 1.0})])
def test_rows_without_a_rollout_move_no_rollout(per: int, between: dict[str, float]) -> None:
    ends = range(per, 4 * per, per)
    rows = [{"step": step, **({"objective/kl": 1.0} if step in ends else between)} for step in range(1, 3 * per + 1)]
    mapping = {key: key for key in ("objective/kl", *between)}
    found = read(rows, step={"key": "step", "counts": "gradient_steps"}, steps_per_update=per, metrics=mapping)
    assert found.series["objective/kl"].steps.tolist() == [0, per, 2 * per]
