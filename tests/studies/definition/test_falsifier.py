"""Forms of falsifiers: what each is called in words, and which keys do not go together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_trial import STUDY

from pipeline.errors import UserError
from studies.definition.design import cells
from studies.definition.falsifier import Falsifier
from studies.definition.schema import Study
from studies.definition.testable import untestable

HEAD = STUDY.partition("falsifiers:")[0]
BASE = {"name": "n", "claim": "c", "op": ">", "threshold": 0.5}
SERIES = "metric: objective/kl, before_step: 32"
Write = Callable[..., Study]


def study_of(write_study: Write, line: str, head: str = HEAD) -> Study:
    return write_study(f"{head}falsifiers:\n  - {{name: n, claim: c, op: '>', threshold: 0.5, {line}}}\n")


@pytest.mark.parametrize(
    ("keys", "condition", "unit"),
    [
        ({"before_step": 9}, "objective/kl_exact_per_token > 0.5 before step 9", "nats per token"),
        (
            {"before_step": 9, "aggregation": {"consecutive": 3}, "relative_to": "baseline"},
            "objective/kl_exact_per_token minus the baseline's > 0.5 3 times in a row before step 9",
            "nats per token",
        ),
        (
            {"before_step": 9, "aggregation": "mean", "relative_to": "baseline", "relative": "ratio"},
            "mean of (objective/kl_exact_per_token divided by the baseline's) > 0.5 before step 9",
            "1",
        ),
        ({"metric": "eval/win_rate"}, "eval/win_rate > 0.5", "fraction"),
        ({"metric": "eval/gold", "bound": "high"}, "high end of the 95 % interval of eval/gold > 0.5", "judge points"),
        (
            {"metric": "eval/gold", "relative_to": "baseline", "relative": "ratio"},
            "eval/gold divided by the baseline's > 0.5",
            "1",
        ),
        (
            {"metric": "eval/gold", "bound": "low", "relative_to": "baseline"},
            "low end of the 95 % interval of (eval/gold minus the baseline's) > 0.5",
            "judge points",
        ),
    ],
)
def test_the_condition_in_words(keys: dict[str, Any], condition: str, unit: str) -> None:
    one = Falsifier.model_validate({**BASE, **keys})
    assert (one.condition, one.unit) == (condition, unit)
    assert Falsifier.model_validate(one.model_dump(mode="json")) == one


def test_the_default_relation_is_written_out() -> None:
    short = Falsifier.model_validate({**BASE, "before_step": 9, "relative_to": "baseline"})
    long = Falsifier.model_validate({**BASE, "before_step": 9, "relative_to": "baseline", "relative": "difference"})
    assert (short, short.relative, short.noun) == (long, "difference", "difference")
    assert Falsifier.model_validate({**BASE, "before_step": 9}).relative is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("metric: objective/kl", "falsifiers.n.before_step: is missing; 'objective/kl' is a series, of which records"),
        (
            "metric: eval/gold, before_step: 32",
            "falsifiers.n.before_step: 32: 'eval/gold' is measured once, after training; remove before_step, or name",
        ),
        (
            "metric: eval/gold, aggregation: mean",
            "falsifiers.n.aggregation: mean: 'eval/gold' is measured once, after training; remove aggregation, or",
        ),
        ("metric: eval/gold, aggregation: {consecutive: 2}", "falsifiers.n.aggregation: {consecutive: 2}: 'eval/gold'"),
        (
            "metric: eval/gold, stop: true",
            "falsifiers.n.stop: 'eval/gold' is measured once, after training, so it cannot end the training; remove",
        ),
        (
            "metric: cost/state_gib, before_step: 32",
            "falsifiers.n.metric: 'cost/state_gib' is recorded once, and not while a trial runs; name it in a",
        ),
        (f"{SERIES}, bound: low", "falsifiers.n.bound: 'objective/kl' is a series and has no interval; remove bound"),
        (
            "metric: eval/win_rate_low, bound: low",
            "falsifiers.n.bound: 'eval/win_rate_low' has no interval; did you mean 'eval/win_rate'?; these have one:",
        ),
        ("metric: eval/distinct_1, bound: high", "falsifiers.n.bound: 'eval/distinct_1' has no interval"),
        (
            "metric: eval/gold, bound: low, relative_to: baseline, relative: ratio",
            "falsifiers.n.bound: a ratio to the baseline has no interval; use `relative: difference`, or remove bound",
        ),
        (
            f"{SERIES}, stop: true, relative_to: baseline",
            "falsifiers.n.stop: a running trial does not know the baseline's values; remove stop or relative_to",
        ),
        (
            "metric: eval/gold, stop: true, relative_to: baseline",
            "falsifiers.n.stop: a running trial does not know the baseline's values; remove stop or relative_to",
        ),
        (
            f"{SERIES}, relative: ratio",
            "falsifiers.n.relative: 'ratio' needs `relative_to: baseline`; add it, or remove relative",
        ),
        (
            f"{SERIES}, relative_to: baseline, arms: [weak]",
            "falsifiers.n.arms: only the baseline 'weak' is named, and it is not compared with itself; name",
        ),
        (f"{SERIES}, relative_to: weak", "falsifiers.n.relative_to = 'weak': must be 'baseline'"),
        (
            f"{SERIES}, relative_to: baseline, relative: diference",
            "falsifiers.n.relative = 'diference': must be 'difference' or 'ratio'; did you mean 'difference'?",
        ),
        ("metric: eval/gold, bound: lo", "falsifiers.n.bound = 'lo': must be 'low' or 'high'; did you mean 'low'?"),
        (f"{SERIES}, relativ_to: baseline", "unknown key 'falsifiers.n.relativ_to'; did you mean"),
        ("metric: eval/golt", "falsifiers.n.metric: no metric 'eval/golt'; did you mean 'eval/gold'?"),
    ],
)
def test_keys_that_do_not_go_together(write_study: Write, line: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        study_of(write_study, line)
    (told,) = str(error.value).splitlines()
    assert f"small.yaml, line 11: {says}" in told


def test_all_of_them_are_told_at_once(write_study: Write) -> None:
    with pytest.raises(UserError) as error:
        study_of(write_study, "metric: eval/gold, before_step: 1, aggregation: mean, stop: true")
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    "line",
    [
        f"{SERIES}, relative_to: baseline",
        f"{SERIES}, relative_to: baseline, relative: ratio, aggregation: {{consecutive: 2}}, arms: [strong]",
        "metric: eval/win_rate",
        "metric: eval/reward/helpful, bound: low",
        "metric: eval/kl_per_token, bound: high, relative_to: baseline",
        "metric: eval/distinct_2, relative_to: baseline, relative: ratio",
    ],
)
def test_what_goes_together(write_study: Write, line: str) -> None:
    assert study_of(write_study, line).falsifiers[0].name == "n"


def test_a_relative_claim_does_not_speak_of_the_baseline(write_study: Write) -> None:
    (one,) = study_of(write_study, f"{SERIES}, relative_to: baseline").falsifiers
    assert [one.applies_to(arm, "weak") for arm in ("weak", "strong")] == [False, True]
    assert [one.applies_to(arm, "strong") for arm in ("weak", "strong")] == [True, False]
    absolute = one.model_copy(update={"relative_to": None, "relative": None})
    assert absolute.applies_to("weak", "weak")


@pytest.mark.parametrize(
    ("line", "head", "says"),
    [
        (f"{SERIES}, relative_to: baseline", HEAD, []),
        ("metric: eval/gold, bound: low", HEAD, []),
        (
            f"{SERIES}, relative_to: baseline, arms: [weak, strong]",
            HEAD,
            ["claim n does not speak of weak: it is the baseline that others are compared with"],
        ),
        (
            "metric: value/vf_loss, before_step: 32, relative_to: baseline",
            HEAD.replace("{kl.beta: 0.01}", "{algorithm: rloo}"),
            [
                "claim n cannot be tested: the baseline weak records value/vf_loss only with a critic (critic.kind:"
                " shared or separate)"
            ],
        ),
        (
            f"{SERIES}, relative_to: baseline",
            HEAD.replace("{kl.beta: 0.01}", "{train.steps: 16}"),
            ["claim n cannot survive: it covers the first 32 gradient steps, but train.steps is 16"],
        ),
        (
            "metric: objective/kl, before_step: 64, relative_to: baseline, aggregation: {consecutive: 3}",
            HEAD.replace("{kl.beta: 0.2}", "{train.num_epochs: 3, train.steps: 2052}"),
            ["claim n cannot be tested: 3 records in a row would refute it, and at most 2 come before step 64"],
        ),
    ],
)
def test_claims_that_the_planned_trials_cannot_decide(
    write_study: Write, line: str, head: str, says: list[str]
) -> None:
    study = study_of(write_study, line, head)
    assert untestable(study, cells(study)) == says
