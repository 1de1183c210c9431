"""Processes that train a run together end where one process ends, up to rounding."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import rank_cases
import torch
from rank_cases import CASES, MISTAKES, STEPS, prepared, trained
from torch import Tensor

from clipnoise.run.checkpoint import read
from clipnoise.run.outcome import Clock, LostRankError
from clipnoise.run.ranks import Ranks, started

pytestmark = pytest.mark.long  # together; each test reads what one group of processes has found
ROUNDING = 1e-4  # of float32, relative to how far the parameters moved


@pytest.fixture(scope="module")
def found(cache: Path) -> dict[str, Any]:
    """Train everything with two and with three processes, of which this one is the first."""
    with started(3, "cpu", rank_cases.compute, cache) as ranks:
        return rank_cases.compute(ranks, cache)


@pytest.fixture(scope="module")
def alone(cache: Path) -> dict[str, Tensor]:
    return {name: trained(case, cache, Ranks()) for name, case in CASES.items()}


def distance(one: Tensor, other: Tensor) -> float:
    """Return how far apart two moves are, relative to the second."""
    return float((one - other).double().norm() / other.double().norm())


@pytest.mark.parametrize("name", CASES)
def test_two_and_three_processes_end_where_one_does(
    name: str, found: dict[str, Any], alone: dict[str, Tensor]
) -> None:
    assert float(alone[name].norm()) > 0
    for count in (2, 3):
        assert distance(found[f"{name} {count}"], alone[name]) < ROUNDING


@pytest.mark.parametrize("name", CASES)
def test_a_run_repeats_bit_for_bit(name: str, found: dict[str, Any]) -> None:
    assert torch.equal(found[f"{name} 2"], found[f"{name} again"])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_among_processes_is_noticed(
    name: str, found: dict[str, Any], cache: Path
) -> None:
    result = found[f"mistake: {name}"]
    if isinstance(result, str):
        assert "different parameters after step 1" in result
    else:
        assert distance(result, trained(MISTAKES[name][1], cache, Ranks())) > 100 * ROUNDING


def test_secure_noise_is_drawn_once_and_is_another_each_time(found: dict[str, Any]) -> None:
    """Had a process drawn noise of its own, the run would have ended with an error."""
    first, second = found["secure"]
    assert distance(first, second) > 0.01


def test_a_step_sends_a_sum_and_the_noise(found: dict[str, Any], alone: dict[str, Tensor]) -> None:
    """Of k processes, k − 1 send the sum and k − 1 get it; the noise goes to k − 1."""
    assert found["sent"] == STEPS * (2 + 1) * alone["dense"].nbytes


def test_a_run_resumes_on_another_number_of_processes(found: dict[str, Any], cache: Path) -> None:
    assert torch.equal(found["resumed"], found["never stopped"])
    run = prepared(CASES["micro-batches"], cache, Ranks())
    start = run.state.theta
    run.set_state(found["saved"])
    for _ in run.steps(Clock()):
        pass
    assert distance(run.state.theta - start, found["never stopped"] - start) < ROUNDING


def test_a_request_to_one_process_stops_all_of_them(found: dict[str, Any], cache: Path) -> None:
    assert found["stopped"] == "stopped by SIGTERM, checkpoint after step 2"
    assert read(cache / "checkpoint", {}).notes["outcome"]["steps_done"] == 2


def test_an_own_loop_ends_where_that_of_one_process_does(found: dict[str, Any]) -> None:
    """The networks of the others had other starting values, which the first one's replace."""
    start = torch.cat([p.detach().flatten() for p in rank_cases.Net(0).parameters()])
    expected = rank_cases.own_theta(rank_cases.own_training(0)) - start
    assert distance(found["own 3"] - start, expected) < ROUNDING
    assert torch.equal(found["own, resumed"], found["own 3"])


@pytest.mark.parametrize("what", ["data", "seed", "training", "method"])
def test_processes_that_were_given_something_else_are_named(
    what: str, found: dict[str, Any]
) -> None:
    said = found[f"other {what}"]
    assert said.startswith(f"UserError: {what}: must be the same in all 3 processes")
    assert "in process 2" in said


def test_a_setting_that_only_one_process_changes_is_noticed(found: dict[str, Any]) -> None:
    assert "different parameters after step 2" in found["own, set apart"]


def test_noise_without_a_seed_is_shared_in_an_own_loop(found: dict[str, Any]) -> None:
    theta, statement = found["own, secret"]
    assert bool(theta.isfinite().all())
    assert statement.claim == "guarantee"
    assert any("3 processes were given the same examples" in line for line in statement.assumes)


def test_the_privacy_audit_tells_sound_processes_from_broken_ones(cache: Path) -> None:
    with started(2, "cpu", rank_cases.audited, cache, 10) as ranks:
        verdicts = rank_cases.audited(ranks, cache, 10)
    assert verdicts == {
        "sound": "not refuted",
        "noise left out": "refuted",
        "the same batch twice": "refuted",
    }


def dying(ranks: Ranks, cache: Path, step: float) -> None:
    """Train, and die after a step."""
    for t in prepared(CASES["shuffled"], cache, ranks).steps(Clock()):
        if t == step:
            os._exit(3)


def test_the_others_end_with_a_line_when_a_process_dies(cache: Path) -> None:
    said = r"process 2 of 2 that train this run together has ended \(exit code 3\)"
    with (
        pytest.raises(LostRankError, match=said),
        started(2, "cpu", dying, cache, 2) as both,
    ):
        dying(both, cache, math.inf)


def test_a_process_that_cannot_start_is_not_waited_for(cache: Path) -> None:
    """What it would be handed cannot be read there: its first import fails."""
    with (
        pytest.raises(LostRankError, match="process 2 of 2"),
        started(2, "cpu", dying, Unreadable()),
    ):
        pass


class Unreadable:
    """Data that end the process that reads them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os._exit, (4,))
