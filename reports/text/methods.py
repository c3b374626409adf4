"""The methods paragraphs of the page, from the design that was run and the statistics that were used."""

from __future__ import annotations

from pipeline.config.presets import PRESETS
from pipeline.config.trial import TrialConfig
from reports.findings.bound import arms_with_another_reference, choosing_arms, reference_scores
from reports.findings.findings import Findings, once
from reports.findings.trajectories import kl_source
from reports.records.load import StudyRecords
from reports.statistics.coverage import ARMS, COMMAND, SEEDS, coverage_with, largest, published
from reports.text.phrases import what_varies
from reports.text.say import say


def methods(records: StudyRecords, findings: Findings) -> dict[str, str]:
    """Title -> paragraph, in the order of a paper; paragraphs that do not apply are left out."""
    study, standing = records.study, records.standing
    claims = {"hypotheses": study.hypotheses, "registered": standing.lines, "falsifiers": study.falsifiers}
    compared = next((row for row in findings.matched if not row.reason), None)
    drift = {"compared": compared, "alarms": findings.alarms, "kl_source": kl_source(records)}
    scores = None if records.prompts.empty or study.foreign else reference_scores(records)
    ours = not records.prompts.empty and not study.foreign
    paragraphs = {
        "Design": _design(records, findings),
        "Training": _training(records),
        "Evaluation": _evaluation(records),
        "Estimates": _estimates(findings),
        "Comparisons": _comparisons(records, findings),
        "Drift": say("methods", "drift", **drift),
        "Bounds": say("methods", "bounds", len(scores[0]) if scores else 0) if ours else "",
        "Claims": say("methods", "claims", **claims),
    }
    return {title: text for title, text in paragraphs.items() if text}


def _design(records: StudyRecords, findings: Findings) -> str:
    seeds = sorted({cell.seed for cell in records.plan})
    stopping = [falsifier.name for falsifier in records.study.falsifiers if falsifier.stop]
    given = (records.study, records.baseline, seeds, len(records.arms), records.counts(), findings.search, stopping)
    return say("methods", "design", *given)


def _training(records: StudyRecords) -> str:
    configs = records.configs
    if not configs:
        return say("methods", "imported")
    first = next(iter(configs.values()))
    trained = [config for config in configs.values() if config.algorithm.learns]
    summaries = [entry["summary"] for entry in records.upstream if entry["stage"] == "reward"]
    return say(
        "methods",
        "training",
        trained=[config.train for config in trained],
        algorithms=_titles(trained),
        model=first.model,
        untrained=[arm for arm, config in configs.items() if not config.algorithm.learns],
        from_pairs=_titles([config for config in trained if config.train.data == "pairs"]),
        reward=first.reward,
        scorers=first.reward.scorers(),
        quality=[summary for summary in summaries if "accuracy_gold" in summary],
        varies=what_varies(records),
    )


def _titles(configs: list[TrialConfig]) -> list[str]:
    return sorted({PRESETS[config.algorithm.name].title for config in configs})


def _evaluation(records: StudyRecords) -> str:
    configs = list(records.configs.values())
    if not configs:
        return ""
    references = (arms_with_another_reference(records), records.study.baseline)
    measured, settings = set(records.trials.columns), [config.evaluate for config in configs]
    return say("methods", "evaluation", settings, configs[0].gold, *references, measured, choosing_arms(records))


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
        design={"command": COMMAND, "replicates": int(published()["replicates"].iloc[0]), "arms": ARMS},
    )


def _comparisons(records: StudyRecords, findings: Findings) -> str:
    tested = [effect for effect in findings.effects if effect.p_holm is not None]
    metrics, objective = list(dict.fromkeys(effect.metric for effect in tested)), records.study.objective
    known = [one.smallest for one in findings.effects_on(objective.metric) if one.smallest is not None]
    single, arms = [metric for metric in metrics if once(records, metric)], len({effect.arm for effect in tested})
    return say("methods", "comparisons", records.baseline, arms, metrics, single, objective, max(known, default=None))
