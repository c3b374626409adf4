"""The methods paragraphs of the page, from the design that was run and the statistics that were used, and from nothing
else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.config.rewards import JudgeConfig, PartConfig, RewardConfig
from reports.findings.bound import LEAST_EFFECTIVE, reference_scores
from reports.findings.findings import Findings, once
from reports.findings.trajectories import kl_source
from reports.records.load import StudyRecords
from reports.statistics import two_level as stats
from reports.statistics.drift import SMOOTH
from reports.text.words import counted, listed, name, number
from studies.definition.design import Cell

JUDGES = {
    "grammar": (
        "a parser of the grammar that wrote the texts, which adds up polarity and intensity clause by clause and counts"
        " faults"
    ),
    "lexicon": "VADER, a lexicon of sentiment",
}


@dataclass(frozen=True)
class Paragraph:
    """What one paragraph is about, and its text."""

    title: str
    text: str


def methods(records: StudyRecords, findings: Findings) -> list[Paragraph]:
    """In the order of a paper: design, training, evaluation, estimates, tests, drift, search, claims."""
    parts = {
        "Design": _design(records, findings),
        "Training": _training(records),
        "Evaluation": _evaluation(records),
        "Estimates": _estimates(findings),
        "Comparisons": _tests(records, findings),
        "Drift": _drift(records, findings),
        "Bounds": _bounds(records),
        "Claims": _claims(records),
    }
    return [Paragraph(title, " ".join(text)) for title, sentences in parts.items() if (text := list(sentences))]


def _design(records: StudyRecords, findings: Findings) -> Iterator[str]:
    study = records.study
    seeds = sorted({cell.seed for cell in records.plan})
    ran = f"on the same {counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    if findings.search is not None:
        tried, confirmed = len(findings.search.trials), len(findings.search.confirmed)
        yield (
            f"A search tried {counted(tried, 'configuration')} on a single seed; the {confirmed} best and the baseline"
            f" ran again {ran}, which the search had not seen, evaluated on other held-out prompts with other random"
            " numbers. Tables of arms, effects and verdicts speak of those runs alone, as the best of many noisy"
            " trials flatters itself; the search is shown apart."
        )
    elif study.grid:
        yield f"All combinations of {listed(list(study.grid))} ran: {counted(len(records.arms), 'arm')}, each {ran}."
    elif study.factors:
        crossed = (
            f", and {listed([' × '.join(pair) for pair in study.interactions])} in full" if study.interactions else ""
        )
        yield (
            f"One factor at a time was changed ({listed(list(study.factors))}) around {records.baseline}{crossed}: "
            f"{counted(len(records.arms), 'arm')}, each {ran}."
        )
    else:
        yield f"{counted(len(records.arms), 'arm')} ran, each {ran}, against {records.baseline}."
    counts = records.counts()
    ends = listed([f"{n} {status}" for status, n in counts.items()])
    yield f"Of {counted(len(records.plan), 'trial')}: {ends}; whatever was evaluated counts."
    if "budget" in counts:
        yield "Trials that a cap ended are evaluated where they stood and shown as censored."
    stopping = [falsifier.name for falsifier in study.falsifiers if falsifier.stop]
    if stopping:
        yield (
            f"A trial that refuted {listed(stopping)} was ended there, evaluated as it stood, and is counted as pruned."
        )
    elif findings.search is None:
        yield "No arm was stopped early for looking bad."
    else:
        yield "Pruning was allowed in the search alone."


def _training(records: StudyRecords) -> Iterator[str]:
    configs = [cell.config for cell in records.plan if isinstance(cell, Cell)]
    if not configs:
        yield (
            "The trials were run by another program and imported as they were logged; how they were configured is not"
            " known here."
        )
        return
    ppo = [config.ppo for config in configs]
    model = configs[0].model
    policy = (
        model.base
        or f"a Qwen2-architecture transformer of {model.layers} layers and width {model.hidden_size},"
        " trained here from scratch"
    )
    yield (
        f"The policy starts from the reference, {policy}, and takes {_values(p.steps for p in ppo)} gradient steps of"
        f" PPO: rollouts of {_values(p.batch_size for p in ppo)} episodes with at most"
        f" {_values(p.response_length for p in ppo)} tokens, {_values(p.num_ppo_epochs for p in ppo)} epochs of"
        f" {_values(p.num_mini_batches for p in ppo)} mini-batches."
    )
    yield _reward(configs[0].reward, _reward_quality(records))
    shared = [entry for entry in records.upstream if entry["stage"] in ("sft", "reward")]
    if len({entry["stage"] for entry in shared}) == len(shared):
        yield "All trials share the same reference, reward and judge."
    else:
        yield "Trials differ in reference or reward: the table of shared stages lists them."


def _reward(reward: RewardConfig, quality: str) -> str:
    calibrated = f"calibrated to mean 0 and standard deviation 1 on {reward.calibration_samples:,} reference samples"
    parts = reward.scorers()
    if reward.kind != "composite":
        return (
            f"The training reward (proxy) is {_scorer(parts['reward'], reward)}{quality}; it is {calibrated} that it"
            " was not made from."
        )
    named = listed([f"{name} ({_scorer(part, reward)}), weight {part.weight:g}" for name, part in parts.items()])
    return f"The training reward (proxy) is a weighted sum of {named}; each part, and then the sum, is {calibrated}."


def _scorer(part: PartConfig, reward: RewardConfig) -> str:
    if part.kind == "learned":
        pairs = {
            "judge": f"{reward.pairs:,} pairs of reference samples, labelled by the judge with noise",
            "labels": f"at most {reward.pairs:,} pairs of a positive and a negative review",
        }
        return (
            "a Bradley-Terry model on"
            f" {pairs.get(part.preferences, f'at most {reward.pairs:,} given pairs ({part.preferences})')}"
        )
    return _judge(part)


def _judge(scorer: PartConfig | JudgeConfig) -> str:
    if scorer.kind != "classifier":
        return JUDGES.get(scorer.kind, scorer.kind)
    output = "logit" if scorer.output == "logit" else "log-odds"
    return f"the {output} of {scorer.label or 'the only label'} by the classifier {scorer.model}"


def _reward_quality(records: StudyRecords) -> str:
    found: dict[str, float] = next(
        (entry["summary"] for entry in records.upstream if entry["stage"] == "reward" and entry["summary"]), {}
    )
    if "accuracy_gold" not in found:
        return ""
    held = f" (n = {found['heldout_pairs']:,.0f})" if "heldout_pairs" in found else ""
    if "heldout_prompts" in found:
        held = (
            f" (n = {found['heldout_pairs']:,.0f}, of {found['heldout_prompts']:,.0f} prompts that it was not"
            " trained on)"
        )
    ends = [found.get(f"accuracy_gold_{end}") for end in ("low", "high")]
    interval = f" [{100 * ends[0]:.0f}, {100 * ends[1]:.0f}]" if ends[0] is not None and ends[1] is not None else ""
    return f"; on held-out pairs{held} it agrees with the judge on {100 * found['accuracy_gold']:.0f} %{interval}"


def _evaluation(records: StudyRecords) -> Iterator[str]:
    configs = [cell.config for cell in records.plan if isinstance(cell, Cell)]
    if not configs:
        return
    yield (
        f"The policy answers {_values(config.evaluate.prompts for config in configs)} held-out prompts once each. The"
        f" reference's {_values(config.evaluate.reference_draws for config in configs)} answers to each of them were"
        " drawn once for all trials, with random numbers independent of the policy's. The gold judge, which is never"
        f" trained on, is {_judge(configs[0].gold)}. Win rate: the mean over prompts of the share of the reference's"
        " answers that the policy's beats, ties counting half. All arms use the same prompts, reference answers and"
        " random numbers, so differences between arms are paired by seed and prompt. KL to the reference is exact,"
        " summed over the vocabulary."
    )


def _estimates(findings: Findings) -> Iterator[str]:
    used = {estimate.method for result in findings.arms for estimate in result.estimates.values()}
    if not used:
        yield "No trial was evaluated, so nothing was estimated."
        return
    yield (
        "An estimate is the mean over evaluated seeds of the mean over prompts; per-token quantities are ratios of"
        " sums."
    )
    if "bootstrap" in used:
        yield (
            f"Its 95 % interval is the percentile interval of a two-level bootstrap ({stats.RESAMPLES:,} replicates):"
            " seeds are drawn with replacement, and prompts too, with one draw of prompts for all seeds because all"
            " answer the same ones. It is expanded to the standard error with small-sample divisors and by t/z with"
            " Satterthwaite's degrees of freedom, as resampling a few seeds understates how they vary."
        )
    if "wilson" in used:
        yield "Where all completions agree, a rate has Wilson's interval over prompts."
    if "student" in used:
        yield "Metrics that exist once per trial have Student's interval over seeds."
    if any(estimate.low is None for result in findings.arms for estimate in result.estimates.values()):
        yield "What a single seed gives once has no interval."


def _tests(records: StudyRecords, findings: Findings) -> Iterator[str]:
    tested = [effect for effect in findings.effects if effect.p_holm is not None]
    if not tested:
        return
    single = [metric for metric in dict.fromkeys(effect.metric for effect in tested) if once(records, metric)]
    n = len({effect.arm for effect in tested})
    yield f"Each arm is compared with {records.baseline} by the paired difference."
    if len(single) < len({effect.metric for effect in tested}):
        yield (
            "Its interval is by the same bootstrap. Two p-values are taken: of a permutation test that swaps the"
            f" labels of a prompt in all seeds at once ({stats.SWAPS:,} swaps; new prompts, these seeds), and of"
            " Student's t on the two-level standard error (new seeds and new prompts); the larger counts."
        )
    if single:
        every = len(single) == len({effect.metric for effect in tested})
        of = "Every metric" if every else f"What exists once per trial ({listed([name(metric) for metric in single])})"
        yield (
            f"{of} is compared over seeds alone, by Student's paired t test, and with enough seeds for it by their"
            " exact sign-flip test as well; the larger p counts."
        )
    yield (
        f"It is corrected by Holm over the {counted(n, 'arm')} of one metric; a difference is called detected when it"
        f" is below {stats.ALPHA:g} and the interval excludes 0."
    )


def _drift(records: StudyRecords, findings: Findings) -> Iterator[str]:
    if findings.matched:
        yield (
            "Arms are also compared at equal KL: each trial's reward over drift is interpolated along its own training"
            f" (running means of {SMOOTH} updates, ordered by the monotone trend of KL; {kl_source(records)}), paired"
            " by seed, with Student's interval over seeds."
        )
    if findings.alarms:
        yield (
            "Over-optimisation is called where gold falls from its peak by more than a series without a trend would"
            " (Bonferroni over pairs of its running means) while the proxy rises."
        )


def _bounds(records: StudyRecords) -> Iterator[str]:
    if records.prompts.empty:
        return
    yield (
        "No policy within a KL of the reference exceeds ref·exp(b r), the tilt of the reference by what is maximised."
        " For the win rate, r is the share of reference completions that a completion beats, uniform under the"
        " reference, so the bound holds for any judge and for the win rate as measured, with independent random"
        " numbers; best of n reaches n/(n + 1) at KL = ln n − (n − 1)/n."
    )
    scores = reference_scores(records)
    if scores is not None:
        yield (
            f"For the gold reward the bound is estimated by importance weights on {len(scores.gold):,} reference"
            " samples of training prompts, pooled over prompts (which can only raise it), as far as"
            f" {LEAST_EFFECTIVE:.0f} effective samples remain; its interval is by the delta method over prompts. The"
            " same weights by exp(proxy/β) give what an exact optimiser of the training objective would reach."
        )


def _claims(records: StudyRecords) -> Iterator[str]:
    if records.study.falsifiers:
        n = len(records.study.falsifiers)
        yield (
            f"{counted(n, 'claim')} {'comes' if n == 1 else 'come'} with the study's file, each with the observation"
            " that would refute it; it is judged on every trial it speaks of, and one refuted trial refutes it."
        )


def _values(values: Iterable[float]) -> str:
    """``2,048``, or ``256 to 3,000`` where arms differ."""
    found = sorted(set(values))
    words = [f"{value:,}" if isinstance(value, int) else number(value) for value in found]
    return words[0] if len(words) == 1 else f"{words[0]} to {words[-1]}"
