"""The pilot of a task of the league: at which ε something can be learned in it.

What trains is imported where it is needed, because studies are planned without torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from clipnoise.run.spec import RunSpec
from clipnoise.studies.study import Study
from clipnoise.studies.tracks import planned_track

SEED = 9001  # nothing else uses it
TRIALS = 6  # of each method, the first ones of its search
ENOUGH, SPLITS = 500, (1, 2, 3, 4)  # with fewer validation examples, the seeds of other splits
ERRORS = 1.96  # standard errors by which the majority class must be exceeded


@dataclass(frozen=True)
class MajorityClass:
    """What predicting the class that is most frequent in training gives on validation examples.

    Attributes:
        examples: how many there are, over all splits.
        splits: how many splits they are of.
        accuracy: the share of them that have this class.
    """

    examples: int
    splits: int
    accuracy: float

    def errors_above(self, accuracy: float) -> float:
        """Return by how many standard errors an accuracy exceeds it."""
        p = self.accuracy
        return (accuracy - p) / math.sqrt(max(p * (1 - p), 1e-12) / self.examples)


@dataclass(frozen=True)
class Best:
    """The best of the first trials of a method.

    Attributes:
        method: its id.
        epsilon: of its budget; None for a method without one.
        accuracy: on validation examples, the mean over splits.
    """

    method: str
    epsilon: float | None
    accuracy: float


def majority(task: Study, cache: Path) -> MajorityClass:
    """Return what the majority class of a task of the league gives.

    Args:
        task: its study.
        cache: the folder of prepared datasets.

    Raises:
        UserError: the dataset is not prepared.
    """
    from clipnoise.run.setup import load_data

    found = []
    spec = next(iter(_trials(task).values()))[0]
    for one in _on_splits(spec, _split_seeds(spec, cache)):
        data = load_data(one, cache)
        train_targets, targets = (
            part.targets[slice(None)].flatten() for part in (data.train, data.validation)
        )
        found.append((targets == train_targets.mode().values).float().mean().item())
    return MajorityClass(len(targets) * len(found), len(found), statistics.mean(found))


def piloted(task: Study, cache: Path, weights: Path) -> Iterator[Best]:
    """Train the first trials of the track's baseline at each ε, and of a method without privacy.

    That is DP-SGD and SGD, or what stands for them. The best of each is yielded, SGD's first.
    They are measured on all parts of the data; what is yielded is of validation examples alone.

    Args:
        task: its study.
        cache, weights: the folders of prepared datasets and pretrained weights.

    Raises:
        UserError: the dataset is not prepared.
    """
    from clipnoise.privacy.calibration import calibrate
    from clipnoise.run.train import train

    searched = _trials(task)
    seeds = _split_seeds(next(iter(searched.values()))[0], cache)
    for (method, epsilon), trials in searched.items():
        budget = trials[0].budget
        calibration = None if budget is None else calibrate(budget)
        means = []
        for spec in trials:
            outcomes = [
                train(one, cache=cache, weights=weights, calibration=calibration)
                for one in _on_splits(replace(spec, seed=SEED), seeds)
            ]
            means.append(
                statistics.mean(
                    outcome.metrics[-1].validation_accuracy if outcome.status == "completed" else 0
                    for outcome in outcomes
                )
            )
        yield Best(method, epsilon, max(means))


def _trials(task: Study) -> dict[tuple[str, float | None], list[RunSpec]]:
    """Return the first trials of each method and ε, from its first search."""
    free = next(run.label for run in task.runs if run.spec.privacy is None)
    tried = (free, planned_track(task.panels.values()).baseline)
    found: dict[tuple[str, float | None], list[RunSpec]] = {}
    for run in task.runs:
        spec = run.spec
        epsilon = None if spec.privacy is None else spec.privacy.epsilon
        if run.label in tried and spec.tuning is not None:
            configurations = task.searches[spec.tuning.key].configurations
            found.setdefault((run.label, epsilon), [one[0] for one in configurations[:TRIALS]])
    return dict(sorted(found.items(), key=lambda item: item[0][1] or 0))


def _split_seeds(spec: RunSpec, cache: Path) -> tuple[int, ...]:
    """Return the seed of a run's own split, or those of four others where that is too small.

    A dataset with one split only keeps it, such as e-mails, which are split by their senders.
    """
    from clipnoise.run.setup import load_data

    if len(load_data(spec, cache).validation) < ENOUGH:
        first, second = (
            load_data(one, cache).validation.targets[slice(None)].flatten().tolist()
            for one in _on_splits(spec, SPLITS[:2])
        )
        if first != second:
            return SPLITS
    return (spec.dataset.split_seed,)


def _on_splits(spec: RunSpec, seeds: tuple[int, ...]) -> list[RunSpec]:
    return [replace(spec, dataset=replace(spec.dataset, split_seed=seed)) for seed in seeds]
