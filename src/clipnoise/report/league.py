"""The league's published files: a Parquet file per task, what is read from them, and their page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from clipnoise.errors import UserError
from clipnoise.report.blocks import ListBlock
from clipnoise.report.export import to_markdown
from clipnoise.report.formats import DASH, decimal
from clipnoise.report.inference.confirmed import (
    Confirmed,
    gains_over,
    gather,
    who_can_be_best,
)
from clipnoise.report.records import split, where
from clipnoise.run.correctness import unpacked
from clipnoise.run.fingerprint import fingerprint, training_code
from clipnoise.run.results import read_summary, run_folder
from clipnoise.studies.collect import collect
from clipnoise.studies.columns import LEAGUE, read_table, schema
from clipnoise.studies.screening import Screening
from clipnoise.studies.study import Study

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

HEAD = """# The league, task by task

Printed by `clipnoise league` from the files in `docs/league/v3`.
"""
PLACE = ("task", "epsilon")
BASELINE = "dp-sgd"
CONFIRMED_HEADS = ("method", "accuracy", "gain", "interval", "collapsed", "p", "can be the best")
CONFIRMED = (
    "Accuracy in %, over searches and seeds. Gain over DP-SGD in points, with 95% intervals that "
    "hold together over all tasks and budgets; they contain seeds, search and test set. p: the "
    "larger one of two tests whether the method can be the best, times the number of settings; the "
    "test for all examples like those of the test set is nominal. Collapsed: diverged, or no "
    "better than a constant prediction."
)
AGAIN = "Train it again, and publish it: `clipnoise league publish TASK`."


def published_rows(study: Study, results: Path) -> pa.Table:
    """Return the rows of a task that are published, with the digest of the code that trains.

    Args:
        study: the task.
        results: the results folder.

    Raises:
        UserError: a run of the task, those of searches among them, is missing or damaged, or was
            trained by other code than this; says how it is trained.
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

    rows = found.append_column("training_code", pa.array(codes, pa.string()))
    return rows.select(list(LEAGUE)).cast(schema(LEAGUE))


def read_league(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the files of all tasks.

    Args:
        folder: of the files, `<task>.parquet`.

    Returns:
        The runs of each task, a row each, by its name.

    Raises:
        UserError: there is no file, one is no such table, or the code that trained a method differs
            between two of them.
    """
    tasks = {path.stem: read_table(path, LEAGUE) for path in sorted(folder.glob("*.parquet"))}
    if not tasks:
        raise UserError(f"{folder}: no task is published there: `clipnoise league publish TASK`.")
    first: dict[str, tuple[str, str]] = {}
    for task, runs in tasks.items():
        for label, code in runs[["label", "training_code"]].drop_duplicates().to_numpy():
            other, before = first.setdefault(label, (task, code))
            if code != before:
                raise UserError(
                    f"{folder}: {label} was trained by other code in {task}.parquet ({code}) than "
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
        The rows of private methods, with `right`: a bool array of shape (test examples,), or None
        where a run diverged.

    Raises:
        UserError: the bits are not those of the test examples, or disagree with the accuracy.
    """
    found = where(runs, panel=panel)
    found = found[found["epsilon"].notna()]
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


def settings(tasks: Mapping[str, pd.DataFrame]) -> dict[tuple[str, float], Confirmed]:
    """Return the confirmed runs of each task and ε: the panels whose searches are repeated.

    A method without a search belongs to the searches by its seeds, which all methods share.

    Args:
        tasks: as from `read_league`.

    Raises:
        UserError: a run is missing, or a task has several such panels.
    """
    found: dict[tuple[str, float], Confirmed] = {}
    for task, runs in tasks.items():
        repeated = runs[runs["search"].notna()]
        searches = dict(zip(repeated["seed"], repeated["search"].astype(int), strict=True))
        for (panel,), _ in split(repeated, "panel"):
            confirmed = confirmed_runs(runs, panel)
            confirmed = confirmed.assign(search=confirmed["seed"].map(searches))
            for (text,), part in split(confirmed, "epsilon"):
                epsilon = float(text)
                if (task, epsilon) in found:
                    raise UserError(f"{task}: two panels confirm methods at ε = {epsilon:g}.")
                level = next(one for one in part["chance"] if one is not None)
                found[task, epsilon] = gather(part, level.levels["test_accuracy"])
    return found


def league_page(tasks: Mapping[str, pd.DataFrame]) -> str:
    """Return the page of the league in Markdown.

    It has who can be the best at each task and ε, over all of them at one level, and then a table
    for each panel of each task.
    """
    confirmed = settings(tasks)
    inferred = list(_inferred(confirmed)) if confirmed else []
    tables = [
        _table(task, panel, rows)
        for task, runs in tasks.items()
        for (panel,), rows in split(runs, "panel")
    ]
    return "\n".join([HEAD, *map(to_markdown, [*inferred, *tables])])


def _inferred(confirmed: Mapping[tuple[str, float], Confirmed]) -> Iterator[ListBlock]:
    """Yield a table for each task and ε: means, gains over DP-SGD, and who can be the best."""
    best = who_can_be_best(confirmed, PLACE)
    gains = {
        (row["task"], row["epsilon"], row["method"]): row
        for row in gains_over(confirmed, PLACE, BASELINE).to_dict("records")
    }
    for task, epsilon in confirmed:
        rows = where(best, task=task, epsilon=epsilon)
        shown = []
        for row in rows.sort_values("mean", ascending=False).to_dict("records"):
            gain, together = DASH, DASH
            over = gains.get((task, epsilon, row["method"]))
            if over is not None:
                gain = decimal(100 * over["gain"], 2)
                ends = (decimal(100 * over[end], 2) for end in ("all_low", "all_high"))
                together = f"[{', '.join(ends)}]"
            numbers = (decimal(100 * row["mean"], 2), gain, together)
            collapsed = f"{row['collapsed']} of {row['runs']}"
            last = (collapsed, decimal(row["adjusted"], 4), "yes" if row["can_be_best"] else "no")
            shown.append([row["method"], *numbers, *last])
        yield ListBlock(
            title=f"{task}, ε = {epsilon:g}: confirmed",
            caption=CONFIRMED,
            heads=CONFIRMED_HEADS,
            rows=shown,
            numbers=len(CONFIRMED_HEADS) - 1,
            notes=[],
        )


def _table(task: str, panel: str, runs: pd.DataFrame) -> ListBlock:
    """Return mean accuracies by method and ε, the best mean rank first."""
    private = runs[runs["epsilon"].notna()]
    budgets = sorted(set(private["epsilon"]))
    score = runs["test_accuracy"].where(runs["status"] == "completed", 0.0)
    scored = runs.assign(score=score)
    rows, order = [], []
    for (label,), cell in split(scored, "label"):
        means = cell.groupby("epsilon")["score"].mean()
        free = float(cell["score"].mean()) if cell["epsilon"].isna().all() else math.nan
        cells = [decimal(100 * float(means.get(e, free)), 2) for e in budgets]
        diverged = int((cell["status"] != "completed").sum())
        rows.append([label, *cells, str(diverged), decimal(cell["cpu_seconds"].mean(), 2)])
        order.append((free >= 0, -free if free >= 0 else -float(means.mean())))
    ranked = [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]
    model = ", ".join(dict.fromkeys(runs["model"]))
    return ListBlock(
        title=f"{task}, {panel} ({model})",
        caption="Mean test accuracy in %, in which a diverged run counts as 0.",
        heads=["method", *(f"ε = {e:g}" for e in budgets), "diverged", "CPU seconds"],
        rows=ranked,
        numbers=len(budgets) + 2,
        notes=[],
    )
