"""The league's published files: a Parquet file per task, what is read of them, and what it says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from clipnoise.data.base import dataset_class
from clipnoise.data.features import Features
from clipnoise.errors import UserError
from clipnoise.privacy.accountants.selection import composed_epsilon
from clipnoise.report.inference.confirmed import (
    Confirmed,
    gains_over,
    gather,
    told_apart,
    who_can_be_best,
)
from clipnoise.report.inference.over_tasks import (
    LEAST_ERROR,
    Gap,
    MixedModel,
    by_data_set,
    closed_shares,
    has_gap,
)
from clipnoise.report.inference.sign_flips import Floats, best_p_values, units_needed
from clipnoise.report.records import split, where
from clipnoise.report.statistics import ALPHA, Interval
from clipnoise.run.correctness import unpacked
from clipnoise.run.fingerprint import fingerprint, training_code
from clipnoise.run.results import read_summary, run_folder
from clipnoise.studies.collect import collect
from clipnoise.studies.columns import LEAGUE, read_table, schema
from clipnoise.studies.screening import Screening
from clipnoise.studies.study import Study
from clipnoise.studies.tracks import PRIVATE, TRACKS, Track, track_of
from clipnoise.studies.tuning import Tune

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

PLACE = ("task", "epsilon")
LEAST_TASKS = 3  # data sets; of fewer, intervals over tasks can be wider than all accuracies
RATE = "learning_rate"
Spaces = Mapping[str, Tune]
AGAIN = (
    "If the code changed without changing results, `clipnoise league repeat TASK` shows it. "
    "Otherwise train the task again, and publish it: `clipnoise league publish TASK`."
)


def published_rows(study: Study, results: Path) -> pa.Table:
    """Return the rows of a task that are published, with the digest of the code that trains.

    Args:
        study: the task.
        results: the results folder.

    Raises:
        UserError: a run of the task, those of searches among them, is missing or damaged, or was
            trained by other code than this; says how it is trained. What is confirmed cannot be
            compared.
    """
    missing, outdated = 0, 0
    for spec in study.specs.values():
        summary = read_summary(run_folder(results, spec))
        missing += summary is None
        outdated += summary is not None and summary.get("fingerprint") != fingerprint(spec)
    if missing or outdated:
        raise UserError(
            f"{study.path}: of {len(study.specs)} runs {missing} are missing and {outdated} were "
            f"trained by other code. Run: snakemake --cores all reports/{study.name}.pdf"
        )
    found, _ = collect(study, results)
    corrupt = [row for row in found.to_pylist() if row["status"] == "corrupt"]
    if corrupt:
        raise UserError(corrupt[0]["reason"])
    codes = [training_code(run.spec) for run in study.runs]
    import pyarrow as pa

    every = found.append_column("training_code", pa.array(codes, pa.string()))
    rows = every.select(list(LEAGUE)).cast(schema(LEAGUE))
    confirmations({study.name: rows.to_pandas()})  # what would be refused is not published
    return rows


def read_league(folder: Path, task: str = "*") -> dict[str, pd.DataFrame]:
    """Read the files of all tasks, or that of one.

    Args:
        folder: of the files, `<task>.parquet`.
        task: the one that is read.

    Returns:
        The runs of each task, a row each, by its name.

    Raises:
        UserError: there is no folder, a file is no such table, or the code that trained a method
            differs between two of them.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: `clipnoise league publish TASK` makes it.")
    files = sorted(folder.glob(f"{task}.parquet"))
    tasks = {path.stem: read_table(path, LEAGUE) for path in files}
    first: dict[str, tuple[str, str]] = {}
    for name, runs in tasks.items():
        for label, code in runs[["label", "training_code"]].drop_duplicates().to_numpy():
            other, before = first.setdefault(label, (name, code))
            if code != before:
                raise UserError(
                    f"{folder}: {label} was trained by other code in {name}.parquet ({code}) than "
                    f"in {other}.parquet ({before}), so that they cannot be compared. {AGAIN}"
                )
    return tasks


