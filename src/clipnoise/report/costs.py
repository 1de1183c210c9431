"""What a method costs and what its audit found: columns beside a table of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from clipnoise.report.formats import significant

COLUMNS = ("examples/s", "peak memory (MB)", "passes per step")
NOT_AUDITED = "not audited"
NOTE = (
    "Cost: medians over completed runs, on the machines named under provenance. Passes per step: "
    "gradients taken of an example. Audit: what an attack on the method's releases found, a lower "
    "bound on ε beside the ε claimed there; it can refute a claim, never prove one."
)

Costs = dict[str, Any]  # rows and columns, as the PDF template lays them out


def costs_of(runs: pd.DataFrame, panel: str) -> Costs:
    """Return the costs of the methods of one panel, in the shape of a table: methods down.

    Args:
        runs: runs.csv.
        panel: the panel of the study.
    """
    own = runs[runs["panel"] == panel]
    places = [key for key, _ in own.groupby(["dataset", "model"], sort=False)]
    rows = []
    for (_, label), mine in own.groupby(["method", "label"], sort=False):
        texts = [
            text
            for dataset, model in places
            for text in _costs(mine[(mine["dataset"] == dataset) & (mine["model"] == model)])
        ]
        texts.append(next((text for text in mine["audit"] if text), NOT_AUDITED))
        rows.append({"label": str(label), "cells": [_cell(text) for text in texts]})
    groups = [
        {"title": f"{dataset}, {model}", "headings": list(COLUMNS)} for dataset, model in places
    ]
    return {
        "groups": [*groups, {"title": "", "headings": ["audit"]}],
        "rows": rows,
        "references": [],
    }


def _costs(runs: pd.DataFrame) -> list[str]:
    done = runs[runs["status"] == "completed"]
    speed, memory = (done[name].median() for name in ("examples_per_second", "peak_memory_mb"))
    passes = runs["passes_per_step"].median()
    return [significant(speed, 3), significant(memory, 3), significant(passes)]


def _cell(text: str) -> Mapping[str, Any]:
    return {"text": text, "mark": "", "runs": "", "bold": False, "span": 1}


def cost_lines(costs: Costs) -> list[list[str]]:
    """Return costs as lines of text: the headings, then one line per method."""
    heads = [
        f"{group['title']}: {head}" if group["title"] else head
        for group in costs["groups"]
        for head in group["headings"]
    ]
    rows = [[row["label"], *(cell["text"] for cell in row["cells"])] for row in costs["rows"]]
    return [["method", *heads], *rows]
