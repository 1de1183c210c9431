"""Privacy profiles: δ for every ε, and what follows from it that can be compared.

One (ε, δ) is a point of the profile: a mechanism whose ε is smaller at one δ may have a larger one
at another. The profile, and the trade-off curve that is equivalent to it, say which attacks are
possible. Everything here is a bound: neither δ nor a true positive rate is below the true one.

Source: Gomez et al. 2025, "Gaussian DP for Reporting Differential Privacy Guarantees in Machine
Learning" (arXiv 2503.10945); Dong, Roth, Su 2022, "Gaussian Differential Privacy".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, TypedDict

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Fraction, NonNegative, unhashed_at
from clipnoise.lazy import np
from clipnoise.privacy.accountants import AccountantName
from clipnoise.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from clipnoise.privacy.accountants.poisson import LARGEST_LOSS
from clipnoise.privacy.participation import Participation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SLACK = 1e-9  # δ₀, with which a mechanism may fail to be μ-GDP
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)  # at which δ is stated
DELTAS = (1e-3, 1e-5, 1e-6)  # at which ε is stated
RATES = (0.001, 0.01)  # false positive rates at which true positive rates are stated
COARSE = 120  # points of the first grid of ε > 0, which says where δ falls
POINTS = 240  # of the grid of ε, of each of its two halves
PER_DECADE = 5  # points that are kept for each factor of ten in the false positive rate
SMALLEST_RATE = 1e-9
MARGIN = 1e-9  # relative, for rounding errors in μ


class StatedProfile(TypedDict, total=False):
    """What is stated of a profile; without one, only why it is not available."""

    mu: float | None
    slack: float
    regret: float | None
    unavailable: str | None
    true_positive_rates: dict[str, float]  # by false positive rate
    deltas: dict[str, float]  # by ε
    epsilons: dict[str, float]  # by δ


@dataclass(frozen=True, kw_only=True)
class PrivacyProfile:
    """What any attack on a mechanism can reach, as far as its accountant can bound it.

    Attributes:
        epsilons, deltas: points of the profile: the mechanism is (ε, δ)-DP for each of them.
        mu: the mechanism is dominated by a Gaussian mechanism of sensitivity 1 and σ = 1/μ that
            reveals everything with probability `slack`; the smallest such μ. None if no such μ is
            known.
        slack: δ₀; 0 if the mechanism is μ-GDP without it.
        regret: Δ, how much the errors of attacks that the profile allows may be larger than those
            that μ and the slack allow; None without μ.
        unavailable: why there is no profile, or no μ; None if there are both.
        point: ε and δ as they are stated of the mechanism, one more such point. It holds by itself:
            no chord is drawn to it, because a bound that was verified by random draws errs with a
            probability of its own.
    """

    __pydantic_config__: ClassVar = STRICT

    epsilons: tuple[NonNegative, ...] = ()
    deltas: tuple[Fraction, ...] = ()
    mu: NonNegative | None = None
    slack: Fraction = 0.0
    regret: NonNegative | None = None
    unavailable: str | None = None
    point: Annotated[tuple[NonNegative, Fraction] | None, unhashed_at(None)] = None

    def stated(self) -> StatedProfile:
        """Return what is stated of it: bounds, or why one is not available."""
        if not self.epsilons:
            return {"unavailable": self.unavailable}
        epsilons = {f"{delta:g}": self.epsilon_at(delta) for delta in DELTAS}
        return {
            "mu": self.mu,
            "slack": self.slack,
            "regret": self.regret,
            "unavailable": self.unavailable,
            "true_positive_rates": {f"{rate:g}": self.true_positive_rate(rate) for rate in RATES},
            "deltas": {f"{epsilon:g}": self.delta_at(epsilon) for epsilon in EPSILONS},
            "epsilons": {delta: one for delta, one in epsilons.items() if one is not None},
        }

    def lines(self, *, nominal: bool) -> dict[str, str]:
        """Return what is stated of it in words, by what it is; every bound is rounded up.

        Args:
            nominal: whether ε is, too.
        """
        known, mark = self.stated(), ", nominal" if nominal else ""
        if not self.epsilons:
            return {"privacy profile": f"not available: {self.unavailable}"}

        def pairs(bounds: Mapping[str, float]) -> str:
            return ", ".join(f"{at}: {rounded_up(bound)}" for at, bound in bounds.items())

        return {
            f"Gaussian DP{mark}": self._gaussian(),
            f"TPR at FPR{mark}": pairs(known["true_positive_rates"]),
            f"δ at ε{mark}": pairs(known["deltas"]),
            f"ε at δ{mark}": pairs(known["epsilons"]),
        }

    def _gaussian(self) -> str:
        if self.mu is None or self.regret is None:
            return f"not available: {self.unavailable}"
        if not self.slack:
            return f"μ = {rounded_up(self.mu)}, exact"
        gap = rounded_up(self.regret, 2)
        return f"μ = {rounded_up(self.mu)}, but for a probability of {self.slack:g}; gap Δ = {gap}"

    def delta_at(self, epsilon: float) -> float:
        """Bound δ at an ε ≥ 0; 1 without a profile."""
        if not self.epsilons:
            return 1.0
        # δ is a convex function of e^ε, so it is at most its chord between two points.
        places = np.exp(np.array(self.epsilons))
        known = [float(np.interp(math.exp(min(epsilon, LARGEST_LOSS)), places, self.deltas))]
        if self.point is not None and epsilon >= self.point[0]:
            known.append(self.point[1])
        if self.mu:
            gaussian = float(gaussian_delta(self.mu, np.array([epsilon]))[0])
            known.append(self.slack + (1 - self.slack) * gaussian)
        return min(known)

    def epsilon_at(self, delta: float) -> float | None:
        """Bound ε at a δ in (0, 1); None where the profile does not reach it."""
        known = []
        if self.deltas and delta >= self.deltas[-1]:
            places = np.exp(np.array(self.epsilons))
            known.append(math.log(float(np.interp(delta, self.deltas[::-1], places[::-1]))))
        if self.point is not None and delta >= self.point[1]:
            known.append(self.point[0])
        if self.mu and delta > self.slack:
            known.append(gaussian_epsilon(1 / self.mu, (delta - self.slack) / (1 - self.slack)))
        return min(known, default=None)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Bound how often an attack recognises a member that takes a non-member for one that often.

        Source: Dong, Roth, Su 2022 (trade-off functions of (ε, δ)-DP and of Gaussian DP).
        """
        from scipy.special import ndtr, ndtri

        pairs = [*zip(self.epsilons, self.deltas, strict=True)]
        pairs += [] if self.point is None else [self.point]
        useful = [pair for pair in pairs if pair[0] <= LARGEST_LOSS]
        epsilons, deltas = np.array(useful).reshape(-1, 2).T
        places = np.exp(epsilons)
        forward = deltas + places * false_positive_rate
        backward = 1 - (1 - deltas - false_positive_rate) / places
        bound = min(1.0, float(forward.min(initial=1.0)), float(backward.min(initial=1.0)))
        if not self.mu:
            return bound
        kept = 1 - self.slack
        gaussian = ndtr(ndtri(min(1.0, false_positive_rate / kept)) + self.mu)
        return min(bound, self.slack + kept * float(gaussian))


