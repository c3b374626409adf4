"""The sentences of the page: every number is the finding's, every arm stands under its own verdict, and a warning
appears where it applies and nowhere else. How a sentence is worded is not tested."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import WHOLE, build

from reports.findings.findings import Findings
from reports.findings.matched_kl import MatchedKL
from reports.records.load import StudyRecords
from reports.statistics.coverage import coverage_with, largest
from reports.statistics.two_level import Estimate
from reports.text.answer import Answer, answer, claim_sentence
from reports.text.methods import methods
from reports.text.phrases import at_equal_drift
from reports.text.say import say
from reports.text.words import interval, number, percent, signed

ARMS = ("beta_0", "beta_0.05", "beta_0.2")
SMALL: dict[str, Any] = {**WHOLE, "steps": 64, "prompts": 24, "arms": {arm: synthetic.BETAS[arm] for arm in ARMS}}
WIN = "eval/win_rate"


def answered(folder: Path, **shape: Any) -> Answer:
    built = build(folder, **{**SMALL, **shape})
    return answer(built.records, built.findings)


def lacking(text: str, *words: str) -> list[str]:
    return [word for word in words if word not in text]


def changed(findings: Findings, **fields: Any) -> Findings:
    """The same findings with other fields in every effect on the objective."""
    return replace(findings, effects=tuple(replace(e, **fields) if e.metric == WIN else e for e in findings.effects))


def of(*arms: str) -> synthetic.Cells:
    return tuple((arm, seed) for arm in arms for seed in (0, 1))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"diverged": of(*ARMS)}, ["diverged (6 of 6)"]),
        ({"missing": of(*ARMS)}, ["no answer yet", "6 missing"]),
        ({"diverged": of("beta_0.05")}, ["The baseline beta_0.05", "(2 diverged)", "win rate"]),
        (
            {"diverged": of("beta_0"), "missing": (("beta_0.2", 1), ("beta_0.05", 0))},
            ["(2 diverged)", "beta_0.2 shares no evaluated seed", "1 of 2 seeds × 24"],
        ),
    ],
)
def test_without_anything_to_compare(tmp_path: Path, shape: dict[str, Any], words: list[str]) -> None:
    assert lacking(answered(tmp_path, seeds=(0, 1), **shape).sentence, *words) == []


def test_an_arm_on_another_task_is_not_compared(tmp_path: Path) -> None:
    arms = {"base": 0.05, "more": 0.2, "longer": {"data.builtin.clauses": [6, 8], "kl.beta": 0.2}}
    built = build(tmp_path, arms=arms, baseline="base", diverged=(), budget=(), missing=())
    said, found = answer(built.records, built.findings), built.findings
    assert [effect.arm for effect in found.effects_on(WIN) if effect.estimate] == ["more"]
    assert "longer is not compared with it" in said.sentence
    assert "of the 2 arms" in said.use
    assert [one.arm for one in found.matched] == []
    assert built.findings.arm("longer").estimates[WIN].seeds == 3


def test_a_diverged_trial_counts_only_if_its_policy_was_evaluated(records: StudyRecords, findings: Findings) -> None:
    def caveats(evaluated: bool, worst: float | None = None) -> str:
        fell = records.trials["status"] == "diverged"
        trials = records.trials.assign(evaluated=records.trials["evaluated"].mask(fell, evaluated))
        objective = records.study.objective.model_copy(update={"worst": worst})
        study = records.study.model_copy(update={"objective": objective})
        return " ".join(answer(replace(records, study=study, trials=trials), findings).caveats)

    assert "beta_0 had diverged seeds that could not be evaluated" in caveats(evaluated=False)
    assert "beta_0 had trials that diverged: they count" in (kept := caveats(evaluated=True))
    assert "could not be evaluated" not in kept
    assert "they count with the value -1.5, as" in caveats(evaluated=True, worst=-1.5)


def test_every_arm_stands_once_under_its_own_verdict_with_its_numbers(
    records: StudyRecords, findings: Findings
) -> None:
    words = {"better": "better than", "worse": "worse than", "equivalent": "equivalent to", "undecided": "undecided"}
    for first in range(4):
        outcomes = itertools.islice(itertools.cycle(words), first, None)
        effects = tuple(replace(e, outcome=next(outcomes)) if e.metric == WIN else e for e in findings.effects)
        sentence = answer(records, replace(findings, effects=effects)).sentence
        for effect in effects[:3]:
            _, after = sentence.split(f"{effect.arm} (")
            assert after.startswith(f"{signed(effect.estimate, WIN)}; ")
            assert min((after.find(word), own) for own, word in words.items() if word in after)[1] == effect.outcome
        assert sentence.count("the baseline beta_0.05") == 1
        for sample in ("2 of 3 seeds × 200 prompts, 1 diverged", "2 of 3 seeds × 200 prompts, 1 not run",
                       "3 seeds × 200 prompts, 1 ended by a cap"):  # fmt: skip
            assert sentence.count(sample) == 1


def caveats(records: StudyRecords, findings: Findings, word: str) -> list[str]:
    return [text for text in answer(records, findings).caveats if word in text]


@pytest.mark.parametrize("seeds", [1, 4])
def test_few_seeds_come_with_the_coverage_that_was_simulated(tmp_path: Path, seeds: int) -> None:
    known, found = coverage_with(seeds), answered(tmp_path, seeds=tuple(range(seeds)))
    covered = f"{percent(known.lowest)} to {percent(known.highest)} %"
    assert sum(covered in caveat for caveat in found.caveats) == (seeds < 4)
    assert ("single seed" in found.sentence) == (seeds == 1)


def test_mixed_machines_are_warned_of(records: StudyRecords, findings: Findings) -> None:
    def kinds(*machines: dict[str, str]) -> list[str]:
        cells = zip(itertools.cycle(machines), records.records.items(), strict=False)
        other = {cell: one.model_copy(update={"environment": {**one.environment, **m}}) for m, (cell, one) in cells}
        return caveats(replace(records, records=other), findings, "different machines")

    epyc, xeon = {"processor": "EPYC", "instruction_set": "AVX2"}, {"processor": "Xeon", "instruction_set": "AVX512"}
    card = {"device": "Tesla T4, 14.6 GiB"}
    assert kinds({}) == kinds(epyc) == kinds(epyc, {}) == kinds(epyc | card, xeon | card) == []
    assert "(EPYC, AVX2; Xeon, AVX512)" in kinds(epyc, xeon)[0]
    assert "(EPYC, AVX2; Tesla T4, 14.6 GiB)" in kinds(epyc, xeon | card)[0]


def test_an_interval_without_0_is_no_verdict_alone(records: StudyRecords, findings: Findings) -> None:
    first, *others = findings.effects
    apart = replace(first.estimate, value=-0.2, low=-0.3, high=-0.1)
    odd = replace(first, estimate=apart, p_holm=0.0712, outcome="undecided", p_equivalence=None)
    for effect, warned in ((odd, 1), (replace(odd, outcome="worse"), 0)):
        assert len(caveats(records, replace(findings, effects=(effect, *others)), "(p 0.071)")) == warned


def test_equivalence_says_little_where_little_was_gained(records: StudyRecords, findings: Findings) -> None:
    first, *others = findings.effects
    for base, outcome, warned in ((0.59, "equivalent", 1), (0.41, "equivalent", 1), (0.61, "equivalent", 0),
                                  (0.59, "undecided", 0)):  # fmt: skip
        effect = replace(first, outcome=outcome, smallest=0.05)
        arms = tuple(
            replace(arm, estimates=arm.estimates | {WIN: replace(arm.estimates[WIN], value=base)})
            if arm.arm == records.study.baseline
            else arm
            for arm in findings.arms
        )
        rest = [replace(other, outcome="worse") for other in others]
        found = replace(findings, arms=arms, effects=(effect, *rest))
        assert len(caveats(records, found, "Equivalence within 0.050 says little")) == warned


FORM = "  - {{name: form, claim: it holds, {}}}\n"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("metric: objective/gold, op: '<', threshold: 9, before_step: 32, relative_to: baseline",
         ["4 of 4 trials (beta_0 and beta_0.2)", "step 0 ", "difference", "judge points"]),
        ("metric: eval/win_rate, op: '<', threshold: 1", ["6 of 6 trials", "at worst"]),
        ("metric: eval/gold, op: '<', threshold: 99, bound: high", ["high end of the 95 % interval"]),
    ],
)  # fmt: skip
def test_claims_of_every_form(tmp_path: Path, keys: str, words: list[str]) -> None:
    claim = build(tmp_path, **{**SMALL, "seeds": (0, 1), "extra": FORM.format(keys)}).findings.claims[-1]
    sentence = claim_sentence(claim)
    assert lacking(sentence, *words, "is falsified") == []
    if "step" not in sentence:
        worst = min(claim.verdicts, key=lambda verdict: verdict.value or 0.0)
        assert f"({worst.arm} seed {worst.seed})" in sentence


DIFFERENCE = Estimate(-0.08, -0.27, 0.12, 5, 512, "hierarchical")
ROW = MatchedKL(
    "eval/gold", "curriculum", "fixed beta", Estimate(6.1, 5.9, 6.3, 5, 512, "hierarchical"), 5,
    ("beta_0.2", "beta_0.05", "beta_0.01"), (), "", between=("beta_0.05", "beta_0.01"), difference=DIFFERENCE,
    outcome="undecided",
)  # fmt: skip


def test_equal_drift_names_difference_kl_neighbours_and_seeds() -> None:
    assert at_equal_drift([]) == ""
    words = ("−0.08 [−0.27, +0.12] at 6.10 nats", "between beta_0.05 and beta_0.01", "5 seeds", "not distinguish")
    assert lacking(at_equal_drift([ROW]), *words) == []
    far = replace(ROW, arm="far", reason="few seeds", difference=None, left=dict.fromkeys(range(3), "far apart"))
    why = say("drift", "not_compared", far)
    assert lacking(why, "3 of 5 seeds", "factor of 2") == []
    assert f"far ({why})" in at_equal_drift([ROW, far])
    alone = replace(far, reason="few arms", left={})
    assert at_equal_drift([alone]) == "", "a study without arms to interpolate between compares none"
    assert "collapsed: beta_0.01" in at_equal_drift([replace(alone, collapsed=("beta_0.01",))])


def of_three(value: float, low: float | None, high: float | None) -> Estimate:
    return Estimate(value, low, high, 3, 512, "hierarchical")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.0, "0.00"), (12.345, "12.3"), (1234.5, "1234"), (-0.0412, "−0.0412"), (2e-5, "2.0e-05"), (3.2e7, "3.2e+07"),
        (None, "–"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_number(value: float | None, wanted: str) -> None:
    assert number(value) == wanted


def test_intervals_show_their_width_with_two_digits_and_differences_their_sign() -> None:
    assert interval(of_three(0.7134, 0.66, 0.761), "eval/win_rate") == "0.713 [0.660, 0.761]"
    assert number(-0.0412, "eval/win_rate") == "−0.041"
    assert interval(of_three(33.58, 31.04, 36.24)) == "33.6 [31.0, 36.2]"
    assert interval(of_three(0.00589, 0.00567, 0.0061)) == "0.00589 [0.00567, 0.00610]"
    assert interval(of_three(6.5, 6.5, 6.5)) == "6.50 [6.50, 6.50]"
    assert interval(of_three(6.5, None, None)).endswith("no interval")
    assert signed(of_three(0.125, 0.0757, 0.178), "eval/win_rate") == "+0.125 [+0.076, +0.178]"
    assert signed(of_three(-0.0001, -0.01, 0.01), "eval/win_rate") == "0.000 [−0.010, +0.010]"


def test_numbers_are_those_of_the_study(records: StudyRecords, findings: Findings) -> None:
    text, known = methods(records, findings), coverage_with(3)
    families = [largest()[name] for name in ("11 arms at the margin", "10 higher, no effect")]
    wanted = {
        "Design": ["4 arms", "3 seeds (0, 1, 2)", "9 complete, 1 budget, 1 diverged and 1 missing"],
        "Training": ["2,048 gradient steps of PPO", "88 %"],
        "Evaluation": ["512 held-out prompts", "8 answers"],
        "Estimates": [
            f"{percent(known.lowest)} to {percent(known.highest)} % with 3 seeds",
            *(f"{100 * after:.1f} % (without the correction {100 * before:.0f} %)" for before, after in families),
        ],
        "Comparisons": ["3 arms", "win rate that matters is 0.050"],
        "Drift": ["at most 5 % of studies"],
        "Bounds": ["4,000 answers of the reference"],
        "Claims": ["1 claim"],
    }
    assert list(text) == list(wanted)
    assert [(title, one) for title, words in wanted.items() for one in words if one not in text[title]] == []
    bare = replace(records, study=records.study.model_copy(update={"falsifiers": ()}))
    assert {"Drift", "Claims", "Comparisons"}.isdisjoint(methods(bare, replace(findings, alarms=(), effects=())))
