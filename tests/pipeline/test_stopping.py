"""Rules that end a trial: the same records, the same end, whatever happened in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tinytrial import run

from pipeline.config.train import StopRule
from pipeline.stopping import Watcher, counted, first_break

KL = "objective/kl_per_token"
RULE = {"metric": KL, "op": ">", "threshold": 0.002}


def watcher(**changes: Any) -> Watcher:
    return Watcher((StopRule(metric=KL, op=">", threshold=0.5, **changes),))


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4), st.integers(1, 4), st.integers(1, 40))
def test_a_watcher_stops_at_the_record_that_completes_the_evidence(
    broken: list[bool], consecutive: int, every: int, before: int
) -> None:
    """Record by record it gives the same result as the whole series; a copy made from its state goes on alike."""
    one = watcher(consecutive=consecutive, before_step=before)
    for index, bad in enumerate(broken):
        one.observe(index * every, {KL: 0.9 if bad else 0.1, "policy/entropy": 1.0})
        copy = watcher(consecutive=consecutive, before_step=before)
        copy.load(one.state())
        seen = [(place * every, 0.9 if flag else 0.1) for place, flag in enumerate(broken[: index + 1])]
        evidence = first_break(">", 0.5, consecutive, counted(seen, before))
        assert (one.broken() is not None) == bool(evidence) == (copy.broken() is not None)
        if evidence:
            assert one.broken() == copy.broken()
            assert f"at step {evidence[-1][0]}" in str(one.broken())
            assert all(value > 0.5 for _, value in evidence)
            assert len(evidence) == consecutive


def test_a_stopped_trial_ends_at_once_and_says_why(tmp_path: Path) -> None:
    whole, rows, _ = run(tmp_path / "whole", optimiser__lr=3e-2)
    kls = {step: row[KL] for step, row in rows.items() if KL in row}
    at = next(step for step, value in kls.items() if value > RULE["threshold"])
    assert 0 < at < 20, "the test needs a trial that breaks the rule in its middle"
    outcome, stopped, _ = run(tmp_path / "stopped", optimiser__lr=3e-2, train__stop=(RULE,))
    assert (outcome.status, outcome.steps) == ("pruned", at + 4), (
        "the update whose rollout broke the rule is the last one"
    )
    assert outcome.reason == f"stopped by rule: {KL} = {kls[at]:.4g} > 0.002 at step {at}"
    assert stopped == {step: row for step, row in rows.items() if step < at + 4} | {at + 4: stopped[at + 4]}
    assert whole.status == "complete"
    late, _, _ = run(tmp_path / "late", optimiser__lr=3e-2, train__stop=({**RULE, "before_step": at},))
    assert late == whole


def test_a_rule_that_only_the_last_update_breaks_stops_nothing(tmp_path: Path) -> None:
    """It has taken all its steps: there is nothing left to save."""
    _, rows, _ = run(tmp_path / "whole")
    rates = [rows[step]["policy/lr"] for step in (20, 21)]
    rule = {"metric": "policy/lr", "op": "<", "threshold": sum(rates) / 2}
    outcome, ruled, _ = run(tmp_path / "ruled", train__stop=(rule,))
    assert rates[1] < rule["threshold"] < rates[0]
    assert (outcome.status, outcome.steps) == ("complete", 24)
    assert ruled == rows
    earlier = {**rule, "threshold": rates[0] * 1.001}
    assert run(tmp_path / "earlier", train__stop=(earlier,))[0].steps == 20
