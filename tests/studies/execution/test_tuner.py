"""The plan of a search, driven by hand: who ends first, where it is interrupted and what fails must not matter."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_trial import SEARCH, landscape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.run.layout import Layout, StudyFolder, TrialRecord
from studies.definition.design import Cell
from studies.definition.schema import Study
from studies.definition.search import arm, load
from studies.execution.planner import Ticket
from studies.execution.tuner import Tuner, seed_of

FAST = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class World:
    """Records that outlive a driver, and trials that end in any order."""

    def __init__(self, study: Study, folder: StudyFolder, broken: dict[str, str] | None = None) -> None:
        self.study, self.folder = study, folder
        self.broken = broken or {}
        self.records: dict[str, TrialRecord] = {}
        self.ran: list[str] = []

    def tuner(self) -> Tuner:
        return Tuner(self.study, "tiny", {}, self.folder, self._recorded)

    def run(self, rng: random.Random | None = None, stop_after: int = 10**9, jobs: int = 3) -> Tuner:
        """Drive a search to its end, or until so many trials have ended."""
        tuner, running = self.tuner(), list[Ticket]()
        while True:
            while len(running) < jobs and (ticket := tuner.ask()):
                running.append(ticket)
            if not running or stop_after == 0:
                return tuner
            stop_after -= 1
            self._end(tuner, running.pop(rng.randrange(len(running)) if rng else 0))

    def trials(self) -> list[dict[str, Any]]:
        content = load(self.study, self.folder)
        assert content is not None
        return list(content["trials"])

    def _end(self, tuner: Tuner, ticket: Ticket) -> None:
        cell = ticket.cell
        self.ran.append(cell.arm)
        status = self.broken.get(cell.arm, "complete")
        if status == "failed":
            tuner.tell(ticket, None)
            return
        self.records[cell.arm] = record(cell, status)
        tuner.tell(ticket, self.records[cell.arm])

    def _recorded(self, cell: Cell) -> TrialRecord | None:
        one = self.records.get(cell.arm)
        return one if one and one.config_digest == cell.config.digest() else None


def record(cell: Cell, status: str = "complete") -> TrialRecord:
    summary = landscape(cell.config.kl.beta, cell.config.algorithm.cliprange)
    content = {
        "study": "small",
        "profile": "tiny",
        "arm": cell.arm,
        "seed": cell.seed,
        "config": {},
        "status": status,
        "steps": 2048,
    }
    content |= {
        "config_digest": cell.config.digest(),
        "stages": {},
        "summary": summary,
        "cost": {},
        "environment": {},
        "finished": "",
    }
    return TrialRecord.model_validate(content)


@pytest.fixture
def world(write_study: Callable[..., Study], tmp_path: Path) -> Callable[..., World]:
    def make(name: str = "small", text: str = SEARCH, **broken: str) -> World:
        statuses = {arm(int(key[1:])): status for key, status in broken.items()}
        return World(write_study(text), Layout(tmp_path / name).study("small", "tiny"), statuses)

    return make


@pytest.fixture
def alone(world: Callable[..., World]) -> list[dict[str, Any]]:
    """The trials of a search in which one trial runs after the other."""
    plain = world("alone")
    plain.run(jobs=1)
    return plain.trials()


@FAST
@given(seed=st.integers(0, 2**32), jobs=st.integers(1, 5))
def test_who_ends_first_changes_nothing(
    world: Callable[..., World], alone: list[dict[str, Any]], seed: int, jobs: int
) -> None:
    other = world(f"w{seed}-{jobs}")
    other.run(random.Random(seed), jobs=jobs)
    assert other.trials() == alone


@FAST
@given(seed=st.integers(0, 2**32), stops=st.lists(st.integers(0, 6), max_size=3))
def test_interruptions_change_nothing_and_lose_nothing(
    world: Callable[..., World], alone: list[dict[str, Any]], seed: int, stops: list[int]
) -> None:
    other, rng = world(f"i{seed}-{'-'.join(map(str, stops))}"), random.Random(seed)
    for stop in stops:
        other.run(rng, stop)
    other.run(rng)
    assert other.trials() == alone
    assert sorted(other.ran) == [arm(number) for number in range(14)], "each trial runs once"


def test_a_proposal_waits_for_what_it_is_made_from(world: Callable[..., World]) -> None:
    tuner = world().tuner()
    tickets = [tuner.ask() for _ in range(4)]
    assert [ticket.number for ticket in tickets if ticket] == [0, 1, 2]
    first, second = tickets[0], tickets[1]
    assert first is not None
    assert second is not None
    tuner.tell(second, record(second.cell))
    assert tuner.ask() is None, "trial 3 is made from trial 0, which still runs"
    tuner.tell(first, record(first.cell))
    assert [ticket.number for ticket in (tuner.ask(), tuner.ask()) if ticket] == [3, 4]


def test_more_trials_go_on_from_where_it_was(world: Callable[..., World], alone: list[dict[str, Any]]) -> None:
    more = world(text=SEARCH.replace("trials: 14", "trials: 18"))
    more.run()
    assert more.trials()[:14] == alone
    assert len(more.trials()) == 18


def test_another_seed_is_another_search(world: Callable[..., World], alone: list[dict[str, Any]]) -> None:
    other = world(text=SEARCH.replace("trials: 14", "trials: 14\n  seed: 1"))
    other.run()
    assert [one["overrides"] for one in other.trials()] != [one["overrides"] for one in alone]
    assert len({seed_of(seed, number) for seed in range(10) for number in range(100)}) == 1000


def test_the_sampler_learns(world: Callable[..., World]) -> None:
    """After its random start it proposes what is feasible and good more often than chance does."""
    long = world(text=SEARCH.replace("trials: 14", "trials: 40"))
    long.run()
    first, last = long.trials()[:8], long.trials()[-16:]
    assert _mean(one["feasible"] for one in last) > _mean(one["feasible"] for one in first)
    assert _mean(one["values"]["eval/win_rate"] for one in last) > _mean(
        one["values"]["eval/win_rate"] for one in first
    )


def test_a_diverged_or_pruned_trial_stays_is_infeasible_and_steers_the_search(
    world: Callable[..., World], alone: list[dict[str, Any]]
) -> None:
    best = max((one for one in alone[:6] if one["feasible"]), key=lambda one: one["values"]["eval/win_rate"])["number"]
    for status in ("diverged", "pruned"):
        other = world(status, text=SEARCH.replace("trials: 14", "trials: 30"), **{f"n{best}": status})
        other.run()
        one = other.trials()[best]
        assert one == {**alone[best], "status": status, "feasible": False}
        assert len(other.trials()) == 30
        plain = world(f"plain {status}", text=SEARCH.replace("trials: 14", "trials: 30"))
        plain.run()
        changed = [a["overrides"] != b["overrides"] for a, b in zip(other.trials(), plain.trials(), strict=True)]
        assert not any(changed[: best + 1])
        assert any(changed)


def test_a_failure_that_the_search_went_on_from_is_not_tried_again(world: Callable[..., World]) -> None:
    """Trying it again would change every proposal after it."""
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
    full_disk = world("full", **{f"n{number}": "failed" for number in range(5, 14)})
    full_disk.run()
    full_disk.broken = {}
    full_disk.run()
    assert full_disk.trials() == alone


def test_a_crash_that_is_tried_again_leaves_no_trace(world: Callable[..., World], alone: list[dict[str, Any]]) -> None:
    one = world()
    tuner = one.tuner()
    ticket = tuner.ask()
    assert ticket is not None
    tuner.tell(ticket, None)
    tuner.demand(ticket.cell)
    again = tuner.ask()
    assert again == ticket
    tuner.tell(again, record(again.cell))
    one.records[again.cell.arm] = record(again.cell)
    one.run()
    assert one.trials() == alone


def _mean(values: Any) -> float:
    listed = [float(value) for value in values]
    return sum(listed) / len(listed)
