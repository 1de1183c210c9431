"""Adam's moments with and without noise, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clipnoise.report import diagnostics
from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import DASH, significant
from clipnoise.report.items import ItemData, TableItem
from clipnoise.studies.items import Values

if TYPE_CHECKING:
    from clipnoise.report.diagnostics import Diagnosed

STATISTICS = ("min", "q1", "median", "q3", "max", "mean")
HEADS = ("configuration", "quantity", *STATISTICS)


@dataclass(frozen=True, kw_only=True)
class MomentsTable(TableItem):
    """Diagnostics: statistics of first and second moments, updates and norms."""

    kind: Literal["moments-table"] = "moments-table"

    def check(self, methods: Values, training: Values, file: str, key: str) -> None:
        """Refuse panels that record no diagnostics."""
        diagnostics.require_diagnostics(training, file, key)

    def block(self, data: ItemData) -> ListBlock:
        """Return the table: a row per configuration and quantity."""
        configurations = diagnostics.diagnosed(data.runs)
        return ListBlock(
            title=self.title or self.panel,
            caption=self.caption,
            heads=HEADS,
            align="ll" + "r" * len(STATISTICS),
            rows=[row for configuration in configurations for row in _rows(configuration)]
            or [["no completed run with diagnostics", *[DASH] * (len(HEADS) - 1)]],
            notes=diagnostics.diagnostic_notes(data.runs),
        )


def _rows(configuration: Diagnosed) -> list[list[str]]:
    """Return one row per quantity that was recorded; only the first names the configuration."""
    names = diagnostics.QUANTITIES if configuration.values.phi > 0 else diagnostics.WITHOUT_NOISE
    runs = configuration.runs
    rows = [
        [words, *(significant(float(runs[f"{name}.{head}"].mean())) for head in STATISTICS)]
        for name, words in names.items()
        if f"{name}.mean" in runs and runs[f"{name}.mean"].notna().any()
    ]
    return [[configuration.title if not rank else "", *row] for rank, row in enumerate(rows)]
