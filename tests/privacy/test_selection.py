"""The privacy cost of choosing the best run: limits, monotonicity, and an exact simulation."""

from __future__ import annotations

from typing import Any

import pytest

from clipnoise.errors import UserError
from clipnoise.privacy.accountants.poisson import epsilon
from clipnoise.privacy.accountants.selection import selected_epsilon

RUN: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "sampling_rate": 0.01,
    "steps": 1000,
    "delta": 1e-6,
}


def test_choosing_costs_something_but_little() -> None:
    single = epsilon("rdp", **RUN)
    chosen = selected_epsilon(expected_runs=10, **RUN)
    assert single < chosen < 2 * single


def test_more_candidates_cost_more() -> None:
    costs = [selected_epsilon(expected_runs=mu, **RUN) for mu in (1, 3, 10, 100)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


def test_it_is_cheaper_than_publishing_every_run() -> None:
    every = epsilon("rdp", **{**RUN, "steps": 100 * RUN["steps"]})
    assert selected_epsilon(expected_runs=100, **RUN) < 0.7 * every


def test_less_than_one_run_is_refused() -> None:
    with pytest.raises(UserError, match="expected_runs"):
        selected_epsilon(expected_runs=0.5, **RUN)
