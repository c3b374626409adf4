"""What another processor does to a trial is told from what an arm does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import publish

from reports.console import diff
from reports.findings.machines import Machines, rerun
from reports.pages.noise import noise_part
from reports.records.versions import read_version

if TYPE_CHECKING:
    from tests.reports.conftest import Builder, Built

ARMS = {"beta_0.05": 0.05, "beta_0.2": 0.2, "beta_0.5": 0.5}
HERE, THERE = ("EPYC", "AVX2"), ("Xeon", "AVX512")


def machine(built: Built, processor: tuple[str, str] | None, policies: str, shift: dict[str, float]) -> None:
    """State on what a study ran, what policy each trial left, and by how much its gold moved."""
    rng = np.random.default_rng(len(policies))
    for path in sorted((built.folder.path / "trials").iterdir()):
        content = json.loads(path.read_text())
        if processor is not None:
            content["environment"] |= {"processor": processor[0], "instruction_set": processor[1]}
        content["summary"]["eval/gold"] += shift.get(content["arm"], 0.0) + 0.01 * float(rng.standard_normal())
        path.write_text(json.dumps(content))
        trained = built.layout.root / content["stages"]["train"]["path"]
        (trained / "policy").mkdir(exist_ok=True)
        (trained / "policy" / "model.safetensors").write_text(f"{policies} {path.name}")
        (trained / "metrics.jsonl").write_text(policies + "x")
        publish(trained)


@pytest.fixture
def pair(build: Builder, tmp_path: Path) -> tuple[Built, Built]:
    shape = {"arms": ARMS, "seeds": (0, 1), "steps": 64, "prompts": 12, "diverged": (), "budget": (), "missing": ()}
    return build(tmp_path / "old", **shape), build(tmp_path / "new", **shape)


def said(pair: tuple[Built, Built]) -> str:
    return " ".join(noise_part(Machines(*(read_version(built.folder) for built in pair))).sentences)


def test_equal_processors_and_policies_are_said_to_be_equal(pair: tuple[Built, Built]) -> None:
    machine(pair[0], HERE, "one", {})
    machine(pair[1], HERE, "one", {})
    text = said(pair)
    assert "6 of 6 policies are equal byte for byte. Both ran on EPYC, AVX2." in text
    assert "not training" in text
    machine(pair[1], HERE, "another", {})
    assert "0 of 6 policies are equal" in said(pair)
    assert "something that the records do not name differs" in said(pair)


def test_policies_can_be_equal_where_other_files_of_the_training_are_not(pair: tuple[Built, Built]) -> None:
    machine(pair[0], HERE, "one", {})
    machine(pair[1], HERE, "one", {})
    for path in (pair[1].layout.store / "train").iterdir():
        (path / "metrics.jsonl").write_text("others")
        publish(path)
    assert "6 of 6 policies are equal" in said(pair)


def test_on_another_processor_an_arm_is_compared_with_what_the_others_do(pair: tuple[Built, Built]) -> None:
    machine(pair[0], HERE, "one", {})
    machine(pair[1], THERE, "another", {"beta_0.5": 3.0})
    machines = Machines(*(read_version(built.folder) for built in pair))
    gold = next(one for one in machines.reruns if one.metric == "eval/gold")
    assert {shift.arm: shift.exceeds for shift in gold.shifts} == {
        "beta_0.05": False,
        "beta_0.2": False,
        "beta_0.5": True,
    }
    text = said(pair)
    assert "0 of 6 policies are equal byte for byte. Old: EPYC, AVX2; new: Xeon, AVX512." in text
    assert "gold reward: one run on another processor varies with an sd of" in text
    assert "beta_0.5 (3.0" in text
    page, shown = diff(str(pair[0].folder.path), str(pair[1].folder.path), out=pair[0].layout.root)
    assert "Differences against noise" in page.read_text("utf-8")
    assert "exceeds noise" in shown
    assert (page.parent / "tables" / "noise.csv").is_file()


def test_other_code_is_not_called_noise(pair: tuple[Built, Built]) -> None:
    machine(pair[0], HERE, "one", {})
    machine(pair[1], THERE, "another", {})
    for path in (pair[1].folder.path / "trials").iterdir():
        path.write_text(path.read_text().replace("0123abc", "4567def"))
    assert "also differ in git_commit" in said(pair)
    assert "varies with" not in said(pair)


def test_records_of_older_versions_have_an_unknown_processor(pair: tuple[Built, Built]) -> None:
    machine(pair[0], None, "one", {})
    machine(pair[1], THERE, "another", {})
    assert "Old: processor unknown; new: Xeon, AVX512. Records of older versions do not name the processor." in said(
        pair
    )
    _, shown = diff(str(pair[0].folder.path), str(pair[1].folder.path), out=pair[0].layout.root)
    assert "unknown" in next(line for line in shown.splitlines() if line.startswith("| processor"))


def test_noise_alone_exceeds_its_limits_in_one_study_of_twenty_and_its_sd_is_covered() -> None:
    rng = np.random.default_rng(0)
    cells = [(f"arm{arm}", seed) for arm in range(5) for seed in range(3)]
    beyond, covered, found = [], [], []
    for _ in range(1000):
        one, two = (dict(zip(cells, rng.normal(0, 2.0, len(cells)), strict=True)) for _ in range(2))
        noise = rerun("eval/gold", one, two)
        assert noise is not None
        beyond.append(any(shift.exceeds for shift in noise.shifts))
        covered.append(noise.low <= 2.0 <= noise.high)
        two["arm0", 0], two["arm0", 1], two["arm0", 2] = (two["arm0", seed] + 10 for seed in range(3))
        shifted = rerun("eval/gold", one, two)
        assert shifted is not None
        found.append(shifted.shifts[0].exceeds)
    assert 0.02 <= np.mean(beyond) <= 0.07
    assert 0.93 <= np.mean(covered) <= 0.97
    assert np.mean(found) > 0.9


def test_without_another_arm_there_is_no_limit() -> None:
    noise = rerun("eval/gold", {("a", 0): 1.0}, {("a", 0): 3.0})
    assert noise is not None
    assert noise.sd == pytest.approx(2**0.5)
    assert noise.shifts[0].limit is None
    assert rerun("eval/gold", {}, {}) is None
