"""What diagnostics recorded of Adam's moments with and without noise, and their table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from clipnoise.errors import UserError
from clipnoise.report.formats import DASH, budget, count, significant
from clipnoise.report.records import PLACE, split
from clipnoise.report.statistics import require_one_each
from clipnoise.run.outcome import Recorded
from clipnoise.studies.items import Values

QUANTITIES = {
    "m_clipped": "first moment, without noise",
    "m_private": "first moment, with noise",
    "v_clipped": "second moment, without noise",
    "v_private": "second moment, with noise",
    "v_corrected": "second moment, corrected",
    "update_clipped": "update, clean second moment",
    "update_private": "update, with noise",
    "update_corrected": "update, corrected",
    "negative_fraction": "share of coordinates below Φ",
    "clipped_gradient_norm": "norm of mean clipped gradient / C",
}
WITHOUT_NOISE = {
    "m_clipped": "first moment",
    "v_clipped": "second moment",
    "update_clipped": "update",
}


def require_diagnostics(training: Values, file: str, key: str) -> None:
    """Raise UserError where no panel of an item records diagnostics."""
    if not any(section.get("diagnostics") for section in training):
        raise UserError(
            f"{file}: {key}: shows diagnostics, which no panel of it records: give one "
            "`training: {diagnostics: true}`."
        )


@dataclass(frozen=True)
class Diagnosed:
    """What diagnostics recorded of one configuration.

    Attributes:
        method: its id.
        title: the configuration in words.
        values: what the first seed that has some recorded.
        seed: that seed.
        runs: those with diagnostics, of every seed.
    """

    method: str
    title: str
    values: Recorded
    seed: int
    runs: pd.DataFrame


def diagnosed(runs: pd.DataFrame) -> list[Diagnosed]:
    """Return what diagnostics recorded, by configuration in study order."""
    places = runs[["dataset", "model"]].drop_duplicates()
    configurations = []
    for (*task, text, method, label), subset in split(runs[runs["diagnostics"].notna()], *PLACE):
        require_one_each(subset)
        place = task if len(places) > 1 else []
        title = ", ".join([*place, label, *([budget(text)] if "=" in text else [])])
        values, seed = subset["diagnostics"].iloc[0], int(subset["seed"].iloc[0])
        configurations.append(Diagnosed(method, title, values, seed, subset))
    return configurations


def share_below(configuration: Diagnosed, bound: float) -> float:
    """Return the share of second moments without noise below a bound, to a hundredth."""
    heights = np.asarray(configuration.values.sorted["v_clipped"], dtype=float)
    return float(np.interp(bound, heights, np.linspace(0, 1, len(heights)), left=0.0, right=1.0))


def diagnostic_notes(runs: pd.DataFrame) -> list[str]:
    """Return how to read the moments of a panel, whose runs these are."""
    found = diagnosed(runs)
    steps = sorted({configuration.values.step for configuration in found})
    number = int(runs["diagnostics"].notna().sum())
    shares = [
        f"{share_below(other, one.values.phi):.0%} of the second moments of {other.title} are "
        f"below the Φ of {one.title}, {significant(one.values.phi, 3)}."
        for one in found
        for other in found
        if one.values.phi > 0 and other.values.phi == 0
    ]
    return [
        *shares,
        f"Over the coordinates of the parameters, after step "
        f"{', '.join(f'{step:,}' for step in steps) or DASH}; shares below Φ and norms are over "
        f"the steps. Means over seeds: {count(number, 'run')} of {len(runs)} planned.",
        "Non-private: diagnostics read gradients before noise is added, so these runs have no ε, "
        "whatever their noise.",
    ]
