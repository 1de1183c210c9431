"""The contract check: every family of methods passes it, and it measures what matters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from every_method import FAMILIES

from clipnoise.audit.bench import least_squares, realise
from clipnoise.audit.catalog import audited_methods
from clipnoise.audit.contract import GRID as POINTS
from clipnoise.audit.contract import check_contract
from clipnoise.audit.declaration import check_query
from clipnoise.audit.mistakes import HalfTheSensitivity, LeakySGD
from clipnoise.audit.moments import life
from clipnoise.audit.noise import GRID, check_noise
from clipnoise.audit.runs import (
    READS,
    RUNS,
    TRAINS,
    check_sampler,
    check_steps,
    check_updates,
)
from clipnoise.audit.subject import Subject, subject, with_numbers
from clipnoise.core.clipping import Clipping
from clipnoise.core.method import Method
from clipnoise.core.schedule import LinearSchedule
from clipnoise.methods.base import (
    ClippedMean,
    ClippedUserMean,
    PrivateMethod,
    Public,
    Released,
    State,
)
from clipnoise.methods.federated import DPFedAvg
from clipnoise.privacy.microbatches import MicroBatches
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.banded_inverse import BandedInverseNoise
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.noise.dense import DenseNoise
from clipnoise.privacy.noise.tree import TreeNoise


def test_an_example_can_have_any_gradient() -> None:
    bench = least_squares(6)
    wanted = torch.randn(5, 6, dtype=torch.float64) * torch.logspace(-3, 4, 5).double()[:, None]
    for engine in bench.engines.values():
        examples = realise(wanted, bench.theta)
        taken = engine.per_example_gradients(examples.inputs, examples.targets, bench.theta)
        torch.testing.assert_close(taken, wanted, rtol=1e-6, atol=1e-9)


SOUND = [
    "stp-adam",
    "dp-pmlf",
    "jme-adam",
    "dp-fedavg",
    "disk",
    "dpzero",
    "adaclip",
    "dp-microadam",
    "dp-prototypes",
    "dp-least-squares",
    "dp-sgd-slaclip",
    "tp-topk",
]
IN_FULL = ("stp-adam", "dp-microadam")  # of the latter's parameters a short run moves only some
QUICK = ("jme-adam",)  # two values in a release


@pytest.mark.quick(name=QUICK)
@pytest.mark.parametrize("name", SOUND)
def test_methods_keep_their_contract_on_real_and_hostile_data(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them in runs as long as a study's, as `clipnoise audit` tries every method."""
    if name not in IN_FULL:
        runs = partial(check_updates, runs=((4, None, 60), *RUNS[1:]))
        monkeypatch.setattr("clipnoise.audit.contract.check_updates", runs)
        monkeypatch.setattr("clipnoise.audit.noise.GRID", ((4, None, 1.0, 1.3, 100), *GRID[1:]))
        middle = (40.0, 5.0, 0.3, 30, (1, 15, 30))
        monkeypatch.setattr("clipnoise.audit.contract.GRID", (POINTS[0], middle, *POINTS[2:]))
    result = check_contract(subject(name), cache, attacked=(2,))
    assert result.verdict == "kept", result.broken
    assert {READS, TRAINS, "steps", "nodes"} <= {check.name for check in result.checks}
    measured = result.measured
    assert 0.7 < measured.joint <= 1 + 1e-6
    assert {"optimised to hurt", "empty batch", "outside the batch"} <= set(measured.kinds)
    assert measured.kinds["outside the batch"] == 0
    assert any("vmap" in path for path in measured.paths)


@dataclass(frozen=True, kw_only=True)
class SignSteps(PrivateMethod):
    """θ ← θ − η sign(g̃), but for a share of the parameters, which move by what is brought along."""

    query = ClippedMean()
    own: float = 0.0

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> torch.Tensor:
        change = -self.learning_rate * released[0].sign()
        change[: round(self.own * len(change))] = self.learning_rate
        return change


