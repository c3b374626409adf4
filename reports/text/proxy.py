"""What the training reward says of the arms and the gold judge does not, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from reports.findings.findings import ArmResult
from reports.text.drift import LISTED
from reports.text.words import interval, listed, percent

LIKED = 0.7
"""Share of comparisons that a policy has to win to be called preferred."""
_GOLD, _PROXY = "eval/win_rate", "eval/win_rate_proxy"


def unconfirmed(arms: Sequence[ArmResult]) -> str:
    """Which arms win more than `LIKED` by the proxy while the low end of their win rate by the judge is not above it;
    empty where there are none, and of evaluations without a win rate by the proxy."""
    found = [result for result in arms if _by_the_proxy_alone(result)]
    if not found:
        return ""
    named = listed([_numbers(result) if len(found) <= LISTED else result.arm for result in found])
    share = f"{percent(LIKED)} %"
    return (
        f"By the proxy, {named} {'wins' if len(found) == 1 else 'win'} more than {share} of the comparisons with the"
        f" reference, but by the judge the low end of the win rate is not above {share}: the judge does not confirm the"
        " training reward, which can be over-optimisation."
    )


def _by_the_proxy_alone(result: ArmResult) -> bool:
    gold, proxy = result.estimates.get(_GOLD), result.estimates.get(_PROXY)
    return gold is not None and proxy is not None and proxy.value > LIKED and not (gold.low or 0.0) > LIKED


def _numbers(result: ArmResult) -> str:
    gold, proxy = result.estimates[_GOLD], result.estimates[_PROXY]
    return f"{result.arm} ({interval(proxy, _PROXY)}; by the judge {interval(gold, _GOLD)})"
