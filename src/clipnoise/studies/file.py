"""Study files: what their YAML may say, and how panels follow from it.

A panel is built up from grids, the later ones taking precedence: the bases that the defaults and it
name in the file shared by its folder, the defaults, itself, and one option of each of its axes.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, StringConstraints, model_validator

from clipnoise.core.schedule import each_candidate
from clipnoise.errors import UserError, shorten, unknown
from clipnoise.fields import STRICT, Count, Natural, Positive
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.items import ReportItem
from clipnoise.studies.moved import CLAIM_KEYS, refuse_moved
from clipnoise.studies.scale import Scale

CurveMetric = Literal["test_accuracy", "test_loss", "train_accuracy", "train_loss"]
ClaimMetric = (
    CurveMetric
    | Literal["largest_drop", "mean_test_accuracy"]  # of a curve
    | Annotated[str, StringConstraints(pattern=r"^[a-z_]+\.(min|q1|median|q3|max|mean)$")]
)
Range = tuple[float | None, float | None]  # null: without a bound
LONGEST_NAME = 120  # characters of a panel's name
SHARED_FILE = "shared.yaml"  # what the studies of its folder share


@dataclass(frozen=True, kw_only=True)
class PaperClaim:
    """What a paper says of its results, as a bound on the advantage of a method over others.

    The advantage is the difference of a metric, positive where the method is better.

    Attributes:
        text: what the paper says.
        source: where it says so.
        method: the label of a method, or the id of the only one that has it in a panel.
        than: methods that it is compared with; none bounds the metric itself.
        panels: every panel if none is named.
        only: axis → label of the option that is meant.
        than_panel: where `than` is, if elsewhere. A competitor at one budget only is compared at
            every budget.
        than_dataset: where `than` is, if on another dataset.
        datasets, models: where it is claimed; everywhere if none is named.
        epsilons: at which it is claimed; at all if none is named.
        metric: or a statistic of diagnostics, such as `v_private.median`. `largest_drop` is the
            largest fall of test accuracy between evaluations. By default test accuracy, or test
            loss.
        against: each of `than`, or the best at each place: with the best mean over seeds.
        between: the range `[low, high]` of the advantage that is claimed, with an end that may be
            null; `[0, null]` by default.
        about: the same, or one number; widened by a margin.
        within: the largest margin; by default half of each number in `about`.
        over: whether it is claimed of each dataset, model and budget, or of their mean.
        contradicted: which of the paper's own numbers contradict it.
    """

    __pydantic_config__: ClassVar = STRICT

    text: str
    source: str
    method: str
    than: tuple[str, ...] = ()
    panels: tuple[str, ...] = ()
    only: dict[str, str] = field(default_factory=dict)
    than_panel: str = ""
    than_dataset: str = ""
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    epsilons: tuple[Positive, ...] = ()
    metric: ClaimMetric | None = None
    against: Literal["each", "best"] = "each"
    between: Range | None = None
    about: float | Range | None = None
    within: Positive | None = None
    over: Literal["each", "mean"] = "each"
    contradicted: str = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse_moved(cls, values: Any) -> Any:
        return refuse_moved(values, CLAIM_KEYS, {})

    def __post_init__(self) -> None:
        if not self.than and (self.than_panel or self.than_dataset or self.against == "best"):
            raise ValueError("`than_panel`, `than_dataset` and `against` need `than`")
        if self.than_dataset and not self.datasets:
            raise ValueError("`than_dataset` needs `datasets`")
        if self.between == (None, None):
            raise ValueError("`between` needs at least one end")
        if not self.than and self.between is None and self.about is None:
            raise ValueError("a claim without `than` needs a bound")
        if self.about is None and self.within is not None:
            raise ValueError("`within` needs `about`")
        if self.about is not None and self.between is not None:
            raise ValueError("give at most one of `between` and `about`")
        if self.about is not None and 0 in self.bounds and self.within is None:
            raise ValueError("`about` 0 needs `within`")

    @property
    def bounds(self) -> tuple[float, float]:
        """What the paper states, without a margin; infinite ends are no bounds."""
        low, high = self.between or (0.0, None)
        if self.about is not None:
            low, high = self.about if isinstance(self.about, tuple) else (self.about, self.about)
        return -math.inf if low is None else low, math.inf if high is None else high

    def widened(self, margin: float) -> tuple[float, float]:
        """Return the interval that the advantage must lie in.

        Args:
            margin: what runs of the paper's spread resolve; infinite if the spread is unknown.
        """
        low, high = self.bounds
        if self.about is None:
            return low, high
        below, above = (
            min(margin, abs(end) / 2 if self.within is None else self.within) for end in (low, high)
        )
        return low - below, high + above


def _of_each(groups: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """Return values by method; a key may name several methods, and later values take precedence."""
    found: dict[str, dict[str, object]] = {}
    for names, values in groups.items():
        for name in names.split(", "):
            found[name] = {**found.get(name, {}), **values}
    return found


@dataclass(frozen=True, kw_only=True)
class Screened:
    """The rule by which methods pass from one panel of a study to another one.

    Attributes:
        panel: the panel that screens them.
        methods: how many private methods there are then: those that the panel has by itself, and
            the best of the other one.
    """

    __pydantic_config__: ClassVar = STRICT

    panel: str
    methods: Count


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One grid, whole or in part: datasets × models × methods × ε × seeds.

    Attributes:
        base: named values of the folder's `shared.yaml` to start from; later ones take precedence.
        title: what the report calls it; its name by default.
        suffix: what an option of an axis adds to the panel's name; its label by default.
        datasets, models: ids, or mappings with `id`, options and `label`.
        methods: ids, or mappings with `id`, hyper-parameters, `label`, `tune`, `overrides` (each
            applies where its `dataset`, `model` and `epsilon` match) and `sweep` (hyper-parameter →
            values, each of which makes a method; the label may hold the value).
        hyperparameters: values by method id, or by several, as in `dp-sgd, dp-adam`.
        epsilons: targets of the methods that add noise.
        seeds: one run each; a seed gives all methods the same initial weights and batches.
        training, privacy: see below.
        tuning: values that every `tune` starts from.
        public: the dataset with public examples; by default those that `public_examples` sets
            aside.
        metrics: what is measured beside loss and accuracy.
        rank_by: accuracy, loss or one of `metrics`, by which methods are compared.
        screened_by: `{panel: screen, methods: 12}` says by which panel its methods are chosen, as
            `clipnoise league confirm` does it, and how many they are. The panels share no seed.
        axes: axis → label → option, which may say what a panel may, but for a base and axes.
    """

    __pydantic_config__: ClassVar = STRICT

    base: str | tuple[str, ...] = ()
    title: str = ""
    suffix: str | None = None
    datasets: tuple[PanelEntry, ...] = ()
    models: tuple[PanelEntry, ...] = ()
    methods: tuple[PanelEntry, ...] = ()
    hyperparameters: Annotated[dict[str, dict[str, object]], AfterValidator(_of_each)] = field(
        default_factory=dict
    )
    epsilons: tuple[Positive, ...] | None = None
    seeds: tuple[Natural, ...] = ()
    training: dict[str, object] = field(default_factory=dict)
    privacy: dict[str, object] = field(default_factory=dict)
    tuning: dict[str, object] = field(default_factory=dict)
    public: PanelEntry | None = None
    metrics: tuple[str, ...] = ()
    rank_by: str = ""
    screened_by: Screened | None = None
    axes: dict[str, dict[str, Panel]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "epsilon" in self.privacy:
            raise ValueError("privacy: give the targets of a panel in `epsilons`, not `epsilon`")
        for axis, options in self.axes.items():
            for label, option in options.items():
                if option.base or option.axes:
                    raise ValueError(
                        f"axes: option {label} of {axis} has a base or axes of its own"
                    )

    @property
    def each_method(self) -> list[PanelEntry]:
        """The methods, each with its entry under `hyperparameters` merged in."""
        return [
            PanelEntry({**self.hyperparameters.get(one.id, {}), **one.values})
            for one in self.methods
        ]

    def beneath(self, above: Panel) -> Panel:
        """Return this grid with what another one says: mappings key by key, anything else whole."""
        changed = {}
        for name in GRID:
            mine, theirs = getattr(self, name), getattr(above, name)
            if name == "hyperparameters":
                theirs = {key: {**mine.get(key, {}), **value} for key, value in theirs.items()}
            given = theirs is not None if name == "epsilons" else bool(theirs)
            if given:
                changed[name] = mine | theirs if isinstance(theirs, dict) else theirs
        return replace(self, **changed)

    def require_complete(self, path: Path, key: str) -> None:
        """Require that nothing is missing, and that names tell everything apart.

        Raises:
            UserError: names what is missing or ambiguous.
        """
        for name in ("datasets", "models", "methods", "seeds", "epsilons"):
            values, where = getattr(self, name) or (), f"{path}: {key}.{name}:"
            if not values and name != "epsilons":
                raise UserError(f"{where} give at least one.")
            numbers = name in ("seeds", "epsilons")
            names = [str(one).removesuffix(".0") if numbers else one.label for one in values]
            twice = [each for each, count in Counter(names).items() if count > 1]
            if twice:
                advice = "" if numbers else "; tell them apart by `label`"
                raise UserError(f"{where} {twice[0]} is given twice{advice}.")
            if alike := alike_but_different(names):
                raise UserError(f"{where} {' and '.join(map(repr, alike))} look the same.")


GRID = (
    *("datasets", "models", "methods", "hyperparameters", "epsilons", "seeds"),
    *("training", "privacy", "tuning", "public", "metrics", "rank_by", "screened_by"),
)


def alike_but_different(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ only in case or Unicode form, or None.

    A reader takes them for the same name, and so do the file systems of some machines.
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(unicodedata.normalize("NFKC", name).casefold(), name)
        if other != name:
            return other, name
    return None


@dataclass(frozen=True, kw_only=True)
class SharedFile:
    """What the studies of a folder, such as those of a paper, refer to by name.

    Attributes:
        notes: paragraphs that the descriptions of several studies share.
        bases: values that panels start from.
    """

    __pydantic_config__: ClassVar = STRICT

    notes: dict[str, str] = field(default_factory=dict)
    bases: dict[str, Panel] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study as written in YAML, at the scale of the paper.

    Attributes:
        title: of its report.
        description: what it asks.
        notes: names of paragraphs of `shared.yaml` that follow the description.
        defaults: a panel: what its panels share.
        panels: by name.
        shares: the study whose panels and scales these are, instead of panels.
        report: items, in order.
        claims: what the paper says of these results.
        scales: how it is made smaller, by scale; `none` if it is small already.
        core_minutes: what its runs took on one core, for an estimate before any run has ended.
        licence: of published results: a name or an address.
    """

    __pydantic_config__: ClassVar = STRICT

    title: str
    description: str = ""
    notes: tuple[str, ...] = ()
    defaults: Panel = Panel()
    panels: dict[str, Panel] = field(default_factory=dict)
    shares: str = ""
    report: tuple[ReportItem, ...]
    claims: tuple[PaperClaim, ...] = ()
    scales: Literal["none"] | dict[str, Scale] = field(default_factory=dict)
    core_minutes: Positive | None = None
    licence: str = ""

    def __post_init__(self) -> None:
        if bool(self.shares) == bool(self.panels):
            raise ValueError("give exactly one of panels and shares")
        for name, panel in self.panels.items():
            if panel.suffix is not None:
                raise ValueError(f"panels: {name} has a suffix, which is for options of axes")


@dataclass(frozen=True)
class NamedPanel:
    """A panel with one option of each axis, as the report refers to it.

    Attributes:
        name: the name in the study file, then the suffixes of the options.
        family: the name in the study file.
        options: axis → the label of the option.
        titles: what `{panel}` and `{AXIS}` stand for in titles.
        panel: the grid.
    """

    name: str
    family: str
    options: Mapping[str, str]
    titles: Mapping[str, str]
    panel: Panel

    @property
    def title(self) -> str:
        """What tells the panel apart from all others in words: its title and those of options."""
        return ", ".join(self.titles.values())


def expand_panels(file: StudyFile, shared: SharedFile, path: Path) -> list[NamedPanel]:
    """Return every panel of a study file, those of one family in the order of their axes.

    Raises:
        UserError: a base does not exist, a panel lacks a value, or two panels have one name.
    """
    found: dict[str, NamedPanel] = {}
    for family in file.panels:
        for named in _family(family, file, shared, path):
            if named.name in found:
                raise UserError(f"{path}: panels: two panels are named {named.name!r}.")
            found[named.name] = named
    if alike := alike_but_different(found):  # they name files
        raise UserError(f"{path}: panels: {alike[0]!r} and {alike[1]!r} look the same.")
    return list(found.values())


def _family(family: str, file: StudyFile, shared: SharedFile, path: Path) -> Iterator[NamedPanel]:
    key, panel = f"panels.{family}", file.panels[family]
    bases = {
        **_bases(file.defaults.base, shared, f"{path}: defaults"),
        **_bases(panel.base, shared, f"{path}: {key}"),
    }
    layers = [*bases.values(), file.defaults, panel]
    title = next((layer.title for layer in reversed(layers) if layer.title), family)
    axes: dict[str, dict[str, Panel]] = {}
    for layer in layers:
        axes |= layer.axes
    axes = {axis: options for axis, options in axes.items() if options}
    for labels in itertools.product(*axes.values()):
        at = dict(zip(axes, labels, strict=True))
        options = {axis: axes[axis][label] for axis, label in at.items()}
        suffixes = [at[k] if one.suffix is None else one.suffix for k, one in options.items()]
        name = "-".join([family, *filter(None, suffixes)])
        if not re.fullmatch(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}", name):  # it names files
            allowed = f"letters, digits, - and _ make a name, {LONGEST_NAME} at most"
            raise UserError(f"{path}: panel {shorten(name)}: {allowed}.")
        grid = reduce(Panel.beneath, [*layers, *options.values()], Panel())
        methods = (
            swept
            for number, one in enumerate(grid.methods)
            for swept in _swept(one, path, f"{key}.methods.{number}")
        )
        grid = replace(grid, methods=tuple(methods), epsilons=grid.epsilons or ())
        grid.require_complete(path, key)
        yield NamedPanel(
            name=name,
            family=family,
            options=at,
            titles={"panel": title, **{k: one.title or at[k] for k, one in options.items()}},
            panel=grid,
        )


def having(
    panels: Iterable[NamedPanel], only: Mapping[str, str], path: Path, key: str
) -> list[NamedPanel]:
    """Return the panels that have some options; a panel without the axis of one has it, too.

    Raises:
        UserError: no panel has one of the options.
    """
    found = list(panels)
    for axis, label in only.items():
        labels = dict.fromkeys(one.options[axis] for one in found if axis in one.options)
        if label not in labels:
            raise unknown(f"option of {axis}", label, labels, file=str(path), key=f"{key}.only")
        found = [one for one in found if one.options.get(axis, label) == label]
    return found


def _bases(
    names: str | tuple[str, ...], shared: SharedFile, where: str, *before: str
) -> dict[str, Panel]:
    """Return bases in order, each once and after those that it starts from itself."""
    found: dict[str, Panel] = {}
    for name in (names,) if isinstance(names, str) else names:
        if name not in shared.bases:
            raise unknown("base", name, shared.bases, file=where, key="base")
        if name in before:
            raise UserError(f"{where}.base: {' → '.join([*before, name])} never ends.")
        base = shared.bases[name]
        found |= {**_bases(base.base, shared, where, *before, name), name: base} | found
    return found


def _swept(method: PanelEntry, path: Path, key: str) -> list[PanelEntry]:
    """Return a method for each value of its `sweep`, which its label may name; or itself."""
    if "sweep" not in method.values:
        return [method]
    sweep = method.values["sweep"]
    if isinstance(sweep, dict):
        schedules = {name: one for name, one in sweep.items() if isinstance(one, dict)}
        sweep = sweep | {name: each_candidate(one) for name, one in schedules.items()}
    if not isinstance(sweep, dict) or not all(isinstance(one, list) for one in sweep.values()):
        raise UserError(f"{path}: {key}.sweep: expected values by hyper-parameter, got {sweep!r}.")
    found = []
    for point in itertools.product(*sweep.values()):
        values = {**method.values, **dict(zip(sweep, point, strict=True))}
        del values["sweep"]
        if "label" in values:
            for name, value in zip(sweep, point, strict=True):
                values["label"] = str(values["label"]).replace(f"{{{name}}}", _text(value))
        found.append(PanelEntry(values))
    return found


def _text(value: object) -> str:
    """Return how a label shows a value: 0.5, 1e-4 and 1e-9; a list without its brackets.

    A mapping has its kind first: `cosine, peak 0.1`.
    """
    if isinstance(value, dict):
        options = [f"{name} {_text(one)}" for name, one in value.items() if name != "kind"]
        return ", ".join(filter(None, [value.get("kind"), *options]))
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        return re.sub(r"\.?0*e-0*", "e-", f"{value:e}")
    return f"{value:g}" if isinstance(value, float) else str(value)
