"""The methods paragraphs of the page, from the design that was run and the statistics that were used."""

from __future__ import annotations

from pipeline.config.presets import PRESETS
from pipeline.config.trial import TrialConfig
from reports.findings.best_of_n import arms_with_another_reference, choosing_arms
from reports.findings.bound import reference_scores
from reports.findings.findings import Findings, once
from reports.findings.trajectories import kl_source
from reports.records.load import StudyRecords
from reports.statistics.coverage import ARMS, COMMAND, SEEDS, coverage_with, largest, published
from reports.text.replicates import what_varies
from reports.text.say import say
from studies.definition.design import Cell


def methods(records: StudyRecords, findings: Findings) -> dict[str, str]:
    """Title -> paragraph, in the order of a paper; paragraphs that do not apply are left out."""
    paragraphs = {
        "Design": _design(records, findings),
        "Training": _training(records),
        "Evaluation": _evaluation(records),
        "Estimates": _estimates(findings),
        "Comparisons": _comparisons(records, findings),
        "Drift": say(
            "methods",
            "drift",
            compared=next((row for row in findings.matched if not row.reason), None),
            alarms=findings.alarms,
            kl_source=kl_source(records),
        ),
        "Bounds": _bounds(records),
        "Claims": say(
            "methods",
            "claims",
            hypotheses=records.study.hypotheses,
            registered=records.standing.lines,
            falsifiers=records.study.falsifiers,
        ),
    }
    return {title: text for title, text in paragraphs.items() if text}


def _configs(records: StudyRecords) -> dict[tuple[str, int], TrialConfig]:
    """The configuration of every planned trial; empty for trials that other programs ran."""
    return {(cell.arm, cell.seed): cell.config for cell in records.plan if isinstance(cell, Cell)}


def _design(records: StudyRecords, findings: Findings) -> str:
    return say(
        "methods",
        "design",
        study=records.study,
        the_baseline=records.baseline,
        seeds=sorted({cell.seed for cell in records.plan}),
        arms=len(records.arms),
        counts=records.counts(),
        search=findings.search,
        stopping=[falsifier.name for falsifier in records.study.falsifiers if falsifier.stop],
    )


def _training(records: StudyRecords) -> str:
    configs = _configs(records)
    if not configs:
        return say("methods", "imported")
    first = next(iter(configs.values()))
    trained = [config for config in configs.values() if config.algorithm.learns]
    from_pairs = [config for config in trained if config.train.data == "pairs"]
    summaries = [entry["summary"] for entry in records.upstream if entry["stage"] == "reward"]
    return say(
        "methods",
        "training",
        trained=[config.train for config in trained],
        algorithms=_titles(trained),
        model=first.model,
        untrained=list(dict.fromkeys(arm for (arm, _), config in configs.items() if not config.algorithm.learns)),
        from_pairs=_titles(from_pairs),
        reward=first.reward,
        scorers=first.reward.scorers(),
        quality=[summary for summary in summaries if "accuracy_gold" in summary],
        varies=what_varies(records),
    )


def _titles(configs: list[TrialConfig]) -> list[str]:
    return sorted({PRESETS[config.algorithm.name].title for config in configs})


def _evaluation(records: StudyRecords) -> str:
    configs = list(_configs(records).values())
    if not configs:
        return ""
    return say(
        "methods",
        "evaluation",
        settings=[config.evaluate for config in configs],
        gold=configs[0].gold,
        apart=arms_with_another_reference(records),
        baseline=records.study.baseline,
        measured=set(records.trials.columns),
        choosing=choosing_arms(records),
    )


def _estimates(findings: Findings) -> str:
    estimates = [estimate for result in findings.arms for estimate in result.estimates.values()]
    return say(
        "methods",
        "estimates",
        used={estimate.method for estimate in estimates},
        single=any(estimate.seeds == 1 for estimate in estimates),
        without_interval=any(estimate.low is None for estimate in estimates),
        coverage=[coverage_with(seeds) for seeds in SEEDS],
        families=[largest()[family] for family in ("11 arms at the margin", "10 higher, no effect")],
        design={"command": COMMAND, "replicates": published()[0].replicates, "arms": ARMS},
    )


def _comparisons(records: StudyRecords, findings: Findings) -> str:
    tested = [effect for effect in findings.effects if effect.p_holm is not None]
    metrics = list(dict.fromkeys(effect.metric for effect in tested))
    objective = records.study.objective
    known = [one.smallest for one in findings.effects_on(objective.metric) if one.smallest is not None]
    return say(
        "methods",
        "comparisons",
        the_baseline=records.baseline,
        arms=len({effect.arm for effect in tested}),
        metrics=metrics,
        single=[metric for metric in metrics if once(records, metric)],
        objective=objective,
        margin=max(known, default=None),
    )


def _bounds(records: StudyRecords) -> str:
    if records.prompts.empty or records.study.imported is not None:
        return ""
    scores = reference_scores(records)
    return say("methods", "bounds", samples=len(scores[0]) if scores else 0)
