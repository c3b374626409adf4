"""The methods paragraphs of the page, from the design that was run and the statistics that were used, and from nothing
else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.config.model import ModelConfig
from pipeline.config.presets import PRESETS
from pipeline.config.rewards import FURTHER, GUARDED, JUDGES, LEARNED, JudgeConfig, PartConfig, RewardConfig, is_judged
from pipeline.config.trial import TrialConfig
from pipeline.run.metrics import METRICS
from reports.findings.best_of_n import choosing_arms
from reports.findings.bound import LEAST_EFFECTIVE, reference_scores
from reports.findings.findings import SMALL_EFFECT, SMALLEST, Findings, once
from reports.findings.references import arms_with_another_reference
from reports.findings.trajectories import kl_source
from reports.records.load import StudyRecords
from reports.statistics.coverage import ARMS, COMMAND, SEEDS, coverage_with, published
from reports.statistics.drift import SMOOTH
from reports.statistics.families import largest
from reports.statistics.hierarchical import LONE, SCALE
from reports.statistics.matched_kl import WIDEST
from reports.statistics.two_level import ALPHA
from reports.text.replicates import what_varies
from reports.text.words import counted, listed, name, number, percent
from studies.definition.design import Cell
from studies.definition.falsifier import Falsifier

IN_WORDS = {
    "grammar": (
        "a parser of the grammar that generated the texts, which adds up polarity and intensity clause by clause and"
        " counts faults"
    ),
    "lexicon": "VADER, a lexicon of sentiment, which text with many happy words pleases whether or not it can be read",
    GUARDED: (
        "VADER, a lexicon of sentiment, with a guard: an answer that differs from most real texts in likelihood,"
        " repetition, order of words, copied phrases, share of praise, content or end scores −1 minus the number of"
        " these faults and loses against every answer without a fault"
    ),
    "cycle": (
        "a parser of the grammar that generated the texts, with preferences that go in a circle: fewer faults win, and"
        " between equally faulty texts an end with a strong opinion beats one with a mild opinion, which beats advice,"
        " which beats a strong opinion; gold scores are its points for faults alone"
    ),
    "ocr": (
        "how well PP-OCR reads the completion as an image: the detector's confidence times 1 minus the character error"
        " rate"
    ),
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
            " numbers. Tables of arms, effects and verdicts contain those runs alone, because the best of many noisy"
            " trials looks better than it is. The search has tables of its own."
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
    yield f"Of {counted(len(records.plan), 'trial')}: {ends}. All evaluated trials are included."
    if "budget" in counts:
        yield "Trials that a cap ended are evaluated at that point and shown as censored."
    stopping = [falsifier.name for falsifier in study.falsifiers if falsifier.stop]
    if stopping:
        yield f"A trial that refuted {listed(stopping)} was ended at that step, evaluated, and counted as pruned."
    elif findings.search is None:
        yield "No arm was stopped early because of its results."
    else:
        yield "Only trials of the search could be pruned."


def _training(records: StudyRecords) -> Iterator[str]:
    configs = [cell.config for cell in records.plan if isinstance(cell, Cell)]
    if not configs:
        yield (
            "The trials were run by another program and imported from its logs; their configuration is not known here."
        )
        return
    untrained = [cell.arm for cell in records.plan if isinstance(cell, Cell) and not cell.config.algorithm.learns]
    yield from _policy([config for config in configs if config.algorithm.learns], configs[0].model)
    if untrained:
        yield f"The policy of {listed(list(dict.fromkeys(untrained)))} is the reference: it takes no gradient step."
    yield _reward(configs[0].reward, _reward_quality(records))
    yield what_varies(records)


def _policy(trained: Sequence[TrialConfig], model: ModelConfig) -> Iterator[str]:
    """From what the trials start, and what they take; nothing where none is trained."""
    if not trained:
        return
    train = [config.train for config in trained]
    algorithms = " or ".join(sorted({PRESETS[config.algorithm.name].title for config in trained}))
    policy = (
        model.base
        or f"a Qwen2-architecture transformer of {counted(model.layers, 'layer')} and width {model.hidden_size},"
        " trained here from scratch"
    )
    yield (
        f"The policy starts from the reference, {policy}, and takes {_values(t.steps for t in train)} gradient steps of"
        f" {algorithms}: rollouts of"
        f" {_values(t.batch_size for t in train)} episodes with at most {_values(t.response_length for t in train)}"
        f" tokens, {_values(t.num_epochs for t in train)} epochs of {_values(t.num_mini_batches for t in train)}"
        " mini-batches."
    )
    if stored := sorted({PRESETS[config.algorithm.name].title for config in trained if config.train.data == "pairs"}):
        yield (
            f"{listed(stored)}: learned from the pairs that trained the reward, as many responses in place of each"
            " rollout. The rollouts are sampled for metrics alone, and their tokens and work are not counted, unless a"
            " guard or an adaptive beta is steered by them. The wall clock includes them."
        )


def _reward(reward: RewardConfig, quality: str) -> str:
    calibrated = f"calibrated to mean 0 and standard deviation 1 on {reward.calibration_samples:,} reference samples"
    parts = reward.scorers()
    opponents = ""
    if reward.against == "reference":
        opponents = (
            f" The reward of an answer compares it with {reward.opponents} answers of the reference to the same prompt,"
            " which were drawn for this alone: it is its score less their mean score, and by a general preference model"
            " the mean probability of beating them."
        )
    if reward.kind != "composite":
        return (
            f"The training reward (proxy) is {_scorer(parts['reward'], reward)}{quality}; it is {calibrated} that"
            f" were not used to train it.{opponents}"
        )
    named = listed([f"{name} ({_scorer(part, reward)}), weight {part.weight:g}" for name, part in parts.items()])
    return (
        f"The training reward (proxy) is a weighted sum of {named}; each part, and then the sum, is {calibrated}."
        f"{opponents}"
    )


def _scorer(part: PartConfig, reward: RewardConfig) -> str:
    if part.kind in LEARNED:
        preferences = _rankings(part, reward) if reward.ranked > 2 else _pairs(part, reward)
        return f"{_models(part.kind, reward)} on {preferences}"
    return _judge(part)


def _pairs(part: PartConfig, reward: RewardConfig) -> str:
    """What a reward learns from."""
    if part.preferences == "labels":
        return f"at most {reward.pairs:,} pairs of a positive and a negative review"
    if not is_judged(part.preferences):
        return f"at most {reward.pairs:,} given pairs ({part.preferences})"
    return f"{reward.pairs:,} pairs {_compared(reward)}, labelled with noise by {_annotator(part)}"


def _rankings(part: PartConfig, reward: RewardConfig) -> str:
    what = "all pairs" if reward.ranking_loss == "all_pairs" else "the whole orders (Plackett-Luce)"
    each = f"({reward.comparisons} pairs each)"
    if not is_judged(part.preferences):
        given = f"{reward.rankings:,} given rankings of {reward.ranked} answers"
        return f"{what} of at most {given} {each} from {part.preferences}"
    answers = f"{reward.ranked} reference samples {each}"
    return f"{what} of {reward.rankings:,} rankings of {answers}, put in order with noise by {_annotator(part)}"


def _annotator(part: PartConfig) -> str:
    further = part.preferences.startswith(FURTHER)
    return f"the judge {part.preferences.removeprefix(FURTHER)}" if further else "the judge"


COMBINED = {
    "mean": "mean",
    "minimum": "minimum",
    "worst_k": "mean of the {k} lowest scores",
    "uncertainty": "mean less {weight:g} times the variance",
}
"""How the scores of an ensemble become one, in words."""


def _models(kind: str, reward: RewardConfig) -> str:
    """The model or models of a learned reward."""
    model = LEARNED[kind].partition(",")[0] + "s" * (reward.ensemble > 1)
    if reward.trunk == "scratch":
        steps = reward.pretraining_steps
        trained = f"trained as a language model for {steps:,} steps" if steps else "of random weights"
        model += f" with {'trunks' if reward.ensemble > 1 else 'a trunk'} of {reward.layers} layers of width"
        model += f" {reward.hidden_size}, {trained},"
    if reward.ensemble == 1:
        return f"a {model}"
    how = COMBINED[reward.combine].format(k=reward.worst_k, weight=reward.uncertainty_weight)
    return f"the {how} over an ensemble of {reward.ensemble} calibrated {model}"


def _compared(reward: RewardConfig) -> str:
    """Whose samples the pairs are."""
    if reward.rounds == 1:
        return "of reference samples"
    kept = "" if reward.keep_pairs == "all" else ", each learned from in its round alone"
    return f"in {reward.rounds} rounds{kept}, the first of reference samples, later ones of the policy trained so far"


def _judge(scorer: PartConfig | JudgeConfig) -> str:
    if scorer.kind != "classifier":
        return IN_WORDS.get(scorer.kind) or f"the {JUDGES[scorer.kind]}"
    output = "logit" if scorer.output == "logit" else "log-odds"
    return f"the {output} of {scorer.label or 'the only label'} by the classifier {scorer.model}"


def _reward_quality(records: StudyRecords) -> str:
    every: list[dict[str, float]] = [
        entry["summary"]
        for entry in records.upstream
        if entry["stage"] == "reward" and "accuracy_gold" in entry["summary"]
    ]
    if not every:
        return ""
    if len(every) > 1:
        agreed = sorted(100 * summary["accuracy_gold"] for summary in every)
        return (
            f"; on held-out pairs the {len(every)} reward models agree with the judge on {agreed[0]:.0f} to"
            f" {agreed[-1]:.0f} %"
        )
    (summary,) = every
    held = f" (n = {summary['heldout_pairs']:,.0f})" if "heldout_pairs" in summary else ""
    if "heldout_prompts" in summary:
        held = (
            f" (n = {summary['heldout_pairs']:,.0f}, of {summary['heldout_prompts']:,.0f} prompts that it was not"
            " trained on)"
        )
    ends = [summary.get(f"accuracy_gold_{end}") for end in ("low", "high")]
    interval = f" [{100 * ends[0]:.0f}, {100 * ends[1]:.0f}]" if ends[0] is not None and ends[1] is not None else ""
    return f"; on held-out pairs{held} it agrees with the judge on {100 * summary['accuracy_gold']:.0f} %{interval}"


def _evaluation(records: StudyRecords) -> Iterator[str]:
    configs = [cell.config for cell in records.plan if isinstance(cell, Cell)]
    if not configs:
        return
    yield (
        f"The policy answers {_values(config.evaluate.prompts for config in configs)} held-out prompts once each. The"
        f" reference's {_values(config.evaluate.reference_draws for config in configs)} answers to each of them were"
        " drawn once for each reference policy, with random numbers independent of the policy's. The gold judge, which"
        f" is never trained on, is {_judge(configs[0].gold)}. Win rate: the mean over prompts of the share of the"
        " reference's answers that the policy's beats, ties counting half. With the same seed, all arms use the same"
        " prompts, reference answers and random numbers, so differences between arms are paired by seed and prompt. KL"
        " to the reference is exact, summed over the vocabulary."
    )
    if apart := arms_with_another_reference(records):
        yield (
            f"The reference of {listed(apart)} is held in as few bits as the policy is. It is another network than the"
            f" reference of {records.study.baseline} and has answers of its own: KL and win rate of {listed(apart)} are"
            " against these. Scores by the judge compare the answers of the arms themselves."
        )
    measured = set(records.trials.columns)
    if "eval/win_rate_proxy" in measured:
        yield (
            "The win rate by the proxy is the same share with the training reward in the judge's place. Preference"
            " accuracy: of all pairs of the policy's answer and an answer of the reference that the judge decides,"
            " the share on which the proxy prefers the one that the judge prefers, equal proxy scores counting half."
            " Compare it with the share of decided pairs that the policy wins: a proxy that always prefers the policy"
            " scores that share, whatever it knows of quality."
        )
    if "eval/perplexity_texts" in measured:
        yield (
            f"Perplexity of texts: over at most {_values(config.evaluate.texts for config in configs)} held-out texts"
            " that none of the training here used, cut as for supervised fine-tuning, at temperature 1; one number per"
            " trial."
        )
    if chosen := choosing_arms(records):
        named = listed([f"{arm} (n = {count})" for arm, count in chosen.items()])
        yield (
            f"The answer of {named} is instead the best of n samples by the training reward, before any rule for a"
            " missing EOS; the judge never chooses. Its KL is not exact but an upper bound: ln n − (n − 1)/n plus the"
            " mean of log π − log ref over the chosen answers, which is 0 where the policy is the reference."
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
    if "hierarchical" in used:
        yield (
            "Its 95 % interval is the central posterior interval of a hierarchical model of new seeds and new prompts."
            " A value is the sum of the mean, an effect of the seed, an effect of the prompt (the same for all seeds,"
            " since all answer the same prompts) and a rest. The variances of prompts and rest are those of the two-way"
            " table. The standard deviation between seeds is unknown, and the posterior averages over it: its prior is"
            f" flat below {SCALE:g} standard deviations over prompts and falls as 1/sd above. Intervals of rates are"
            " made on the scale of logits."
        )
        if any(estimate.seeds == 1 for result in findings.arms for estimate in result.estimates.values()):
            yield (
                "One seed has no information on the standard deviation between seeds, so its interval rests on the"
                f" prior: half-Cauchy with scale {LONE:g} standard deviations over prompts."
            )
        yield _coverage()
    if "wilson" in used:
        yield "Where all completions have the same outcome, a rate has Wilson's interval over prompts."
    if "student" in used:
        yield "Metrics that exist once per trial have Student's interval over seeds."
    if any(estimate.low is None for result in findings.arms for estimate in result.estimates.values()):
        yield "A metric with one value per trial has no interval from a single seed."


def _tests(records: StudyRecords, findings: Findings) -> Iterator[str]:
    tested = [effect for effect in findings.effects if effect.p_holm is not None]
    if not tested:
        return
    single = [metric for metric in dict.fromkeys(effect.metric for effect in tested) if once(records, metric)]
    n = len({effect.arm for effect in tested})
    yield f"Each arm is compared with {records.baseline} by the paired difference."
    if len(single) < len({effect.metric for effect in tested}):
        yield (
            "Its interval comes from the same model, on the scale of the difference. The p-value is the posterior"
            " probability of a deviation from the truth as large as the difference, on either side; it is below 0.05"
            " where the 95 % interval excludes 0."
        )
    if single:
        every = len(single) == len({effect.metric for effect in tested})
        of = "Every metric" if every else f"What exists once per trial ({listed([name(metric) for metric in single])})"
        yield (f"{of} is compared over seeds alone, by Student's paired t test.")
    yield (
        f"An arm is better or worse where the p-value with Holm's correction (1979) over the {counted(n, 'arm')} of one"
        f" metric is below {ALPHA:g} and the interval excludes 0. Otherwise it is equivalent where two one-sided tests"
        " (Schuirmann 1987) show that the difference is smaller than the smallest that matters; their larger p-value,"
        " with Holm's correction over the same arms, is below the same bound. So on each metric at most 5 % of studies"
        " call an arm without a difference better or worse, and at most 5 % call an arm equivalent that is not."
        " Everything else is undecided. An arm for which both tests reject differs by too little to matter, and the"
        " page says so. The 95 % and 90 % intervals of single arms are not corrected."
    )
    margins = _margins(records, findings)
    if margins:
        yield margins


def _margins(records: StudyRecords, findings: Findings) -> str:
    """The smallest difference that matters on the objective, and where it comes from."""
    objective = records.study.objective
    known = [effect.smallest for effect in findings.effects_on(objective.metric) if effect.smallest is not None]
    if not known:
        return ""
    unit = METRICS[objective.metric].unit
    where = (
        "as the study states"
        if objective.smallest is not None
        else "by default"
        if objective.metric in SMALLEST
        else f"by default {SMALL_EFFECT:g} standard deviations of the baseline over prompts"
    )
    size = f"{number(max(known), objective.metric)}{'' if unit in ('fraction', '1') else f' {unit}'}"
    return f"The smallest difference in {name(objective.metric)} that matters is {size}, {where}."


def _coverage() -> str:
    """How often the intervals were right in simulation, by number of seeds."""
    known = [coverage_with(seeds) for seeds in SEEDS]
    usual = listed(
        [f"{percent(one.lowest)} to {percent(one.highest)} % with {counted(one.seeds, 'seed')}" for one in known]
    )
    rare = listed([f"{percent(one.rare)} % with {counted(one.seeds, 'seed')}" for one in known])
    errors = listed([f"{100 * one.error:.1f} % with {counted(one.seeds, 'seed')}" for one in known])
    replicates = published()[0].replicates
    return (
        f"In simulation ({COMMAND}: rates, scores and ratios, {replicates:,} tables for each design) its 95 % intervals"
        f" covered {usual}. Where one seed in five drops by half a standard deviation over prompts, the lowest coverage"
        f" of a mean was {rare}. In the worst design, the share of tables in which any of {ARMS} arms that do not"
        f" differ from the baseline was called better or worse was {errors}. {_families()}"
    )


def _families() -> str:
    """How often anything false was said of many arms or hypotheses in simulation, with the correction and without."""
    equivalent, hypotheses = (
        f"{100 * after:.1f} % (without the correction {100 * before:.0f} %)"
        for before, after in (largest()[family] for family in ("11 arms at the margin", "10 higher, no effect"))
    )
    return (
        f"The difference of any of 11 arms that differ by exactly the smallest difference that matters was called"
        f" smaller in at most {equivalent}, and any of 10 hypotheses `higher` without an effect was supported or"
        f" refuted in at most {hypotheses}."
    )


def _drift(records: StudyRecords, findings: Findings) -> Iterator[str]:
    compared = [row for row in findings.matched if not row.reason]
    if compared:
        first = compared[0]
        yield (
            "Arms are also compared at equal drift, both sides at the end of their training: each seed of an arm with"
            f" what {first.method} ({listed(list(first.arms))}) reaches on that seed at the KL per sequence at which"
            " the arm ends there. That is a monotone cubic in √KL through the ends of its arms and the reference, where"
            f" its score is known. Nothing is extrapolated, gaps of more than a factor of {WIDEST:g} in KL are not"
            " bridged, and arms whose win rate is shown to lie below the reference's are left out of the curve, except"
            " the one at the smallest KL. At least half of the planned seeds of an arm must be comparable. The interval"
            " is that of the mean difference, linear in the scores and KLs of every seed and prompt, so it holds the"
            " uncertainty of both sides and of both KLs."
        )
    if findings.alarms:
        yield (
            "Over-optimisation is reported where the mean gold reward over a tenth of the records lies below an earlier"
            " such mean by more than noise explains, while the proxy rose. The threshold is set by simulation over all"
            " trials of the"
            " study, so that at most 5 % of studies without a trend raise any alarm at a correlation of up to 0.6"
            " between neighbouring records. In simulated studies of 5 arms, 3 seeds and 128 records, 0.6, 0.7, 0.9 and"
            " 1.4 % raise one at a correlation of 0, 0.2, 0.4 and 0.6, and 4.9 % when 30 % of the variance has a"
            " correlation of 0.85. A fall of 1, 1.5, 2 or 3 judge points in the last two thirds of the"
            " training, against noise of 0.45 points with a correlation of 0.4, is found in 11, 58, 92 and 100 % of"
            " trials. The KL of the turning point is the mean of the"
            f" {SMOOTH} records around the highest gold ({kl_source(records)})."
        )


def _bounds(records: StudyRecords) -> Iterator[str]:
    if records.prompts.empty or records.study.imported is not None:
        return
    yield (
        "At a given KL to the reference no policy exceeds ref·exp(b r), the reference tilted by the maximised score r."
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
    if records.study.hypotheses:
        yield (
            "Each hypothesis is a contrast of arms, paired by seed and prompt, and is tested on the side of its bound"
            " on which the estimate lies: two-sided, and equality by two one-sided tests. An order is supported only"
            " by all of its steps, so its p-value is the largest of theirs (intersection-union test, Berger 1982); one"
            " step refutes it, so that p-value is multiplied by the number of steps. Holm's correction then runs over"
            f" all hypotheses of the study, tested or not. Where the corrected p-value is below {ALPHA:g}, a hypothesis"
            " is supported if the estimate is as expected, and refuted if not, so at most 5 % of studies give any false"
            " verdict on a hypothesis. It is undecided otherwise, or where a seed of its arms diverged. The study's"
            " hypothesis is supported only if all of them are, which needs no further correction, and refuted if one of"
            " them is. Hypotheses and comparisons with the baseline are corrected separately; 95 % intervals are not"
            " corrected."
        )
    if records.standing.lines:
        yield (
            "Question, hypotheses, claims, seeds and settings were written into a chain of digests before the first"
            " trial and at every later change; from it follows when each claim was written down."
        )
    if records.study.falsifiers:
        n = len(records.study.falsifiers)
        yield (
            f"{counted(n, 'claim')} {'comes' if n == 1 else 'come'} with the study's file, each with the observation"
            " that would refute it; it is judged on every trial of its arms, and one refuted trial refutes it."
        )
    yield from _claims_of_other_forms(records.study.falsifiers)


def _claims_of_other_forms(falsifiers: Sequence[Falsifier]) -> Iterator[str]:
    """How claims are judged that are relative to the baseline, or speak of an interval."""
    if listing := [one.name for one in falsifiers if one.relative_to]:
        yield (
            f"{listed(listing)} {'compares' if len(listing) == 1 else 'compare'} each trial with the baseline's trial"
            " of the same seed, and a series at the same step. Steps that one of the two trials lacks are left out, and"
            " so are ratios to a value that is not above 0."
        )
    if listing := [one.name for one in falsifiers if one.bound]:
        yield (
            f"{listed(listing)} {'speaks' if len(listing) == 1 else 'speak'} of an end of the 95 % interval over the"
            " prompts of one trial. This interval does not cover other seeds; each seed has a verdict of its own."
        )


def _values(values: Iterable[float]) -> str:
    """``2,048``, or ``256 to 3,000`` where arms differ."""
    distinct = sorted(set(values))
    words = [f"{value:,}" if isinstance(value, int) else number(value) for value in distinct]
    return words[0] if len(words) == 1 else f"{words[0]} to {words[-1]}"
