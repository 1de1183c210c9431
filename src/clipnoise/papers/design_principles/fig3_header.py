"""Header rows of Figure 3 of the design-principles paper: ε and the error of prefix sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from clipnoise.fields import STRICT, Count, Positive, Probability
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row

RATIO = "RMSE of BandMF relative to independent noise at the same σ"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the header.

    Attributes:
        name: as in the paper.
        bands: of the Toeplitz strategy; None is independent noise.
        noise_multiplier: σ.
    """

    __pydantic_config__: ClassVar = STRICT

    name: str
    bands: Count | None = None
    noise_multiplier: Positive


@dataclass(frozen=True, kw_only=True)
class Figure3Header(Reproduction):
    """ε of one Gaussian release with sensitivity √k, and RMSE of prefix sums, by column.

    An example takes part k times, at least b steps apart, and no subsampling is counted: the whole
    run is one Gaussian mechanism. The RMSE is relative to that of independent noise at σ = 1.

    Source: On Design Principles for Private Adaptive Optimizers, Figure 3, and section 5.2.
    """

    id: ClassVar[str] = "design-principles/fig3-header"

    steps: Count
    participations: Count
    expected_batch_size: Count
    delta: Probability
    columns: tuple[Column, ...]

    def run(self) -> Findings:
        import numpy as np

        from clipnoise.privacy.noise.strategies import Toeplitz, optimal_toeplitz, prefix_sum_rmse

        def rmse(bands: int | None) -> float:
            if bands is None:
                return prefix_sum_rmse(Toeplitz(np.ones(1), self.steps))
            return prefix_sum_rmse(optimal_toeplitz(self.steps, bands))

        independent = rmse(None)
        rows: list[Row] = []
        quantities: list[Quantity] = []
        for column in self.columns:
            error = column.noise_multiplier * rmse(column.bands)
            epsilon = self._epsilon(column.noise_multiplier)
            rows.append(
                {
                    "column": column.name,
                    "noise_multiplier": column.noise_multiplier,
                    "bands": column.bands or 1,
                    "rmse": error,
                    "relative_rmse": error / independent,
                    "epsilon": epsilon,
                }
            )
            quantities += [
                Quantity(f"ε, {column.name}", epsilon),
                Quantity(f"RMSE / B, {column.name}", error / self.expected_batch_size),
            ]
            if column.bands is not None:
                ratio = error / independent
                quantities += [
                    Quantity(RATIO, ratio),
                    Quantity(
                        f"ε of independent noise at σ = {ratio:.4f}",
                        self._epsilon(ratio),
                        f"ε, {self.columns[0].name}",
                    ),
                ]
        return Findings({"data": rows}, quantities)

    def _epsilon(self, noise_multiplier: float) -> float:
        from clipnoise.privacy.participation import gaussian_epsilon

        return gaussian_epsilon(noise_multiplier / math.sqrt(self.participations), self.delta)
