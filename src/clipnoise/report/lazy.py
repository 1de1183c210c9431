"""What tables and figures are made with, imported when it is first used.

A study file is read with the kinds of items that its report may have, and without any of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipnoise.lazy import LazyModule

__all__ = [
    "alt",
    "baseline",
    "canvas",
    "charts",
    "confusion",
    "diagnostics",
    "export",
    "heat_map",
    "histograms",
    "linalg",
    "lines",
    "momentum",
    "noise_bias",
    "pd",
    "places",
    "published",
    "records",
    "rows",
    "statistics",
    "styles",
    "sweeps",
    "tables",
    "tasks",
    "ticker",
]

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from matplotlib import ticker
    from scipy import linalg

    from clipnoise.report import (
        baseline,
        charts,
        confusion,
        diagnostics,
        export,
        published,
        records,
        statistics,
        tables,
    )
    from clipnoise.report.figures import (
        canvas,
        heat_map,
        histograms,
        lines,
        momentum,
        noise_bias,
        places,
        rows,
        styles,
        sweeps,
        tasks,
    )
else:

    def _here(name):
        return LazyModule(f"clipnoise.report.{name}")

    alt, pd = LazyModule("altair"), LazyModule("pandas")
    linalg, ticker = LazyModule("scipy.linalg"), LazyModule("matplotlib.ticker")
    baseline, charts, diagnostics = _here("baseline"), _here("charts"), _here("diagnostics")
    confusion = _here("confusion")
    export, published, records = _here("export"), _here("published"), _here("records")
    statistics, tables = _here("statistics"), _here("tables")
    canvas, histograms, lines = map(
        _here, ("figures.canvas", "figures.histograms", "figures.lines")
    )
    heat_map, momentum, noise_bias = map(
        _here, ("figures.heat_map", "figures.momentum", "figures.noise_bias")
    )
    places, rows = _here("figures.places"), _here("figures.rows")
    styles = _here("figures.styles")
    sweeps, tasks = _here("figures.sweeps"), _here("figures.tasks")
