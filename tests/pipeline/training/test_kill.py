"""SIGKILL, not an exception: a few rounds of tests/kill_resume.py."""

from __future__ import annotations

import pytest
from kill_resume import CONTROLS, fingerprint, rounds
from tinytrial import CONTROLS as IN_PROCESS


@pytest.mark.slow
@pytest.mark.parametrize("control", ["adaptive", "separate", "few bits", "two rounds"])
def test_a_trial_that_is_killed_and_run_again_leaves_the_same_bytes(control: str) -> None:
    (tally,) = rounds([control], kills=2, seed=1)
    assert tally.kills == 2
    assert tally.different == ()
    assert tally.files >= 10


def test_every_control_is_killed_by_both() -> None:
    """Rounds and rewards are of stages; within a process tests/pipeline/training/test_rounds.py kills rounds."""
    of_stages = {"two rounds", "against the reference", "rankings"}
    assert of_stages <= CONTROLS.keys()
    assert len(CONTROLS) == len(IN_PROCESS) + len(of_stages)


def test_a_difference_would_be_seen(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "store" / "train" / "key" / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("a")
    before = fingerprint(tmp_path)
    path.write_text("b")
    assert fingerprint(tmp_path) != before
    assert list(before) == ["store/train/key/metrics.jsonl"]
