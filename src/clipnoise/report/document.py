"""The content of a study's report, which the PDF template lays out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from clipnoise.report.blocks import Block, ListBlock, TableBlock, TextBlock
from clipnoise.report.claims import CLAIM_NOTE, ClaimRow, claims_data
from clipnoise.report.formats import VALUES, budget, compact, count, ranges, significant
from clipnoise.report.hyperparameters import (
    SPREAD,
    candidates,
    choices_data,
    configurations,
)
from clipnoise.report.items import ItemData, study_items
from clipnoise.report.kinds.table import ResultsTable
from clipnoise.report.origin import digests
from clipnoise.report.privacy import headline, privacy_statement
from clipnoise.report.published import printed_runs
from clipnoise.report.records import STATUSES, split
from clipnoise.report.tables import TEST
from clipnoise.report.verdict import VerdictSection, verdict_data
from clipnoise.studies.fidelity import open_settings
from clipnoise.studies.status import span
from clipnoise.studies.study import PUBLISHED, Study, published_tables

FEW = 8  # methods that are listed again for every panel

READING = (
    "A row that names several panels, datasets, models, methods or budgets holds for each "
    "combination of them, with the counts of each panel.",
    "± is the sample standard deviation over seeds: how much single runs vary, not how precisely "
    "the mean is known. Divide by √n for the standard error of the mean.",
    "The same seed gives every method the same initial weights and the same batches, so methods "
    f"are compared in pairs. Bold is decided by a {TEST}. With few seeds it detects only large "
    "differences: bold beside the best means “not shown to be worse”, not “equal”.",
    "For a method that diverged in some runs, the mean is over the other runs, with n/N beside it. "
    "This mean flatters the method, so it cannot be bold.",
    f"“{SPREAD}” among hyper-parameters: how much the factors by which a method multiplies "
    "gradients before the clip vary over coordinates in the last step. At 1 nothing is scaled: "
    "AdaDPS is then DP-SGD.",
    "ε is the cost of one training run with fixed hyper-parameters. Choosing them, repeating runs "
    "over seeds and publishing several models cost more; that is not included here.",
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report, section by section.

    Attributes:
        title, name: of the study.
        watermark: printed on every page.
        privacy_claim: what is claimed of all runs, in a few words.
        summary: how many runs have which outcome.
        verdict: which method is best where.
        description: what the study asks, by paragraph.
        items: its tables and figures.
        claims, claim_note: what the paper claims, and how to read that.
        grid: what was run.
        privacy: what is guaranteed.
        failures: the runs that did not complete.
        reading: how to read all of it.
        configurations, choices: hyper-parameters, and how clearly they were chosen.
        provenance: code, machines and time, as name and value.
        open_settings: what the paper leaves open.
    """

    title: str
    name: str
    watermark: str
    privacy_claim: str
    summary: str
    verdict: VerdictSection
    description: list[str]
    items: list[Block]
    claims: list[ClaimRow]
    claim_note: str
    grid: ListBlock
    privacy: list[TextBlock | ListBlock]
    failures: ListBlock
    reading: tuple[str, ...]
    configurations: ListBlock
    choices: ListBlock
    provenance: list[list[str]]
    open_settings: list[dict[str, str]]


def document(
    study: Study,
    runs: pd.DataFrame,
    curves: pd.DataFrame,
    figures: Collection[str],
    published: Path = PUBLISHED,
) -> Report:
    """Return the whole content of a report.

    Args:
        study, runs, curves, published: as in `build_report`, and so are the errors.
        figures: the images that there are, each `<number>.svg` of its report item; a missing one
            is reported as not drawn.
    """
    distinct = runs.drop_duplicates("hash")
    tried = candidates(study) if runs["configurations"].notna().any() else {}
    tables = published_tables(study, published)
    printed = printed_runs(runs, study.report, tables)
    shown = study_items(study, runs, curves, published=tables, images=figures)
    return Report(
        title=study.title,
        name=study.name,
        watermark=study.scale.watermark,
        privacy_claim=headline(distinct),
        summary=_summary(distinct),
        verdict=verdict_data(_judged(study, runs), study.scale.watermark),
        description=_paragraphs(study.description),
        grid=_grid(runs),
        privacy=privacy_statement(distinct, {run.spec.hash: run.spec for run in study.runs}),
        claims=claims_data(study.claims, runs, curves, printed, study.scale.watermark),
        claim_note=CLAIM_NOTE,
        items=_results(shown),
        failures=_failures(runs),
        reading=READING,
        configurations=configurations(runs, tried),
        choices=choices_data(runs),
        provenance=_provenance(distinct),
        open_settings=open_settings(study.name, published),
    )


