"""Study files: what their YAML may say."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, StringConstraints, model_validator

from clipnoise.errors import UserError, nearest
from clipnoise.fields import STRICT, Count, Natural, Positive
from clipnoise.studies.config import ScaleName
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.items import ReportItem
from clipnoise.studies.moved import CLAIM_KEYS, refuse_moved
from clipnoise.studies.scale import PAPER, Scale

CurveMetric = Literal["test_accuracy", "test_loss", "train_accuracy", "train_loss"]
ClaimMetric = (
    CurveMetric
    | Literal["largest_drop", "mean_test_accuracy"]  # of a curve
    | Annotated[str, StringConstraints(pattern=r"^[a-z_]+\.(min|q1|median|q3|max|mean)$")]
)
Range = tuple[float | None, float | None]  # null: without a bound
LONGEST_NAME = 120  # characters of a panel's name
SMALLER = tuple(name for name in get_args(ScaleName) if name != PAPER)
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
        epsilons: at which it is claimed; at every ε if none is named.
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
            if not numbers and any(one.values.get("label") == "" for one in values):
                raise UserError(f"{where} a label is empty.")
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
        for name in () if self.scales == "none" else self.scales:
            if name not in SMALLER:
                raise ValueError(
                    f"scales.{name}: unknown scale.{nearest(name, SMALLER)} Allowed: "
                    f"{', '.join(SMALLER)}"
                )
        for name, panel in self.panels.items():
            if panel.suffix is not None:
                raise ValueError(f"panels: {name} has a suffix, which is for options of axes")
