"""Tables that say nothing twice: equal rows become one, and a constant column is said once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clipnoise.report.formats import DASH

Cells = tuple[tuple[str, ...], ...]  # the values that a row holds for, column by column


def merged(rows: Iterable[Cells], columns: Iterable[int]) -> list[Cells]:
    """Join rows that are equal but for one column, for each of some columns in turn.

    A joined row holds for every combination of the values in its cells, and for no other.

    Args:
        rows: equal ones are kept once.
        columns: the numbers of the columns to join over, the first one first.
    """
    found = list(dict.fromkeys(rows))
    for column in columns:
        joined: dict[Cells, dict[str, None]] = {}
        for row in found:
            rest = (*row[:column], *row[column + 1 :])
            joined.setdefault(rest, {}).update(dict.fromkeys(row[column]))
        found = [(*rest[:column], tuple(one), *rest[column:]) for rest, one in joined.items()]
    return found


def compact(
    heads: Sequence[str],
    rows: Iterable[Cells],
    merge: Iterable[int] = (),
    numbers: int = 0,
    implied: Mapping[int, int] | None = None,
) -> dict[str, Any]:
    """Return rows as a table that says nothing twice, as plain data.

    Args:
        heads: of the columns.
        rows: a cell lists one value or several.
        merge: the columns to join rows over, as in `merged`.
        numbers: how many of the last columns hold numbers, which are aligned right.
        implied: columns, by number, that are left out where they follow from another column.

    Returns:
        `heads`, `right` (whether a column is aligned right) and `rows` (lists of values) of the
        columns that vary; `everywhere`: the others, which hold for all rows, in words.
    """
    joined = merged(rows, merge)
    columns = range(len(heads))
    varying = [i for i in columns if len(joined) < 2 or len({row[i] for row in joined}) > 1]
    for column, source in (implied or {}).items():
        pairs = {(row[source], row[column]) for row in joined}
        if column in varying and len(pairs) == len({row[source] for row in joined}) > 1:
            varying.remove(column)
    same = [i for i in columns if len({row[i] for row in joined}) == 1 and len(joined) > 1]
    same = [i for i in same if joined[0][i] != (DASH,)]
    return {
        "heads": [heads[i] for i in varying],
        "right": [i >= len(heads) - numbers for i in varying],
        "rows": [[list(row[i]) for i in varying] for row in joined],
        "everywhere": "; ".join(f"{heads[i]} {', '.join(joined[0][i])}" for i in same),
    }