@pytest.mark.parametrize(("own", "trains"), [(0.0, True), (0.3, False), (0.5, False)])
def test_every_parameter_must_follow_what_was_released(
    own: float, trains: bool, cache: Path
) -> None:
    method = SignSteps(learning_rate=0.1, clip_norm=1.0, own=own)
    reads, found = check_updates(Subject(method), cache, RUNS[-1:])
    assert (reads.name, reads.holds) == (READS, True)
    assert (found.name, found.holds) == (TRAINS, trains), found.said


@dataclass(frozen=True, kw_only=True)
class Freezes(PrivateMethod):
    """DP-SGD that asks for one coordinate in twenty from some step on; the others may drift."""

    query = ClippedMean()
    since: int = 100
    drift: float = 0.0

    def scale(self, state: State, public: Public) -> torch.Tensor | None:
        if state.step <= self.since:
            return None
        return (torch.arange(len(state.theta)) % 20 == 0).to(state.theta)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> torch.Tensor:
        (g,), s = released, self.scale(state, public)
        return -self.learning_rate * (g if s is None else s * g + self.drift * (1 - s))


@pytest.mark.long
@pytest.mark.parametrize(
    ("own", "trains"),
    [
        ({}, True),  # what is frozen followed releases before
        ({"since": 0}, False),  # most never followed any
        ({"drift": 0.1}, False),  # most go on, by what was brought along
    ],
)
def test_parameters_may_freeze_once_they_have_followed_what_was_released(
    own: dict[str, float], trains: bool, cache: Path
) -> None:
    method = Freezes(learning_rate=0.1, clip_norm=1.0, **own)  # type: ignore[arg-type]
    reads, found = check_updates(Subject(method), cache, RUNS[:1])
    assert (reads.holds, found.holds) == (True, trains), found.said


def test_the_published_joint_moments_break_the_contract_they_do_not_claim() -> None:
    result = check_contract(subject("jme-adam", {"accounting": "as-published"}), attacked=(1,))
    assert result.verdict == "no claim"
    assert any("as far as declared" in words for words in result.broken)


@pytest.mark.quick(name=FAMILIES)
@pytest.mark.parametrize("name", audited_methods())
def test_every_method_has_moments_to_attack(name: str) -> None:
    audited, bench = subject(name), least_squares(4)
    for moment in life(audited, bench, expected_batch_size=4.0):
        clipping = moment.clipping
        release = moment.release(bench.pool)
        assert len(release.values) == len(audited.method.query.components(1.0, 4.0))
        declared = audited.method.clip_norm_at(moment.state.step + 1)
        if declared is not None:  # otherwise releases decide it
            assert clipping.clip_norm == declared


@pytest.mark.long
@pytest.mark.parametrize("name", ["dp-sgd", "stp-adam", "dp-pmlf", "jme-adam"])
def test_microbatches_keep_to_twice_the_clip_norm_and_use_it(name: str) -> None:
    audited = subject(name, microbatches=MicroBatches(2))
    result = check_contract(audited, attacked=(1, 2))
    assert result.verdict == "kept", result.broken
    assert 0.7 < result.measured.joint <= 1 + 1e-6


@pytest.mark.long
def test_microbatches_accounted_as_published_break_the_contract() -> None:
    audited = subject("dp-sgd", microbatches=MicroBatches(2, "as-published"))
    result = check_contract(audited, attacked=(1,))
    assert result.verdict == "broken"
    assert result.measured.joint > 1.5


def test_a_method_without_a_clip_claims_nothing() -> None:
    result = check_contract(subject("sgd"))
    assert result.verdict == "no claim"
    assert result.measured is None


