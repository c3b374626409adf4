from __future__ import annotations

import re

import pytest
from fake_trial import SEARCH, STUDY
from light_study import Write

from pipeline.errors import UserError

HEAD = STUDY.partition("arms:")[0]
FACTORS = HEAD.replace("baseline: weak\n", "")
CLAIM = STUDY.partition("falsifiers:")[0] + "falsifiers:\n  - {name: n, claim: c, op: '>', threshold: 0.5, %s}\n"
SERIES = "metric: objective/kl, before_step: 32"
PART = STUDY + "hypotheses:\n  - {name: wins, claim: c, metric: eval/win_rate, %s, expect: higher}\n"
EQUAL = "at_equal_kl: true"
IMPORTED = "question: q\nbaseline: a\nseeds: [0, 1]\nimported: {a: {}, b: {}}\n"
BETA = "kl.beta: {low: 0.005, high: 1.0, log: true}"


def method(contrast: str) -> tuple[str, str]:
    """A replacement that asks at equal KL, and makes one method of both arms."""
    head, rest = "hypotheses:\n", "  - {name: wins, claim: c, metric: eval/win_rate, "
    return f"{head}{rest}%s", f"methods: {{m: [weak, strong]}}\n{head}{rest}{contrast}, {EQUAL}"


FILES = {
    "": "the file is empty",
    "- a list\n": "must be a mapping",
    STUDY.replace("falsifiers:", "falsifiers: 3\nx:"): "line 10: falsifiers = 3: must be a list",
    HEAD: "no arms",
    HEAD + "arms: {}\n": "line 7: no arms",
    HEAD + "grid: {optimiser.lr: []}\n": "grid.optimiser.lr: has 0 entries; at least 1 are needed",
    HEAD + "grid: {kl.beta: [0.1, 0.1]}\n": "the arm 'beta=0.1' comes out more than once",
    HEAD + f"grid: {{kl.beta: {[*range(1, 60)]}, optimiser.lr: {[*range(1, 60)]}}}\n": "more than 1,000 arms",
    HEAD.replace("[0, 1]", str([*range(900)])) + f"arms: {{{', '.join(f'a{n}: {{}}' for n in range(12))}}}": (
        "line 6: seeds: 10,800 trials ... at most 10,000"
    ),
    # pairs of values that cannot act together
    HEAD.replace("weak", "beta=0+kl.place=reward") + "grid: {kl.beta: [0, 0.1], kl.place: [reward, loss]}\n": (
        "grid.beta=0+kl.place=loss: kl.place = loss has no effect ... kl.beta is 0.0 ... under arms instead"
    ),
    FACTORS + "factors: {adapter.rank: [4]}\n": "factors.adapter.rank=4: adapter.rank = 4 has no effect",
    FACTORS + "factors: {kl.beta: [0.1]}\ninteractions: [[kl.beta, optimiser.lr]]": (
        "line 7: interactions: 'optimiser.lr' is not a factor"
    ),
    IMPORTED + "profile: tiny\n": "profile: no profile 'tiny' ... imported",
    IMPORTED + "objective: {metric: objective/scoers}\n": "'objective/scoers'; did you mean 'objective/scores'?",
    IMPORTED + "falsifiers: [{name: n, claim: c, op: '>', threshold: 1, before_step: 9}]": "metric: is missing",
}  # fmt: skip
"""Whole files."""