def rounded_up(value: float, digits: int = 3) -> str:
    """Return a bound as text, not below its value but for rounding errors of floats."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:.{digits}g}"


@lru_cache(maxsize=64)
def privacy_profile(
    participation: Participation,
    accountant: AccountantName,
    noise_multiplier: float,
    stated: tuple[float, float] | None = None,
) -> PrivacyProfile:
    """Return the profile of all T steps at σ; one that says why there is none, where there is none.

    Args:
        participation: in which steps a unit can take part.
        accountant: whose bounds are used.
        noise_multiplier: σ.
        stated: ε and δ as the accountant states them; no bound of the profile contradicts them.
    """

    def deltas(epsilons: Array) -> Array:
        return participation.deltas(
            accountant, epsilons, noise_multiplier=noise_multiplier, least=SLACK
        )

    try:
        hull = _hull(*_sampled(deltas))
    except UserError as error:
        return PrivacyProfile(unavailable=str(error))
    exact = participation.gaussian(accountant, noise_multiplier)
    slack = SLACK if exact is None else 0.0
    mu = hull.mu(slack) if exact is None else exact
    kept = hull.thinned()
    return PrivacyProfile(
        epsilons=tuple(map(float, kept.epsilons)),
        deltas=tuple(map(float, kept.deltas)),
        mu=mu,
        slack=slack,
        regret=None if mu is None else 0.0 if exact is not None else hull.regret(mu, slack),
        unavailable=None if mu is not None else f"δ does not fall to {slack:g} at any ε",
        point=stated,
    )


def _sampled(deltas: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return δ on a grid of ε that is fine where δ falls, down to SLACK if it gets there."""
    coarse = np.concatenate([[0.0], np.geomspace(1e-3, LARGEST_LOSS, COARSE)])
    found = deltas(coarse)
    low = np.flatnonzero(found <= SLACK)
    end = float(coarse[low[0]] if len(low) else coarse[int(np.argmin(found))])
    fine = [np.linspace(0, end, POINTS), np.geomspace(end * 1e-4, end, POINTS)] if end else []
    epsilons = np.unique(np.concatenate([[0.0, *EPSILONS], *fine]))
    return epsilons, deltas(epsilons)


