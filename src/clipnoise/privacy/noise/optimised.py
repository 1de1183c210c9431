"""What the kinds of noise share whose strategy is optimised for prefix sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from clipnoise.core.schedule import KINDS, Schedule
from clipnoise.errors import UserError
from clipnoise.fields import unhashed_at
from clipnoise.lazy import np
from clipnoise.privacy.noise.base import NoiseCorrelation

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Array

SMALLEST = 1e-3  # of rates over the largest one: others would hardly determine C
LONGEST = 5000  # steps: the search with rates holds a few matrices of T² numbers


@dataclass(frozen=True, kw_only=True)
class OptimisedNoise(NoiseCorrelation):
    """Base of the kinds whose strategy is optimised: for the noise in Σ_{s≤t} y_s, or in Σ η_s y_s.

    Rates only choose C. What C costs, and so σ and ε, follows from C as ever.

    Attributes:
        rates: η_s by which the terms of these sums are multiplied: `learning_rate` for the run's
            own schedule, or another schedule such as `{kind: linear, peak: 1}`.

    Source: Kalinin and Andersson 2025, "Learning Rate Scheduling with Matrix Factorization for
    Private Training" (arXiv 2511.17994): the workload A·diag(η). Which coefficients minimise its
    mean squared error is computed here.
    """

    rates: Annotated[Literal["learning_rate"] | Schedule | None, unhashed_at(None)] = None

    def weights(self, steps: int) -> Array | None:
        """Return η of each step over the largest one, shape (T,); None without rates.

        What is below a thousandth counts as a thousandth.

        Raises:
            UserError: they are those of a run, and of none in particular.
        """
        if self.rates is None:
            return None
        if not isinstance(self.rates, Schedule):
            raise UserError(
                "noise.rates: learning_rate is that of a run; give the schedule itself here."
            )
        values = np.array([self.rates.at(step, steps) for step in range(1, steps + 1)])
        return np.asarray(np.maximum(values / values.max(), SMALLEST))


def in_run(noise: NoiseCorrelation, learning_rate: object, steps: int) -> NoiseCorrelation:
    """Return the noise of a run, whose rates are a schedule of known values.

    Args:
        noise: as it is asked for.
        learning_rate: that of the method: a schedule, a number, or None where it has none.
        steps: T.

    Raises:
        UserError: there is nothing to optimise for, or the run is too long.
    """
    if not isinstance(noise, OptimisedNoise) or noise.rates is None or not steps:
        return noise
    rates = noise.rates if isinstance(noise.rates, Schedule) else learning_rate
    # A class of the user's could answer otherwise when asked again, after C is accounted for.
    if (
        not isinstance(rates, Schedule)
        or type(rates) not in KINDS
        or len({rates.at(t, steps) for t in rates.extremes(steps)}) < 2
    ):
        raise UserError(
            "privacy.noise.rates: are for a learning rate that a schedule changes from step to "
            "step. With the same rate at every step the noise for prefix sums is optimal already: "
            "leave rates out."
        )
    if steps > LONGEST:
        raise UserError(
            f"privacy.noise.rates: are for at most {LONGEST:,} steps, because the search takes "
            f"memory for T² numbers; got {steps:,}."
        )
    return replace(noise, rates=rates.relative())
