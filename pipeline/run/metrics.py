"""The closed list of metrics: key, unit, formula, bounds. Nothing else may be logged, but for two families below
it.

Two cadences. Series under ``objective/`` and ``reward/`` are measured on a rollout and stand at the number of gradient
steps planned before it (0 for the reference itself); series under ``policy/``, ``value/`` and ``pairs/`` stand at the
gradient step in whose mini-batch they were measured (1 for the first). Steps that the target-KL stop leaves out are
counted, and have no record. ``eval/`` and ``cost/`` are of a whole trial; of the costs in its record those are listed
here that a hypothesis can name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.config.names import nearest
from pipeline.errors import UserError
from pipeline.run.bands import BANDS, Band

Direction = Literal["maximize", "minimize"]
ON_ROLLOUT = ("objective/", "reward/", "replay/", "value/explained_variance")
"""Heads of the series that have one record an update, measured on its rollout."""
UPDATE_STEPS = "policy/update_steps"


@dataclass(frozen=True)
class Metric:
    """One named quantity. `low` and `high` bound what a correct trial can show, `bands` what a healthy one does."""

    key: str
    unit: str
    formula: str
    low: float = -math.inf
    high: float = math.inf
    direction: Direction | None = None
    """Which way is better, whatever a study asks; None where that depends on the question."""

    @property
    def label(self) -> str:
        """Axis label with the unit."""
        return f"{self.key} [{self.unit}]"

    @property
    def bands(self) -> tuple[Band, ...]:
        """Healthy bands, the gravest first; empty where the series has none."""
        return BANDS.get(self.key, ())


_ALL = (
    Metric(
        "objective/kl",
        "nats per sequence",
        "mean over sequences of sum_t (logprobs - ref_logprobs); k1",
        direction="minimize",
    ),
    Metric(
        "objective/kl_per_token",
        "nats per token",
        "sum (logprobs - ref_logprobs) / valid tokens; k1",
        direction="minimize",
    ),
    Metric(
        "objective/kl_k3_per_token",
        "nats per token",
        "mean of exp(-d) - 1 + d, d = logprobs - ref_logprobs; k3",
        0.0,
        direction="minimize",
    ),
    Metric(
        "objective/kl_exact_per_token",
        "nats per token",
        "mean over tokens of sum_v pi(v) (log pi(v) - log ref(v))",
        0.0,
        direction="minimize",
    ),
    Metric(
        "objective/round_kl_per_token",
        "nats per token",
        "mean over tokens of sum_v pi(v) (log pi(v) - log start(v)), exact; start: the policy that the round began"
        " with, in the first round the reference; where reward.rounds is above 1",
        0.0,
    ),
    Metric("objective/entropy", "nats per sequence", "mean over sequences of sum_t -logprobs", 0.0),
    Metric(
        "objective/entropy_per_token",
        "nats per token",
        "mean over the valid tokens of the rollout of the exact entropy over the vocabulary; moves an adaptive bonus",
        0.0,
    ),
    Metric(
        "objective/scores",
        "std of reference samples",
        "mean calibrated proxy reward before EOS handling",
        direction="maximize",
    ),
    Metric("objective/scores_std", "std of reference samples", "standard deviation of the same", 0.0),
    Metric(
        "objective/gold", "judge points", "mean gold score of the rollout; never used in training", direction="maximize"
    ),
    Metric(
        "objective/floor_weight",
        "1",
        "weight of the part of the reward that has a floor, in this rollout; the reward is divided by 1 + this",
        0.0,
    ),
    Metric(
        "objective/non_score_reward",
        "std of reference samples",
        "mean over sequences of -kl_coef times the KL estimator, summed over tokens, or over groups of them"
        " (kl.group); 0 where the penalty is in the loss, or beta in a margin of pairs",
    ),
    Metric(
        "objective/rlhf_reward",
        "std of reference samples",
        "mean of score after EOS handling + KL part",
    ),
    Metric(
        "reward/disagreement",
        "std of reference samples",
        "mean over responses of the standard deviation over the models of a reward ensemble, each calibrated; of a"
        " composite reward the root of the sum of squares, each times the part's weight",
        0.0,
    ),
    Metric("objective/length", "tokens", "mean valid tokens of a response, EOS included", 1.0),
    Metric("objective/eos_rate", "fraction", "responses that ended by EOS", 0.0, 1.0),
    Metric(
        "objective/repetition",
        "fraction",
        "mean over responses of 1 - different token pairs / token pairs",
        0.0,
        1.0,
        direction="minimize",
    ),
    Metric(
        "objective/kl_coef",
        "1",
        "beta in force during the update; next to whitened advantages a beta in the reward weighs beta / advantage_std",
        0.0,
    ),
    Metric(
        "objective/ent_coef",
        "1",
        "weight of the entropy bonus in the loss during the update, where entropy.coef or its schedule is above 0",
        0.0,
    ),
    Metric(
        "objective/sampler_gap",
        "nats per token",
        "mean over the valid tokens of the rollout of |logprobs - log-probabilities by the sampler that drew them|;"
        " where the sampler has a network of its own (runtime.sampler: static)",
        0.0,
        direction="minimize",
    ),
    Metric(
        "objective/sampler_ratio",
        "1",
        "mean of exp(logprobs - log-probabilities by the sampler) over the same tokens; 1 where both agree",
        0.0,
    ),
    Metric(
        "objective/greedy_reward",
        "std of reference samples",
        "mean over the prompts of a rollout of the greedy response's score and KL penalty, where they are the baseline",
    ),
    Metric(
        "objective/equal_groups",
        "fraction",
        "prompts whose responses all have one score before the KL penalty; where responses to a prompt are compared",
        0.0,
        1.0,
    ),
    Metric(
        "objective/advantage_std",
        "std of reference samples",
        "standard deviation over valid tokens, or over responses where these are compared as wholes, before whitening",
        0.0,
    ),
    Metric(
        "policy/pg_loss",
        "1",
        "policy loss, summed with the weights that algorithm.aggregation gives; of pairs the published loss, mean over"
        " those with a better response",
    ),
    Metric(
        "policy/approxkl",
        "nats per token",
        "masked mean of (new_logprobs - logprobs)^2 / 2; k2, new against behaviour policy, which for stored pairs is"
        " the reference",
        0.0,
    ),
    Metric("policy/approxkl_k3", "nats per token", "masked mean of ratio - 1 - log ratio, of the same policies", 0.0),
    Metric(
        "policy/pg_clipfrac",
        "fraction",
        "valid tokens, or of a loss of whole responses the responses, on which the clipped term is the active one",
        0.0,
        1.0,
    ),
    Metric(
        "policy/dual_clipfrac",
        "fraction",
        "valid tokens on which the bound of dual clipping is the active term",
        0.0,
        1.0,
    ),
    Metric("policy/ratio", "1", "masked mean of exp(new_logprobs - logprobs), of the same policies", 0.0),
    Metric(
        "policy/entropy",
        "nats per token",
        "masked mean of the exact entropy over the vocabulary; on stored pairs, at their tokens",
        0.0,
    ),
    Metric("policy/kl_ref_per_token", "nats per token", "masked mean of ratio (new_logprobs - ref_logprobs)"),
    Metric(
        "policy/kl_loss",
        "1",
        "kl_coef times the KL estimator, where the penalty is in the loss, summed with the weights that"
        " algorithm.aggregation and algorithm.ratio give a token; that of a group of tokens (kl.group) is spread evenly"
        " over them",
        0.0,
    ),
    Metric("policy/kl_hinge", "1", "what the KL hinge multiplies the policy's learning rate by", 0.0, 1.0),
    Metric(
        "policy/old_kl_coef",
        "1",
        "weight of the penalty on KL(old || new) during the update, where algorithm.trust_region is kl_penalty",
        0.0,
    ),
    Metric(
        "policy/old_kl",
        "nats per token",
        "after an update, mean of ratio - 1 - log ratio over the rollout; k3 of KL(old || new), moves old_kl_coef",
        0.0,
    ),
    Metric(
        "policy/step_accepted",
        "1",
        "of TRPO: 1 where the line search accepted a point, 0 where the step was refused",
        0.0,
        1.0,
    ),
    Metric(
        "policy/line_search", "points", "of TRPO: step lengths that the line search tried; 0 without a direction", 0.0
    ),
    Metric(
        "policy/old_kl_exact",
        "nats per token",
        "of TRPO: mean over tokens of sum_v old(v) (log old(v) - log new(v)) after the step; 0 if refused",
        0.0,
    ),
    Metric(
        "policy/surrogate_gain",
        "1",
        "of TRPO: by how much the step raised the policy's objective, the loss negated; 0 if refused",
        0.0,
    ),
    Metric("policy/expected_gain", "1", "of TRPO: the same by the gradient, for the longest step that was tried", 0.0),
    Metric("policy/update_steps", "gradient steps", "steps of one update until the target-KL stop", 1.0),
    Metric(
        "policy/grad_norm",
        "1",
        "gradient norm before clipping; of the policy alone where a critic is clipped apart",
        0.0,
    ),
    Metric("policy/lr", "1", "learning rate of the policy's step", 0.0),
    Metric("policy/lr_factor", "1", "what the KL guard multiplies the policy's learning rate by", 0.0, 1.0),
    Metric("value/vf_loss", "squared score", "half the clipped squared error, masked mean", 0.0, direction="minimize"),
    Metric(
        "value/vf_clipfrac", "fraction", "valid tokens on which the clipped value error is the active one", 0.0, 1.0
    ),
    Metric("value/grad_norm", "1", "gradient norm before clipping of a separate critic that is clipped apart", 0.0),
    Metric(
        "value/explained_variance",
        "1",
        "1 - Var(returns - values) / Var(returns) on valid tokens of the rollout",
        high=1.0,
        direction="maximize",
    ),
    Metric(
        "pairs/chosen_logprobs",
        "nats per sequence",
        "of a loss of pairs: mean log-probability of the preferred responses of a mini-batch; may fall in training",
    ),
    Metric("pairs/rejected_logprobs", "nats per sequence", "the same of the other responses"),
    Metric(
        "pairs/chosen_log_ratio",
        "nats per sequence",
        "mean log-probability of the preferred responses less that by the reference",
    ),
    Metric("pairs/rejected_log_ratio", "nats per sequence", "the same of the other responses"),
    Metric(
        "pairs/accuracy",
        "fraction",
        "pairs whose preferred response has the larger log-ratio to the reference; with ratio sequence_mean, per token",
        0.0,
        1.0,
        direction="maximize",
    ),
    Metric("replay/states", "states", "states of the rollout that were sampled onwards", 0.0),
    Metric("replay/tokens", "tokens", "sampled for them, beside those of the rollout", 0.0),
    Metric(
        "replay/explained_variance",
        "1",
        "1 - Var(rewards to go - values) / Var(rewards to go) at these states, the values' own noise included",
        high=1.0,
        direction="maximize",
    ),
    Metric(
        "replay/standard_error",
        "std of reference samples",
        "of a value: root of the mean over states of the continuations' variance / K; not known with K = 1",
        0.0,
        direction="minimize",
    ),
    Metric(
        "replay/critic_bias",
        "std of reference samples",
        "mean over these states of the critic's value less the replayed one",
    ),
    Metric(
        "replay/critic_error",
        "std of reference samples",
        "root mean square of the same, less the noise of the replayed values",
        0.0,
        direction="minimize",
    ),
    Metric(
        "eval/win_rate",
        "fraction",
        "mean over prompts of the share of reference draws beaten, ties half; independent noise, gold judge",
        0.0,
        1.0,
        direction="maximize",
    ),
    Metric(
        "eval/win_rate_low",
        "fraction",
        "lower end of the 95 % interval of this trial's win rate over its prompts (Wilson, effective n)",
        0.0,
        1.0,
        direction="maximize",
    ),
    Metric("eval/win_rate_high", "fraction", "upper end of the same", 0.0, 1.0, direction="maximize"),
    Metric(
        "eval/win_rate_proxy",
        "fraction",
        "the same by the training reward: mean over prompts of the share of reference draws with a lower proxy score,"
        " ties half",
        0.0,
        1.0,
        direction="maximize",
    ),
    Metric(
        "eval/win_rate_proxy_low",
        "fraction",
        "lower end of the 95 % interval of this trial's win rate by the proxy, as of eval/win_rate_low",
        0.0,
        1.0,
        direction="maximize",
    ),
    Metric("eval/win_rate_proxy_high", "fraction", "upper end of the same", 0.0, 1.0, direction="maximize"),
    Metric(
        "eval/preference_accuracy",
        "fraction",
        "pairs of the policy's answer and a reference draw on which the proxy prefers the one that the gold judge"
        " prefers, equal proxy scores half / pairs that the judge decides; not recorded if the judge decides no pair;"
        " compare with the share of decided pairs that the policy wins, (win rate - ties / 2) / (1 - ties), which a"
        " proxy scores that always prefers the policy",
        0.0,
        1.0,
        direction="maximize",
    ),
    Metric(
        "eval/reward_accuracy",
        "fraction",
        "pairs of the reference's answers, held out when the reward model was trained, on which it prefers the one that"
        " the gold judge prefers / pairs that the judge decides; measured by the stage reward, and not recorded where"
        " the reward is not one model trained on pairs",
        0.0,
        1.0,
        direction="maximize",
    ),
    Metric(
        "eval/tie_rate",
        "fraction",
        "mean over prompts of the share of reference draws that the gold judge finds equal",
        0.0,
        1.0,
    ),
    Metric(
        "eval/gold",
        "judge points",
        "mean gold score of the policy; of a cyclic judge the points for faults alone",
        direction="maximize",
    ),
    Metric("eval/gold_reference", "judge points", "mean gold score of all reference draws"),
    Metric(
        "eval/proxy", "std of reference samples", "mean calibrated proxy reward of the policy", direction="maximize"
    ),
    Metric("eval/proxy_reference", "std of reference samples", "mean calibrated proxy reward of all reference draws"),
    Metric(
        "eval/reward/disagreement",
        "std of reference samples",
        "mean over the policy's completions of the standard deviation over the models of a reward ensemble, as of"
        " reward/disagreement",
        0.0,
    ),
    Metric(
        "eval/kl_per_token",
        "nats per token",
        "exact KL to the reference / tokens, on the policy's completions; of the best of n an upper bound",
        0.0,
        direction="minimize",
    ),
    Metric(
        "eval/kl_per_sequence",
        "nats per sequence",
        "exact KL to the reference summed over a completion, mean; of the best of n an upper bound, log n - (n - 1) / n"
        " + log pi - log ref",
        0.0,
        direction="minimize",
    ),
    Metric("eval/entropy", "nats per token", "exact entropy over the vocabulary, mean over tokens", 0.0),
    Metric("eval/distinct_1", "fraction", "different words / words over all completions", 0.0, 1.0),
    Metric("eval/distinct_2", "fraction", "different word pairs / word pairs over all completions", 0.0, 1.0),
    Metric("eval/length", "tokens", "mean tokens of a completion, EOS included", 1.0),
    Metric("eval/eos_rate", "fraction", "completions that ended by EOS", 0.0, 1.0),
    Metric(
        "eval/fault_rate",
        "fraction",
        "completions in which the guard of the gold judge finds a fault; of a guarded judge alone",
        0.0,
        1.0,
        direction="minimize",
    ),
    Metric(
        "eval/fault_rate_reference",
        "fraction",
        "the same of the reference, mean over its draws and the prompts",
        0.0,
        1.0,
    ),
    Metric(
        "eval/ppl_reference",
        "1",
        "perplexity of the policy's completions under the reference",
        1.0,
        direction="minimize",
    ),
    Metric(
        "eval/perplexity_texts",
        "1",
        "perplexity of held-out texts under the policy: exp(-sum log pi / tokens), without the first token of each",
        1.0,
        direction="minimize",
    ),
    Metric("eval/perplexity_texts_reference", "1", "the same under the reference", 1.0),
    Metric(
        "cost/state_gib",
        "GiB",
        "memory that training keeps from step to step, counted from the tensors: weights of policy, critic and"
        " reference, gradients and optimiser state of what is trained",
        0.0,
        direction="minimize",
    ),
)

FAMILIES = (
    Metric(
        "reward/<part>",
        "std of reference samples",
        "mean calibrated score of one part of a composite reward, on the rollout",
        direction="maximize",
    ),
    Metric(
        "eval/reward/<part>",
        "std of reference samples",
        "mean calibrated score of one part of a composite reward, of the policy",
        direction="maximize",
    ),
    Metric(
        "objective/gold/<judge>",
        "points of that judge",
        "mean score of the rollout by a further judge (judge.also); never used in training",
        direction="maximize",
    ),
    Metric(
        "eval/gold/<judge>", "points of that judge", "mean score of the policy by a further judge", direction="maximize"
    ),
    Metric("eval/gold_reference/<judge>", "points of that judge", "mean score of all reference draws by the same"),
)
"""Metrics of which there is one for every part of a composite reward, or for every further judge, by the names that the
user gave them."""
_PART = re.compile(r"[a-z][a-z0-9_]*")


class _Metrics(dict[str, Metric]):
    """The list; a member of a family can be looked up as well, but is not listed."""

    def __missing__(self, key: str) -> Metric:
        family, _, part = key.rpartition("/")
        for metric in FAMILIES:
            if metric.key.rpartition("/")[0] == family and _PART.fullmatch(part):
                return replace(metric, key=key)
        raise KeyError(key)


METRICS: dict[str, Metric] = _Metrics({metric.key: metric for metric in _ALL})
PER_PROMPT: dict[str, tuple[str, str | None]] = {
    "eval/win_rate": ("win", None),
    "eval/win_rate_proxy": ("win_proxy", None),
    "eval/preference_accuracy": ("agree", "decided"),
    "eval/tie_rate": ("tie", None),
    "eval/gold": ("policy_gold", None),
    "eval/gold_reference": ("reference_gold", None),
    "eval/proxy": ("policy_proxy", None),
    "eval/proxy_reference": ("reference_proxy", None),
    "eval/kl_per_token": ("kl", "policy_length"),
    "eval/kl_per_sequence": ("kl", None),
    "eval/entropy": ("entropy", "policy_length"),
    "eval/length": ("policy_length", None),
    "eval/eos_rate": ("policy_eos", None),
    "eval/fault_rate": ("policy_faulty", None),
    "eval/fault_rate_reference": ("reference_faulty", None),
}
"""Metrics that are a mean over prompts, or a ratio of two sums over prompts: numerator and denominator column of an
evaluation's ``prompts.parquet``."""

