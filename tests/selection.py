"""Which cases of a test `make test` runs; the others are marked as long.

A test with several parametrizations runs in as few cases as hold every value of each. The marker
`quick(name=values)` leaves it only the cases whose parameter `name` is one of the values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def mark_long_cases(items: Iterable[pytest.Item]) -> None:
    """Mark as long what `make test` leaves to `.ci/run`."""
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not is_quick(item):
            item.add_marker(pytest.mark.long)
        elif len(list(item.iter_markers("parametrize"))) > 1:
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        few = set(fewest(cases))
        for case in cases:
            if case not in few:
                case.add_marker(pytest.mark.long)


def is_quick(item: pytest.Item) -> bool:
    """Return whether a case is not long, and is one of those that its `quick` markers name."""
    if item.get_closest_marker("long"):
        return False
    named = [pair for mark in item.iter_markers("quick") for pair in mark.kwargs.items()]
    return all(parameters(item)[name] in values for name, values in named)


def fewest(cases: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Return cases in which every value of every parametrization occurs.

    First those in which all values are new, at last those in which one is: of a grid, hardly more
    than its longest side.
    """
    seen: set[object] = set()
    given = {case: values(case) for case in cases}
    for new in range(max(map(len, given.values())), 0, -1):
        for case in cases:
            if len(given[case] - seen) == new:
                seen |= given[case]
                yield case


def values(case: pytest.Item) -> set[object]:
    """Return what each parametrization gives a case; of several names it gives them together."""
    names = (mark.args[0] for mark in case.iter_markers("parametrize"))
    together = ((name,) if isinstance(name, str) else tuple(name) for name in names)
    given = parameters(case)
    return {tuple((name, id(given[name])) for name in group) for group in together}


def parameters(case: Any) -> dict[str, Any]:
    return dict(case.callspec.params)
