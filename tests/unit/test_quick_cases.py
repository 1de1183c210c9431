"""Which cases `make test` runs of a test that has many."""

from __future__ import annotations

from typing import Any

import pytest
from selection import mark_long_cases

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