EDITS = [
    (STUDY, "question:", "qestion:", "line 2: unknown key 'qestion'; did you mean 'question'?"),
    (STUDY, "question:", "name: other\nquestion:", "line 2: unknown key 'name'"),
    (STUDY, "weak\n", "weak\nprofile: tinny\n", "line 6: profile: no profile 'tinny'; did you mean 'tiny'?"),
    (STUDY, "baseline: weak", "baseline: week", "line 5: baseline: 'week' ... 'weak'?; arms: weak, strong"),
    (STUDY, "baseline: weak\n", "", "baseline: 'baseline' is not an arm; say which one is ... arms: weak, strong"),
    # seeds
    (STUDY, "[0, 1]", "3", "line 6: seeds: 3 is a single number ... [0, 1, 2]"),
    (STUDY, "[0, 1]", "[0, 1]\nconfirm: {seeds: [1, 9]}", "line 7: confirm.seeds: 1 is a seed of the study"),
    (STUDY, "[0, 1]", "[0, 1]\nvary: [rewards]", "vary.0 = 'rewards' ... did you mean 'reward'?"),
    (STUDY, "0.2}\n", "0.2}\n  third: {sft.seed: 5}\nvary: [sft]\n", "line 10: arms.third: 'sft.seed' is set by"),
    # arms and knobs
    (STUDY, "[0, 1]", "[0, 1]\nbeta: 1", "line 7: unknown key 'beta'; beta is ... 'kl.beta'; knobs stand under arms"),
    (STUDY, "kl.beta: 0.2", "kl.beta: true", "arms.strong: kl.beta = true"),
    (STUDY, "kl.beta: 0.2", "kl.beta: '0.2'", "arms.strong: kl.beta = '0.2'"),
    (STUDY, "step: 32", "step: 32, stop: 1", "falsifiers.0.stop = 1"),
    (STUDY, "kl.beta: 0.2", "beta: 0.2", "line 9: arms.strong: unknown key 'beta'; beta is the key 'kl.beta'"),
    (STUDY, "kl.beta: 0.2", "kl.beta: -1", "line 9: arms.strong: kl.beta = -1: must be greater than or equal to 0"),
    (STUDY, "kl.beta: 0.2", "kl.beta: 0.01", "'weak' and 'strong' are the same trial"),
    (STUDY, "kl.beta: 0.2", "kl.beta: 0.2, kl.end: 3", "line 9: arms.strong: kl.end = 3.0 has no effect"),
    (STUDY, "strong:", "../strong:", "arms: the name '../strong' cannot be used"),
    # algorithms
    (STUDY, "kl.beta: 0.2", "algorithm: rlo", "line 9: arms.strong: algorithm.name = 'rlo' ... did you mean 'rloo'?"),
    (STUDY, "kl.beta: 0.2", "algorithm: rloo, critic.kind: shared", "critic.kind 'shared' is not for advantage 'rloo'"),
    # objective, constraints, methods
    (STUDY, "weak\n", "weak\nobjective: {metric: policy/entropy}\n", "objective.metric 'policy/entropy' is a series"),
    (STUDY, "weak\n", "weak\nmethods: {m: [weak, storng]}\n", "line 6: methods.m: ... 'storng' ... 'strong'?"),
    (STUDY, "weak\n", "weak\nmethods: {a: [strong]}\n", "methods: the baseline 'weak' is in none"),
    # falsifiers
    (STUDY, "objective/kl_per", "kl_per", "line 11: falsifiers.0.metric: ... 'objective/kl_per_token'"),
    (STUDY, "threshold: 0.5", "threshold: .nan", "falsifiers.0.threshold = nan"),
    (STUDY, "step: 32", "step: 32, arms: [storng]", "falsifiers.0.arms: ... 'storng'; did you mean 'strong'?"),
    (CLAIM, "%s", "metric: objective/kl", "falsifiers.0: before_step: is missing"),
    (CLAIM, "%s", "metric: eval/gold, before_step: 32", "falsifiers.0: before_step: 'eval/gold' is measured once"),
    (CLAIM, "%s", f"{SERIES}, stop: true, aggregation: mean", "falsifiers.0: stop: a mean"),
    (CLAIM, "%s", f"{SERIES}, stop: true, relative_to: baseline", "stop: a running trial does not know the baseline"),
    (CLAIM, "%s", f"{SERIES}, relative_to: baseline, arms: [weak]", "falsifiers.0.arms: only the baseline 'weak'"),
    # hypotheses
    (PART, "%s", "contrast: storng - weak", "line 13: hypotheses.0.contrast: ... 'storng'; did you mean 'strong'?"),
    (PART, "%s", "contrast: strong-weak", "weights of strong-weak sum to 1 ... ARM - OTHER"),
    (PART, "%s", "margin: 1", "hypotheses.0: give contrast or order"),
    (PART, "%s, expect: higher", "contrast: strong - weak, expect: equal", "expect: equal needs ... margin above 0"),
    (PART, "wins, claim: c, metric: eval/win_rate, %s", "drift, claim: c, metric: eval/gold, contrast: strong - weak", (
        "hypotheses.0.name: 'drift' is the name of two claims"
    )),
    (PART, "%s", f"order: [weak, strong], {EQUAL}", "hypotheses.0: at_equal_kl: needs a contrast ARM - BASE"),
    (PART, "%s", f"contrast: strong - weak, {EQUAL}", "hypotheses.0.contrast: ... needs `methods`, with at least two"),
    (PART, *method("contrast: weak - strong"), "hypotheses.0.contrast: ... Write ARM - weak, the baseline"),
    (PART, *method("contrast: strong - weak"), "hypotheses.0.contrast: 'strong' is an arm of the baseline's method"),
    # searches
    (SEARCH, BETA, "kl.beta: {low: 1, high: 1}", "search.space.kl.beta: the range [1, 1] is empty"),
    (SEARCH, BETA, "kl.beta: {low: 0, high: 1, log: true}", "low = 0: a logarithmic range begins above 0"),
    (SEARCH, BETA, "kl.bta: {low: 1, high: 2}", "line 8: search.space: unknown key 'kl.bta'; did you mean 'kl.beta'?"),
    (SEARCH, f"{BETA}\n    algorithm.clip.epsilon: {{values: [0.1, 0.2, 0.3]}}",
     "kl.beta: {values: [0, 0.1]}\n    kl.place: {values: [reward, loss]}",
     "search.space: with kl.beta=0, kl.place=loss: kl.place = loss has no effect"),
    (SEARCH, "seeds: [0]\n", "seeds: [0, 1]\n", "line 5: seeds: a search trains on one seed"),
    (SEARCH, "seeds: [10, 11]", "seeds: [0, 11]", "search.confirm.seeds: 0 is the seed of the search"),
    (SEARCH, "trials: 14", "trials: 14\n  objectives: [{metric: eval/gold}, {metric: eval/gold}]", "named twice"),
    (SEARCH, "trials: 14", "trials: 14\n  prune: {metric: objective/scores, above: 1}", "search.prune.metric"),
]  # fmt: skip
"""A file, a text to replace in it, and the fault; `...` stands for words between."""


