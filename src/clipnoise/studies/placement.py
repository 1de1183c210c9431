"""Which panels each item of a study's report shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clipnoise.errors import UserError, unknown
from clipnoise.studies.grid import PanelGrid
from clipnoise.studies.items import PlacedItem, ReportItem
from clipnoise.studies.panels import having


def place_items(
    items: Sequence[ReportItem], panels: Sequence[PanelGrid], path: Path
) -> tuple[PlacedItem, ...]:
    """Return the items of a report, in order.

    Raises:
        UserError: an item names a panel, an axis or an option that does not exist.
    """
    return tuple(
        placed
        for number, item in enumerate(items)
        for placed in _items(item, panels, path, f"report.{number}")
    )


def _items(
    item: ReportItem, panels: Sequence[PanelGrid], path: Path, key: str
) -> Iterator[PlacedItem]:
    families = dict.fromkeys(one.family for one in panels)
    named = (item.panels,) if isinstance(item.panels, str) else item.panels or families
    shown: list[PanelGrid] = []
    for family in named:
        if family not in families:
            raise UserError(
                f"{path}: {key}: the report shows panel {family!r}, which is not among the panels "
                f"{', '.join(families)}."
            )
        shown += having((one for one in panels if one.family == family), item.only, path, key)
    for group in [shown] if item.together and shown else [[one] for one in shown]:
        methods = [method.values for one in group for method in one.panel.each_method]
        item.check(methods, str(path), key)
        if len(ranked := dict.fromkeys(one.panel.rank_by or "none" for one in group)) > 1:
            raise UserError(
                f"{path}: {key}: the panels that it shows together are ranked by different metrics "
                f"({', '.join(ranked)}); give them one rank_by, or leave out together."
            )
        placed = _placed(item, group, panels, path, key)
        titles = _apart(group)
        yield replace(placed, titles=titles) if item.together else placed


def _apart(group: Sequence[PanelGrid]) -> tuple[str, ...]:
    """Return what tells panels apart that are shown together: options where they are of one."""
    titles = tuple(one.titles["panel"] for one in group)
    if len(set(titles)) == len(group):
        return titles
    each = [{k: v for k, v in one.titles.items() if k != "panel"} for one in group]
    options = tuple(", ".join(one.values()) for one in each)
    return options if len(set(titles)) == 1 else tuple(one.title for one in group)


def _placed(
    item: ReportItem,
    shown: Sequence[PanelGrid],
    panels: Sequence[PanelGrid],
    path: Path,
    key: str,
) -> PlacedItem:
    return PlacedItem(
        item=item,
        panels=tuple(one.name for one in shown),
        title=_filled(item.title, shown[0].titles, path, key),
        caption=_filled(item.caption, shown[0].titles, path, key),
        others={
            option: _others(shown, options, panels, path, f"{key}.{option}")
            for option, options in item.compared.items()
        },
    )


def _filled(text: str, titles: Mapping[str, str], path: Path, key: str) -> str:
    for name in re.findall(r"\{([a-z-]+)\}", text):
        if name not in titles:
            raise unknown("name in a title", name, titles, file=str(path), key=key)
        text = text.replace(f"{{{name}}}", titles[name])
    return text


def _others(
    members: Sequence[PanelGrid],
    options: Mapping[str, str],
    panels: Sequence[PanelGrid],
    path: Path,
    key: str,
) -> tuple[str, ...]:
    """Return the names of the panels that differ from some in these options."""
    names = {(one.family, tuple(sorted(one.options.items()))): one.name for one in panels}
    found = []
    for one in members:
        place = (one.family, tuple(sorted({**one.options, **options}.items())))
        if place not in names:
            raise UserError(f"{path}: {key}: {one.family} has no panel with {dict(options)}.")
        found.append(names[place])
    return tuple(found)
