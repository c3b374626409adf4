"""The answer in one sentence: true word for word, above all where little is there to be said."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from reports.findings.findings import Effect, Findings, analyse
from reports.records.load import StudyRecords, load_records
from reports.records.searches import SearchResult
from reports.statistics.coverage import coverage_with
from reports.statistics.two_level import Estimate
from reports.text.answer import Answer, answer, claim_sentence
from reports.text.drift import at_equal_drift
from reports.text.words import percent
from studies.definition.falsifier import Falsifier
from studies.definition.search import Tried

if TYPE_CHECKING:
    from tests.reports.conftest import Builder

ARMS = {"beta_0": 0.0, "beta_0.05": 0.05, "beta_0.2": 0.2}
WHOLE: dict[str, Any] = {"diverged": (), "budget": (), "missing": (), "steps": 64, "prompts": 24, "arms": ARMS}


def said(build: Builder, folder: Path, **shape: Any) -> Answer:
    built = build(folder, **{**WHOLE, **shape})
    records = load_records(built.folder, built.study)
    return answer(records, analyse(records))


def every(status: str, seeds: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    return {status: tuple((arm, seed) for arm in ARMS for seed in seeds), "seeds": seeds}


def of(arm: str, seeds: tuple[int, ...] = (0, 1)) -> tuple[tuple[str, int], ...]:
    return tuple((arm, seed) for seed in seeds)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (every("diverged"), "Every trial diverged (6 of 6) and none could be evaluated, so no arm can be compared."),
        (every("missing"), "No trial has been evaluated, so there is no answer yet (6 missing)."),
        (every("failed"), "No trial has been evaluated, so there is no answer yet (6 failed)."),
        (
            {"seeds": (0, 1), "diverged": of("beta_0.05")},
            (
                "The baseline beta_0.05 has no evaluated trial (2 diverged), so no arm can be compared with it on win"
                " rate."
            ),
        ),
        (
            {"seeds": (0, 1), "missing": of("beta_0.05")},
            "The baseline beta_0.05 has no evaluated trial (2 not run), so no arm can be compared with it on win rate.",
        ),
    ],
)
def test_without_anything_to_compare(build: Builder, tmp_path: Path, shape: dict[str, Any], sentence: str) -> None:
    assert said(build, tmp_path, **shape).sentence == sentence


def test_arms_that_cannot_be_compared_are_named_with_the_reason(build: Builder, tmp_path: Path) -> None:
    found = said(
        build, tmp_path, seeds=(0, 1), diverged=of("beta_0"), missing=(("beta_0.2", 1), ("beta_0.05", 0))
    ).sentence
    assert "beta_0 has no evaluated trial (2 diverged) and is not compared" in found
    assert "beta_0.2 shares no evaluated seed with the baseline and is not compared" in found
    assert found.startswith("beta_0.05 reaches a win rate of ")
    assert "1 of 2 seeds × 24 prompts, 1 not run" in found


def test_a_single_seed_is_said_in_the_sentence(build: Builder, tmp_path: Path) -> None:
    found = said(build, tmp_path, seeds=(4,))
    assert found.sentence.startswith("On win rate, as far as a single seed can tell, ")
    assert "1 seed × 24 prompts" in found.sentence
    assert any("single evaluated seed" in caveat for caveat in found.caveats)


def test_a_single_shared_seed_is_said_though_each_arm_has_more(build: Builder, tmp_path: Path) -> None:
    found = said(build, tmp_path, seeds=(0, 1, 2), missing=(("beta_0.05", 0),))
    assert not any("shares one with the baseline" in caveat for caveat in found.caveats)
    found = said(build, tmp_path / "b", seeds=(0, 1, 2), missing=(("beta_0.05", 0), ("beta_0", 1)))
    assert any("shares one with the baseline" in caveat for caveat in found.caveats)


def test_mixed_machines_are_warned_of(records: StudyRecords, findings: Findings) -> None:
    def caveats(*machines: dict[str, str]) -> list[str]:
        cells = zip(itertools.cycle(machines), records.records.items(), strict=False)
        changed = {cell: one.model_copy(update={"environment": {**one.environment, **m}}) for m, (cell, one) in cells}
        found = answer(dataclasses.replace(records, records=changed), findings).caveats
        return [caveat for caveat in found if "different machines" in caveat]

    epyc, xeon = {"processor": "EPYC", "instruction_set": "AVX2"}, {"processor": "Xeon", "instruction_set": "AVX512"}
    assert caveats({}) == caveats(epyc) == caveats(epyc, {}) == []
    assert "(EPYC, AVX2; Xeon, AVX512)" in caveats(epyc, xeon)[0]
    card = {"device": "Tesla T4, 14.6 GiB"}
    assert caveats(epyc | card, xeon | card) == []
    assert "(EPYC, AVX2; Tesla T4, 14.6 GiB)" in caveats(epyc, xeon | card)[0]


def test_what_ended_otherwise_stands_beside_the_arm(records: StudyRecords, findings: Findings) -> None:
    found = answer(records, findings).sentence
    assert "; 2 of 3 seeds × 200 prompts, 1 diverged) is worse than the baseline beta_0.05; " in found
    assert "; 2 of 3 seeds × 200 prompts, 1 not run) and beta_0.2 (" in found
    assert "; the comparisons of beta_0.01 (" in found
    assert found.endswith("3 seeds × 200 prompts, 1 ended by a cap) with it are undecided.")


def test_the_sentence_says_each_verdict_of_the_findings(records: StudyRecords, findings: Findings) -> None:
    """Whatever the verdicts are: every arm once, under its own."""
    words = {
        "better": "better than",
        "worse": "worse than",
        "equivalent": "equivalent to",
        "undecided": "undecided",
    }
    outcomes = list(words)
    for first in range(4):
        effects = list(findings.effects)
        mine = [index for index, effect in enumerate(effects) if effect.metric == "eval/win_rate"]
        for place, index in enumerate(mine):
            effects[index] = dataclasses.replace(effects[index], outcome=outcomes[(first + place) % 4])
        changed = dataclasses.replace(findings, effects=tuple(effects))
        sentence = answer(records, changed).sentence
        for effect in changed.effects_on("eval/win_rate"):
            assert sentence.count(f"{effect.arm} (") == 1
            after = sentence[sentence.index(f"{effect.arm} (") :]
            said_first = min((after.find(word), outcome) for outcome, word in words.items() if word in after)[1]
            assert said_first == effect.outcome
        assert sentence.count("the baseline beta_0.05") == 1


def test_equivalence_names_the_difference_that_matters(records: StudyRecords, findings: Findings) -> None:
    effects = tuple(dataclasses.replace(effect, outcome="equivalent") for effect in findings.effects)
    sentence = answer(records, dataclasses.replace(findings, effects=effects)).sentence
    assert sentence.endswith(" are equivalent to the baseline beta_0.05 within 0.050.")


def test_a_certain_difference_that_is_too_small_to_matter_is_called_so(
    records: StudyRecords, findings: Findings
) -> None:
    """Both with all differences within the margin, and with one of several."""
    mine = {effect.arm: effect for effect in findings.effects_on("eval/win_rate")}
    for near in (set(mine), {next(iter(mine))}):
        changed = {
            arm: dataclasses.replace(effect, outcome="worse", smallest=10.0, p_equivalence=0.01 if arm in near else 0.1)
            for arm, effect in mine.items()
        }
        effects = tuple(changed.get(e.arm, e) if e.metric == "eval/win_rate" else e for e in findings.effects)
        sentence = answer(records, dataclasses.replace(findings, effects=effects)).sentence
        which = "the difference" if near == set(mine) else f"the difference of {next(iter(near))}"
        assert f"({which} is below 10.000, the smallest that matters)" in sentence


def test_few_seeds_are_said_with_the_coverage_that_was_simulated(build: Builder, tmp_path: Path) -> None:
    for seeds in (2, 3):
        known = coverage_with(seeds)
        found = said(build, tmp_path / str(seeds), seeds=tuple(range(seeds)))
        covered = f"With {seeds} seeds 95 % intervals covered {percent(known.lowest)} to {percent(known.highest)} %"
        assert any(caveat.startswith(covered) for caveat in found.caveats)
    assert not any("covered" in caveat for caveat in said(build, tmp_path / "4", seeds=(0, 1, 2, 3)).caveats)


def test_many_arms_are_summed_up_with_their_range(records: StudyRecords, findings: Findings) -> None:
    one = findings.effects_on("eval/win_rate")[0]
    template = findings.arm(one.arm)

    def made(index: int) -> Effect:
        return dataclasses.replace(
            one,
            arm=f"arm-{index}",
            estimate=Estimate(-index / 100, -index / 100 - 0.01, -0.001, 3, 200, "student"),
        )

    effects = tuple(made(index) for index in range(1, 8))
    arms = (*findings.arms, *(dataclasses.replace(template, arm=effect.arm) for effect in effects))
    sentence = answer(records, dataclasses.replace(findings, effects=effects, arms=arms, power=())).sentence
    assert (
        sentence == "On win rate, 7 arms, from −0.070 [−0.080, −0.001] (arm-7) to −0.010 [−0.020, −0.001] (arm-1), "
        "are worse than the baseline beta_0.05."
    )


def test_what_was_found_at_equal_drift_is_said(strengths: StudyRecords) -> None:
    found = analyse(strengths)
    drift = answer(strengths, found).drift
    assert drift == at_equal_drift(found.matched)
    assert drift.startswith("On ")


def test_a_search_speaks_of_its_confirmation(records: StudyRecords, findings: Findings) -> None:
    trials = tuple(Tried(n, f"search-00{n}", {"kl.beta": 0.03125678}, "complete", {}, True, 64) for n in range(4))
    before = answer(records, dataclasses.replace(findings, search=SearchResult(trials, (), {}))).sentence
    assert before.startswith("The search has tried 4 configurations and confirmed none yet. ")
    after = answer(records, dataclasses.replace(findings, search=SearchResult(trials, (2,), {"confirm-1": 2}))).sentence
    assert after.startswith(
        "Of 4 configurations tried, confirm-1 (kl.beta 0.03126) ran again on fresh seeds. On win rate, "
    )


def test_silence_is_not_equality(records: StudyRecords, findings: Findings) -> None:
    silent = {effect.arm for effect in findings.effects_on("eval/win_rate") if effect.outcome == "undecided"}
    worst = max((one for one in findings.power if one.arm in silent), key=lambda one: one.detectable)
    worst = dataclasses.replace(worst, detectable=0.3)
    likely = answer(records, dataclasses.replace(findings, power=(worst,)))
    caveat = next(caveat for caveat in likely.caveats if "does not mean equal" in caveat)
    assert f"of {worst.detectable:.3f} ({worst.arm}) would have been detected with 80 % power" in caveat
    assert f"Detecting 0.050 takes about {worst.seeds_needed} seeds." in caveat
    hopeless = dataclasses.replace(findings, power=(dataclasses.replace(worst, detectable=1.2),))
    assert any(
        f"no difference in win rate ({worst.arm}), however large, would have been detected" in one
        for one in answer(records, hopeless).caveats
    )
    stuck = dataclasses.replace(worst, seeds_needed=None, more_prompts=True)
    assert any(
        "no number of seeds" in one for one in answer(records, dataclasses.replace(findings, power=(stuck,))).caveats
    )
    loud = tuple(dataclasses.replace(effect, outcome="better") for effect in findings.effects)
    assert not any(
        "does not mean equal" in one for one in answer(records, dataclasses.replace(findings, effects=loud)).caveats
    )


def test_an_interval_beside_zero_that_is_no_verdict_is_explained(records: StudyRecords, findings: Findings) -> None:
    first = findings.effects_on(records.study.objective.metric)[0]
    assert first.estimate is not None
    beside = dataclasses.replace(first.estimate, value=-0.2, low=-0.3, high=-0.1)
    odd = dataclasses.replace(first, estimate=beside, p_holm=0.0712, outcome="undecided")
    others = tuple(effect for effect in findings.effects if effect is not first)

    def told(effect: Effect) -> list[str]:
        changed = dataclasses.replace(findings, effects=(effect, *others))
        return [text for text in answer(records, changed).caveats if "Holm" in text and f"{effect.arm} (p" in text]

    assert len(told(odd)) == 1
    assert "p 0.071" in told(odd)[0]
    assert not told(dataclasses.replace(odd, outcome="worse"))
    assert not told(dataclasses.replace(odd, estimate=dataclasses.replace(beside, high=0.1)))


def test_an_interval_within_the_margin_that_is_no_verdict_is_explained(
    records: StudyRecords, findings: Findings
) -> None:
    first = findings.effects_on(records.study.objective.metric)[0]
    near = dataclasses.replace(first, smallest=10.0, outcome="undecided", p_holm=0.9, p_equivalence=0.0712)
    others = tuple(effect for effect in findings.effects if effect is not first)

    def told(effect: Effect) -> bool:
        caveats = answer(records, dataclasses.replace(findings, effects=(effect, *others))).caveats
        return any("90 % interval" in text and f"{effect.arm} (p 0.071)" in text for text in caveats)

    assert told(near)
    assert not told(dataclasses.replace(near, outcome="equivalent"))
    assert not told(dataclasses.replace(near, smallest=1e-6))


def test_a_claim_that_fell_names_the_earliest_step(findings: Findings) -> None:
    sentence = claim_sentence(findings.claims[0])
    fell = [verdict for verdict in findings.claims[0].verdicts if verdict.outcome == "FALSIFIED"]
    first = min(verdict.step for verdict in fell if verdict.step is not None)
    assert f"it was refuted in {len(fell)} of 12 trials" in sentence
    assert f"as early as step {first:,} with " in sentence
    assert "it survived in 3 and was not tested in 2." in sentence


@pytest.mark.parametrize(("op", "threshold", "worst"), [("<", 9.0, min), (">", -9.0, max)])
def test_a_mean_that_fell_names_the_one_that_went_farthest(
    build: Builder, tmp_path: Path, op: str, threshold: float, worst: Any
) -> None:
    extra = (
        f"{{name: low, claim: it holds, metric: objective/gold, op: '{op}', threshold: {threshold}, before_step: 32,"
        " aggregation: mean}"
    )
    built = build(tmp_path, **{**WHOLE, "seeds": (0, 1), "extra": ""})
    falsifier = Falsifier.model_validate(yaml.safe_load(extra))
    study = built.study.model_copy(update={"falsifiers": (falsifier,)})
    (claim,) = analyse(load_records(built.folder, study)).claims
    deciding = worst(claim.verdicts, key=lambda verdict: verdict.value)
    sentence = claim_sentence(claim)
    assert (
        "is falsified: it was refuted in 6 of 6 trials (beta_0, beta_0.05 and beta_0.2), at worst with a mean of "
        in sentence
    )
    assert sentence.endswith(f" ({deciding.arm} seed {deciding.seed}).")


@pytest.mark.parametrize(
    ("keys", "middle"),
    [
        (
            "metric: objective/gold, op: '<', threshold: 9, before_step: 32, relative_to: baseline",
            r"in 4 of 4 trials \(beta_0 and beta_0.2\), as early as step 0 with a difference to the baseline of \S+"
            r" judge points \(",
        ),
        (
            "metric: objective/length, op: '>', threshold: 0, before_step: 32, aggregation: mean,"
            " relative_to: baseline, relative: ratio",
            r"at worst with a mean ratio to the baseline of \S+ \(",
        ),
        ("metric: eval/win_rate, op: '<', threshold: 1", r"in 6 of 6 trials .* at worst with 0\.\d+ \("),
        (
            "metric: eval/gold, op: '<', threshold: 99, bound: high",
            r"at worst with the high end of the 95 % interval at \S+ judge points \(",
        ),
        (
            "metric: eval/gold, op: '<', threshold: 99, bound: low, relative_to: baseline",
            r"with the low end of the 95 % interval of the difference to the baseline at \S+ judge points \(",
        ),
    ],
)
def test_claims_of_every_form_are_told(build: Builder, tmp_path: Path, keys: str, middle: str) -> None:
    built = build(tmp_path, **{**WHOLE, "seeds": (0, 1), "extra": f"  - {{name: form, claim: it holds, {keys}}}\n"})
    claim = analyse(load_records(built.folder, built.study)).claims[-1]
    assert re.search(middle, claim_sentence(claim)), claim_sentence(claim)


def test_a_baseline_without_a_name_is_told_by_its_values(build: Builder, tmp_path: Path) -> None:
    arms = {"baseline": {}, "beta=0.2": {"kl.beta": 0.2, "algorithm.gae_lambda": 1.0}}
    found = said(build, tmp_path, seeds=(0, 1), arms=arms, baseline="baseline")
    assert " the baseline (beta 0.05, gae_lambda 0.95)" in found.sentence
