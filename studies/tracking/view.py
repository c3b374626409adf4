"""The saved view that the link of `ablate ui` opens: curves over gradient steps, one colour per arm.

MLflow keeps a shared view as an experiment tag in plain JSON and opens it by the key in the address.
"""

from __future__ import annotations

import json
from typing import Any

KEY = "ablate"
"""The key of the view, in the tag's name and in the address."""
TAG = f"mlflow.sharedViewState.{KEY}"
PAGE = f"#/experiments/{{id}}/runs?compareRunsMode=CHART&workflowType=machine_learning&viewStateShareKey={KEY}"
"""The address of the view within MLflow, for one experiment. Without its workflow type, MLflow surrounds it with pages
for chat traces."""
CHARTS = ("objective/kl_exact_per_token", "policy/entropy", "objective/scores", "objective/gold")
IMPORTED_CHARTS = (
    *CHARTS[:1],
    "objective/kl_per_token",
    "objective/kl",
    "policy/entropy",
    "objective/entropy",
    *CHARTS[2:],
)
"""Other programs often log sums over a sequence only. MLflow hides a chart that has no data."""
COLUMNS = ("tags.`seed`", "tags.`status`", "tags.`health`", "metrics.`eval/win_rate`", "metrics.`eval/kl_per_token`")
ARMS_SHOWN = 100
SECTION = "curves"
CARD_HEIGHT = 290
"""Pixels of a chart: two rows fit on a laptop's screen."""


def saved_view(imported: bool = False) -> str:
    """The value of `TAG`: a page of charts in MLflow 3. The band around a curve reaches from the lowest to the highest
    seed."""
    section = {"uuid": SECTION, "name": "Curves by arm", "display": True, "isReordered": True, "columns": 2}
    state = {
        "searchFilter": "tags.arm != ''",  # hides the parent run, which belongs to no arm
        "orderByKey": "tags.`arm`",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(COLUMNS),
        "runsHiddenMode": "SHOWALL",
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "arm"}]},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "compareRunSections": [{**section, "cardHeight": CARD_HEIGHT}],
        "compareRunCharts": [_line_chart(metric) for metric in (IMPORTED_CHARTS if imported else CHARTS)],
    }
    return json.dumps(state, separators=(",", ":"))


def _line_chart(metric: str) -> dict[str, Any]:
    return {
        "type": "LINE",
        "uuid": metric,
        "isGenerated": False,
        "deleted": False,
        "metricSectionId": SECTION,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "selectedYAxisMetricKey": metric,
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "range": {},
        "displayPoints": False,
        "runsCountToCompare": ARMS_SHOWN,
    }
