"""A method's entry in the league: the study that tunes and trains it and its baseline alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clipnoise.data.base import Dataset, dataset_class
from clipnoise.data.cache import MANIFEST
from clipnoise.errors import UserError, unknown
from clipnoise.fields import parse, to_plain
from clipnoise.methods.base import example, methods
from clipnoise.run.procedure import Training
from clipnoise.run.spec import units_of
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.screening import CONFIRM, screened_panels
from clipnoise.studies.study import Study
from clipnoise.studies.tracks import planned_track
from clipnoise.studies.tuning import Tune

GIVEN = "given"


@dataclass(frozen=True)
class LeagueEntry:
    """What a method does in the league.

    Attributes:
        name: of the study.
        study: the study file as plain data.
        tune: the search space, as under `tune` in a study file.
        space: whose search space it is: `GIVEN`, or the id of the method that the league has it of.
        baseline: the method that it is compared with.
    """

    name: str
    study: Mapping[str, Any]
    tune: Mapping[str, Mapping[str, object]]
    space: str
    baseline: str


def confirmation(task: Study) -> Study:
    """Return a task of the league with its confirmation alone, as it is without a screen.

    Raises:
        UserError: the study has no confirmation.
    """
    own = task.panels.get(CONFIRM)
    if own is not None and own.screened_by is None:
        return task
    _, named = screened_panels(task.path, CONFIRM)
    shown = tuple(replace(item, panels=(CONFIRM,)) for item in task.report)
    alone = replace(named, panel=replace(named.panel, screened_by=None), scale=task.scale)
    return replace(task, grids=(alone,), report=shown)


def enter(
    league: Study,
    method: str,
    track: str,
    hyperparameters: Mapping[str, object],
    fixed: Mapping[str, object],
    tune: Mapping[str, object],
) -> LeagueEntry:
    """Plan the study that shows where a method stands: tuned by the league, with a baseline alone.

    Args:
        league: a task of the league, as from `confirmation`.
        method: its id.
        track: as `methods.base.track` returns it.
        hyperparameters: all that it has, with values for those that nothing else decides.
        fixed: those that are given. What is tuned replaces them; they replace what the league has.
        tune: the ranges and grid of its search; empty takes those that the league has of it, or
            else those of the baseline.

    Raises:
        UserError: the task is not of this track, or the search cannot be made.
    """
    panels, into = league.panels, planned_track(league.panels.values())
    if track not in into.takes:
        raise UserError(f"{league.path}: is not a task of the track “{track}”: see docs/league.md.")
    ids = {one.label: one.id for panel in panels.values() for one in panel.methods}
    baseline = ids[into.baseline]
    spaces = next(iter(panels.values())).hyperparameters
    space = GIVEN if tune else method if "tune" in spaces.get(method, {}) else baseline
    asked = tune or spaces[space]["tune"]
    assert isinstance(asked, Mapping)
    search = _search(asked, hyperparameters, space)
    others = {k: v for k, v in hyperparameters.items() if k not in spaces.get(method, {})}
    mine = {k: v for k, v in {**others, **fixed}.items() if k not in search.parameters}
    shown = {"ranges": search.ranges, "grid": search.grid}
    values = {name: to_plain(value) for name, value in shown.items() if value}
    defaults = {
        "methods": [baseline, {"id": method, **to_plain(mine), "tune": values}],
        "hyperparameters": {k: v for k, v in spaces.items() if k in (method, baseline)},
    }
    return LeagueEntry(
        name=f"{method}-{league.name.replace('/', '-')}",
        study={
            "title": f"{method} in the league",
            "description": f"{method} and {baseline}, tuned alike by docs/league.md on the task "
            f"of the study {league.name}.",
            "scales": "none",
            "defaults": defaults,
            "panels": {
                name: {k: v for k, v in to_plain(panel).items() if v and k not in defaults}
                for name, panel in panels.items()
            },
            "report": [{"kind": "table", "costs": True}],
        },
        tune=values,
        space=space,
        baseline=baseline,
    )


def _search(
    values: Mapping[str, object], hyperparameters: Mapping[str, object], space: str
) -> Tune:
    """Return a search space that fits a method; `space` is whose it is."""
    for name in {*values} - {"ranges", "grid"}:
        raise unknown("key", name, ("ranges", "grid"), key="--tune")
    tune = parse(Tune, {"seeds": [0], "trials": 1, **values}, key="--tune")
    if space != GIVEN:  # it may be another method's: what this one has of it
        ranges = {name: ends for name, ends in tune.ranges.items() if name in hyperparameters}
        grid = {name: values for name, values in tune.grid.items() if name in hyperparameters}
        if not (ranges or grid):
            raise UserError(
                f"--tune: the search space of {space} has nothing that this method has. Say what "
                """to tune, for example '{"ranges": {"learning_rate": [0.001, 0.1]}}'."""
            )
        tune = replace(tune, ranges=ranges, grid=grid)
    for name in {*tune.parameters} - {*hyperparameters}:
        raise unknown("hyper-parameter", name, hyperparameters, key="--tune")
    return tune


def require_data(league: Study, cache: Path) -> None:
    """Refuse to begin where data of the league are missing in the cache.

    Raises:
        UserError: names them, and the command that fetches them.
    """
    datasets = [_dataset(one) for panel in league.panels.values() for one in panel.datasets]
    absent = dict.fromkeys(
        one.id
        for one in datasets
        if one.files
        and not (cache / one.prepared / MANIFEST).is_file()
        and one.raw_files(cache).missing()
    )
    if absent:
        raise UserError(
            f"{cache}: {', '.join(absent)}: not fetched yet. Run: "
            f"""snakemake --cores 1 fetch_all --config 'studies=["{league.name}"]'"""
        )


def data_of(study: Study) -> Dataset:
    """Return the dataset of a task of the league, which has one."""
    return _dataset(next(iter(study.panels.values())).datasets[0])


def search_of(study: Study) -> tuple[float, int] | None:
    """Return how a search of a task's baseline draws: what it costs in ε follows from this and σ.

    Returns:
        The sampling rate q, and how many steps the trials of one search and the run that it reports
        have together; None where batches are not Poisson, or T or the trials are not given.
    """
    panel = next(iter(study.panels.values()))
    label = planned_track(study.panels.values()).baseline
    if label not in methods() or panel.privacy.get("sampler", "poisson") != "poisson":
        return None
    training, trials = parse(Training, panel.training, key="training"), study.tunes[label].trials
    if training.steps is None or not isinstance(trials, int):
        return None
    unit = units_of(data_of(study), example(methods()[label]))
    return training.expected_batch_size / unit.count, (trials + 1) * training.steps


def _dataset(named: PanelEntry) -> Dataset:
    options = {key: value for key, value in named.given.items() if key != "id"}
    return parse(dataset_class(named.id), options, key=named.id)