@pytest.mark.parametrize(
    "noise",
    [
        BandedNoise(bands=3),
        DenseNoise(),
        BandedInverseNoise(bands=4),
        BufferedNoise(buffers=2),
        BandedNoise(bands=3, rates=LinearSchedule(peak=1.0)),
        TreeNoise(),
    ],
)
def test_correlated_noise_is_as_declared_once_whitened(
    noise: NoiseCorrelation, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clipnoise.audit.noise.GRID", ((100, None, 1.0, 1.3, 12),))
    assert check_noise(subject("dp-sgd", noise=noise, sampler="cyclic"), cache).holds


def test_correlated_noise_accounted_as_independent_is_detected(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def correlated(
        self: NoiseCorrelation, steps: int, groups: int, draw: torch.Generator, like: torch.Tensor
    ) -> Any:
        from clipnoise.privacy.noise import NoiseSource
        from clipnoise.privacy.noise_strategies import optimal_toeplitz

        return NoiseSource(draw, like, optimal_toeplitz(steps, 3))

    monkeypatch.setattr(NoiseCorrelation, "source", correlated)
    assert not check_noise(subject("dp-sgd"), cache).holds


def test_steps_and_batches_do_not_depend_on_the_data(cache: Path) -> None:
    steps = check_steps(subject("dp-adam"), cache)
    assert steps.holds
    assert "empty batches among them: 0" not in steps.said
    assert check_sampler(subject("dp-adam")).holds
    assert check_sampler(subject("dp-sgd", microbatches=MicroBatches(4))).holds


class NamesNoClipNorm(LeakySGD):
    """Clip all the same."""

    def clip_norm_at(self, step: int) -> None:
        return None

    def clipping(self, state: State, public: Public) -> Clipping:
        found = super().clipping(state, public)
        return replace(found, clip_norm=self.clip_norm)


class ManyTimesOfLargeNetworks(ClippedMean):
    def values(self, mean: torch.Tensor, clip_norm: float) -> tuple[torch.Tensor, ...]:
        return (mean * (5 if len(mean) > 1000 else 1),)


class OfNodes(ClippedMean):
    adjacency = "add-remove-node"


class LoudNearNothing(ClippedMean):
    """Release a mean that is next to nothing as a large one."""

    def values(self, mean: torch.Tensor, clip_norm: float) -> tuple[torch.Tensor, ...]:
        return (1e12 * mean if float(mean.norm()) < 1e-9 * clip_norm else mean,)


class UsersInPlace(DPFedAvg):
    """Clip users, and account for an example that leaves its place empty: it changes its user."""

    class InPlace(ClippedUserMean):
        adjacency = "zero-out"

    id = "users-in-place"
    query = InPlace()


class OfExamples(DPFedAvg):
    """Clip users, and account for examples."""

    id = "of-examples"
    query = ClippedMean()  # type: ignore[assignment]


def test_a_private_method_that_names_no_clip_norm_is_attacked() -> None:
    result = check_contract(Subject(NamesNoClipNorm(query=HalfTheSensitivity())), attacked=(2,))
    assert {"query", "sensitivity"} <= {*result.broken_checks}
    sound = Subject(NamesNoClipNorm(query=ClippedMean()))
    assert check_contract(sound, attacked=(2,)).verdict == "kept"


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (LeakySGD(query=ManyTimesOfLargeNetworks()), "moves the release 5 times as far"),
        (LeakySGD(query=OfNodes()), "is protected under 'add-remove'"),
        (LeakySGD(query=LoudNearNothing()), "times as far as declared"),
        (with_numbers(OfExamples, {}), "is protected under 'add-remove-user'"),
        (with_numbers(UsersInPlace, {}), "is protected under 'add-remove-user'"),
    ],
    ids=["large network", "nodes", "means next to nothing", "users", "examples of users"],
)
def test_what_a_query_declares_holds_for_any_size_and_what_is_clipped(
    method: Method, said: str
) -> None:
    found = check_query(Subject(method))
    assert not found.holds
    assert said in found.said


def test_nothing_is_trained_with_a_query_for_other_units_than_are_clipped(cache: Path) -> None:
    result = check_contract(Subject(LeakySGD(query=OfNodes())), cache)
    assert result.broken_checks == ["query"]
