"""A study file: the grid of one table or figure, and what is drawn from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from clipnoise.engine.spec import RunSpec, from_mapping, read_yaml
from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Natural, Positive, parse
from clipnoise.methods.registry import method_class

Kind = Literal["table", "published", "accuracy-vs-epsilon", "curves", "ablation", "filter-sweep"]
MATCHES = ("dataset", "model", "epsilon")


@dataclass(frozen=True, kw_only=True)
class ReportItem:
    """One table or figure of a report.

    Attributes:
        kind: how it is drawn.
        part: the part of the study it shows.
        title: heading; empty takes the part's name.
        caption: what the reader should see.
        published: the published table of an item of that kind: its name, or a path that ends in
            `.csv`; empty takes the table that has the study's name.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Kind
    part: str
    title: str = ""
    caption: str = ""
    published: str = ""

    @property
    def drawn(self) -> bool:
        """Whether it is a figure."""
        return self.kind not in ("table", "published")


@dataclass(frozen=True, kw_only=True)
class Part:
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
    """Values that every part shares unless it says otherwise."""

    __pydantic_config__: ClassVar = STRICT

    training: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study as written in YAML."""

    __pydantic_config__: ClassVar = STRICT

    title: str
    description: str = ""
    defaults: Defaults = Defaults()
    parts: dict[str, Part]
    report: tuple[ReportItem, ...]

    def __post_init__(self) -> None:
        for item in self.report:
            if item.part not in self.parts:
                raise ValueError(
                    f"the report shows part {item.part!r}, which is not among the parts "
                    f"{', '.join(self.parts)}"
                )


@dataclass(frozen=True)
class PlannedRun:
    """A run as a study sees it: its spec, the part it belongs to, and the label it is shown by."""

    spec: RunSpec
    part: str
    label: str


@dataclass(frozen=True)
class Study:
    """A study file with its name.

    Attributes:
        name: its path below the folder of studies, without the ending, e.g. `dp-pmlf/table1`.
        path: where it was read.
        file: what it says.
    """

    name: str
    path: Path
    file: StudyFile

    @property
    def title(self) -> str:
        """The study's title."""
        return self.file.title

    @property
    def description(self) -> str:
        """What the study asks, in a few sentences."""
        return self.file.description

    @property
    def parts(self) -> Mapping[str, Part]:
        """The grids by name."""
        return self.file.parts

    @property
    def report(self) -> tuple[ReportItem, ...]:
        """What the report shows, in order."""
        return self.file.report

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Every run of the study, expanded and checked."""
        return tuple(run for name, part in self.parts.items() for run in self._expand(name, part))

    def _expand(self, name: str, part: Part) -> Iterator[PlannedRun]:
        for dataset in part.datasets:
            for model in part.models:
                for number, method in enumerate(part.methods):
                    where = f"parts.{name}.methods.{number}"
                    for epsilon in self._budgets(part, method, where):
                        yield from self._seeds(name, part, dataset, model, method, epsilon, where)

    def _budgets(
        self, part: Part, method: Mapping[str, Any], where: str
    ) -> tuple[float | None, ...]:
        """Return the ε to run a method at; (None,) where the budget is not a target ε."""
        if "id" not in method:
            raise UserError(f"{self.path}: {where}.id: required, but not given.")
        if not method_class(method["id"], file=str(self.path)).query.draws:
            return (None,)
        if "noise_multiplier" in {**self.file.defaults.privacy, **part.privacy}:
            return (None,)
        if not part.epsilons:
            raise UserError(
                f"{self.path}: {where}: a method that adds noise needs epsilons in its part."
            )
        return part.epsilons

    def _seeds(
        self,
        name: str,
        part: Part,
        dataset: str | dict[str, Any],
        model: str | dict[str, Any],
        method: Mapping[str, Any],
        epsilon: float | None,
        where: str,
    ) -> Iterator[PlannedRun]:
        values, label = _resolve(method, _id(dataset), _id(model), epsilon, f"{self.path}: {where}")
        kind = method_class(values["id"])
        noisy = kind.query.draws > 0
        privacy = {**self.file.defaults.privacy, **part.privacy}
        if epsilon is not None:
            privacy["epsilon"] = epsilon
        first = from_mapping(
            {
                "dataset": dataset,
                "model": model,
                "method": values,
                "privacy": privacy if noisy else None,
                "training": {**self.file.defaults.training, **part.training},
                "seed": part.seeds[0],
                "public": part.public if kind.uses_public_data() else None,
            },
            file=f"{self.path} ({where})",
        )
        for seed in part.seeds:
            yield PlannedRun(replace(first, seed=seed), name, label)


def _id(value: str | Mapping[str, Any]) -> str:
    return value if isinstance(value, str) else str(value.get("id"))


def _resolve(
    method: Mapping[str, Any], dataset: str, model: str, epsilon: float | None, where: str
) -> tuple[dict[str, Any], str]:
    """Apply the overrides that match, in order, and take out the label."""
    values = {k: v for k, v in method.items() if k not in ("label", "overrides")}
    place = {"dataset": dataset, "model": model, "epsilon": epsilon}
    overrides = method.get("overrides", [])
    if not isinstance(overrides, list) or not all(isinstance(item, Mapping) for item in overrides):
        raise UserError(f"{where}.overrides: expected a list of mappings, got {overrides!r}.")
    for override in overrides:
        matches = {k: v for k, v in override.items() if k in MATCHES}
        if all(place[k] == v for k, v in matches.items()):
            values.update({k: v for k, v in override.items() if k not in MATCHES})
    return values, str(method.get("label", method["id"]))


def load_study(path: Path) -> Study:
    """Read a study file.

    Args:
        path: the YAML file. The study's name is its path below the nearest folder called
            `studies`, without the ending; elsewhere it is the file's name.

    Returns:
        The study; its runs are expanded when first asked for.

    Raises:
        UserError: names file, key, value, what is allowed and the nearest valid name.
    """
    file = parse(StudyFile, read_yaml(path), file=str(path))
    folder = next((parent for parent in path.parents if parent.name == "studies"), path.parent)
    return Study(name=path.relative_to(folder).with_suffix("").as_posix(), path=path, file=file)


def find_study(name: str, folder: Path) -> Study:
    """Read a study by name from the folder of studies, or from any file that ends in `.yaml`.

    Raises:
        UserError: there is no such study; the message names the nearest one.
    """
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        names = [p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml")]
        raise unknown("study", name, names, key="studies")
    return load_study(path)
