"""Which cases of a test `make test` runs; the others are marked as long.

`make test` makes every kind of check: all contracts, with one method of each family where each case
costs, and of any other list one value of each kind. `.ci/run` makes every check with every case.

- A test with several parametrizations runs in as few cases as hold every value of each.
- The marker `quick(name=values)` leaves it only the cases whose parameter `name` is one of the
  values; at least one.
- The marker `long` leaves out a test that takes a second of a core, if a cheaper one of its kind
  stays.
- Of every file `make test` runs a test, but for those that are named below with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

ONLY_IN_FULL = {
    "tests/contract/test_pretend_device.py": "trains with every method in a process of its own",
    "tests/contract/test_ranks.py": "groups of processes, each with torch",
    "tests/contract/test_torchrun.py": "groups of processes, each with torch",
    "tests/slurm/test_cluster.py": "a cluster of Slurm",
    "tests/slurm/test_processes_of_a_node.py": "a cluster of Slurm",
    "tests/slurm/test_several_nodes.py": "a cluster of Slurm",
    "tests/unit/test_pytest_plugin.py": "runs pytest in a process of its own",
    "tests/unit/test_ranks_benchmark.py": "measures in processes of its own",
    "tests/unit/test_speed_benchmark.py": "measures in processes of its own",
    "tests/workflow/test_every_dataset.py": "trains on every dataset",
    "tests/workflow/test_kills.py": "kills runs for a while",
    "tests/workflow/test_league_task.py": "trains a screen and a confirmation",
    "tests/workflow/test_made_again.py": "runs a study several times",
    "tests/workflow/test_mlflow_pages.py": "a server of MLflow, and its pages",
    "tests/workflow/test_published_page.py": "a browser, as test_site.py has one",
    "tests/workflow/test_store_faults.py": "servers of databases",
    "tests/workflow/test_team_server.py": "a server of MLflow with its database",
    "tests/workflow/test_two_processes.py": "groups of processes, each with torch",
    "tests/workflow/test_unit_runs.py": "trains on users and nodes",
    "tests/workflow/test_wheel.py": "installs an environment",
}
KEPT = pytest.StashKey[dict[str, bool]]()


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


def kept(items: Iterable[pytest.Item]) -> dict[str, bool]:
    """Say of every file, and of every test with the marker `quick`, if a case is not long."""
    found: dict[str, bool] = defaultdict(bool)
    for item in items:
        test = item.nodeid.partition("[")[0]
        for name in (test.partition("::")[0], *[test] * bool(item.get_closest_marker("quick"))):
            found[name] |= item.get_closest_marker("long") is None
    return dict(found)


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
