"""Best of n among the stored answers of the reference."""

from __future__ import annotations

import pytest

from reports.findings.best_of_n import best_of_draws
from reports.records.load import StudyRecords


def test_every_n_by_the_proxy_and_by_the_judge(records: StudyRecords) -> None:
    found = {(choice.by, choice.n): choice for choice in best_of_draws(records)}
    assert set(found) == {(by, n) for by in ("proxy", "gold") for n in (1, 2, 3, 4)}
    for by in ("proxy", "gold"):
        values = [found[by, n].gold.value for n in (1, 2, 3, 4)]
        assert values == sorted(values)
    assert found["proxy", 1].gold.value == pytest.approx(found["gold", 1].gold.value)
    assert found["gold", 4].gold.value > found["proxy", 4].gold.value, "the proxy is not the judge"
    # 1.03 is the mean of the best of four normal numbers, 0.8 the correlation of proxy and judge.
    assert found["proxy", 4].gold.value - found["proxy", 1].gold.value == pytest.approx(0.8 * 1.03, abs=0.3)
    assert found["proxy", 4].win_rate is None
    rate = found["gold", 3].win_rate
    assert rate is not None
    assert rate.value == pytest.approx(0.75, abs=0.06)
    assert (rate.prompts, rate.low is not None) == (40, True)
