"""Where several trainings share a chain, every number is the mean of these, and n counts chains."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reports.findings.findings import analyse
from reports.findings.hypotheses import judge
from reports.findings.pairs import pair_of
from reports.records.load import load_records
from reports.text.answer import answer
from reports.text.replicates import what_varies

ARMS = {"beta_0.05": 0.05, "beta_0.2": 0.2}
NONE = {"diverged": (), "budget": (), "missing": ()}


def test_trainings_of_a_chain_are_averaged(build, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    extra = "vary: [labels, reward]\ntrainings: {seeds: [0, 1]}\n"
    built = build(tmp_path, seeds=(3, 4), arms=ARMS, extra=extra, **NONE)
    records = load_records(built.folder, built.study)
    assert records.numbers == [3000, 3001, 4000, 4001]
    assert records.evaluated("beta_0.2") == records.seeds == [3, 4]
    one = records.prompts[(records.prompts["arm"] == "beta_0.2") & records.prompts["seed"].isin([3000, 3001])]
    by_hand = one.groupby("prompt_id")["policy_gold"].mean().sort_index().to_numpy()
    pair = pair_of(records, "eval/gold", "beta_0.2", "beta_0.05")
    assert pair is not None
    np.testing.assert_allclose(pair.first[0], by_hand)
    assert pair.first.shape[0] == 2
    ended = records.trials[records.trials["arm"] == "beta_0.2"].set_index("seed")["eval/gold"]
    assert records.recorded("beta_0.2", "eval/gold")[4] == (ended[4000] + ended[4001]) / 2
    findings = analyse(records)
    assert findings.arm("beta_0.2").estimates["eval/gold"].seeds == 2
    assert what_varies(records) == (
        "Each seed draws the preference labels and the reward model anew, and has 2 trainings (nested), of which the"
        " mean is taken. All trials share one reference policy (SFT); intervals do not cover others."
    )


def test_a_missing_training_leaves_the_rest_of_its_chain(build, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    extra = "vary: [reward]\ntrainings: {seeds: [0, 1], design: crossed}\n"
    built = build(tmp_path, seeds=(3, 4), arms=ARMS, extra=extra, **{**NONE, "missing": (("beta_0.2", 3001),)})
    records = load_records(built.folder, built.study)
    assert records.evaluated("beta_0.2") == [3, 4]


def test_the_page_warns_where_seeds_vary_the_training_alone(build, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    built = build(tmp_path / "a", seeds=(3, 4), arms=ARMS, **NONE)
    alone = load_records(built.folder, built.study)
    built = build(tmp_path / "b", seeds=(3, 4), arms=ARMS, extra="vary: [labels, reward, sft]\n", **NONE)
    chain = load_records(built.folder, built.study)
    assert any(
        "Each seed draws the training anew. All trials share" in line for line in answer(alone, analyse(alone)).caveats
    )
    assert not any("All trials share" in line for line in answer(chain, analyse(chain)).caveats)


def test_a_training_that_diverged_leaves_a_hypothesis_undecided(build, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The other training of its chain was evaluated, but flatters the arm."""
    extra = (
        "vary: [reward]\ntrainings: {seeds: [0, 1]}\nhypotheses:\n"
        "  - {name: n, claim: c, metric: eval/kl_per_token, contrast: beta_0.05 - beta_0.2, expect: higher}\n"
    )
    for lost, outcome in (((), "SUPPORTED"), ((("beta_0.2", 4001),), "UNDECIDED")):
        built = build(tmp_path / outcome, seeds=(3, 4), arms=ARMS, extra=extra, **{**NONE, "diverged": lost})
        (judged,) = judge(load_records(built.folder, built.study))
        assert judged.outcome == outcome
    assert judged.reason.startswith("beta_0.2 seed 4001 diverged")
