"""Which cases `make test` runs of a test that has many."""

from __future__ import annotations

from typing import Any

import pytest
from selection import KEPT, ONLY_IN_FULL, mark_long_cases

LETTERS, NUMBERS, PAIRS = "abcde", [1, 2, 3], [("x", 1.0), ("y", 1.0)]


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("name", "value"), PAIRS)
def test_a_grid(letter: str, number: int, name: str, value: float) -> None:
    assert letter in LETTERS
    assert number in NUMBERS
    assert (name, value) in PAIRS


@pytest.mark.quick(letter="bd")
@pytest.mark.parametrize("letter", LETTERS)
def test_a_list(letter: str) -> None:
    assert letter in LETTERS


def quick(request: pytest.FixtureRequest, test: object) -> list[dict[str, Any]]:
    """Return the parameters of the cases of a test above that are not long."""
    module = request.node.getparent(pytest.Module)
    cases = [case for case in module.collect() if getattr(case, "obj", None) is test]
    assert len(cases) >= len(LETTERS)
    mark_long_cases(cases)
    return [case.callspec.params for case in cases if not case.get_closest_marker("long")]


def test_of_a_grid_are_as_few_as_hold_every_value(request: pytest.FixtureRequest) -> None:
    few = quick(request, test_a_grid)
    assert len(few) == len(LETTERS)
    assert {one["letter"] for one in few} == set(LETTERS)
    assert {one["number"] for one in few} == set(NUMBERS)
    assert {(one["name"], one["value"]) for one in few} == set(PAIRS)


def test_of_a_list_are_those_that_are_named(request: pytest.FixtureRequest) -> None:
    assert quick(request, test_a_list) == [{"letter": "b"}, {"letter": "d"}]


def test_of_every_file_a_test_is_quick_or_a_reason_is_given(request: pytest.FixtureRequest) -> None:
    """Of what was collected: in `make test`, of all."""
    files = {name: some for name, some in request.config.stash[KEPT].items() if "::" not in name}
    assert {name for name, some in files.items() if not some} == files.keys() & ONLY_IN_FULL.keys()


def test_of_every_test_with_quick_values_a_case_is_quick(request: pytest.FixtureRequest) -> None:
    assert [
        name for name, some in request.config.stash[KEPT].items() if "::" in name and not some
    ] == []
