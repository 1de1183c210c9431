"""Which panels each item of a study's report shows, and which it compares these with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clipnoise.errors import UserError, unknown
from clipnoise.studies.grid import PanelGrid
from clipnoise.studies.items import ReportItem
from clipnoise.studies.panels import having


def place_items(
    items: Sequence[ReportItem], panels: Sequence[PanelGrid], path: Path
) -> tuple[ReportItem, ...]:
    """Return the items of a report, in order, each with the names of the panels that it shows.

    Raises:
        UserError: an item names a panel, an axis or an option that does not exist.
    """
    return tuple(
        placed
        for number, item in enumerate(items)
        for placed in _placed(item, panels, path, f"report.{number}")
    )


def _placed(
    item: ReportItem, panels: Sequence[PanelGrid], path: Path, key: str
) -> Iterator[ReportItem]:
    families = dict.fromkeys(one.family for one in panels)
    shown: list[PanelGrid] = []
    for family in item.named or families:
        if family not in families:
            raise UserError(
                f"{path}: {key}: the report shows panel {family!r}, which is not among the panels "
                f"{', '.join(families)}."
            )
        shown += having((one for one in panels if one.family == family), item.only, path, key)
    for group in [shown] if item.together and shown else [[one] for one in shown]:
        methods = [method.values for one in group for method in one.panel.each_method]
        item.check(methods, [one.panel.training for one in group], str(path), key)
        if len(ranked := dict.fromkeys(one.panel.rank_by or "none" for one in group)) > 1:
            raise UserError(
                f"{path}: {key}: the panels that it shows together are ranked by different metrics "
                f"({', '.join(ranked)}); give them one rank_by, or leave out together."
            )
        placed = replace(
            item,
            panels=tuple(one.name for one in group),
            title=_filled(item.title, group[0].titles, path, key),
            caption=_filled(item.caption, group[0].titles, path, key),
        )
        compared(placed, panels, path, key)  # are they there?
        yield placed


def _filled(text: str, titles: Mapping[str, str], path: Path, key: str) -> str:
    for name in re.findall(r"\{([a-z-]+)\}", text):
        if name not in titles:
            raise unknown("name in a title", name, titles, file=str(path), key=key)
        text = text.replace(f"{{{name}}}", titles[name])
    return text


def titles_of(item: ReportItem, panels: Iterable[PanelGrid]) -> tuple[str, ...]:
    """Return what tells the panels of an item apart; a panel that is shown alone has its name.

    Panels that are shown together have their titles, or those of options where they are of one.
    """
    if not item.together:
        return item.named
    group = _shown(item, panels)
    titles = tuple(one.titles["panel"] for one in group)
    if len(set(titles)) == len(group):
        return titles
    each = [{k: v for k, v in one.titles.items() if k != "panel"} for one in group]
    options = tuple(", ".join(one.values()) for one in each)
    return options if len(set(titles)) == 1 else tuple(one.title for one in group)


def compared(
    item: ReportItem, panels: Iterable[PanelGrid], path: Path, key: str = "report"
) -> dict[str, tuple[str, ...]]:
    """Return the panels that those of an item are compared with, by the option that names them.

    Raises:
        UserError: one of its panels has none with these options beside it.
    """
    every = list(panels)
    names = {(one.family, tuple(sorted(one.options.items()))): one.name for one in every}
    found: dict[str, tuple[str, ...]] = {}
    for option, options in item.compared.items():
        for one in _shown(item, every):
            place = (one.family, tuple(sorted({**one.options, **options}.items())))
            if place not in names:
                where = f"{path}: {key}.{option}"
                raise UserError(f"{where}: {one.family} has no panel with {dict(options)}.")
            found[option] = (*found.get(option, ()), names[place])
    return found


def _shown(item: ReportItem, panels: Iterable[PanelGrid]) -> list[PanelGrid]:
    by_name = {one.name: one for one in panels}
    return [by_name[name] for name in item.named]