def faults(write_study: Write, text: str) -> list[str]:
    with pytest.raises(UserError) as error:
        write_study(text)
    return str(error.value).splitlines()


def matches(expected: str, line: str) -> bool:
    return re.search(".*".join(map(re.escape, expected.split(" ... "))), line) is not None


@pytest.mark.parametrize(("text", "expected"), FILES.items(), ids=[*map(str, range(len(FILES)))])
def test_a_file_is_refused(write_study: Write, text: str, expected: str) -> None:
    lines = faults(write_study, text)
    assert "small.yaml" in lines[0]
    assert matches(expected, "\n".join(lines)), lines


@pytest.mark.parametrize(("text", "old", "new", "expected"), EDITS, ids=[edit[2] for edit in EDITS])
def test_a_fault_is_reported_in_one_line(write_study: Write, text: str, old: str, new: str, expected: str) -> None:
    assert old in text
    lines = faults(write_study, text.replace(old, new, 1))
    assert all("small.yaml" in line for line in lines)
    assert any(matches(expected, line) for line in lines), lines
    assert len(lines) == (2 if "qestion" in new else 1)


def test_all_faults_come_at_once_and_names_before_values(write_study: Write) -> None:
    text = STUDY.replace("weak: {kl.beta: 0.01}", "weak: {steps: 64, bta: 1}").replace("kl_per_token", "kl_pertoken")
    text = text.replace("strong: {kl.beta: 0.2}", "strong: {kl.beta: -1, optimiser.lr: high}").replace("[0, 1]", "2")
    names = ("line 6: seeds", "line 8: arms.weak: ... 'train.steps'", "line 8: arms.weak: ... 'bta'", "line 11")
    assert all(map(matches, names, found := faults(write_study, text))), found
    text = text.replace("steps: 64, bta: 1", "kl.beta: 0.01").replace("kl_pertoken", "kl_per_token")
    text = text.replace("seeds: 2", "seeds: [1]").replace("baseline: weak", "baseline: week")
    values = ("line 9: arms.strong: kl.beta = -1", "line 9: arms.strong: optimiser.lr", "line 5: baseline: 'week'")
    assert all(map(matches, values, found := faults(write_study, text))), found


def test_a_fault_of_many_arms_is_reported_once(write_study: Write) -> None:
    head = HEAD.replace("weak", "beta=0.1+epsilon=0.1")
    (line,) = faults(write_study, head + "grid: {kl.beta: [0.1, 0.2], algorithm.clip.epsilon: [0.1, -1]}\n")
    assert matches("grid.beta=0.1+epsilon=-1: algorithm.clip.epsilon = -1 ... (and in 1 more arm)", line)


def test_no_arms_are_compared_by_a_penalised_reward(write_study: Write) -> None:
    metric = "objective/rlhf_reward"
    claim = f"{{name: n, claim: c, metric: {metric}, op: '<', threshold: 0, before_step: 9"
    head = f"{IMPORTED}objective: {{metric: objective/scores}}\nfalsifiers: [{claim}"
    for text in (f"{IMPORTED}objective: {{metric: {metric}}}\n", f"{head}, relative_to: baseline}}]\n"):
        assert "each arm's own KL penalty" in faults(write_study, text)[0]
    assert write_study(f"{head}}}]\n").falsifiers[0].metric == metric, "a bound for each arm alone compares none"
