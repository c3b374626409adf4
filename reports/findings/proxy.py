"""How much oftener arms beat the reference by the training reward than by the gold judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports.findings.pairs import per_prompt
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.two_level import Estimate

if TYPE_CHECKING:
    from reports.findings.findings import ArmResult

GOLD, PROXY = "eval/win_rate", "eval/win_rate_proxy"
LIKED = 0.7
"""Share of comparisons that a policy has to win to be called preferred."""


def excess(records: StudyRecords, arm: str) -> Estimate | None:
    """Win rate by the proxy - win rate by the judge, of the same answers, as the reports estimate paired effects (new
    seeds and new prompts); None where the two are not known of the same seeds and prompts."""
    known = [per_prompt(records, metric) for metric in (PROXY, GOLD)]
    columns = [top for top, _ in filter(None, known)]
    seeds = records.answered(arm, columns)
    prompts = records.shared_prompts([(arm, seed) for seed in seeds], columns)
    if None in known or not len(prompts):
        return None
    proxy, gold = (records.answers(arm, column, seeds, prompts) for column in columns)
    return two_level.difference(proxy, gold).clipped(-1.0, 1.0)


def by_the_proxy_alone(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """Return the arms that are shown to win more by the proxy than by the judge: the interval of the proxy's win rate
    is above `LIKED`, that of the judge's is below the proxy's rate, and that of the paired difference is above 0."""
    return [arm for arm in arms if _shown(arm.estimates.get(GOLD), arm.estimates.get(PROXY), arm.excess)]


def _shown(gold: Estimate | None, proxy: Estimate | None, apart: Estimate | None) -> bool:
    if not gold or not proxy or not apart or gold.high is None or proxy.low is None or apart.low is None:
        return False
    return proxy.low > LIKED and gold.high < proxy.value and apart.low > 0
