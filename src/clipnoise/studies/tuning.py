"""Searches: which runs choose the hyper-parameters of other runs."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from clipnoise.fields import STRICT, Natural
from clipnoise.run.choice import Metric
from clipnoise.run.spec import RunSpec, Tuning

Axis = Literal["dataset", "model", "epsilon"]
Charge = Literal["nothing", "composition", "selection"]
AXES: tuple[Axis, ...] = ("dataset", "model", "epsilon")


@dataclass(frozen=True, kw_only=True)
class Tune:
    """What is tuned for a method of a study, and how.

    Attributes:
        grid: candidate values by hyper-parameter; every combination is tried.
        seeds: those of the tuning runs; none of them is reported.
        metric: what is averaged over them, on the validation split.
        per: the axes along which choices are made separately; over the others the metric is
            averaged.
        charge: how the report charges the tuning runs: "nothing", as papers do; "composition", the
            ε of publishing every run of the search and the final one; "selection", the ε of a
            search that tries a random number of configurations and publishes only its best run.
    """

    __pydantic_config__: ClassVar = STRICT

    grid: dict[str, tuple[Any, ...]]
    seeds: tuple[Natural, ...]
    metric: Metric = "validation_accuracy"
    per: tuple[Axis, ...] = AXES
    charge: Charge = "nothing"

    def __post_init__(self) -> None:
        if not self.grid or not all(self.grid.values()):
            raise ValueError("grid: give at least one hyper-parameter, each with its candidates")
        if not self.seeds:
            raise ValueError("seeds: give at least one")

    def configurations(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return every combination of the grid; the last hyper-parameter varies fastest.

        Args:
            limit: how many are kept, the first ones; None keeps all.
        """
        combinations = itertools.product(*self.grid.values())
        return [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.islice(combinations, limit)
        ]


@dataclass(frozen=True)
class Search:
    """One choice to be made, and the runs that it is based on.

    Attributes:
        parameters: the hyper-parameters to choose.
        metric: the basis of the comparison.
        configurations: the runs of each configuration, in the order of the grid.
    """

    parameters: tuple[str, ...]
    metric: Metric
    configurations: tuple[tuple[RunSpec, ...], ...]

    @cached_property
    def key(self) -> str:
        """The content hash: 12 hex digits of SHA-256 over the runs and how they are compared."""
        runs = [[spec.hash for spec in specs] for specs in self.configurations]
        text = json.dumps([list(self.parameters), self.metric, runs])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def runs(self) -> list[RunSpec]:
        """Every run, one configuration after the other."""
        return [spec for specs in self.configurations for spec in specs]

    @property
    def tuning(self) -> Tuning:
        """What a run that waits for the choice says about the search."""
        return Tuning(
            key=self.key,
            parameters=self.parameters,
            configurations=len(self.configurations),
            runs=len(self.runs),
        )
