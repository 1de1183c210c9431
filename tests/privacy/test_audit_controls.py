"""Positive controls: every deliberate mistake must be detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipnoise.audit.catalog import MISTAKES
from clipnoise.audit.contract import check_contract
from clipnoise.audit.controls.claims import optimistic_epsilon
from clipnoise.audit.controls.registry import CONTROLS
from clipnoise.audit.empirical import Settings, audit
from clipnoise.audit.runs import check_sampler
from clipnoise.data.digits import Digits
from clipnoise.methods.registry import methods
from clipnoise.privacy.accountants.fixed_size import shuffled_epsilon_at_least
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import epsilon

EXPECTED = {
    "half-noise": "times the declared variance",
    "each-pass-clipped": "moves the release 3 times",
    "microbatch-at-c": "moves the release 2 times",
    "realised-batch-size": "moves the release 4 times",
    "private-preconditioner": "as far as declared",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_contract_check_exposes(name: str) -> None:
    build = CONTROLS[name].build
    assert build is not None
    result = check_contract(build(), attacked=(3,))
    assert result["verdict"] == "broken"
    assert any(EXPECTED[name] in words for words in result["broken"])


def test_a_realised_denominator_is_named() -> None:
    build = CONTROLS["realised-batch-size"].build
    assert build is not None
    assert any(
        "the denominator changes" in words
        for words in check_contract(build(), attacked=(3,))["broken"]
    )


def test_a_shuffled_sampler_is_distinguished_from_poisson() -> None:
    build = CONTROLS["shuffled-as-poisson"].build
    assert build is not None
    assert not check_sampler(build()).holds


@pytest.mark.parametrize("name", ["shuffled-as-poisson", "delta-of-batches"])
def test_re_accounting_exposes(name: str) -> None:
    claim = CONTROLS[name].claim
    assert claim is not None
    assert claim().refuted


@pytest.mark.parametrize("name", ["half-noise", "each-pass-clipped"])
def test_the_empirical_audit_exposes(name: str, tmp_path: Path) -> None:
    """At full participation, where the audit sees most, a small one is enough."""
    Digits().prepare(tmp_path)
    build = CONTROLS[name].build
    assert build is not None
    settings = Settings(runs=50, sampling_rate=1.0)
    assert audit(build(), tmp_path, settings)["verdict"] == "refuted"


def test_every_control_has_a_check_that_applies_and_none_is_a_method() -> None:
    others = {"node-at-c", "shuffled-as-poisson", "delta-of-batches"}  # held to elsewhere
    assert set(EXPECTED) | others == set(CONTROLS)
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
