"""How much oftener an arm beats the reference by the training reward than by the gold judge."""

from __future__ import annotations

from reports.findings.pairs import per_prompt
from reports.records.load import StudyRecords
from reports.statistics import two_level
from reports.statistics.two_level import Estimate

GOLD, PROXY = "eval/win_rate", "eval/win_rate_proxy"


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
