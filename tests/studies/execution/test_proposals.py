from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from fake_trial import SEARCH, landscape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from light_study import Write, record_of

from pipeline.run.layout import Layout, StudyFolder, TrialRecord
from studies.definition.design import Cell
from studies.definition.schema import Study
from studies.definition.search import arm, load
from studies.execution.search import Proposals
from studies.execution.started import Started, given_up

FAST = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class World:
    """Records that outlive a hand, and trials that end in any order."""

    def __init__(self, study: Study, layout: Layout, broken: dict[str, str] | None = None) -> None:
        self.study, self.layout = study, layout
        self.folder: StudyFolder = layout.study("small", "tiny")
        self.broken = broken or {}
        self.ran: list[str] = []

    def search(self) -> Proposals:
        """The search of a hand that begins now."""
        return Proposals(self.study, "tiny", {}, self.folder, self._recorded)

    def start(self) -> None:
        """Start as a new command does: trials that were given up are tried again."""
        for path in given_up(Started(self.study, "tiny", {}, self.layout, self.folder)):
            path.unlink()

    def run(self, rng: random.Random | None = None, stop_after: int = 10**9, hands: int = 3) -> Proposals:
        self.start()
        search, running = self.search(), list[Cell]()
        while not search.over:
            left = [cell for cell in search.advance() if cell not in running]
            running += left[: hands - len(running)]
            if not running or stop_after == 0:
                return search
            stop_after -= 1
            self.end(running.pop(rng.randrange(len(running)) if rng else 0))
        return search

    def end(self, cell: Cell) -> None:
        self.ran.append(cell.arm)
        status, config = self.broken.get(cell.arm, "complete"), cell.config
        summary = {} if status == "failed" else landscape(config.kl.beta, config.algorithm.clip.epsilon)
        ended = {"status": status, "steps": 0 if status == "failed" else 2048, "summary": summary}
        one = record_of(cell.arm, cell.seed, config=config.model_dump(mode="json"), config_digest=cell.digest, **ended)
        self.folder.write(one)

    def trials(self) -> list[dict[str, Any]]:
        content = load(self.study, self.folder)
        assert content is not None
        return list(content["trials"])

    def _recorded(self, cell: Cell) -> TrialRecord | None:
        one = self.folder.record(cell.arm, cell.seed)
        return one if one and one.config_digest == cell.config.digest() else None


@pytest.fixture
def world(write_study: Write, tmp_path: Path) -> Callable[..., World]:
    def make(name: str = "small", text: str = SEARCH, **broken: str) -> World:
        statuses = {arm(int(key[1:])): status for key, status in broken.items()}
        return World(write_study(text), Layout(tmp_path / name), statuses)

    return make


@pytest.fixture
def alone(world: Callable[..., World]) -> list[dict[str, Any]]:
    plain = world("alone")
    plain.run(hands=1)
    return plain.trials()


@FAST
@given(seed=st.integers(0, 2**32), hands=st.integers(1, 5), stops=st.lists(st.integers(0, 6), max_size=3))
def test_who_ends_first_and_interruptions_change_nothing_and_lose_nothing(
    world: Callable[..., World], alone: list[dict[str, Any]], seed: int, hands: int, stops: list[int]
) -> None:
    other, rng = world(f"w{seed}-{hands}-{'-'.join(map(str, stops))}"), random.Random(seed)
    for stop in [*stops, 10**9]:
        other.run(rng, stop, hands)
    assert other.trials() == alone
    assert sorted(other.ran) == [arm(number) for number in range(14)], "each trial runs once"


def test_every_hand_computes_the_same_proposals(world: Callable[..., World]) -> None:
    one = world()
    first, second = one.search(), one.search()
    while cells := first.advance():
        assert second.advance() == cells == one.search().advance()
        one.end(cells[-1])
    assert first.over
    assert second.advance() == []
    assert second.over


def test_a_proposal_waits_for_what_it_is_made_from(world: Callable[..., World]) -> None:
    one = world()
    search = one.search()
    first, second, third = search.advance()
    assert [first.arm, second.arm, third.arm] == ["search-000", "search-001", "search-002"]
    one.end(second)
    assert search.advance() == [first, third], "trial 3 is made from trial 0, which still runs"
    one.end(first)
    assert [cell.arm for cell in search.advance()] == ["search-002", "search-003", "search-004"]


def test_more_trials_go_on_from_where_it_was_and_the_sampler_learns(
    world: Callable[..., World], alone: list[dict[str, Any]]
) -> None:
    """Proposals after the random start are good more often than by chance."""
    long = world(text=SEARCH.replace("trials: 14", "trials: 40"))
    long.run()
    assert long.trials()[:14] == alone
    wins = [one["values"]["eval/win_rate"] for one in long.trials()]
    assert fmean(wins[-16:]) > fmean(wins[:8])


@pytest.mark.parametrize("status", ["diverged", "pruned"])
def test_a_diverged_or_pruned_trial_stays_is_infeasible_and_steers_the_search(
    world: Callable[..., World], alone: list[dict[str, Any]], status: str
) -> None:
    best = max((one for one in alone[:6] if one["feasible"]), key=lambda one: one["values"]["eval/win_rate"])["number"]
    other = world(status, **{f"n{best}": status})
    other.run()
    assert other.trials()[best] == {**alone[best], "status": status, "feasible": False}
    changed = [a["overrides"] != b["overrides"] for a, b in zip(other.trials(), alone, strict=True)]
    assert not any(changed[: best + 1])
    assert any(changed)


def test_a_failure_that_the_search_went_on_from_is_not_tried_again(world: Callable[..., World]) -> None:
    """A second try would change every proposal after it."""
    one = world(n2="failed")
    one.run()
    before = one.trials()
    assert (before[2]["status"], before[2]["values"], before[2]["feasible"]) == ("failed", {}, False)
    one.broken = {}
    one.run()
    assert one.trials() == before
    assert one.ran.count("search-002") == 1


def test_a_failure_on_which_nothing_was_built_is_tried_again(
    world: Callable[..., World], alone: list[dict[str, Any]]
) -> None:
    one = world(n13="failed", n12="failed")
    one.run()
    assert [trial["number"] for trial in one.trials() if trial["status"] == "failed"] == [12, 13]
    one.broken = {}
    one.run()
    assert one.trials() == alone
