"""What a claim allows attacks: μ and true positive rates, of its mechanism or of its ε and δ."""

from __future__ import annotations

import math

import pytest
from loops import BATCH, DELTA, EXAMPLES, SIGMA, STEPS, HalfNoise, Plain, claim, examples

from clipnoise.audit import Claim
from clipnoise.audit.loops.accounting import claimed_profile, least_epsilon
from clipnoise.audit.loops.verdict import judge_loop
from clipnoise.report.judgement import _attacks


def test_steps_on_all_examples_compose_to_one_gaussian_mechanism() -> None:
    profile = claimed_profile(claim(sampler="full", expected_batch_size=EXAMPLES), EXAMPLES)
    assert profile is not None
    assert profile.mu == pytest.approx(math.sqrt(STEPS) / SIGMA)
    assert profile.slack == 0


def test_the_profile_of_poisson_batches_is_not_below_what_they_cost_at_least() -> None:
    true = claim()
    profile = claimed_profile(true, EXAMPLES)
    assert profile is not None
    least = least_epsilon(true, EXAMPLES, BATCH, STEPS)
    assert least <= (profile.epsilon_at(DELTA) or 0) < 1.01 * least
    assert 0.001 < profile.true_positive_rate(0.001) < profile.true_positive_rate(0.01) < 1


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-5), (3.0, 0.2)])
def test_without_a_mechanism_epsilon_and_delta_bound_attacks(epsilon: float, delta: float) -> None:
    profile = claimed_profile(Claim(epsilon=epsilon, delta=delta or 1e-300), EXAMPLES)
    assert profile is not None
    assert profile.mu is None
    for rate in (0.001, 0.01, 0.3, 0.7):
        lines = (delta + math.exp(epsilon) * rate, 1 - (1 - delta - rate) * math.exp(-epsilon), 1.0)
        assert profile.true_positive_rate(rate) == pytest.approx(min(lines))
    for smaller in (0.0, epsilon / 2):  # no bound at a smaller ε is below that of pure response
        grown = math.exp(epsilon)
        response = (grown - math.exp(smaller)) / (grown + 1)
        assert profile.delta_at(smaller) >= response


def test_a_claim_of_too_little_has_no_profile() -> None:
    assert claimed_profile(Claim(noise_multiplier=1, steps=3), EXAMPLES) is None


def test_a_judgement_has_the_profile_of_a_claim_that_is_not_refuted() -> None:
    held = judge_loop(claim(), Plain(), examples(), level="quick")
    assert 0 < held.profile["mu"] < 3
    assert "TPR of at most" in _attacks(held.profile)
    assert judge_loop(claim(), HalfNoise(), examples(), level="quick").profile is None
