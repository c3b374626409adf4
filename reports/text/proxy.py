"""Of which arms the training reward thinks more than the gold judge does, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from reports.findings.excess import GOLD, PROXY
from reports.findings.findings import ArmResult
from reports.findings.trajectories import ArmAlarm
from reports.statistics.two_level import Estimate
from reports.text.drift import LISTED
from reports.text.words import listed, percent

LIKED = 0.7
"""Share of comparisons that a policy has to win to be called preferred."""


def unconfirmed(arms: Sequence[ArmResult], alarms: Sequence[ArmAlarm]) -> str:
    """Which arms are shown to win more by the proxy than by the judge: the interval of the proxy's win rate is above
    `LIKED`, that of the judge's is below the proxy's rate, and that of the paired difference is above 0. Empty where
    there are none, and where any of the three has no interval.

    Such a gap alone is no over-optimisation: that is what `alarms` count, and only their counts are reported as it.
    """
    found = [result for result in arms if _by_the_proxy_alone(result)]
    if not found:
        return ""
    if len(found) <= LISTED:
        said = " ".join(map(_numbers, found))
    else:
        said = (
            f"The training reward says that {listed([result.arm for result in found])} beat the reference in more than"
            f" {percent(LIKED)} % of comparisons; the judge says that each of them wins fewer than the training reward"
            " says."
        )
    names = {result.arm for result in found}
    turned = [
        f"{len(one.alarms)} of {one.trials} trials of {one.arm}" for one in alarms if one.alarms and one.arm in names
    ]
    return f"{said} The reward was over-optimised in {listed(turned)}." if turned else said


def _by_the_proxy_alone(result: ArmResult) -> bool:
    gold, proxy, excess = result.estimates.get(GOLD), result.estimates.get(PROXY), result.excess
    if gold is None or proxy is None or excess is None:
        return False
    if gold.high is None or proxy.low is None or excess.low is None:
        return False
    return proxy.low > LIKED and gold.high < proxy.value and excess.low > 0


def _numbers(result: ArmResult) -> str:
    proxy, gold = _share(result.estimates[PROXY]), _share(result.estimates[GOLD])
    return (
        f"The training reward says that {result.arm} beats the reference in {proxy} of comparisons; the judge says"
        f" {gold}."
    )


def _share(rate: Estimate) -> str:
    """``90 % [85, 95]``; an estimate without an interval is not said here."""
    ends = [percent(end) for end in (rate.low, rate.high) if end is not None]
    return f"{percent(rate.value)} % [{', '.join(ends)}]"
