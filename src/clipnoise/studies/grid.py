"""The grid of a panel: its runs, and the runs that tune them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.methods.registry import example, method_class
from clipnoise.run.spec import TRAINING, RunSpec, from_mapping
from clipnoise.studies.file import Panel
from clipnoise.studies.scale import Scale
from clipnoise.studies.tuning import AXES, Search, Tune


@dataclass(frozen=True)
class PlannedRun:
    """A run as a study sees it.

    Attributes:
        spec: what is run; at a smaller scale other data may stand in for what the study names.
        panel: the panel of the study it belongs to.
        label: what the study calls the method.
        dataset: what the study calls the dataset.
        model: what the study calls the model.
        tune: what of it is tuned, and how; None if nothing is.
    """

    spec: RunSpec
    panel: str
    label: str
    dataset: str
    model: str
    tune: Tune | None = None


@dataclass(frozen=True)
class Setting:
    """Everything about a run except its seed and what is tuned."""

    number: int
    dataset: Mapping[str, Any]
    model: Mapping[str, Any]
    epsilon: float | None
    values: Mapping[str, Any]
    label: str
    tune: Tune | None
    where: str

    def shares(self, other: Setting, axes: tuple[str, ...]) -> bool:
        """Return whether both belong to one method of a panel and agree on some axes."""
        return self.number == other.number and all(
            getattr(self, axis) == getattr(other, axis) for axis in axes
        )


class PanelGrid:
    """The runs of one panel at one scale.

    Attributes:
        runs: what the report shows, in the order of the file.
        searches: the searches that tune them, by key.
    """

    def __init__(self, name: str, panel: Panel, scale: Scale, path: Path) -> None:
        self._name, self._panel, self._scale, self._path = name, panel, scale, path
        self._privacy = {**panel.privacy, **scale.privacy}
        self._settings = tuple(self._expanded())
        self.searches: dict[str, Search] = {}
        self.runs = tuple(self._planned())

    def _expanded(self) -> Iterator[Setting]:
        panel = self._panel
        for dataset in map(_mapping, panel.datasets):
            for model in map(_mapping, panel.models):
                for number, method in enumerate(map(_mapping, panel.methods)):
                    where = f"panels.{self._name}.methods.{number}"
                    method = {**panel.hyperparameters.get(method.get("id", ""), {}), **method}
                    for epsilon in self._epsilons(method, where):
                        place = {"dataset": dataset, "model": model, "epsilon": epsilon}
                        values, label = _resolve(method, place, f"{self._path}: {where}")
                        tune = self._tune(values.pop("tune", None), where)
                        yield Setting(number, dataset, model, epsilon, values, label, tune, where)

    def _epsilons(self, method: Mapping[str, Any], where: str) -> tuple[float | None, ...]:
        """Return the target ε of a method; (None,) if its budget is not a target ε."""
        if "id" not in method:
            raise UserError(f"{self._path}: {where}.id: required, but not given.")
        if not example(method_class(method["id"], file=str(self._path))).query.draws:
            return (None,)
        if "noise_multiplier" in self._privacy:
            return (None,)
        if not self._panel.epsilons:
            raise UserError(
                f"{self._path}: {where}: a method that adds noise needs `epsilons` in its panel."
            )
        return self._scale.kept_epsilons(self._panel.epsilons)

    def _tune(self, values: Any, where: str) -> Tune | None:
        if values is None:
            return None
        if isinstance(values, Mapping):
            values = {**self._panel.tuning, **values}
        tune = parse(Tune, values, file=str(self._path), key=f"{where}.tune")
        both = sorted(set(tune.seeds) & set(self._panel.seeds))
        if both:
            raise UserError(
                f"{self._path}: {where}.tune.seeds: {', '.join(map(str, both))} are also reported. "
                "Tune on seeds other than those of the panel."
            )
        return tune

    def _planned(self) -> Iterator[PlannedRun]:
        searches: dict[tuple[Any, ...], Search] = {}
        for setting in self._settings:
            spec = self._spec(setting, {})
            if setting.tune is not None:
                axes = (str(getattr(setting, axis)) for axis in setting.tune.per)
                place = (setting.number, *axes)
                if place not in searches:
                    searches[place] = self._search(setting, setting.tune)
                search = searches[place]
                self.searches[search.key] = search
                spec = replace(spec, tuning=search.tuning)
            for seed in self._panel.seeds[: self._scale.seeds]:
                names = (called(setting.dataset), called(setting.model))
                seeded = replace(spec, seed=seed)
                yield PlannedRun(seeded, self._name, setting.label, *names, setting.tune)

    def _spec(self, setting: Setting, configuration: Mapping[str, Any]) -> RunSpec:
        """Return the run of a setting with one configuration of what is tuned."""
        if setting.tune is not None and not configuration:
            configuration = setting.tune.configurations(1)[0]
        method = {name: value for name, value in configuration.items() if name not in TRAINING}
        training = {name: value for name, value in configuration.items() if name in TRAINING}
        if "epochs" in training or "steps" in training:  # instead of those of the panel
            training = {"epochs": None, "steps": None, **training}
        kind, privacy = method_class(setting.values["id"]), dict(self._privacy)
        if setting.epsilon is not None:
            privacy["epsilon"] = setting.epsilon
        values = {
            "dataset": self._scale.dataset(_options(setting.dataset), called(setting.dataset)),
            "model": self._scale.model(_options(setting.model), called(setting.model)),
            "method": self._scale.method({**setting.values, **method}, setting.label),
            "privacy": privacy if example(kind).query.draws else None,
            "training": self._scale.batches({**self._panel.training, **training}),
            "seed": self._panel.seeds[0],
        }
        file = f"{self._path} ({setting.where})"
        spec = from_mapping(values, file=file)
        if self._panel.public is not None and spec.method.uses_public_data():
            public = _mapping(self._panel.public)
            other = self._scale.dataset(public, called(public))
            spec = from_mapping({**values, "public": other}, file=file)
        return self._scale.shortened(spec)

    def _search(self, setting: Setting, tune: Tune) -> Search:
        """Plan the runs that tune a setting, and the settings that share its choice.

        They have no diagnostics, so that studies with and without diagnostics share them.
        """
        sharing = [other for other in self._settings if other.shares(setting, tune.per)]
        if any(other.tune != tune for other in sharing):
            raise UserError(
                f"{self._path}: {setting.where}.tune: settings that share a choice must share "
                "what is tuned. Name the axis of the override in `per`."
            )
        configurations = tuple(
            tuple(
                replace(spec, seed=seed, training=replace(spec.training, diagnostics=False))
                for spec in (self._spec(other, values) for other in sharing)
                for seed in tune.seeds[: self._scale.tuning_seeds]
            )
            for values in tune.configurations(self._scale.configurations)
        )
        # Limits of a scale can make two configurations one. They may also put steps for epochs.
        different = {tuple(spec.hash for spec in specs): specs for specs in configurations}
        length = ("steps",) if "epochs" in tune.grid else ()
        return Search((*tune.grid, *length), tune.metric, tuple(different.values()))


def called(values: Mapping[str, Any]) -> str:
    """Return the name of a dataset or model in a study: its label, or else its id."""
    return str(values.get("label", values.get("id")))


def _mapping(values: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"id": values} if isinstance(values, str) else values


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "label"}


def _resolve(
    method: Mapping[str, Any], place: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], str]:
    """Apply the overrides that match, in order, and separate the label."""
    values = {k: v for k, v in method.items() if k not in ("label", "overrides")}
    overrides = method.get("overrides", [])
    if not isinstance(overrides, list) or not all(isinstance(item, Mapping) for item in overrides):
        raise UserError(f"{where}.overrides: expected a list of mappings, got {overrides!r}.")
    for override in overrides:
        matches = {k: v for k, v in override.items() if k in AXES}
        if all(v in _names(place[k]) for k, v in matches.items()):
            values.update({k: v for k, v in override.items() if k not in AXES})
    return values, str(method.get("label", method["id"]))


def _names(value: Any) -> tuple[Any, ...]:
    """Return the names by which an override may match a dataset, a model or an ε."""
    return (value["id"], called(value)) if isinstance(value, Mapping) else (value,)
