"""A study: the runs behind one table or figure, and what its report shows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from clipnoise.data.measures import ACCURACY
from clipnoise.errors import UserError, unknown
from clipnoise.fields import parse
from clipnoise.files import inside, read_yaml
from clipnoise.run.choice import in_words, tuned_values
from clipnoise.run.spec import RunSpec, to_mapping
from clipnoise.studies.claims import place_claims
from clipnoise.studies.file import SHARED_FILE, Panel, PaperClaim, SharedFile, StudyFile
from clipnoise.studies.grid import PanelGrid, PlannedRun
from clipnoise.studies.items import ReportItem
from clipnoise.studies.panels import expand_panels
from clipnoise.studies.placement import place_items
from clipnoise.studies.scale import PAPER, Scale, extended, read_scale
from clipnoise.studies.tuning import Search, Tune
from clipnoise.tracking.view import TUNING, Membership

PUBLISHED = Path("reports/published")
LEAGUE = "league"  # the folder of its tasks
IN_A_PAPER = "*/*.yaml"  # each paper has a folder


@dataclass(frozen=True)
class Study:
    """A study, read and checked.

    Attributes:
        name: its path below the folder of studies, without the ending, e.g. `dp-pmlf/table1`.
        path: where it was read.
        title: heading of its report.
        description: what it asks, with the notes of its folder; paragraphs are set apart by empty
            lines.
        grids: its panels, with their runs, in order.
        report: what the report shows, in order.
        claims: what the paper says of these results: each claim of each of its panels.
        scale: how much smaller it is made.
        at: the name of that scale.
        sources: the other files that it was read from: its folder's, and a study whose panels it
            shares.
        core_minutes: how long its runs took on one core when they were timed; None if unknown.
        licence: of its results where they are published; empty for none.
    """

    name: str
    path: Path
    title: str
    description: str
    grids: tuple[PanelGrid, ...]
    report: tuple[ReportItem, ...]
    claims: tuple[tuple[PaperClaim, ...], ...]
    scale: Scale
    at: str
    sources: tuple[Path, ...]
    core_minutes: float | None = None
    licence: str = ""

    @property
    def experiment(self) -> str:
        """What MLflow calls the study: results of two scales never stand beside each other."""
        return self.name if self.at == PAPER else f"{self.name} ({self.at})"

    @property
    def panels(self) -> Mapping[str, Panel]:
        """What each panel crosses, by its name."""
        return {grid.name: grid.panel for grid in self.grids}

    @property
    def titles(self) -> Mapping[str, str]:
        """What tells each panel apart in words: its title, with its name where another has it."""
        counts = Counter(grid.title for grid in self.grids)
        return {
            grid.name: grid.title if counts[grid.title] == 1 else f"{grid.title} ({grid.name})"
            for grid in self.grids
        }

    @cached_property
    def tuning_runs(self) -> list[RunSpec]:
        """The runs that choose hyper-parameters; two searches may share some."""
        return [spec for search in self.searches.values() for spec in search.runs]

    @cached_property
    def specs(self) -> dict[str, RunSpec]:
        """All that is trained for the study, tuning included, by hash."""
        return {spec.hash: spec for spec in (*(run.spec for run in self.runs), *self.tuning_runs)}

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Every run that the report shows, expanded and checked."""
        return tuple(run for grid in self._checked for run in grid.runs)

    @cached_property
    def ranked_by(self) -> str:
        """The metric by which all of its runs are compared; accuracy where panels differ."""
        names = {run.ranked_by for run in self.runs}
        return names.pop() if len(names) == 1 else ACCURACY

    @cached_property
    def names(self) -> dict[str, str]:
        """What its runs are called, by hash: the words of the first panel that has them.

        A run of a search is called by the configuration that it tries, too.
        """
        called = {(run.spec.dataset, run.spec.model): run for run in reversed(self.runs)}
        names: dict[str, str] = {}
        for search in self.searches.values():
            for specs in search.configurations:
                tried = f"tuning {in_words(tuned_values(to_mapping(specs[0]), search.parameters))}"
                for spec in specs:
                    run = replace(called[spec.dataset, spec.model], spec=spec, label=spec.method.id)
                    names.setdefault(spec.hash, f"{run.name}, {tried}")
        return names | {run.spec.hash: run.name for run in reversed(self.runs)}

    @cached_property
    def searches(self) -> Mapping[str, Search]:
        """The searches for tuned hyper-parameters, by key; their runs are planned runs, too."""
        return {key: search for grid in self._checked for key, search in grid.searches.items()}

    @property
    def tunes(self) -> dict[str, Tune]:
        """What each tuned method is tuned in, by its label; no run is planned for it."""
        return {label: tune for grid in self.grids for label, tune in grid.tunes.items()}

    @cached_property
    def _checked(self) -> tuple[PanelGrid, ...]:
        """The grids of all panels, checked against each other."""
        grids = {grid.name: grid for grid in self.grids}
        for grid in self.grids:
            self._check_screened(grid, grids)
        return self.grids

    def _check_screened(self, grid: PanelGrid, grids: Mapping[str, PanelGrid]) -> None:
        """Refuse a panel that shares a seed with the one by whose results its methods are chosen.

        Runs with a seed that helped to choose a method would show it better than it is.
        """
        rule = grid.panel.screened_by
        if rule is None:
            return
        key = f"panels.{grid.name}.screened_by.panel"
        if rule.panel not in grids or rule.panel == grid.name:
            raise unknown("panel", rule.panel, {*grids} - {grid.name}, file=str(self.path), key=key)
        both = sorted(grid.seeds & grids[rule.panel].seeds)
        if both:
            raise UserError(
                f"{self.path}: {key}: {', '.join(map(str, both[:5]))} are seeds of both panels, "
                "reported or of tuning. Give them seeds of their own."
            )


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
    file, beside = parse(StudyFile, read_yaml(path), file=str(path)), shared_file(path)
    folder = next((parent for parent in path.parents if parent.name == "studies"), path.parent)
    shared = _study_file(file.shares, folder, "shares") if file.shares else path
    source = file if shared == path else parse(StudyFile, read_yaml(shared), file=str(shared))
    if not source.panels:
        raise UserError(f"{path}: shares: {file.shares} has no panels of its own to share.")
    rules, at = Scale(), PAPER
    if scale is not None and source.scales != "none":
        own = source.scales.get(scale.stem, Scale())
        rules, at = extended(read_scale(scale), own), scale.stem
    if secure_noise:
        rules = replace(rules, privacy={**rules.privacy, "secure_noise": True})
    grids = expand_panels(source, shared_file(shared), shared, rules)
    _check_scales(source, grids, shared)
    for name in file.notes:
        if name not in beside.notes:
            raise unknown("note", name, beside.notes, file=str(path), key="notes")
    besides = (parent / SHARED_FILE for parent in dict.fromkeys((path.parent, shared.parent)))
    return Study(
        name=path.relative_to(folder).with_suffix("").as_posix(),
        path=path,
        title=file.title,
        description="\n\n".join([file.description, *(beside.notes[name] for name in file.notes)]),
        grids=grids,
        report=place_items(file.report, grids, path),
        claims=place_claims(file.claims, grids, path),
        scale=rules,
        at=at,
        sources=tuple(one for one in (shared, *besides) if one != path and one.is_file()),
        core_minutes=file.core_minutes if at == PAPER else None,
        licence=file.licence,
    )