def screenings(runs: pd.DataFrame, panel: str) -> list[Screening]:
    """Return what ranks the methods of a screen: those whose ε is a guarantee.

    Args:
        runs: of a task.
        panel: that of the screen.
    """
    ranked = where(runs, panel=panel, claim="guarantee")
    scores = ranked["validation_accuracy"].where(ranked["status"] == "completed", 0.0)
    return [
        Screening(label=label, epsilon=epsilon, score=float(score))
        for label, epsilon, score in zip(ranked["label"], ranked["epsilon"], scores, strict=True)
    ]


def confirmed_runs(runs: pd.DataFrame, panel: str) -> pd.DataFrame:
    """Return the runs of a confirmation with which test examples they predict right.

    Args:
        runs: of a task.
        panel: that of the confirmation.

    Returns:
        Its rows with `right`: a bool array of shape (test examples,), or None where a run diverged.

    Raises:
        UserError: the bits are not those of the test examples, or disagree with the accuracy.
    """
    found = where(runs, panel=panel)
    right = []
    for bits, examples, accuracy, status in zip(
        *(found[name] for name in ("correct", "test_examples", "test_accuracy", "status")),
        strict=True,
    ):
        try:
            one = unpacked(bits, int(examples)) if status == "completed" else None
        except ValueError as error:
            raise UserError(f"{panel}: a published run is damaged: {error}.") from None
        if one is not None and abs(one.mean() - accuracy) > 1e-6:
            raise UserError(
                f"{panel}: a published run is damaged: {one.mean():g} of its bits are set, but its "
                f"accuracy is {accuracy:g}."
            )
        right.append(one)
    return found.assign(right=pd.Series(right, index=found.index, dtype=object))


