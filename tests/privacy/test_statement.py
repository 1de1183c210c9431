"""The privacy statement of a run declares a sensitivity that holds in every one of its steps."""

from __future__ import annotations

from typing import Any

import pytest
from budgets import budget
from every_method import METHODS, build, required

from clipnoise.run.results import privacy_statement
from clipnoise.run.spec import RunSpec, from_mapping

PRIVATE = [
    name
    for name in METHODS
    if build(name).private and build(name).local_training() is None  # needs a dataset of users
]


def spec(method: dict[str, Any], steps: int = 6) -> RunSpec:
    return from_mapping(
        {
            "dataset": {"id": "synthetic-zipf", "public_examples": 100},
            "model": "lstm",
            "method": method,
            "privacy": {"noise_multiplier": 2.0, "delta": 1e-5},
            "training": {"expected_batch_size": 50, "steps": steps},
            "seed": 0,
        }
    )


@pytest.mark.parametrize("name", PRIVATE)
def test_no_step_has_a_larger_sensitivity_than_the_statement_declares(name: str) -> None:
    run = spec({"id": name, **required(name)})
    statement = privacy_statement(run, budget(run))
    by_step = [
        run.method.query.components(run.method.clip_norm_at(step) or 0.0, 50)[0].sensitivity
        for step in range(1, run.steps + 1)
    ]
    assert statement.sensitivity == max(by_step)


@pytest.mark.parametrize(
    ("clip_norms", "steps", "largest"),
    [((1.0, 3.0), 6, 3.0), ((3.0, 1.0), 6, 3.0), ((1.0, 3.0), 2, 1.0)],
)
def test_a_method_with_two_clip_norms_declares_the_largest_that_its_steps_use(
    clip_norms: tuple[float, float], steps: int, largest: float
) -> None:
    options = {"phase_lengths": (2, 2), "learning_rates": (0.1, 0.1), "clip_norms": clip_norms}
    run = spec({"id": "dp2-rmsprop", **options}, steps)
    statement = privacy_statement(run, budget(run))
    assert statement.clip_norm == largest
    assert statement.sensitivity == pytest.approx(largest / 50)
