"""Published runs of the league, trained again from their file alone; choices, made again.

What trains is imported where it is needed, because studies are planned without torch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.errors import UserError
from clipnoise.run.choice import Choice, in_words, resolve, tuned_values
from clipnoise.run.fingerprint import training_code
from clipnoise.run.results import read_summary, run_folder
from clipnoise.studies.collect import rows_of
from clipnoise.studies.columns import LEAGUE, frame, table
from clipnoise.studies.grid import PlannedRun
from clipnoise.studies.study import Study
from clipnoise.studies.tuning import choose

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]

    from clipnoise.privacy.budget import Budget
    from clipnoise.run.job import Different
    from clipnoise.run.spec import RunSpec

# Times and machines differ from run to run; the code may have changed, which is why one repeats.
MADE_BY = ("cpu_seconds", "seconds", "cpu", "git_commit", "training_code")


def one_of_each(published: pd.DataFrame, draw: int | None = None) -> pd.DataFrame:
    """Return one published run of each method at each ε, drawn at random.

    Args:
        published: the runs of a task, as from `read_league`.
        draw: the seed of the draw; by default another one each time.
    """
    shuffled = published.sample(frac=1, random_state=draw)
    return shuffled.drop_duplicates(["label", "epsilon"]).sort_index()


def repeated(
    study: Study, published: pd.DataFrame, *, cache: Path, weights: Path, device: str
) -> Iterator[tuple[str, Different]]:
    """Train published runs again and compare all that was published, but times and machines.

    Settings that a search chose are those of the file; the search is not repeated.

    Args:
        study: the task.
        published: these runs, with the columns of LEAGUE.
        cache, weights, device: as for `run_job`.

    Yields:
        Of each run its method, ε and seed, and what differs: as published and now, by column, and
        with it the processor, if it is another one.

    Raises:
        UserError: a run is not one of the study, or its dataset is not prepared.
    """
    from clipnoise.privacy.calibration import Calibration, calibrate
    from clipnoise.run.job import run_job, with_processors

    planned = {(run.panel, run.label, run.spec.hash): run for run in study.runs}
    calibrations: dict[Budget, Calibration] = {}
    for row in _records(published):
        run = planned.get((row["panel"], row["label"], row["hash"]))
        if run is None:
            raise UserError(
                f"{study.path}: {row['label']}, seed {row['seed']} ({row['hash']}) was published, "
                "but is no run of the study as it is now."
            )
        budget = run.spec.budget
        if budget is not None and budget not in calibrations:
            calibrations[budget] = calibrate(budget)
        with tempfile.TemporaryDirectory() as name:
            run_job(
                _with_settings(run, row["hyperparameters"]),
                None if budget is None else calibrations[budget],
                results=Path(name),
                cache=cache,
                weights=weights,
                device=device,
            )
            now = _records(frame(table(LEAGUE, [rows_of(study, run, Path(name), {})[0]])))[0]
        different: Different = {
            column: (row[column], now[column])
            for column in LEAGUE
            if column not in MADE_BY and row[column] != now[column]
        }
        epsilon = "" if row["epsilon"] is None else f", ε = {row['epsilon']:g}"
        called = f"{row['label']}{epsilon}, seed {row['seed']}"
        yield called, with_processors(different, row["cpu"], now["cpu"])


def chosen_otherwise(study: Study, spec: RunSpec, results: Path) -> Different:
    """Choose for a finished run again, by the results of its search, and return what differs.

    Args:
        study: that plans the run.
        spec: the run as it is planned.
        results: the results folder. Where runs of the search are missing, nothing can be told.
    """
    if spec.tuning is None:
        return {}
    search = study.searches[spec.tuning.key]
    tried = [read_summary(run_folder(results, one)) for one in search.runs]
    summaries = [one for one in tried if one is not None]
    trained = read_summary(run_folder(results, spec))
    if trained is None or len(summaries) < len(tried):
        return {}
    again = choose(summaries, search.parameters, search.metric, each=search.each).choice
    made = tuned_values(trained["spec"], search.parameters)
    return {} if made == again else {"what its search chose": (in_words(made), in_words(again))}


def _records(runs: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Return rows as plain values, None where nothing is."""
    return runs.astype(object).where(runs.notna(), None).to_dict("records")


def with_present_code(study: Study, path: Path) -> pa.Table:
    """Return the published rows of a task with the digests of the code as it is now.

    Args:
        study: the task.
        path: its published file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    rows = parquet.read_table(path)
    codes = {run.label: training_code(run.spec) for run in study.runs}
    column = pa.array([codes[label] for label in rows["label"].to_pylist()], pa.string())
    place = rows.schema.get_field_index("training_code")
    return rows.set_column(place, rows.schema.field(place), column)


def _with_settings(run: PlannedRun, hyperparameters: str) -> RunSpec:
    """Return a run with the settings that a search had chosen when it was published."""
    tuning, values = run.spec.tuning, json.loads(hyperparameters)
    if tuning is None:
        return run.spec
    chosen = {name: values[name] for name in tuning.parameters}
    return resolve(run.spec, Choice(metric="validation_accuracy", choice=chosen, tried=()))