def confirmations(tasks: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the runs of each task that has repeated searches, and all others with their seeds.

    A method without a search belongs to the searches by its seeds, which all methods share; one
    with another sampler or model is in a panel of its own.

    Args:
        tasks: as from `read_league`.

    Raises:
        UserError: a method is in several of these panels, a run is damaged, an ε is no guarantee,
            or guarantees hold under several adjacencies.
    """
    found = {}
    for task, runs in tasks.items():
        repeated = runs[runs["search"].notna()]
        searches = dict(zip(repeated["seed"], repeated["search"].astype(int), strict=True))
        same = runs[runs["seed"].isin(searches)]
        panels = list(dict.fromkeys(same["panel"]))
        if (same.groupby("label")["panel"].nunique() > 1).any():
            raise UserError(f"{task}: several panels confirm a method: {', '.join(panels)}.")
        if searches:
            confirmed = pd.concat([confirmed_runs(runs, panel) for panel in panels])
            _require_one_guarantee(task, confirmed)
            found[task] = confirmed.assign(search=confirmed["seed"].map(searches))
    return found


def _require_one_guarantee(task: str, runs: pd.DataFrame) -> None:
    """Refuse confirmed runs of which an ε is no guarantee, or holds under another adjacency."""
    private = runs[runs["epsilon"].notna()]
    nominal = private[private["claim"] != "guarantee"]
    if len(nominal):
        raise UserError(
            f"{task}: {', '.join(dict.fromkeys(nominal['label']))}: ε is no guarantee, so that it "
            "cannot be compared with what is confirmed. Leave it out of the confirmation."
        )
    under = {at: rows["label"].iloc[0] for (at,), rows in split(private, "adjacency")}
    if len(under) > 1:
        said = ", ".join(f"{at} ({label})" for at, label in under.items())
        raise UserError(f"{task}: what is confirmed has several adjacencies: {said}.")


@dataclass(frozen=True)
class MethodOverTasks:
    """What the tasks that have an ε say of a method that all of them confirmed.

    Attributes:
        epsilon, method: which.
        gain: over the baseline, on these tasks taken as a sample of all tasks.
        p_value: that no other one is better on average, at this ε by itself; None for fewer data
            sets than could tell.
        closed: the share of the privacy gap that it closes, on average over `gaps` tasks; None
            where no task has a gap.
    """

    epsilon: float
    method: str
    gain: MixedModel
    p_value: float | None
    closed: Interval | None
    gaps: tuple[str, ...]


@dataclass(frozen=True)
class LeagueFindings:
    """What the published tasks of a track say; every part is computed once.

    Attributes:
        tasks: their runs, as from `read_league`.
        track: which, and with it the method that gains are over.
        spaces: what each method was tuned in, by task and label, as `Study.tunes` has it.
        searches: how a search of the baseline draws, by task, as from `search_of`.
    """

    tasks: Mapping[str, pd.DataFrame]
    track: Track = PRIVATE
    spaces: Mapping[str, Spaces] = field(default_factory=dict)
    searches: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @cached_property
    def confirmed(self) -> dict[str, pd.DataFrame]:
        """The confirmed runs of each task that has some."""
        return confirmations(self.tasks)

    @cached_property
    def screened(self) -> dict[str, int]:
        """How many private methods each confirmed task that has a screen has screened."""
        found = {}
        for task, confirmed in self.confirmed.items():
            runs = self.tasks[task]
            screen = runs[runs["epsilon"].notna() & ~runs["panel"].isin(set(confirmed["panel"]))]
            if len(screen):
                found[task] = int(screen["label"].nunique())
        return found

    @cached_property
    def settings(self) -> dict[tuple[str, float], Confirmed]:
        """The confirmed runs of private methods, by task and ε."""
        return {
            (task, float(text)): _gathered(part)
            for task, runs in self.confirmed.items()
            for (text,), part in split(runs[runs["epsilon"].notna()], "epsilon")
        }

    @cached_property
    def with_search(self) -> dict[tuple[str, float], float]:
        """ε of publishing a whole search of the baseline and its reported run, by task and ε.

        It is nominal: it holds if each trial draws noise of its own, and here those of a search
        share a seed.
        """
        found = {}
        for task, epsilon in self.settings:
            if task in self.searches:
                runs = where(self.confirmed[task], label=self.track.baseline, epsilon=epsilon)
                sigma, delta = (float(runs[name].iloc[0]) for name in ("noise_multiplier", "delta"))
                mechanism = (sigma, *self.searches[task])
                found[task, epsilon] = composed_epsilon([mechanism], delta=delta)
        return found

    @cached_property
    def references(self) -> dict[str, Confirmed]:
        """Those of the methods without privacy, by task, where there are two or more."""
        free = {task: runs[runs["epsilon"].isna()] for task, runs in self.confirmed.items()}
        return {task: _gathered(one) for task, one in free.items() if one["label"].nunique() > 1}

    @cached_property
    def ceilings(self) -> dict[str, Floats]:
        """The results without privacy by task, of shape (searches, test examples).

        They are those of the method that is best on validation examples; the test set chooses
        nothing.
        """
        found = {}
        for task, one in self.references.items():
            runs = self.confirmed[task]
            means = runs.assign(score=runs["validation_accuracy"].fillna(0.0)).groupby("label")
            level = means["score"].mean()
            best = max(range(len(one.methods)), key=lambda index: level[one.methods[index]])
            found[task] = one.right[best].mean(axis=1)
        return found

    @cached_property
    def best(self) -> pd.DataFrame:
        """Who can be the best, as from `who_can_be_best`."""
        return who_can_be_best(self.settings, PLACE)

    @cached_property
    def gains(self) -> pd.DataFrame:
        """What methods gain over the baseline, as from `gains_over`."""
        return gains_over(self.settings, PLACE, self.track.baseline)

    @cached_property
    def apart(self) -> pd.DataFrame:
        """The pairs of methods that differ, as from `told_apart`."""
        return told_apart(self.settings, PLACE)

    @cached_property
    def at_an_end(self) -> pd.DataFrame:
        """Where half of a method's searches or more chose a learning rate at one end of its range.

        The columns are task, epsilon, method and end. By chance a fifth of the searches would.
        """
        rows = [
            (task, float(epsilon), method, end)
            for task, runs in self.confirmed.items()
            for (epsilon, method), part in split(runs[runs["epsilon"].notna()], "epsilon", "label")
            if (end := _common_end(part, self.spaces.get(task, {}).get(method)))
        ]
        return pd.DataFrame(rows, columns=[*PLACE, "method", "end"])

    @property
    def limited(self) -> pd.DataFrame:
        """The settings in which this is so of the baseline: rows of `at_an_end`."""
        return where(self.at_an_end, method=self.track.baseline)

    @property
    def without_baseline(self) -> pd.DataFrame:
        """The settings in which the baseline is shown not to be the best: its rows of `best`."""
        return where(self.best, method=self.track.baseline, can_be_best=False)

    @property
    def beaten(self) -> list[tuple[str, float]]:
        """The settings in which a simultaneous interval shows a gain over the baseline."""
        above = self.gains[self.gains["all_low"] > 0].drop_duplicates([*PLACE])
        places = set(zip(above["task"], above["epsilon"], strict=True))
        return [place for place in self.settings if place in places]

    @cached_property
    def hard(self) -> dict[str, int]:
        """The tasks on which more than half of all runs collapsed, and how many did."""
        each = self.best.groupby("task", sort=False)[["runs", "collapsed"]].sum()
        most = each[2 * each["collapsed"] > each["runs"]]
        return {str(task): int(number) for task, number in most["collapsed"].items()}

    @property
    def alone(self) -> pd.DataFrame:
        """The methods that are left as the best of a setting by themselves: rows of `best`."""
        able = where(self.best, can_be_best=True)
        return able[~able.duplicated([*PLACE], keep=False)]

    @property
    def needed(self) -> int:
        """How many searches it takes to exclude a method, over this number of settings."""
        return units_needed(ALPHA / max(1, len(self.settings)))

    @cached_property
    def over_tasks(self) -> list[MethodOverTasks]:
        """What is said over tasks, by ε and method."""
        budgets = sorted({epsilon for _, epsilon in self.settings})
        return [one for epsilon in budgets for one in self._over(epsilon)]

    @property
    def estimated(self) -> list[MethodOverTasks]:
        """Those of enough data sets for an interval of their gains that says something."""
        return [one for one in self.over_tasks if one.gain.tasks >= LEAST_TASKS]

    def together(self, one: MethodOverTasks) -> Interval:
        """Return the interval of a gain over tasks that is simultaneous with all others."""
        return one.gain.together(len(self.estimated))

    @cached_property
    def data_sets(self) -> dict[str, str]:
        """The data set that the examples of each task are from, features of them among others."""
        found = {}
        for task, runs in self.tasks.items():
            kind = dataset_class(runs["dataset"].iloc[0])
            found[task] = kind.of if issubclass(kind, Features) else kind.id
        return found

    def units(self, epsilon: float) -> list[str]:
        """Return the data sets of the tasks that were confirmed at an ε, one for each task."""
        return [self.data_sets[task] for task in self.at(epsilon)]

    def at(self, epsilon: float) -> dict[str, Confirmed]:
        """Return the tasks that were confirmed at an ε."""
        return {task: one for (task, at), one in self.settings.items() if at == epsilon}

    def _everywhere(self, epsilon: float) -> list[str]:
        """Return the methods that all tasks of an ε confirmed; none without the baseline.

        A method that passed only some screens was chosen by what it does on these tasks.
        """
        first, *others = (one.methods for one in self.at(epsilon).values())
        methods = [name for name in first if all(name in each for each in others)]
        return methods if self.track.baseline in methods else []

    @cached_property
    def p_values(self) -> dict[float, dict[str, float]]:
        """By ε that enough data sets have, and method: that no other one is better on average."""
        found = {}
        for epsilon in sorted({epsilon for _, epsilon in self.settings}):
            methods, units = self._everywhere(epsilon), self.units(epsilon)
            if methods and len(set(units)) >= units_needed(ALPHA):
                means = [
                    [one.by_search[one.methods.index(name)].mean() for name in methods]
                    for one in self.at(epsilon).values()
                ]
                # Tasks are the units: the differences of equally good methods are symmetric from
                # task to task.
                p_values = best_p_values(by_data_set(np.array(means).T, units))
                found[epsilon] = dict(zip(methods, p_values.tolist(), strict=True))
        return found

    def _over(self, epsilon: float) -> Iterator[MethodOverTasks]:
        """Yield what is said at one ε, of the methods that all tasks there confirmed."""
        at, units, tested = self.at(epsilon), self.units(epsilon), self.p_values.get(epsilon, {})
        gaps = self._gaps(at)
        for name in self._everywhere(epsilon):
            if name == self.track.baseline:
                continue
            rows = where(self.gains, epsilon=epsilon, method=name).set_index("task").loc[[*at]]
            errors = rows["error"].clip(lower=LEAST_ERROR)
            pairs = [self._pair(task, at[task], name) for task in gaps]
            model = MixedModel(
                *(by_data_set(one.to_numpy(), units) for one in (rows["gain"], errors))
            )
            closed = closed_shares(pairs, 0, 1) if pairs else None
            yield MethodOverTasks(epsilon, name, model, tested.get(name), closed, gaps)

    def _gaps(self, at: Mapping[str, Confirmed]) -> tuple[str, ...]:
        """Return the tasks in which privacy costs the baseline enough to take shares of it."""
        having = {task: one for task, one in at.items() if task in self.ceilings}
        base = self.track.baseline
        return tuple(
            task for task, one in having.items() if has_gap(self._pair(task, one, base), 1)
        )

    def _pair(self, task: str, one: Confirmed, method: str) -> Gap:
        """Return a method, the baseline, and the ceiling of their task."""
        both = [one.methods.index(name) for name in (method, self.track.baseline)]
        return Gap(one.right[both].mean(axis=2), self.ceilings[task])


def ended_at(study: Study, runs: pd.DataFrame) -> dict[str, list[str]]:
    """Return which methods of a task mostly chose learning rates at an end of their range, by end.

    Args:
        study: the task.
        runs: its rows, as they are published.
    """
    spaces, found = study.tunes, defaultdict(list)
    for (label,), part in split(runs, "label"):
        if end := _common_end(part, spaces.get(label)):
            found[end].append(label)
    return dict(found)


def _common_end(runs: pd.DataFrame, tune: Tune | None) -> str | None:
    """Return at which end of its range half or more of some searches chose the learning rate."""
    if tune is None:
        return None
    searches = runs.drop_duplicates(["panel", "epsilon", "search"])
    chosen = [json.loads(text) for text in searches["hyperparameters"]]
    ends = [tune.end_of(RATE, values.get(RATE)) for values in chosen]
    return next((end for end in ("highest", "lowest") if 2 * ends.count(end) >= len(ends)), None)


def by_track(
    tasks: Mapping[str, pd.DataFrame],
    spaces: Mapping[str, Spaces] | None = None,
    searches: Mapping[str, tuple[float, int]] | None = None,
) -> dict[Track, LeagueFindings]:
    """Return what the tasks of each track say, which are found by their runs.

    Args:
        tasks: as from `read_league`.
        spaces: by task, as `Study.tunes` has it; nothing is said of them by default.
        searches: by task, as from `search_of`; nor of these.
    """
    tracks = {
        task: track_of(*(set(runs[name]) for name in ("dataset", "method", "sampler")))
        for task, runs in tasks.items()
    }
    return {
        track: LeagueFindings(
            {one: tasks[one] for one in tasks if tracks[one] == track},
            track,
            spaces or {},
            searches or {},
        )
        for track in TRACKS
    }


def _gathered(runs: pd.DataFrame) -> Confirmed:
    level = next(one for one in runs["chance"] if one is not None)
    return gather(runs, level.levels["test_accuracy"])
