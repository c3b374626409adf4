"""What seeds vary, as the page states it."""

from __future__ import annotations

from pathlib import Path

from reports.findings.findings import analyse
from reports.records.load import load_records
from reports.text.answer import answer

ARMS = {"beta_0.05": 0.05, "beta_0.2": 0.2}
NONE = {"diverged": (), "budget": (), "missing": ()}


def test_the_page_warns_where_seeds_vary_the_training_alone(build, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    built = build(tmp_path / "a", seeds=(3, 4), arms=ARMS, **NONE)
    alone = load_records(built.folder, built.study)
    built = build(tmp_path / "b", seeds=(3, 4), arms=ARMS, extra="vary: [labels, reward, sft]\n", **NONE)
    chain = load_records(built.folder, built.study)
    assert any(
        "Each seed draws the training anew. All trials share" in line for line in answer(alone, analyse(alone)).caveats
    )
    assert not any("All trials share" in line for line in answer(chain, analyse(chain)).caveats)