def _check_scales(file: StudyFile, grids: Iterable[PanelGrid], path: Path) -> None:
    """Refuse rules of the study's own scales that are of nothing in it."""
    panels = [grid.panel for grid in grids]
    for scale, rules in () if file.scales == "none" else file.scales.items():
        for kind in ("datasets", "models", "methods"):
            entries = [one for panel in panels for one in getattr(panel, kind)]
            if kind == "datasets":
                entries += [panel.public for panel in panels if panel.public is not None]
            known = {name for one in entries for name in (one.id, one.label)}
            for name in getattr(rules, kind):
                if name not in known:
                    key = f"scales.{scale}.{kind}"
                    raise unknown(
                        f"{kind[:-1]} of this study", name, known, file=str(path), key=key
                    )


def shared_file(path: Path) -> SharedFile:
    """Return what studies in the folder of a study share; empty where there is no such file."""
    file = path.parent / SHARED_FILE
    return parse(SharedFile, read_yaml(file), file=str(file)) if file.is_file() else SharedFile()


def find_study(
    name: str,
    folder: Path,
    scale: Path | None = None,
    *,
    root: Path = Path(),
    secure_noise: bool = False,
) -> Study:
    """Read a study by name from the folder of studies, or from any file that ends in `.yaml`.

    Args:
        name: of the study, or its file.
        folder: of studies.
        scale, secure_noise: as in `load_study`.
        root: the folder that the path of a file is relative to.

    Raises:
        UserError: there is no such study; the message names the nearest one.
    """
    path = root / name if name.endswith(".yaml") else _study_file(name, folder, "studies")
    if not path.is_file():
        raise _no_study(name, folder, "studies")
    return load_study(path, scale, secure_noise=secure_noise)


