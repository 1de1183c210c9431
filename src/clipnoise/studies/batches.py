"""Batches: runs that one job trains, so that it starts and imports torch once for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipnoise.engine.spec import RunSpec
    from clipnoise.studies.config import Resources


@dataclass(frozen=True)
class Batch:
    """The runs of one job, all of which ask for the same part of a GPU.

    Attributes:
        runs: in the order in which they start.
        parallel: how many train at the same time.
    """

    runs: tuple[RunSpec, ...]
    parallel: int

    @cached_property
    def key(self) -> str:
        """The batch's name: 12 hex digits that follow from its runs alone."""
        return hashlib.sha256(" ".join(run.hash for run in self.runs).encode()).hexdigest()[:12]

    @property
    def rounds(self) -> int:
        """How many runs follow one another."""
        return -(-len(self.runs) // self.parallel)


def batches(runs: Iterable[RunSpec], resources: Resources) -> Iterator[Batch]:
    """Deal runs into batches; the same runs in the same order always give the same batches.

    Args:
        runs: one that comes twice counts once.
        resources: how many runs one job trains, and how many share its GPU.
    """
    distinct = {run.hash: run for run in runs}
    several = resources.dealt(len(distinct))
    alike: dict[tuple[str, int, bool], list[RunSpec]] = {}
    for run in distinct.values():
        model = run.model.id
        kind = (resources.gres(model), resources.at_once(model), run.tuning is None)
        alike.setdefault(kind, []).append(run)
    for (_, parallel, _), members in alike.items():
        size = max(several, parallel)
        for start in range(0, len(members), size):
            yield Batch(tuple(members[start : start + size]), parallel)
