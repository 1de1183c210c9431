"""How many trials a search makes, where the number is drawn before the first of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from clipnoise.fields import STRICT
from clipnoise.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 1e4  # expected trials
SPAN = 28.0  # of the logarithms between which a parameter of a law is searched
PLAIN = 1e-6  # |η| up to which the mean is that of η = 0


@dataclass(frozen=True, kw_only=True)
class DrawnTrials:
    """The law of the number of trials K: K ≥ 1 is drawn first, and stays secret.

    `negative-binomial` is the truncated one with shape η ≥ −1/2 and γ in (0, 1): P[K = k] is in
    proportion to (1 − γ)^k ∏_{0≤l<k} (l + η)/(l + 1) for k ≥ 1; η = 1 is the geometric law, and in
    the limit η = 0 the logarithmic one. `poisson` is a Poisson number, drawn again where it is 0.

    Attributes:
        law: the family.
        mean: E[K]; γ, or the mean of the Poisson number, follows. At 1 there is one trial.
        shape: η of the negative binomial law.

    Source: Papernot, Steinke 2022, "Hyperparameter Tuning with Rényi Differential Privacy",
    Definition 1 (truncated negative binomial) and section 3.3 (Poisson, with 0 trials allowed).
    """

    __pydantic_config__: ClassVar = STRICT

    law: Literal["negative-binomial", "poisson"] = "negative-binomial"
    mean: Annotated[float, Ge(1), Le(MOST)]
    shape: Annotated[float, Ge(-0.5), Le(100)] = 1.0

    def __post_init__(self) -> None:
        if self.law == "poisson" and self.shape != 1:
            raise ValueError("shape: not of the law 'poisson'")

    @property
    def odds(self) -> float:
        """(1 − γ)/γ of the negative binomial law."""
        return _solve(lambda odds: _mean(odds, self.shape), self.mean)

    @property
    def rate(self) -> float:
        """μ, the mean of the Poisson number before 0 is left out."""
        return _solve(lambda rate: rate / -math.expm1(-rate), self.mean)

    def slope(self, missing: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return φ(u) = E[K(1 − u)^(K−1)], which falls from E[K] at 0 to P[K = 1] at u = 1."""
        u = np.asarray(missing, dtype=np.float64)
        if self.mean == 1:
            return np.ones_like(u)
        if self.law == "poisson":
            return np.asarray(self.mean * np.exp(-self.rate * u))
        return np.asarray(self.mean * (1 + self.odds * u) ** -(self.shape + 1))

    def draw(self, uniform: float) -> int:
        """Return K, by inversion of its distribution function.

        Args:
            uniform: a number that is uniform in [0, 1).
        """
        number, below, mass = 1, 0.0, float(self.slope(np.array(1.0)))
        poisson = self.law == "poisson"
        factor = self.rate if poisson else self.odds / (1 + self.odds)
        while (below := below + mass) <= uniform and mass > 0:
            mass *= factor * (1 if poisson else number + self.shape) / (number + 1)
            number += 1
        return number

    def __str__(self) -> str:
        shape = f" of shape {self.shape:g}" if self.law == "negative-binomial" else ""
        return f"{self.law}{shape}, {self.mean:g} expected"


def _mean(odds: float, shape: float) -> float:
    """Return E[K] of the truncated negative binomial law: η(1 − γ)/(γ(1 − γ^η))."""
    if abs(shape) < PLAIN:
        return odds / math.log1p(odds)
    return shape * odds / -math.expm1(-shape * math.log1p(odds))


def _solve(mean: Callable[[float], float], target: float) -> float:
    """Return the parameter at which a mean, which rises with it, is the target."""
    from scipy.optimize import brentq

    if mean(math.exp(-SPAN)) >= target:
        return math.exp(-SPAN)
    return math.exp(float(brentq(lambda y: mean(math.exp(y)) - target, -SPAN, SPAN, xtol=1e-13)))
