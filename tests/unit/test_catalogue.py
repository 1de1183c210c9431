"""The list of methods agrees with the code, and the documentation agrees with the list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from every_method import METHODS, build

from clipnoise.methods.base import methods
from clipnoise.methods.catalogue import catalogue

ROOT = Path(__file__).parents[2]
PRIVATE = [name for name in METHODS if build(name).private]


def evaluate(formula: str, c: float, b: float) -> float:
    """Evaluate a formula in C and B as a reader would: 2B is 2·B, ² is a square."""
    text = re.sub(r"(?<=[\d)])(?=[A-Z(])", "*", formula.replace("²", "**2"))
    return float(eval(text, {"__builtins__": {}}, {"C": c, "B": b}))


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize(("c", "b"), [(1.0, 1.0), (0.3, 7.0), (2.5, 64.0)])
def test_the_formula_shown_is_the_sensitivity_declared(name: str, c: float, b: float) -> None:
    query = build(name).query
    shown = [evaluate(formula, c, b) for formula in query.formulas]
    assert shown == pytest.approx([x.sensitivity for x in query.components(c, b)], rel=1e-12)


def test_every_method_is_listed_with_its_source() -> None:
    entries = catalogue()
    assert {entry.id for entry in entries} == set(methods())
    assert [entry.id for entry in entries if not entry.source or not entry.summary] == []


def test_a_method_without_privacy_shows_no_sensitivity() -> None:
    shown = {e.sensitivity for e in catalogue() if e.privacy == "non-private"}
    assert shown == {"–"}


def test_options_that_change_what_is_released_are_listed_with_what_they_release() -> None:
    variants = {(e.id, e.option): e.protection for e in catalogue() if e.option}
    assert variants == {
        ("ime-adagrad", "for_free: true"): ("non-private", "–", "–"),
        ("ime-adam", "for_free: true"): ("non-private", "–", "–"),
        ("jme-adam", "accounting: as-published"): ("non-private", "–", "–"),
    }


def test_passes_are_those_over_private_examples_alone_as_in_the_tables_of_results() -> None:
    shown = {entry.id: entry.passes for entry in catalogue() if not entry.option}
    for name in METHODS:
        assert shown[name] == build(name).passes(), name
    plain = [name for name in METHODS if build(name).uses_public_gradient]
    assert {shown[name] for name in plain} == {1}  # their public gradients are not counted
