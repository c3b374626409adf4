"""Arms at equal drift: where each ends, beside the curve through the ends of the baseline's method."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import MaxNLocator

from pipeline.run.metrics import METRICS
from reports.figures.marks import MOST, pairs, point, row, rows_axis, side, with_seeds
from reports.figures.style import DOUBLE, INK, Plot, arm_styles, entries, entry, legend, new_figure, square_root
from reports.findings.bound import choosing_arms
from reports.findings.findings import Findings
from reports.findings.matched_kl import ENDED_KL, KL, MatchedKL, only_ends, seed_lines
from reports.records.load import StudyRecords
from reports.text.say import say
from reports.text.words import name, number, signed

TFLOP = "cost/tflop"
_COLUMNS = ["part", "arm", "metric", "seed", "kl", "value", "low", "high", "seeds", "p", "p_holm", "outcome"]


def matched(records: StudyRecords, findings: Findings) -> Plot | None:
    """Draw the ends of all arms over KL, and the differences to the baseline's method at equal KL."""
    compared = [one for one in findings.matched if not one.reason]
    if not compared:
        return None
    metric = compared[0].metric
    compared = [one for one in compared if one.metric == metric]
    apart = sorted(compared, key=lambda one: -abs(one.difference.value) if one.difference else 0.0)
    rows = sorted(apart[:MOST], key=lambda one: records.arms.index(one.arm))
    styles, method, paid = arm_styles(records.study), rows[0].method, arithmetic(records)
    shown = [arm for arm in records.arms if arm in {*rows[0].arms, *(one.arm for one in rows)}]
    figure = new_figure(DOUBLE, max(3.1, 1.3 + 0.42 * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    data, x = [], ENDED_KL if only_ends(records) else KL
    for seed, line in seed_lines(records, metric).items():
        left.plot(*line, color=INK, lw=0.7, alpha=0.5, zorder=2)
        head = {"part": "interpolated", "arm": method, "metric": metric, "seed": seed}
        data += [{**head, "kl": at, "value": reached} for at, reached in zip(*line, strict=True)]
    ends = [result for arm in shown if {x, metric} <= (result := findings.arm(arm)).estimates.keys()]
    for result in ends:
        kl, value, seeds = result.estimates[x], result.estimates[metric], pairs(result, x, metric)
        point(left, kl, value, styles[result.arm], seeds)
        head = {"arm": result.arm, "metric": metric}
        data.append(with_seeds({**head, "part": "end", "kl": kl.value}, value, {})[0])
        both = [seed for seed in result.seeds if all(seed in result.per_seed.get(key, {}) for key in (x, metric))]
        each = zip(both, seeds, strict=True)
        data += [{**head, "part": "end of a seed", "seed": seed, "kl": at, "value": v} for seed, (at, v) in each]
    square_root(left.xaxis, max(max(result.per_seed[x].values()) for result in ends), compact=True)
    left.set_xlabel("KL to the reference at the end\n[nats per sequence], square-root scale")
    left.set_ylabel(f"{name(metric)} [{METRICS[metric].unit}]")
    left.set_title("at the end of training")
    for at, one in enumerate(rows):
        if (estimate := one.difference) is not None:
            row(right, at, estimate, one.per_seed.values(), styles[one.arm])
            side(right, at, signed(estimate, metric))
            head = {"arm": one.arm, "metric": metric, "kl": one.kl.value}
            tests = {"seeds": estimate.seeds, "p": one.p, "p_holm": one.p_holm, "outcome": one.outcome}
            first, *single = with_seeds(head, estimate, one.per_seed, **tests)
            data += [{**first, "part": "difference"}, *({**of, "part": "difference of a seed"} for of in single)]
    right.axvline(0, color=INK, lw=0.8, zorder=1)
    right.xaxis.set_major_locator(MaxNLocator(4))
    rows_axis(right, [_label(one, paid) for one in rows])
    right.set_xlabel(f"Δ {name(metric)} to {method}\n[{METRICS[metric].unit}]")
    right.set_title("at equal drift")
    legend(figure, [*entries(styles, shown), entry(f"{method}, seed by seed", INK, "-", lw=0.7)])
    several = [f"{arm} (n = {count})" for arm, count in choosing_arms(records).items() if arm in shown]
    costs, more = any(one.arm in paid for one in rows), len({one.arm for one in compared}) - len(rows)
    caption = say("figures", "matched_kl", metric, rows, records.study.baseline, costs, several, more)
    alt = f"{name(metric)} over KL at the end of training, and a forest plot of differences at equal KL: " + "; ".join(
        f"{one.arm} at {number(one.kl.value)} nats {signed(one.difference, metric)}" for one in rows if one.difference
    )
    title = f"{name(metric)[0].upper()}{name(metric)[1:]} at equal drift"
    return Plot(figure, pd.DataFrame(data, columns=_COLUMNS), title, caption, alt + ".", wide=True)


def arithmetic(records: StudyRecords) -> dict[str, float]:
    """Return the floating-point operations of a trial of each arm, as a multiple of the baseline's; where known."""
    base, spent = records.cost(records.study.baseline, TFLOP), {arm: records.cost(arm, TFLOP) for arm in records.arms}
    return {arm: value / base for arm, value in spent.items() if base and value is not None}


def _label(one: MatchedKL, paid: dict[str, float]) -> str:
    cost = f", {paid[one.arm]:.2f} × cost" if paid.get(one.arm) else ", no training" if one.arm in paid else ""
    return f"{one.arm}\nat {number(one.kl.value)} nats{cost}"
