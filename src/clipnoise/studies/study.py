"""A study file: the grid of one table or figure, and what is drawn from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Natural, Positive, parse
from clipnoise.files import inside, read_yaml
from clipnoise.run.spec import RunSpec
from clipnoise.studies.grid import Grid, PlannedRun
from clipnoise.studies.scale import PAPER, Scale, read_scale
from clipnoise.studies.tuning import Search

Kind = Literal[
    "table",
    "published",
    "accuracy-vs-epsilon",
    "accuracy-along-epsilon",
    "curves",
    "ablation",
    "filter-sweep",
    "sweep",
    "momentum-sweep",
    "moments",
    "moments-table",
    "noise-bias",
    "interquartile-means",
    "performance-profiles",
    "critical-differences",
]
SWEEPS = ("sweep", "momentum-sweep")
TABLES = ("table", "published", "moments-table")
CURVES = ("curves", "accuracy-along-epsilon")
CurveMetric = Literal["test_accuracy", "test_loss", "train_accuracy", "train_loss"]


@dataclass(frozen=True, kw_only=True)
class ReportItem:
    """One table or figure of a report.

    Attributes:
        kind: how it is drawn.
        panel: the panel of the study it shows.
        title: heading; empty takes the panel's name.
        caption: what the reader should see.
        published: the published table of an item of that kind: its name, or a path that ends in
            `.csv`; empty takes the table that has the study's name.
        over: the hyper-parameter that a sweep is over.
        metric: what curves show; None takes test accuracy, or test loss where there is none.
        costs: whether a table shows what methods cost, and what their audits found, too.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Kind
    panel: str
    title: str = ""
    caption: str = ""
    published: str = ""
    over: str = ""
    metric: CurveMetric | None = None
    costs: bool = False

    def __post_init__(self) -> None:
        if bool(self.over) != (self.kind in SWEEPS):
            raise ValueError("a sweep, and nothing else, says the hyper-parameter that it is over")
        if self.metric and self.kind not in CURVES:
            raise ValueError("curves, and nothing else, say the metric that they show")
        if self.costs and self.kind != "table":
            raise ValueError("costs are shown beside a table")

    @property
    def drawn(self) -> bool:
        """Whether it is a figure."""
        return self.kind not in TABLES


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One grid: datasets × models × methods × ε × seeds.

    Attributes:
        datasets: dataset ids, or mappings with an id and options.
        models: model ids, or mappings with an id and options.
        methods: mappings with an id, hyper-parameters, an optional label, and optional overrides:
            a list of mappings whose dataset, model and epsilon say where they apply.
        epsilons: targets for the methods that add noise; any other runs once per seed.
        seeds: one run each.
        training: what differs from the study's defaults.
        privacy: what differs from the study's defaults.
        public: the dataset that methods with public data take it from; None leaves it to the
            public examples that a private dataset sets aside itself.
    """

    __pydantic_config__: ClassVar = STRICT

    datasets: tuple[str | dict[str, Any], ...]
    models: tuple[str | dict[str, Any], ...]
    methods: tuple[dict[str, Any], ...]
    seeds: tuple[Natural, ...]
    epsilons: tuple[Positive, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    public: str | dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Values that every panel shares unless it says otherwise."""

    __pydantic_config__: ClassVar = STRICT

    training: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study as written in YAML, at the scale of the paper.

    Attributes:
        title: heading of its report.
        description: what it asks; paragraphs are set apart by empty lines.
        defaults: what its panels share.
        panels: its grids by name.
        shares: the study whose panels these are, with what they share and how they are scaled;
            instead of panels.
        report: what is shown, in order.
        scales: what it says for itself about a smaller scale, by the scale's name; "none" for a
            study that is small already and is the same at every scale.
    """

    __pydantic_config__: ClassVar = STRICT

    title: str
    description: str = ""
    defaults: Defaults = Defaults()
    panels: dict[str, Panel] = field(default_factory=dict)
    shares: str = ""
    report: tuple[ReportItem, ...]
    scales: Literal["none"] | dict[str, Scale] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.shares) == bool(self.panels):
            raise ValueError("give exactly one of panels and shares")
        for name in self.panels:  # they name files
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise ValueError(f"panel {name!r}: letters, digits, - and _ make a name")
        for item in self.report:
            if self.panels and item.panel not in self.panels:
                raise ValueError(
                    f"the report shows panel {item.panel!r}, which is not among the panels "
                    f"{', '.join(self.panels)}"
                )


@dataclass(frozen=True)
class Study:
    """A study file with its name.

    Attributes:
        name: its path below the folder of studies, without the ending, e.g. `dp-pmlf/table1`.
        path: where it was read.
        file: what it says.
        scale: how much smaller it is made.
        at: the name of that scale.
        shared: the file of the study whose panels these are, where it is another.
    """

    name: str
    path: Path
    file: StudyFile
    scale: Scale = field(default_factory=Scale)
    at: str = PAPER
    shared: Path | None = None

    @property
    def experiment(self) -> str:
        """What MLflow calls the study: results of two scales never stand beside each other."""
        return self.name if self.at == PAPER else f"{self.name} ({self.at})"

    @property
    def watermark(self) -> str:
        """What stands on everything that shows its results; empty at the paper's own scale."""
        return self.scale.watermark

    @cached_property
    def tuning_runs(self) -> list[RunSpec]:
        """The runs that choose hyper-parameters; two searches may share some."""
        return [spec for search in self.searches.values() for spec in search.runs]

    @cached_property
    def specs(self) -> dict[str, RunSpec]:
        """All that is trained for the study, tuning included, by hash."""
        return {spec.hash: spec for spec in (*(run.spec for run in self.runs), *self.tuning_runs)}

    @property
    def title(self) -> str:
        """The study's title."""
        return self.file.title

    @property
    def description(self) -> str:
        """What the study asks, in a few sentences."""
        return self.file.description

    @property
    def panels(self) -> Mapping[str, Panel]:
        """The grids by name."""
        return self.file.panels

    @property
    def report(self) -> tuple[ReportItem, ...]:
        """What the report shows, in order."""
        return self.file.report

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Every run that the report shows, expanded and checked."""
        return self._grid.runs

    @property
    def searches(self) -> Mapping[str, Search]:
        """What is tuned for these runs, by key; the runs of a search are planned runs too."""
        return self._grid.searches

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.file, self.scale, self.path)


def load_study(path: Path, scale: Path | None = None, *, secure_noise: bool = False) -> Study:
    """Read a study file.

    Args:
        path: the YAML file. The study's name is its path below the nearest folder called
            `studies`, without the ending; elsewhere it is the file's name.
        scale: the scale file; None for the paper's own scale.
        secure_noise: whether all private runs draw their noise from a cryptographic source.

    Returns:
        The study; its runs are expanded when first asked for.

    Raises:
        UserError: names file, key, value, what is allowed and the nearest valid name.
    """
    file = parse(StudyFile, read_yaml(path), file=str(path))
    folder = next((parent for parent in path.parents if parent.name == "studies"), path.parent)
    name = path.relative_to(folder).with_suffix("").as_posix()
    shared = _study_file(file.shares, folder, "shares") if file.shares else None
    if shared is not None:
        file = _sharing(file, path, parse(StudyFile, read_yaml(shared), file=str(shared)))
    rules, at = Scale(), PAPER
    if scale is not None and file.scales != "none":
        rules, at = read_scale(scale).extended(file.scales.get(scale.stem, Scale())), scale.stem
    if secure_noise:
        rules = replace(rules, privacy={**rules.privacy, "secure_noise": True})
    return Study(name=name, path=path, file=file, scale=rules, at=at, shared=shared)


def _sharing(file: StudyFile, path: Path, other: StudyFile) -> StudyFile:
    """Return a study with the panels of another."""
    try:
        return replace(
            file,
            shares="",
            panels=other.panels,
            defaults=other.defaults,
            scales=other.scales,
        )
    except ValueError as error:
        raise UserError(f"{path}: report: {error}.") from None


def find_study(
    name: str, folder: Path, scale: Path | None = None, *, secure_noise: bool = False
) -> Study:
    """Read a study by name from the folder of studies, or from any file that ends in `.yaml`.

    Raises:
        UserError: there is no such study; the message names the nearest one.
    """
    path = Path(name) if name.endswith(".yaml") else _study_file(name, folder, "studies")
    if not path.is_file():
        raise unknown("study", name, names_below(folder), key="studies")
    return load_study(path, scale, secure_noise=secure_noise)


def _study_file(name: str, folder: Path, key: str) -> Path:
    path = inside(folder, f"{name}.yaml", key=key)
    if not path.is_file():
        raise unknown("study", name, names_below(folder), key=key)
    return path


def names_below(folder: Path, pattern: str = "**/*.yaml") -> list[str]:
    """Return the names of the YAML files of a folder, `<paper>/<artefact>`, in order."""
    files = sorted(folder.glob(pattern))
    return [path.relative_to(folder).with_suffix("").as_posix() for path in files]
