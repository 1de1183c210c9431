"""Which published tables a study is compared with: those it names, or the one that has its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clipnoise.errors import unknown
from clipnoise.files import inside
from clipnoise.studies.file import ReportItem
from clipnoise.studies.study import Study

PUBLISHED = Path("reports/published")


def comparisons(study: Study, folder: Path = PUBLISHED) -> Mapping[ReportItem, Path]:
    """Return the report items that compare with published numbers, and the CSV that each reads.

    Args:
        study: a study. Where its report has no item of the kind `published`, but the folder has a
            CSV of the study's name, every panel that the report shows as a table gets one.
        folder: the folder of published tables.

    Raises:
        UserError: an item names a table that is not there.
    """
    own = [item for item in study.report if item.kind == "published"]
    if not own and (folder / f"{study.name}.csv").is_file():
        shown = [item for item in study.report if item.kind == "table"]
        panels = dict.fromkeys(item.panel for item in shown or study.report)
        titles = {panel: f": {panel}" if len(panels) > 1 else "" for panel in panels}
        own = [
            ReportItem(kind="published", panel=panel, title=f"Published and measured here{title}")
            for panel, title in titles.items()
        ]
    return {item: _table(study, item, folder) for item in own}


def published_tables(study: Study, folder: Path) -> list[str]:
    """Return the CSV files that a study is compared with, once each."""
    return list(dict.fromkeys(map(str, comparisons(study, folder).values())))


def _table(study: Study, item: ReportItem, folder: Path) -> Path:
    name = item.published or study.name
    path = Path(name)
    if path.suffix != ".csv":
        path = inside(folder, f"{name}.csv", key=f"{study.path}: report.published")
    if not path.is_file():
        names = [
            one.relative_to(folder).with_suffix("").as_posix() for one in folder.rglob("*.csv")
        ]
        raise unknown("published table", name, names, file=str(study.path), key="report.published")
    return path
