"""Job groups: the runs that one job trains, so that it starts and imports torch once for all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from clipnoise.run.spec import RunSpec, to_mapping
from clipnoise.studies.config import Resources

MOST_CHARACTERS = 96_000  # of the specs of a job; Linux limits one argument to 128 KiB


@dataclass(frozen=True)
class JobGroup:
    """The runs of one job, which starts and imports torch once for all of them.

    All of them ask for the same share of a GPU.

    Attributes:
        runs: in the order in which they start.
        parallel: how many train at the same time.
        alone: whether every run of its study has a job to itself.
    """

    runs: tuple[RunSpec, ...]
    parallel: int
    alone: bool = False

    @cached_property
    def key(self) -> str:
        """The name of the group: 12 hex digits that follow from its runs alone."""
        return hashlib.sha256(" ".join(run.hash for run in self.runs).encode()).hexdigest()[:12]

    @property
    def rounds(self) -> int:
        """How many runs follow one another."""
        return -(-len(self.runs) // self.parallel)


def group_runs(runs: Iterable[RunSpec], resources: Resources) -> Iterator[JobGroup]:
    """Form job groups; the same runs in the same order always give the same groups.

    Args:
        runs: one that comes twice counts once.
        resources: how many runs one job trains, and how many share its GPU.
    """
    distinct = {run.hash: run for run in runs}
    several = resources.runs_in_a_job(len(distinct))
    alike: dict[tuple[str, int, bool], list[RunSpec]] = {}
    for run in distinct.values():
        model = run.model.id
        kind = (resources.gres(model), resources.at_once(model), run.tuning is None)
        alike.setdefault(kind, []).append(run)
    for (_, parallel, _), members in alike.items():
        size = max(several, parallel)
        if size > 1:
            size = min(size, _most(members))
        for start in range(0, len(members), size):
            group = tuple(members[start : start + size])
            yield JobGroup(group, min(parallel, len(group)), alone=size == 1)


def _most(runs: Iterable[RunSpec]) -> int:
    """Return how many runs fit into one argument of a command line, by the longest among them."""
    kinds = {(run.dataset.invocation, run.method.id): run for run in runs}
    longest = max(len(json.dumps(to_mapping(run))) for run in kinds.values())
    return max(1, MOST_CHARACTERS // longest)
