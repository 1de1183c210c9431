"""Claims of the papers, held against the papers' own numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clipnoise.cli import options
from clipnoise.errors import unknown
from clipnoise.studies.study import (
    PUBLISHED,
    Study,
    load_study,
    published_tables,
    studies_of_papers,
)

if TYPE_CHECKING:
    import pandas as pd

    from clipnoise.report.claims import ClaimRow

INDENT = " " * 16


@options.command()
def claims(
    paper: Annotated[str | None, options.ARGUMENT] = None,
    from_: Annotated[Literal["published"], "Whose numbers: those in print."] = "published",
    studies: Annotated[Path, "Folder of study files."] = options.STUDIES,
    published: Annotated[Path, "Folder of published numbers."] = PUBLISHED,
    json: Annotated[bool, "Print everything as JSON."] = False,
) -> None:
    """Judge the claims of papers by the numbers that the papers print themselves.

    PAPER is a paper such as dp-pmlf, or an artefact such as dp-pmlf/table1; without one, all papers
    are judged. A claim that does not hold says which numbers contradict it. Where standard
    deviations are printed, each claim comes with the number of seeds that it takes to see it hold.
    The reports of the studies judge the same claims by results.
    """
    names = studies_of_papers(studies)
    papers = dict.fromkeys(name.partition("/")[0] for name in names)
    if paper is not None and paper not in (*papers, *names):
        raise unknown("paper", paper, [*papers, *names])
    chosen = [name for name in names if paper in (None, name, name.partition("/")[0])]
    plans = (load_study(studies / f"{name}.yaml") for name in chosen)
    judged = {plan.name: _judged(plan, published) for plan in plans if plan.claims}
    if json:
        plain = {name: [asdict(row) for row in rows] for name, rows in judged.items()}
        print(dumps({"from": from_, "claims": plain}, indent=1, ensure_ascii=False))
    else:
        print("\n\n".join("\n".join(_shown(name, rows)) for name, rows in judged.items()))


def _judged(study: Study, published: Path) -> list[ClaimRow]:
    """Return the claims of a study with their verdicts."""
    from clipnoise.report.claims import printed_data
    from clipnoise.report.published import printed_runs

    printed = printed_runs(planned_rows(study), study.report, published_tables(study, published))
    return printed_data(study.claims, printed)


def planned_rows(study: Study) -> pd.DataFrame:
    """Return what identifies the runs that a study plans, in the columns of runs.parquet."""
    import pandas as pd

    rows = (
        {
            **{name: getattr(run, name) for name in ("panel", "dataset", "model", "label")},
            **{"method": run.spec.method.id, "seed": run.spec.seed},
            "budget": run.spec.budget_label,
        }
        for run in study.runs
    )
    return pd.DataFrame(rows)


def _shown(name: str, rows: list[ClaimRow]) -> Iterator[str]:
    """Yield the lines that show the claims of a study: each with its verdict, and why."""
    yield name
    for row in rows:
        yield from _block(row.verdict, f"{row.text} ({row.source})")
        yield from _block("", f"{row.bounds}. In print: {row.print}")


def _block(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        100,
        initial_indent=f"  {head}".ljust(len(INDENT)) + " ",
        subsequent_indent=f"{INDENT} ",
    )
