"""What two judges say of each arm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reports.figures.tradeoff import FURTHER, REFERENCE, Y, tradeoff
from reports.findings.findings import ArmResult, Findings, analyse
from reports.records.load import StudyRecords, load_records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.reports.conftest import Builder


@pytest.fixture(scope="module")
def found(build: Builder, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRecords, Findings]:
    folder: Path = tmp_path_factory.mktemp("tradeoff")
    built = build(folder, steps=64, prompts=30, diverged=(), budget=(), missing=())
    records = load_records(built.folder, built.study)
    return records, analyse(records)


def judged(findings: Findings, *arms: str) -> Findings:
    """The same findings, with a further judge who says of these arms what the proxy says."""

    def told(result: ArmResult) -> ArmResult:
        if arms and result.arm not in arms:
            return result
        key = f"{FURTHER}harmless"
        estimates = {**result.estimates, key: result.estimates["eval/proxy"]}
        estimates[f"{REFERENCE}harmless"] = result.estimates["eval/proxy"]
        return replace(result, estimates=estimates, per_seed={**result.per_seed, key: result.per_seed["eval/proxy"]})

    return replace(findings, arms=[told(result) for result in findings.arms])


def test_every_arm_stands_where_both_judges_put_it(found: tuple[StudyRecords, Findings]) -> None:
    records, findings = found
    drawn = tradeoff(records, judged(findings))
    assert drawn is not None
    means = drawn.data[drawn.data["seed"].isna()] if "seed" in drawn.data else drawn.data
    for result in findings.arms:
        rows = means[means["arm"] == result.arm].set_index("metric")["value"]
        assert rows[Y] == result.estimates[Y].value
        assert rows[f"{FURTHER}harmless"] == result.estimates["eval/proxy"].value
    (axes,) = drawn.figure.axes
    points = {(float(x), float(y)) for line in axes.lines for x, y in zip(*line.get_data(), strict=True)}
    across = [result.estimates["eval/proxy"].value for result in findings.arms]
    assert points >= {(x, result.estimates[Y].value) for x, result in zip(across, findings.arms, strict=True)}
    judged_of_reference = records.reference_gold()
    assert judged_of_reference is not None
    assert (sum(across) / len(across), judged_of_reference[0]) in points
    assert axes.get_xlabel() == "score by harmless [points of that judge]"


def test_without_a_further_judge_or_with_one_judged_arm_there_is_no_picture(
    found: tuple[StudyRecords, Findings],
) -> None:
    records, findings = found
    assert tradeoff(records, findings) is None
    assert tradeoff(records, judged(findings, findings.arms[0].arm)) is None
