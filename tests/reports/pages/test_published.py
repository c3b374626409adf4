"""A published study is judged again from its data alone, with the same numbers and verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import build

from pipeline.errors import UserError
from pipeline.run.layout import Layout
from reports.findings.findings import Findings, analyse
from reports.pages.published import publish
from reports.records.load import find_study, load_records
from studies.importing.run import import_folder

HYPOTHESES = """
hypotheses:
  - {name: tame, claim: drift falls, metric: eval/kl_per_token, order: [beta_0, beta_0.05, beta_0.2], expect: lower}
  - {name: agrees, claim: it agrees, metric: eval/preference_accuracy, contrast: beta_0.05 - beta_0, expect: higher}
"""
KEYS = ("eval/win_rate", "eval/win_rate_proxy", "eval/gold", "eval/kl_per_token")


def verdicts(findings: Findings) -> dict[str, object]:
    fell = {(one.arm, one.seed): one.outcome for claim in findings.claims for one in claim.verdicts}
    return {**{one.hypothesis.name: (one.outcome, one.p_holm) for one in findings.hypotheses}, "claims": fell}


def test_data_give_the_same_numbers_and_verdicts(tmp_path: Path) -> None:
    built = build(tmp_path, extra=HYPOTHESES)
    built.folder.registration_file.write_text("")
    page = publish(built.folder, built.study, tmp_path / "published")
    files = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    assert sum(map(len, files.values())) < 2**20
    file = page.parent / "published_kl_demo.yaml"
    import_folder(page.parent, str(file), Layout.at(tmp_path / "here"), "plain")
    imported = find_study(Layout.at(tmp_path / "here"), str(file))
    with pytest.raises(UserError, match="published_kl_demo cannot be published"):
        publish(*imported, tmp_path / "published")
    again = analyse(load_records(*imported))
    first = built.findings
    assert verdicts(again) == verdicts(first)
    for own, other_arm in zip(first.arms, again.arms, strict=True):
        assert other_arm.counts.get("diverged") == own.counts.get("diverged")
        for one, other in ((own.estimates[key], other_arm.estimates[key]) for key in KEYS):
            assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-12)
            assert (one.seeds, one.prompts) == (other.seeds, other.prompts)
    rows = (tmp_path / "published" / "README.md").read_text().splitlines()
    assert sum(line.startswith("| [kl_demo]") for line in rows) == 3
    publish(built.folder, built.study, tmp_path / "published")
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == files