def _judged(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the panels whose results a report has as a table; all if it has none."""
    tables = [item for item in study.report if isinstance(item, ResultsTable)]
    shown = {panel for item in tables for panel in item.named}
    return runs[runs["panel"].isin(shown)] if shown else runs


def _results(every: Iterable[ItemData]) -> list[Block]:
    """Return the tables and figures in order, without the notes that stand below an earlier one."""
    shown: set[str] = set()
    found: list[Block] = []
    for block in (block for data in every for block in data.item.blocks(data)):
        if isinstance(block, TableBlock | ListBlock):
            notes = [note for note in block.notes if note not in shown]
            shown.update(block.notes)
            block = replace(block, notes=notes)
        found.append(block)
    return found


def _paragraphs(text: str) -> list[str]:
    """Split a text at its empty lines; other line breaks are only those of the file."""
    return [" ".join(block.split()) for block in text.split("\n\n") if block.strip()]


def _summary(runs: pd.DataFrame) -> str:
    if runs.empty:
        return "No run is planned."
    status = runs["status"].value_counts()
    counts = [f"{status[name]:,} {_outcome(name)}" for name in STATUSES if name in status]
    return f"{count(len(runs), 'planned run')}: {', '.join(counts)}."


def _outcome(status: str) -> str:
    return "damaged" if status == "corrupt" else status


def _grid(runs: pd.DataFrame) -> ListBlock:
    """Return what each panel crosses and how much of it completed, as a table."""
    rows = []
    for (panel,), subset in split(runs, "panel"):
        done = int((subset["status"] == "completed").sum())
        models, labels, budgets = (
            tuple(subset[name].drop_duplicates()) for name in ("model", "label", "budget")
        )
        row = (panel, _named(subset), models, labels, tuple(map(budget, budgets)))
        rows.append((*row, str(subset["seed"].nunique()), f"{done}/{len(subset)}"))
    heads = ("panel", "datasets", "models", "methods", "budgets", "seeds", "completed")
    return _listed_once(compact(heads, rows, (0,), numbers=2))


def _listed_once(table: ListBlock) -> ListBlock:
    """Name the panel that lists the same methods where a long list would come again."""
    if "methods" not in table.heads:
        return table
    column, first = table.heads.index("methods"), dict[str, str]()
    rows = []
    for row in table.rows:
        own, methods = row[0].split(VALUES)[0], row[column].split(VALUES)
        panel = first.setdefault(row[column], own)
        again = panel != own and len(methods) > FEW
        rows.append([*row[:column], f"as in {panel}", *row[column + 1 :]] if again else row)
    return replace(table, rows=rows)


def _named(runs: pd.DataFrame) -> tuple[str, ...]:
    """Return the datasets of a panel, each with the data that was loaded where the names differ."""
    pairs = runs[["dataset", "data"]].drop_duplicates().itertuples(index=False)
    return tuple(name if data in ("", name) else f"{name} (data: {data})" for name, data in pairs)


def _failures(runs: pd.DataFrame) -> ListBlock:
    """Return the runs that did not complete, those of one outcome and reason together."""
    failed = runs[runs["status"] != "completed"]
    columns = ("panel", "dataset", "model", "label", "budget", "status", "reason")
    rows = [
        (*place, budget(text), ranges(list(subset["seed"].astype(int))), _outcome(status), reason)
        for (*place, text, status, reason), subset in split(failed, *columns)
    ]
    heads = ("panel", "dataset", "model", "method", "budget", "seeds", "outcome", "reason")
    return compact(heads, rows, (3, 4, 2, 1, 0))


def _provenance(runs: pd.DataFrame) -> list[list[str]]:
    """Return the code, machines and time of the finished runs, as name and value."""
    done = runs[runs["status"].isin(["completed", "diverged"])]
    if done.empty:
        return []
    columns = {
        **{"Commit": "git_commit", "torch": "torch", "Gradient engine": "engine"},
        **{"Host": "host", "CPU": "cpu", "GPU": "gpu"},
    }
    return [
        ["Runs with a result", f"{len(done):,} of {len(runs):,}"],
        *map(list, digests(done).items()),
        *(
            [name, _counted(done[column], "none" if column == "gpu" else "unknown")]
            for name, column in columns.items()
        ),
        ["First start", min(done["started"]) or "unknown"],
        ["Last finish", max(done["finished"]) or "unknown"],
        ["Wall time, all runs", span(float(done["seconds"].sum()))],
        ["Wall time, longest run", span(float(done["seconds"].max()))],
        ["Peak memory, largest run", f"{significant(float(done['peak_memory_mb'].max()))} MB"],
    ]


def _counted(column: Iterable[str], empty: str) -> str:
    """Return the distinct values, with the number of runs where there are several."""
    counts = pd.Series(list(column)).replace("", empty).value_counts(sort=False)
    if len(counts) == 1:
        return str(counts.index[0])
    return "; ".join(f"{value} ({count(int(number), 'run')})" for value, number in counts.items())
