"""Saved views: what a person finds under "Views" above a study's runs in the MLflow UI.

The UI keeps them as experiment tags, in the format of MLflow 3.17. A UI that does not know it shows
its plain table instead.
"""

from __future__ import annotations

import json
from typing import Any

TAG = "mlflow.sharedViewState."
COLUMNS = {  # in order, with their widths in pixels
    "attributes.`Run Name`": 310,
    "runDateAndNestInfo": 140,
    "metrics.`final_test_accuracy`": 150,
    "metrics.`final_epsilon`": 110,
    "tags.`label`": 150,
    "tags.`dataset`": 90,
    "tags.`model`": 110,
    "tags.`budget`": 100,
    "tags.`seed`": 60,
    "tags.`status`": 90,
    "duration": 80,
}


def saved_views() -> dict[str, str]:
    """Return the experiment tags that hold the views: one per run, and means over the seeds."""
    grouped = {
        "aggregateFunction": "average",
        "groupByKeys": [{"mode": "tag", "groupByData": "setting"}],
    }
    return {
        f"{TAG}runs": _view("Runs, best first", None),
        f"{TAG}means": _view("Methods, mean over seeds", grouped),
    }


def page(experiment_id: str, view: str) -> str:
    """Return the address of a view below the UI's own; `view` is `runs` or `means`."""
    query = f"workflowType=machine_learning&viewStateShareKey={view}"
    return f"#/experiments/{experiment_id}/runs?{query}"


def description(text: str, experiment_id: str) -> str:
    """Return a study's description with links to its views in the first line.

    The UI shows only the first line until it is unfolded.
    """
    head, _, rest = text.partition("\n")
    runs, means = page(experiment_id, "runs"), page(experiment_id, "means")
    links = f"[runs, best first]({runs}) · [methods, mean over seeds]({means})"
    return f"{head} · {links}\n{rest}"


def _view(name: str, group_by: dict[str, Any] | None) -> str:
    state = {
        "searchFilter": "",
        "orderByKey": "metrics.`final_test_accuracy`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [name for name in COLUMNS if name.startswith(("metrics.", "tags."))],
        "columnOrder": list(COLUMNS),
        "columnWidths": COLUMNS,
        "runsHiddenMode": "FIRST_20_RUNS",
        "useGroupedValuesInCharts": True,
        "groupBy": group_by,
    }
    saved = {"name": name, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
    return json.dumps(saved, sort_keys=True)
