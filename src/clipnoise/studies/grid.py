"""The grid of a panel: its runs, and the runs that tune them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from clipnoise.core.method import Method
from clipnoise.data.base import Dataset
from clipnoise.data.measures import ACCURACY, LOSS, column_of, default_metric, require_metric
from clipnoise.errors import UserError, nearest, shorten, unknown
from clipnoise.fields import parse, to_plain
from clipnoise.methods.base import example, method_class, methods
from clipnoise.models.base import Model
from clipnoise.plugins import plugins
from clipnoise.privacy.trials import DrawnTrials
from clipnoise.run.spec import TRAINING, RunSpec, from_mapping
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.file import Panel
from clipnoise.studies.scale import Scale
from clipnoise.studies.tuning import AXES, Search, Tune

OF_ALL = ("id", "label")  # keys of every entry, beside the options of its class
OF_METHODS = (*OF_ALL, "tune", "overrides")
TUNE = tuple(one.name for one in fields(Tune))
NOT_OVERRIDDEN = ("id", "label", "sweep", "overrides")  # what makes a method another entry


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
        search: which of the repeated searches chose for it, from 1; None where none is repeated.
        rank_by: the metric that it is compared by; empty takes accuracy, or loss without one.
    """

    spec: RunSpec
    panel: str
    label: str
    dataset: str
    model: str
    tune: Tune | None = None
    search: int | None = None
    rank_by: str = ""

    @property
    def ranked_by(self) -> str:
        """The metric that it is compared by."""
        return self.rank_by or default_metric(self.spec.dataset.signature.task_name)

    @property
    def name(self) -> str:
        """What the study calls the run."""
        budget = self.spec.budget_label.replace("eps", "ε").replace("sigma", "σ")
        return f"{self.dataset}, {self.model}, {self.label}, {budget}, seed {self.spec.seed}"


@dataclass(frozen=True)
class Setting:
    """Everything about a run except its seed and what is tuned."""

    number: int
    dataset: PanelEntry
    model: PanelEntry
    epsilon: float | None
    values: Mapping[str, object]
    label: str
    tune: Tune | None
    places: Mapping[str, str]

    def shares(self, other: Setting, axes: tuple[str, ...]) -> bool:
        """Return whether both belong to one method of a panel and agree on some axes."""
        return self.number == other.number and all(
            getattr(self, axis) == getattr(other, axis) for axis in axes
        )