BY_FAMILY = {
    "eval/reward/": "policy_reward/",
    "eval/gold/": "policy_gold/",
    "eval/gold_reference/": "reference_gold/",
}
"""Heads of the members of a family that are a mean over prompts, and of their column in the same file."""


def per_prompt(key: str) -> tuple[str, str | None] | None:
    """The columns of ``prompts.parquet`` that a metric is made of, numerator and denominator; None of one that exists
    once per trial.

    >>> per_prompt("eval/gold"), per_prompt("eval/gold/harmless"), per_prompt("eval/distinct_1")
    (('policy_gold', None), ('policy_gold/harmless', None), None)
    """
    family, _, member = key.rpartition("/")
    if column := BY_FAMILY.get(f"{family}/"):
        return f"{column}{member}", None
    return PER_PROMPT.get(key)


def each_step(key: str) -> bool:
    """Whether a series has a record at each gradient step that is taken.

    >>> each_step("policy/approxkl"), each_step("policy/old_kl"), each_step("objective/kl")
    (True, False, False)
    """
    return not key.startswith((*ON_ROLLOUT, "eval/", "cost/")) and key not in ("policy/old_kl", UPDATE_STEPS)


def known(key: str) -> bool:
    """Whether a key is in the list or in a family."""
    try:
        return bool(METRICS[key])
    except KeyError:
        return False


def metric(key: str, origin: str = "metric") -> Metric:
    """Look a key up; an unknown one is a `UserError` with the nearest right name."""
    if not known(key):
        raise UserError(f"{origin}: no metric '{key}'{nearest(key, list(METRICS))}")
    return METRICS[key]


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys outside the list: a fault of ours, so a `KeyError`."""
    unknown = sorted(key for key in keys if not known(key))
    if unknown:
        raise KeyError(f"not in pipeline/run/metrics.py: {', '.join(unknown)}")
