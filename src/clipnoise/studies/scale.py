"""Scales: how a study is made smaller, and the watermark that its reports then carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from clipnoise.data.base import Dataset, dataset_class
from clipnoise.fields import STRICT, Count, Natural, parse
from clipnoise.files import read_yaml
from clipnoise.models.base import Model, model_class
from clipnoise.run.spec import RunSpec
from clipnoise.studies.entry import PanelEntry

T = TypeVar("T")
L = TypeVar("L", bound="Scale | Limits")

PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits of what a run trains; None leaves the values of the study."""

    __pydantic_config__: ClassVar = STRICT

    steps: Natural | None = None
    expected_batch_size: Count | None = None
    physical_batch_size: Count | None = None
    evaluations: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How a study is made smaller. Every method is kept at every scale.

    Attributes:
        watermark: text on every page, and in every figure or table by itself; empty for none.
        epsilons: how many ε of a panel are kept: evenly spaced, including the first and the last.
        seeds: how many seeds are kept, the first ones.
        configurations: how many configurations are tuned over, the first ones.
        tuning_seeds: how many seeds of tuning are kept, the first ones.
        training: upper limits of what a run trains.
        privacy: values that replace those of the study's privacy section.
        datasets: stand-ins by the label or id of a dataset: another id with options, or options
            alone. Options of the study are kept if the stand-in has them, too.
        models: the same for models.
        methods: options that are added to those of a method, by its label or id.
    """

    __pydantic_config__: ClassVar = STRICT

    watermark: str = ""
    epsilons: Count | None = None
    seeds: Count | None = None
    configurations: Count | None = None
    tuning_seeds: Count | None = None
    training: Limits = Limits()
    privacy: dict[str, object] = field(default_factory=dict)
    datasets: dict[str, PanelEntry] = field(default_factory=dict)
    models: dict[str, PanelEntry] = field(default_factory=dict)
    methods: dict[str, dict[str, object]] = field(default_factory=dict)

    def kept_epsilons(self, epsilons: Sequence[T]) -> tuple[T, ...]:
        """Return the ε that are kept, evenly spaced."""
        count = min(self.epsilons or len(epsilons), len(epsilons))
        last = len(epsilons) - 1
        return tuple(epsilons[round(i * last / max(1, count - 1))] for i in range(count))

    def dataset(self, named: PanelEntry) -> PanelEntry:
        """Return the dataset that a run loads for the one that a study names."""
        return _stand_in(self.datasets, named, dataset_class)

    def model(self, named: PanelEntry) -> PanelEntry:
        """Return the model that a run trains for the one that a study names."""
        return _stand_in(self.models, named, model_class)

    def method(self, values: Mapping[str, object], label: str) -> dict[str, object]:
        """Return a method's id and options."""
        return {**values, **self.methods.get(label, self.methods.get(str(values["id"]), {}))}

    def batches(self, training: Mapping[str, object]) -> dict[str, object]:
        """Return a training section with batch sizes and evaluations within the limits.

        `shortened` limits the number of steps, which is known only when n is.
        """
        values = dict(training)
        for name in ("expected_batch_size", "physical_batch_size", "evaluations"):
            limit = getattr(self.training, name)
            if limit is not None:
                given = values.get(name)
                values[name] = min(given, limit) if isinstance(given, int) else limit
        return values

    def shortened(self, spec: RunSpec) -> RunSpec:
        """Return a run with at most the allowed number of steps."""
        limit = self.training.steps
        if limit is None or spec.steps <= limit:
            return spec
        return replace(spec, training=replace(spec.training, epochs=None, steps=limit))


@dataclass(frozen=True, kw_only=True)
class ScaleFile(Scale):
    """A scale as its file gives it, with values that no study has of its own.

    Attributes:
        reproductions: settings that replace those of an experiment without a dataset, by its
            name. An experiment that is not listed keeps its published size and has no watermark.
    """

    reproductions: dict[str, dict[str, object]] = field(default_factory=dict)


def read_scale(path: Path | None) -> ScaleFile:
    """Read a scale file; None gives the paper's own scale, which changes nothing.

    Raises:
        UserError: names file, key, value, what is allowed and the nearest valid name.
    """
    return ScaleFile() if path is None else parse(ScaleFile, read_yaml(path), file=str(path))


def extended(common: L, own: Scale | Limits) -> L:
    """Return a scale, or its limits, with the values of a study's own, which take precedence.

    Mappings are merged key by key; other values replace those of the scale if they are set.
    """
    each = ((one.name, getattr(common, one.name), getattr(own, one.name)) for one in fields(own))
    return replace(common, **{name: _both(before, after) for name, before, after in each})


def _both(before: Any, after: Any) -> Any:
    if isinstance(before, Limits):
        return extended(before, after)
    if isinstance(before, dict):
        return {**before, **after}
    return before if after in (None, "") else after


def _stand_in(
    rules: Mapping[str, PanelEntry], named: PanelEntry, find: Callable[[str], type[Dataset | Model]]
) -> PanelEntry:
    rule, kept = rules.get(named.label, rules.get(named.id)), named.given
    if rule is None:
        return named
    if rule.id:
        known = {one.name for one in fields(find(rule.id))}
        kept = {key: value for key, value in kept.items() if key in known}
    return PanelEntry({**kept, **rule.values})