def _study_file(name: str, folder: Path, key: str) -> Path:
    path = inside(folder, f"{name}.yaml", key=key)
    if not path.is_file():
        raise _no_study(name, folder, key)
    return path


def _no_study(name: str, folder: Path, key: str) -> UserError:
    names = names_below(folder)
    if not names:
        return UserError(f"{key}: unknown study {name!r}: {folder} has no study files.")
    return unknown("study", name, names, key=key)


def names_below(folder: Path, pattern: str = "**/*.yaml") -> list[str]:
    """Return the names of the YAML files of a folder, `<paper>/<artefact>`, in order."""
    files = sorted(path for path in folder.glob(pattern) if path.name != SHARED_FILE)
    return [path.relative_to(folder).with_suffix("").as_posix() for path in files]


def studies_of_papers(folder: Path) -> list[str]:
    """Return the names of the studies that belong to papers, each of which has a folder."""
    return [name for name in names_below(folder, IN_A_PAPER) if Path(name).parent.name != LEAGUE]


def published_tables(
    study: Study, folder: Path = PUBLISHED, *, root: Path = Path()
) -> Mapping[int, Path]:
    """Return the CSV of each report item that shows published numbers, by the item's number.

    Args:
        study: the study.
        folder: of published tables.
        root: the folder that the path of another table is relative to.

    Raises:
        UserError: an item names a table that is not in the folder of published tables.
    """
    names = {number: item.published for number, item in enumerate(study.report)}
    return {number: _table(study, name, folder, root) for number, name in names.items() if name}


def _table(study: Study, name: str, folder: Path, root: Path) -> Path:
    if name.endswith(".csv"):
        path = root / name
        if not path.is_file():
            raise UserError(f"{study.path}: report.published: {path}: no such file.")
    else:
        path = inside(folder, f"{name}.csv", key=f"{study.path}: report.published")
    if not path.is_file():
        names = [
            one.relative_to(folder).with_suffix("").as_posix() for one in folder.rglob("*.csv")
        ]
        raise unknown("published table", name, names, file=str(study.path), key="report.published")
    return path


def memberships(
    studies: Iterable[Study], known: Mapping[str, Membership] | None = None
) -> dict[str, Membership]:
    """Return to which studies each run belongs, and how its first study calls it.

    Args:
        studies: in order of precedence: the first that plans a run is its home.
        known: earlier memberships; they take precedence, and the studies given here are added.

    Returns:
        Memberships by spec hash: those of `known`, and of every run that the studies plan.
    """
    found = dict(known or {})
    for study in studies:
        name = study.experiment
        planned: list[tuple[str, str | None, str]]
        planned = [(run.spec.hash, run.label, run.panel) for run in study.runs]
        planned += [(spec.hash, None, TUNING) for spec in study.tuning_runs]
        for run_hash, label, panel in planned:
            before = found.get(run_hash)
            if before is None:
                found[run_hash] = Membership(study=name, studies=(name,), label=label, panel=panel)
            elif name not in before.studies:
                found[run_hash] = replace(before, studies=(*before.studies, name))
    return found


def facts_of(studies: Iterable[Study]) -> dict[str, dict[str, str]]:
    """Return what a results folder notes of studies beside their runs, by experiment."""
    studies = tuple(studies)
    return {
        "descriptions": {
            study.experiment: "\n\n".join(filter(None, [f"**{study.title}**", study.description]))
            for study in studies
        },
        "ranked_by": {study.experiment: study.ranked_by for study in studies},
        "warnings": {study.experiment: study.scale.watermark for study in studies},
    }
