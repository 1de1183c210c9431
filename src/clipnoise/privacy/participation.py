"""Participation: in which steps an example can take part, and what the steps cost it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge

from clipnoise.fields import STRICT, Count, Fraction, Natural, parse, unhashed_at
from clipnoise.lazy import np
from clipnoise.privacy.accountants import ACCOUNTANTS, AccountantName
from clipnoise.privacy.accountants.patterns import Pattern
from clipnoise.privacy.accountants.poisson import (
    Rate,
    Releases,
    truncated_epsilon,
)
from clipnoise.privacy.noise import NoiseCorrelation

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Groups of examples take turns; in its group's turn, each example takes part with one rate.

    One group is Poisson sampling. Rate 1 is a fixed order without amplification. The steps in which
    an example can take part are `groups` apart. With noise of at most that many bands they touch
    disjoint columns of the strategy, and T steps cost ⌈T/groups⌉ releases of the Poisson-subsampled
    Gaussian mechanism at σ. Noise of more bands needs rate 1. The strategy is scaled so that T
    steps, again, cost ⌈T/groups⌉ releases of the Gaussian mechanism at σ: see `fitted`. The first
    t < T steps cost ⌈t/groups⌉ releases, or more where `prefix_cost` is above 1.

    With random allocation, `groups` is the number of steps of an epoch, of which an example is in
    one at random, the rate is 1/groups, and a release is a whole epoch. With balls-in-bins,
    an example draws its group at random and the rate is 1, but it costs less than in a fixed order.
    With b-min-sep, `groups` is b, the fewest steps from one participation to the next, and the rate
    that of an example that may take part.

    Attributes:
        groups: how many groups take turns.
        sampling_rate: the probability within the group; q·groups for an expected batch of q·n.
        steps: T.
        truncation_probability: of a step that draws more examples than its batch may have.
        affected_examples: how many per-example gradients one unit can change: 1, or K + 1 for a
            node of a graph.
        examples: n, if batches have a fixed size and the analysis depends on n.
        prefix_cost: by how much the first t < T steps may cost more than the participations in
            them; above 1 for tree noise only. T steps never do.
        noise: how it is correlated, if the analysis depends on it.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", theorem 4.
    """

    __pydantic_config__: ClassVar = STRICT

    groups: Count = 1
    sampling_rate: Rate
    steps: Natural
    truncation_probability: Fraction = 0.0
    affected_examples: Count = 1
    examples: Count | None = None
    prefix_cost: Annotated[float, Ge(1)] = 1.0
    noise: Annotated[NoiseCorrelation | None, unhashed_at(None)] = None

    def releases(self, steps: int | None = None) -> int:
        """Return how many releases the first `steps` steps (all T by default) cost an example.

        It is the number of steps that the example can be in, but for `prefix_cost`.
        """
        every = -(-self.steps // self.groups)
        if steps is None:
            return every
        return min(every, math.ceil(-(-steps // self.groups) * self.prefix_cost))

    def epsilon(
        self,
        accountant: AccountantName,
        *,
        noise_multiplier: float,
        delta: float,
        steps: int | None = None,
    ) -> float:
        """Bound the ε spent by the first `steps` steps (all T by default).

        Args:
            accountant: whose analysis is used.
            noise_multiplier, delta: σ, relative to a strategy scaled for these groups, and δ.
            steps: t ≤ T.

        Returns:
            ε for adding or removing one example (or node); for replacing one, if that is what the
            accountant is about.

        Raises:
            UserError: the accountant cannot bound ε for these values, or one is out of range.
        """
        releases = self._counted(accountant, steps)
        if releases == 0:
            return 0.0

        def spent(delta: float) -> float:
            return ACCOUNTANTS[accountant].epsilon(
                self._composed(accountant, noise_multiplier, releases, delta)
            )

        return truncated_epsilon(spent, delta, releases * self.truncation_probability)

    def deltas(
        self,
        accountant: AccountantName,
        epsilons: NDArray[np.float64],
        *,
        noise_multiplier: float,
        least: float,
    ) -> NDArray[np.float64]:
        """Bound δ at each ε of all T steps, as `epsilon` bounds ε at δ.

        Args:
            accountant, noise_multiplier: as for `epsilon`.
            epsilons: ε ≥ 0, ascending.
            least: the smallest δ that matters.

        Returns:
            δ at each ε, at most 1 and not below the true value.

        Raises:
            UserError: the accountant cannot bound δ for these values.
        """
        releases = self._counted(accountant)
        if releases == 0:
            return np.zeros_like(epsilons)
        composed = self._composed(accountant, noise_multiplier, releases, least)
        # As in `truncated_epsilon`.
        truncated = (1 + np.exp(epsilons)) * releases * self.truncation_probability
        return np.minimum(ACCOUNTANTS[accountant].delta(composed, epsilons) + truncated, 1.0)

    def gaussian(self, accountant: AccountantName, noise_multiplier: float) -> float | None:
        """Return μ where all T steps cost exactly one Gaussian mechanism at σ = 1/μ, or None."""
        sampled = self.sampling_rate < 1 or self.truncation_probability > 0
        if sampled or ACCOUNTANTS[accountant].replaces or ACCOUNTANTS[accountant].patterned:
            return None
        return math.sqrt(self.releases()) / noise_multiplier

    def _counted(self, accountant: AccountantName, steps: int | None = None) -> int:
        """Return how many releases, or steps where their pattern matters, are accounted for."""
        if ACCOUNTANTS[accountant].patterned:
            return self.steps if steps is None else steps
        return self.releases(steps)

    def _composed(
        self, accountant: AccountantName, noise_multiplier: float, releases: int, delta: float
    ) -> Releases:
        pattern = None
        if ACCOUNTANTS[accountant].patterned:
            assert self.noise is not None  # Budget requires it for this accountant
            pattern = Pattern(
                noise=self.noise,
                groups=self.groups,
                steps=self.steps,
                sampling_rate=self.sampling_rate,
            )
        values = {
            "noise_multiplier": noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "steps": releases,
            "delta": delta,
            "affected_examples": self.affected_examples,
            "examples": self.examples,
            "pattern": pattern,
        }
        return parse(Releases, values)
