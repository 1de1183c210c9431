"""Mistakes in a claim: the code may be right, but ε or δ is not what it is said to be."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.privacy.accountants.fixed_size import shuffled_epsilon_at_least
from clipnoise.privacy.accountants.poisson import epsilon

STEPS, SIGMA, DELTA = 1000, 0.5, 1e-6
EXAMPLES, BATCH, EPOCHS = 104_743, 256, 10
NOISE = 0.4


@dataclass(frozen=True)
class Claim:
    """A claim and what contradicts it.

    Attributes:
        claimed: the ε that is claimed.
        at_least: an ε that the mechanism costs at least, at the δ of the comparison.
        said: why, with the numbers.
    """

    claimed: float
    at_least: float
    said: str

    @property
    def refuted(self) -> bool:
        """Whether the claim is false."""
        return self.at_least > self.claimed


def shuffled_as_poisson() -> Claim:
    """Claim the ε of Poisson sampling for one epoch of shuffled batches."""
    claimed = epsilon(
        "pld", noise_multiplier=SIGMA, sampling_rate=1 / STEPS, steps=STEPS, delta=DELTA
    )
    at_least = shuffled_epsilon_at_least(SIGMA, STEPS, DELTA)
    return Claim(
        claimed,
        at_least,
        f"one epoch of {STEPS} batches, σ {SIGMA}, δ {DELTA:g}: Poisson sampling would cost "
        f"ε {claimed:.2f}, an attack on shuffled batches shows at least {at_least:.2f}",
    )


def delta_of_batches() -> Claim:
    """Claim, beside results at δ = 1e-5, the ε of a run accounted at δ = 1/(number of batches)."""
    batches = EXAMPLES // BATCH
    rate, steps = BATCH / EXAMPLES, EPOCHS * batches
    claimed = epsilon(
        "pld", noise_multiplier=NOISE, sampling_rate=rate, steps=steps, delta=1 / batches
    )
    at_least = optimistic_epsilon(NOISE, rate, steps, 1e-5)
    return Claim(
        claimed,
        at_least,
        f"{EPOCHS} epochs of {batches} batches, σ {NOISE}: ε {claimed:.2f} at δ = 1/{batches}, at "
        f"least {at_least:.2f} at δ = 1e-5; δ is {EXAMPLES / batches:.0f} times 1/n",
    )


def optimistic_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """Return an ε that Poisson-subsampled Gaussian releases cost at least.

    Args:
        noise_multiplier: σ.
        sampling_rate: q.
        steps: T.
        delta: δ.

    Source: Doroshenko et al. 2022, the optimistic estimate of a privacy loss distribution.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    single = from_gaussian_mechanism(
        noise_multiplier,
        pessimistic_estimate=False,
        sampling_prob=sampling_rate,
        use_connect_dots=False,
    )
    return float(single.self_compose(steps).get_epsilon_for_delta(delta))