@dataclass(frozen=True)
class PanelGrid:
    """A panel with one option of each axis, and its runs at one scale.

    The runs are planned when they are first asked for.

    Attributes:
        name: the name in the study file, then the suffixes of the options.
        family: the name in the study file.
        options: axis → the label of the option.
        titles: what `{panel}` and `{AXIS}` stand for in titles.
        panel: what it crosses.
        scale: how much smaller it is made.
        path: the study file, for error messages.
        entries: the key of the entry that each method comes from; those of a sweep share one.
    """

    name: str
    family: str
    options: Mapping[str, str]
    titles: Mapping[str, str]
    panel: Panel
    scale: Scale
    path: Path
    entries: tuple[str, ...]

    @property
    def title(self) -> str:
        """What tells the panel apart from all others in words: its title and those of options."""
        return ", ".join(self.titles.values())

    @property
    def tunes(self) -> dict[str, Tune]:
        """What each tuned method is tuned in, by its label; no run is planned for it."""
        return {one.label: one.tune for one in self._settings if one.tune}

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """What the report shows, in the order of the file."""
        return self._planned[0]

    @property
    def searches(self) -> dict[str, Search]:
        """The searches that tune these runs, by key."""
        return self._planned[1]

    @property
    def seeds(self) -> set[int]:
        """The seeds of all of its runs, those of searches among them."""
        searched = (spec for search in self.searches.values() for spec in search.runs)
        return {spec.seed for spec in (*(run.spec for run in self.runs), *searched)}

    @property
    def _privacy(self) -> dict[str, object]:
        return {**self.panel.privacy, **self.scale.privacy}

    @cached_property
    def _settings(self) -> tuple[Setting, ...]:
        panel, key = self.panel, f"panels.{self.name}"
        for method in panel.hyperparameters:
            self._method(method, f"{key}.hyperparameters")
        for name in panel.tuning:
            if name not in TUNE:
                raise self._unknown(f"{key}.tuning.{name}", TUNE)
        for number, entry in enumerate(panel.each_method):
            where = self.entries[number]
            if entry.label != entry.id and entry.label in methods():
                raise UserError(
                    f"{self.path}: {where}.label: {entry.label} is the id of another method, for "
                    f"which a reader would take this {entry.id}."
                )
            self._require_known(entry, self._method(entry.id, f"{where}.id"), where, OF_METHODS)
        for name, kinds in (
            ("datasets", plugins("clipnoise.data", Dataset)),
            ("models", plugins("clipnoise.models", Model)),
        ):
            for number, entry in enumerate(getattr(panel, name)):
                if entry.id in kinds:  # otherwise each run says so
                    self._require_known(entry, kinds[entry.id], f"{key}.{name}.{number}", OF_ALL)
        return tuple(self._expanded())

    def _require_known(
        self, entry: PanelEntry, kind: type[Any], where: str, more: Sequence[str]
    ) -> None:
        """Refuse a key of an entry that is no option of its class, and none of the entry itself."""
        known = [*(one.name for one in fields(kind)), *more]
        for name in entry.values:
            if name not in known:
                raise self._unknown(f"{where}.{name}", known)

    def _unknown(self, key: str, known: Sequence[str]) -> UserError:
        name = key.rpartition(".")[2]
        return UserError(
            f"{self.path}: {key}: unknown key.{nearest(name, known)} Allowed: {', '.join(known)}."
        )

    def _expanded(self) -> Iterator[Setting]:
        panel, key = self.panel, f"panels.{self.name}"
        for i, dataset in enumerate(panel.datasets):
            for j, model in enumerate(panel.models):
                for number, method in enumerate(panel.each_method):
                    where = self.entries[number]
                    places = {name: f"{key}.{name}" for name in ("training", "privacy", "public")}
                    places["metrics"] = f"{key}.metrics"
                    places |= {"dataset": f"{key}.datasets.{i}", "model": f"{key}.models.{j}"}
                    places |= {"method": where}
                    for epsilon in self._epsilons(method, where):
                        names = {
                            "dataset": (dataset.id, dataset.label),
                            "model": (model.id, model.label),
                            "epsilon": (epsilon,),
                        }
                        values = self._resolve(method, names, where)
                        tune = self._tune(values.pop("tune", None), where)
                        if tune is not None:
                            self._refuse_both(panel.methods[number], tune, names, where)
                        label = method.label
                        yield Setting(number, dataset, model, epsilon, values, label, tune, places)

    def _epsilons(self, method: PanelEntry, where: str) -> tuple[float | None, ...]:
        """Return the target ε of a method; (None,) if its budget is not a target ε."""
        kind = self._method(method.id, f"{where}.id")
        if not example(kind).query.draws:
            return (None,)
        if "noise_multiplier" in self._privacy:
            if self.panel.epsilons:
                raise UserError(
                    f"{self.path}: panels.{self.name}.epsilons: privacy.noise_multiplier is given, "
                    "too. Give one of them: σ, or the ε from which it follows."
                )
            return (None,)
        if not self.panel.epsilons:
            raise UserError(
                f"{self.path}: {where}: a method that adds noise needs `epsilons` in its panel."
            )
        return self.scale.kept_epsilons(self.panel.epsilons)

    def _method(self, name: str, key: str) -> type[Method]:
        if not name:
            raise UserError(f"{self.path}: {key}: required, but not given.")
        return method_class(name, file=str(self.path), key=key)

    def _resolve(
        self, method: PanelEntry, names: Mapping[str, Sequence[object]], where: str
    ) -> dict[str, object]:
        """Apply the overrides that match, in order.

        Args:
            method: the method.
            names: axis → what the place there is called.
            where: its key, for error messages.
        """
        values = method.given
        overrides = values.pop("overrides", [])
        if not isinstance(overrides, list) or not all(isinstance(o, Mapping) for o in overrides):
            raise UserError(
                f"{self.path}: {where}.overrides: expected a list of mappings, got {overrides!r}."
            )
        for number, override in enumerate(overrides):
            matches = _axes_of(override)
            for fixed in [name for name in NOT_OVERRIDDEN if name in override]:
                raise UserError(
                    f"{self.path}: {where}.overrides.{number}.{fixed}: an override changes "
                    "hyper-parameters of its method; give another method an entry of its own."
                )
            if not matches:
                hints = (nearest(name, AXES) for name in override)
                raise UserError(
                    f"{self.path}: {where}.overrides.{number}: names none of {', '.join(AXES)}, so "
                    "it would hold everywhere. Give the value to the method itself."
                    f"{next(filter(None, hints), '')}"
                )
            self._require_match(matches, f"{where}.overrides.{number}")
            if len(matches) == len(override):
                raise UserError(f"{self.path}: {where}.overrides.{number}: gives no value.")
            if _matches(override, names):
                values |= {k: v for k, v in override.items() if k not in AXES}
        return values

    def _require_match(self, matches: Mapping[str, object], where: str) -> None:
        """Refuse an override that matches nothing in the panel, at any scale."""
        values: dict[str, list[object]] = {
            "dataset": [name for one in self.panel.datasets for name in (one.id, one.label)],
            "model": [name for one in self.panel.models for name in (one.id, one.label)],
            "epsilon": list(self.panel.epsilons or ()),
        }
        for axis, value in matches.items():
            if value not in values[axis]:
                names = {f"{x:g}" if axis == "epsilon" else str(x) for x in values[axis]}
                kind, key = f"{axis} of this panel", f"{where}.{axis}"
                raise unknown(kind, str(value), names, file=str(self.path), key=key)

    def _tune(self, values: object, where: str) -> Tune | None:
        if values is None:
            return None
        if isinstance(values, Mapping):
            values = {**self.panel.tuning, **values}
        tune = parse(Tune, values, file=str(self.path), key=f"{where}.tune")
        both = sorted(set(tune.seeds) & set(self.panel.seeds))
        if both:
            raise UserError(
                f"{self.path}: {where}.tune.seeds: {', '.join(map(str, both))} are also reported. "
                "Tune on seeds other than those of the panel."
            )
        try:
            tune.require_dealt(self.panel.seeds, "seeds")
        except ValueError as error:
            raise UserError(f"{self.path}: panels.{self.name}.{error}.") from None
        return tune

    def _refuse_both(
        self, method: PanelEntry, tune: Tune, names: Mapping[str, Sequence[object]], where: str
    ) -> None:
        """Refuse a value of an entry that the entry tunes; values that it shares are replaced.

        Args:
            method: the entry.
            tune: what it tunes at a place.
            names: axis → what the place is called.
            where: the entry's key, for error messages.
        """
        overrides = cast("list[Mapping[str, object]]", method.values.get("overrides", []))
        given = {where: method.values}
        for number, override in enumerate(overrides):
            if _matches(override, names):
                given[f"{where}.overrides.{number}"] = override
        for key, values in given.items():
            for name in tune.parameters:
                if name in values:
                    raise UserError(
                        f"{self.path}: {key}.{name}: is tuned, too, so that "
                        f"{shorten(values[name])} would be ignored. Give one of them."
                    )

    @cached_property
    def _planned(self) -> tuple[tuple[PlannedRun, ...], dict[str, Search]]:
        """The runs that are shown, and the searches by key."""
        searches: dict[str, Search] = {}
        return tuple(self._plan(searches)), searches

    def _plan(self, by_key: dict[str, Search]) -> Iterator[PlannedRun]:
        """Yield the runs that are shown, and fill in the searches that tune them."""
        searches: dict[tuple[object, ...], Search] = {}
        for setting in self._settings:
            spec, tune = self._spec(setting, {}), setting.tune
            self._check_rank(spec)
            labels = setting.label, setting.dataset.label, setting.model.label
            for number, seeds in enumerate(self._dealt(tune)):
                if tune is not None:
                    axes = (str(getattr(setting, axis)) for axis in tune.per)
                    place = (setting.number, number, *axes)
                    if place not in searches:
                        searches[place] = self._search(setting, tune, number)
                    search = searches[place]
                    by_key[search.key] = search
                    spec = replace(spec, tuning=search.tuning)
                which = number + 1 if tune is not None and (tune.searches or 1) > 1 else None
                for seed in seeds:
                    run = spec.at_seed(seed)
                    yield PlannedRun(run, self.name, *labels, tune, which, self.panel.rank_by)

    def _dealt(self, tune: Tune | None) -> Iterator[tuple[int, ...]]:
        """Yield the seeds that are reported of each search; of no search all of them."""
        every, repeated = self.panel.seeds, 1 if tune is None else tune.searches or 1
        kept, each = every[: self.scale.seeds], len(every) // repeated
        for start in range(0, len(kept), each):
            yield kept[start : start + each]

    def _spec(
        self, setting: Setting, configuration: Mapping[str, object], *, chooses_by: str = ""
    ) -> RunSpec:
        """Return the run of a setting with one configuration of what is tuned, at the first seed.

        A run that tunes has no diagnostics, keeps no bits of test examples, and has no further
        metric than the one that it chooses by,
        so that studies with and without them share it.
        """
        seeds = self.panel.seeds
        if setting.tune is not None and not configuration:
            configuration = setting.tune.configurations(1)[0]
        method = {name: value for name, value in configuration.items() if name not in TRAINING}
        training = {name: value for name, value in configuration.items() if name in TRAINING}
        if "epochs" in training or "steps" in training:  # instead of those of the panel
            training = {"epochs": None, "steps": None, **training}
        if chooses_by:
            training |= {"diagnostics": False, "correctness": False}
            seeds = seeds if setting.tune is None else setting.tune.seeds
        dataset = self.scale.dataset(setting.dataset)
        training = {**self.panel.training, **training}
        if dataset.id != setting.dataset.id:  # a stand-in, whose classes are others
            training.pop("class_weights", None)
        values = {
            "dataset": dataset.given,
            "model": self.scale.model(setting.model).given,
            "method": self.scale.method({**setting.values, **method}, setting.label),
            "privacy": self._privacy_of(setting),
            "training": self.scale.batches(training),
            "seed": seeds[0],
            "metrics": [chooses_by] if chooses_by else list(self.panel.metrics),
        }
        public = self.panel.public
        offered = None if public is None else self.scale.dataset(public).given
        file, places = str(self.path), setting.places
        spec = from_mapping(values, file=file, places=places, offered=offered)
        if self.scale == Scale():
            self._require_a_step(spec, f"{places['training']}.epochs")
        return self.scale.shortened(spec)

    def _require_a_step(self, spec: RunSpec, key: str) -> None:
        """Refuse epochs of less than half a step, which would be trained as one step."""
        count, training = spec.unit.count, spec.training
        if training.epochs and training.epochs * count / training.expected_batch_size < 0.5:
            raise UserError(
                f"{self.path}: {key}: {training.epochs:g} epochs of {count:,} with expected "
                f"batches of {training.expected_batch_size:,} are no step: "
                f"{training.expected_batch_size / count:.3g} epochs are one."
            )

    def _privacy_of(self, setting: Setting) -> dict[str, object] | None:
        """Return the section `privacy` of a setting's runs; None of a method without noise.

        Raises:
            UserError: σ would cover a search by another law of the number of trials than `tune`'s.
        """
        if not example(methods()[str(setting.values["id"])]).query.draws:
            return None
        privacy, tune = self._privacy, setting.tune
        if setting.epsilon is not None:
            privacy["epsilon"] = setting.epsilon
        if tune is None:
            return privacy
        if privacy.get("trials") is not None:
            file, key = str(self.path), f"{setting.places['privacy']}.trials"
            given = parse(DrawnTrials, privacy["trials"], file=file, key=key)
            if given != tune.law:
                declared = tune.law or f"a fixed number, {len(tune.configurations())}"
                raise UserError(
                    f"{file}: {key}: {given}, but {setting.places['method']}.tune.trials is "
                    f"{declared}, and the ε of the search could exceed its target. Allowed: the "
                    "law of `tune`, or none; `charge: included` in `tune` sets it."
                )
        if tune.included is not None:
            privacy["trials"] = to_plain(tune.included)
        return privacy

    def _check_rank(self, spec: RunSpec) -> None:
        """Refuse to rank by what the runs do not measure."""
        if self.panel.rank_by:
            task, allowed = spec.dataset.signature.task_name, (ACCURACY, LOSS, *spec.metrics)
            key = f"{self.path}: panels.{self.name}.rank_by"
            require_metric(self.panel.rank_by, task, key, allowed)

    def _search(self, setting: Setting, tune: Tune, search: int) -> Search:
        """Plan the runs of a search that tune a setting and those that share its choice."""
        sharing = [other for other in self._settings if other.shares(setting, tune.per)]
        if any(other.tune != tune for other in sharing):
            raise UserError(
                f"{self.path}: {setting.places['method']}.tune: settings that share a choice must "
                "share what is tuned. Name the axis of the override in `per`."
            )
        metric = self._chooses_by(setting, tune)
        tried = tune.configurations(self.scale.configurations, search)
        configurations = tuple(
            tuple(
                spec.at_seed(seed)
                for spec in (self._spec(other, values, chooses_by=metric) for other in sharing)
                for seed in tune.seeds_of(number, search)[: self.scale.tuning_seeds]
            )
            for number, values in enumerate(tried)
        )
        # Limits of a scale can make two configurations one. They may also put steps for epochs.
        different = {tuple(spec.hash for spec in specs): specs for specs in configurations}
        length = ("steps",) if "epochs" in tune.grid else ()
        by = column_of(metric, "validation")
        # A scale that tries fewer than were drawn leaves nothing that the law is of.
        whole = len(different) == len(tune.configurations(search=search))
        return Search(
            (*tune.parameters, *length),
            by,
            tuple(different.values()),
            law=tune.law if whole else None,
            each=tune.law is not None,
        )

    def _chooses_by(self, setting: Setting, tune: Tune) -> str:
        """Return the metric that a search chooses by: its own, or what the panel is ranked by."""
        task = self._spec(setting, {}).dataset.signature.task_name
        if tune.metric is None:
            return self.panel.rank_by or default_metric(task)
        name = tune.metric.removeprefix("validation_")
        require_metric(name, task, f"{self.path}: {setting.places['method']}.tune.metric")
        return name


def _axes_of(override: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in override.items() if name in AXES}


def _matches(override: Mapping[str, object], names: Mapping[str, Sequence[object]]) -> bool:
    """Return whether an override holds at a place.

    Args:
        override: as in a study.
        names: axis → what the place is called.
    """
    return all(value in names[axis] for axis, value in _axes_of(override).items())