@dataclass(frozen=True)
class _Hull:
    """The largest convex function of e^ε that is nowhere above some points of a profile.

    The true profile is convex in e^ε, so it is not above it. The trade-off function that belongs to
    it is the largest of the lines 1 − δ − e^ε α and their mirror images, its kinks among them.

    Attributes:
        epsilons, deltas: its corners.
    """

    epsilons: Array
    deltas: Array

    def kinks(self) -> tuple[Array, Array]:
        """Return false and true positive rates where the lines of neighbouring corners meet.

        They are those with FPR ≤ 1 − TPR; the others mirror them.
        """
        places = np.exp(self.epsilons)
        false = -np.diff(self.deltas) / np.diff(places)
        return false, self.deltas[:-1] + places[:-1] * false

    def mu(self, slack: float) -> float | None:
        """Return the smallest μ of a Gaussian mechanism that dominates up to a slack.

        With probability δ₀ that mechanism reveals everything, so its trade-off function is
        (1 − δ₀) G_μ(α/(1 − δ₀)), and its δ at ε is δ₀ + (1 − δ₀) δ_μ(ε). That function is convex,
        and the hull's is linear between its kinks, so it is enough that the former is below the
        latter at the kinks.

        Source: Dong, Roth, Su 2022 (composition with (0, δ)-DP).
        """
        from scipy.special import ndtri

        if self.deltas[-1] > slack:  # where FPR is 0
            return None
        false, true = self.kinks()
        above = true > slack
        false, true = false[above] / (1 - slack), (true[above] - slack) / (1 - slack)
        with np.errstate(all="ignore"):
            least = ndtri(np.minimum(true, 1.0)) - ndtri(false)
        value = max(0.0, float(least.max(initial=0.0))) * (1 + MARGIN)
        return value if math.isfinite(value) else None

    def regret(self, mu: float, slack: float) -> float:
        """Return by how much both errors of an attack may be larger than μ and a slack say.

        The two trade-off curves are compared where the errors differ by the same.

        Source: Gomez et al. 2025 (the regret Δ).
        """
        from scipy.special import ndtr, ndtri

        false, true = self.kinks()
        end = [1 - self.deltas[-1]]
        first = np.concatenate([[0.0], false[::-1], 1 - true, end])
        second = first[::-1]
        shares = np.concatenate([[0.0], np.geomspace(1e-12, 0.5, 1000)])
        alpha = (1 - slack) * shares
        beta = (1 - slack) * ndtr(-ndtri(shares) - mu)
        allowed = np.interp(alpha - beta, first - second, first)
        return max(0.0, float((allowed - alpha).max()))

    def thinned(self) -> _Hull:
        """Return some of its corners: some for each decade of FPR and of δ.

        Those beside EPSILONS and DELTAS are among them, so that bounds there are as before.
        """
        false, _ = self.kinks()
        last = len(self.deltas) - 1
        decades = -round(math.log10(SMALLEST_RATE))
        wanted = np.geomspace(SMALLEST_RATE, 1.0, decades * PER_DECADE)
        rates = np.searchsorted(-false, -wanted)
        failures = np.searchsorted(-self.deltas, -np.append(wanted, DELTAS))
        places = np.searchsorted(self.epsilons, EPSILONS)
        beside = np.concatenate([failures, failures - 1, places, places - 1])
        kept = np.unique([0, last, *rates, *np.clip(beside, 0, last)])
        return _Hull(self.epsilons[kept], self.deltas[kept])


def _hull(epsilons: Array, deltas: Array) -> _Hull:
    """Return the hull of some points of a profile, ascending in ε."""
    last = int(np.argmin(deltas))
    places = np.exp(epsilons)
    corners: list[int] = []
    for point in range(last + 1):
        while len(corners) > 1 and _slope(places, deltas, corners[-1], point) <= _slope(
            places, deltas, corners[-2], corners[-1]
        ):
            corners.pop()
        corners.append(point)
    return _Hull(epsilons[corners], deltas[corners])


def _slope(x: Array, y: Array, first: int, second: int) -> float:
    return float((y[second] - y[first]) / (x[second] - x[first]))
