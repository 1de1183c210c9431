"""Positive controls: every deliberate mistake must be detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipnoise.audit.bench import layers
from clipnoise.audit.catalog import MISTAKES
from clipnoise.audit.contract import Largest, _attack_real, check_contract
from clipnoise.audit.controls.claims import optimistic_epsilon
from clipnoise.audit.controls.registry import CONTROLS
from clipnoise.audit.empirical import Settings, audit
from clipnoise.audit.noise import check_noise
from clipnoise.audit.subject import subject
from clipnoise.audit.updates import READS, TRAINS
from clipnoise.data.digits import Digits
from clipnoise.methods.registry import methods
from clipnoise.privacy.accountants.fixed_size import shuffled_epsilon_at_least
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import epsilon

# The check of the contract that must expose each mistake, and what it says.
EXPECTED = {
    "half-noise": ("noise", "times the declared variance"),
    "each-pass-clipped": ("sensitivity", "moves the release 3 times"),
    "microbatch-at-c": ("sensitivity", "moves the release 2 times"),
    "realised-batch-size": ("denominator", "the denominator changes"),
    "private-preconditioner": ("sensitivity", "as far as declared"),
    "node-at-c": ("nodes", "one node of a graph"),
    "shuffled-as-poisson": ("sampler", "batches are not Poisson"),
    "clean-mean-in-update": (READS, "depends on private data"),
    "last-run-in-update": (READS, "depends on private data"),
    "batch-size-in-update": (READS, "depends on private data"),
    "scale-from-private-mean": (READS, "depends on private data"),
    "clip-norm-from-private-mean": (READS, "depends on private data"),
    "half-sensitivity": ("sensitivity", "moves the release 2 times"),
    "tenth-noise-for-some-batches": ("sensitivity", "moves the release 10 times"),
    "release-over-its-norm": ("sensitivity", "as far as declared"),
    "noise-left-out": ("noise", "times the declared variance"),
    "noise-reused": ("noise", "covariance"),
    "noise-one-sided": ("noise", "a mean of"),
    "denominator-from-n": ("sensitivity", "as far as declared"),
    "denominator-from-n-rounded-down": ("sensitivity", "as far as declared"),
    "nothing-trained": (TRAINS, "released values move 0.0% of the parameters"),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    Digits().prepare(folder)
    return folder


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs and grids as short as the mistakes allow."""
    monkeypatch.setattr("clipnoise.audit.updates.RUNS", ((4, 15),))
    monkeypatch.setattr("clipnoise.audit.noise.GRID", ((4, 1.0, 1.3, 30),))
    monkeypatch.setattr("clipnoise.audit.contract.GRID", ((40.0, 5.0, 0.3, 3, (3,)),))
    monkeypatch.setattr("clipnoise.audit.contract.REAL", ())


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", EXPECTED)
def test_the_contract_check_exposes(name: str, cache: Path) -> None:
    build, (check, words) = CONTROLS[name].build, EXPECTED[name]
    assert build is not None
    result = check_contract(build(), cache, attacked=(3,))
    assert result["verdict"] == "broken"
    assert words in dict(zip(result["broken_checks"], result["broken"], strict=True))[check]


def test_masks_that_depend_on_the_rest_of_the_batch_are_exposed() -> None:
    build, largest = CONTROLS["dropout-by-position"].build, Largest()
    assert build is not None
    _attack_real(build(), layers(), largest, 0, (4,))
    assert largest.joint > 2


@pytest.mark.parametrize("seed", range(3))
def test_sound_noise_is_not_refuted(seed: int, cache: Path) -> None:
    assert check_noise(subject("ime-adam"), cache, seed)["holds"]


@pytest.mark.parametrize("name", ["shuffled-as-poisson", "delta-of-batches"])
def test_re_accounting_exposes(name: str) -> None:
    claim = CONTROLS[name].claim
    assert claim is not None
    assert claim().refuted


@pytest.mark.parametrize("name", ["half-noise", "each-pass-clipped", "clean-mean-in-update"])
def test_the_empirical_audit_exposes(name: str, cache: Path) -> None:
    """At full participation, where the audit sees most, a small one is enough."""
    build = CONTROLS[name].build
    assert build is not None
    settings = Settings(runs=50, sampling_rate=1.0)
    result = audit(build(), cache, settings)
    assert result["verdict"] == "refuted"
    exposing = "final_bound" if name == "clean-mean-in-update" else "bound"
    assert result[exposing]["epsilon"] > result["claimed_epsilon"]


def test_every_control_has_a_check_that_applies_and_none_is_a_method() -> None:
    assert {*EXPECTED, "delta-of-batches", "dropout-by-position"} == set(CONTROLS)
    assert set(CONTROLS) == set(MISTAKES)
    assert not set(CONTROLS) & set(methods())


def test_one_shuffled_batch_costs_at_most_the_gaussian_mechanism() -> None:
    """With one batch the attack is on N(2, σ²) against N(1, σ²): the exact ε is known."""
    found = shuffled_epsilon_at_least(1.0, 1, 1e-5)
    exact = gaussian_epsilon(1.0, 1e-5)
    assert 0.95 * exact < found <= exact


def test_shuffled_batches_cost_more_than_poisson_by_far() -> None:
    poisson = epsilon("rdp", noise_multiplier=0.5, sampling_rate=1e-3, steps=1000, delta=1e-6)
    assert shuffled_epsilon_at_least(0.5, 1000, 1e-6) > 2 * poisson


def test_the_optimistic_estimate_is_below_the_accountants() -> None:
    low = optimistic_epsilon(1.0, 0.1, 50, 1e-5)
    high = epsilon("pld", noise_multiplier=1.0, sampling_rate=0.1, steps=50, delta=1e-5)
    assert 0.98 * high < low <= high
