"""What a method costs and what its audit found: columns beside a table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from clipnoise.report.formats import significant

COLUMNS = ("examples/s", "peak memory (MB)", "passes per step")
NOT_AUDITED = "not audited"
NOTE = (
    "Cost: medians over completed runs, on the machines named under provenance. Passes per step: "
    "gradients computed for each example. Audit: the lower bound on ε that an attack on the "
    "method's releases gave, beside the ε claimed there. It can refute a claim but never prove one."
)


@dataclass(frozen=True)
class CostTable:
    """What the methods of a panel cost.

    Attributes:
        places: each dataset and model, as `dataset, model`.
        rows: label, the `COLUMNS` at each place, and the audit, by method and label.
    """

    places: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> list[Sequence[str]]:
        """The headings, then one line per method and label."""
        heads = [f"{place}: {column}" for place in self.places for column in COLUMNS]
        return [["method", *heads, "audit"], *self.rows]

    def to_block(self) -> dict[str, Any]:
        """Return the table as a block of a table of results, for the PDF template."""
        groups = [{"title": place, "headings": list(COLUMNS)} for place in self.places]
        plain = {"mark": "", "runs": "", "bold": False, "span": 1}
        return {
            "groups": [*groups, {"title": "", "headings": ["audit"]}],
            "rows": [
                {"label": label, "cells": [{"text": text, **plain} for text in texts]}
                for label, *texts in self.rows
            ],
            "references": [],
        }


def cost_table(runs: pd.DataFrame, panel: str) -> CostTable:
    """Gather the costs of one panel.

    Args:
        runs: runs.csv.
        panel: the panel of the study.
    """
    selected = runs[runs["panel"] == panel]
    places = [key for key, _ in selected.groupby(["dataset", "model"], sort=False)]
    rows = []
    for (_, label), subset in selected.groupby(["method", "label"], sort=False):
        costs = [
            text
            for dataset, model in places
            for text in _costs(subset[(subset["dataset"] == dataset) & (subset["model"] == model)])
        ]
        audit = next((text for text in subset["audit"] if text), NOT_AUDITED)
        rows.append((str(label), *costs, audit))
    return CostTable(tuple(f"{dataset}, {model}" for dataset, model in places), tuple(rows))


def _costs(runs: pd.DataFrame) -> list[str]:
    done = runs[runs["status"] == "completed"]
    speed, memory = (done[name].median() for name in ("examples_per_second", "peak_memory_mb"))
    passes = runs["passes_per_step"].median()
    return [significant(speed, 3), significant(memory, 3), significant(passes)]
