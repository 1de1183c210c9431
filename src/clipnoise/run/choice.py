"""Choices: the tuned settings that a search found, and what they were compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

from clipnoise.data.measures import ValidationMetric, higher_is_better
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Natural, parse, to_plain
from clipnoise.files import read_json
from clipnoise.run.procedure import Training
from clipnoise.run.spec import TRAINING, RunSpec


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One configuration of a search.

    Attributes:
        values: its tuned settings.
        mean: the mean of the metric over its runs; None if the configuration cannot win.
        n: completed runs with a finite metric.
        planned: runs of the configuration.
    """

    __pydantic_config__: ClassVar = {**STRICT, "extra": "ignore"}  # older files have more

    values: dict[str, object]
    mean: float | None
    n: Natural
    planned: Count


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Runs of a search that spent the same budget.

    Attributes:
        noise_multiplier: σ.
        sampling_rate: q.
        steps: T.
        runs: how many there are.
        claim: "guarantee" or "nominal".
        composable: whether releases are plain subsampled Gaussians, which compose in RDP.
    """

    __pydantic_config__: ClassVar = STRICT

    noise_multiplier: float
    sampling_rate: float
    steps: Natural
    runs: Count
    claim: str
    composable: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The outcome of a search.

    Attributes:
        metric: the configurations were compared by its mean over seeds.
        choice: the tuned settings of the best configuration.
        tried: every configuration, in the order of the grid.
        spent: the budgets of the private runs of the search.
        remark: what a reader should know; empty if nothing went wrong.
    """

    __pydantic_config__: ClassVar = STRICT

    metric: ValidationMetric
    choice: dict[str, object]
    tried: tuple[Tried, ...]
    spent: tuple[Spent, ...] = ()
    remark: str = ""

    @property
    def ranked(self) -> list[Tried]:
        """The configurations that could win, the best first; of equally good ones the first."""
        able = (one for one in self.tried if one.mean is not None)
        up = higher_is_better(self.metric.removeprefix("validation_"))
        return sorted(able, key=lambda one: one.mean or 0.0, reverse=up)

    @property
    def edges(self) -> list[str]:
        """The hyper-parameters whose choice is the smallest or the largest number tried.

        Of a schedule the peak is the number, beside those of schedules that are otherwise the same.
        """
        found = []
        for name, chosen in self.choice.items():
            options, number = _split(chosen)
            tried = [_split(one.values[name]) for one in self.tried]
            numbers = {one for like, one in tried if like == options and _is_number(one)}
            if len(numbers) > 1 and number in (min(numbers), max(numbers)):
                found.append(name)
        return found


def read_choice(path: Path) -> Choice:
    """Read the file that `clipnoise select` wrote.

    Raises:
        UserError: the file is missing or does not hold a choice.
    """
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. `clipnoise select` writes it.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}.") from None
    return parse(Choice, values, file=str(path))


def tuned_values(spec: Mapping[str, Any], names: Iterable[str]) -> dict[str, object]:
    """Return the values of tuned settings in a run.

    Args:
        spec: the run spec as plain data.
        names: hyper-parameters of its method, or keys of its training section.
    """
    return {name: spec["training" if name in TRAINING else "method"][name] for name in names}


def in_words(values: Mapping[str, object]) -> str:
    """Return tuned settings in words: `learning_rate linear from 0.3, clip_norm 1`."""
    given = {name: value for name, value in values.items() if value is not None}
    return ", ".join(f"{name} {_worded(value)}" for name, value in given.items())


def _worded(value: object) -> str:
    """Return a value in words; of a schedule its kind, its peak and the options that are not 0."""
    options, peak = _split(value)
    if not options:
        return str(value)
    named = [f"{name} {one}" for name, one in options.items() if name != "kind" and one]
    return f"{options['kind']} from {peak}" + (f" ({', '.join(named)})" if named else "")


def resolve(spec: RunSpec, choice: Choice) -> RunSpec:
    """Return a run with the settings that were chosen for it; its hash stays.

    Raises:
        UserError: the choice is of other settings than those that the run leaves open.
    """
    assert spec.tuning is not None
    if set(choice.choice) != set(spec.tuning.parameters):
        raise UserError(
            f"--choice: chooses {', '.join(choice.choice)}, but the run leaves "
            f"{', '.join(spec.tuning.parameters)} open."
        )
    method, training = to_plain(spec.method), to_plain(spec.training)
    for name, value in choice.choice.items():
        (training if name in TRAINING else method)[name] = value
    # Whether a trial ends early depends on losses on private examples, which no ε covers.
    law = spec.tuning.law if len(choice.ranked) == len(choice.tried) else None
    return replace(
        spec,
        method=parse(type(spec.method), method, file="--choice", key="choice"),
        training=parse(Training, training, file="--choice", key="choice"),
        tuning=replace(spec.tuning, chosen=True, law=law),
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and type(value) is not bool


def _split(value: object) -> tuple[dict[str, object], object]:
    """Return a schedule without its peak, and the peak; of anything else, nothing and itself."""
    if not isinstance(value, dict) or "peak" not in value:
        return {}, value
    return {name: one for name, one in value.items() if name != "peak"}, value["peak"]
