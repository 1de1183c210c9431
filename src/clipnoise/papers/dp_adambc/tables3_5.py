"""Tables 3 to 5 of DP-AdamBC: how far noise moves the second moment from its mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from clipnoise.fields import Count, Decay, Positive, Probability
from clipnoise.methods.base import State
from clipnoise.methods.privatize_then_adapt.dp_adambc import concentration_bound
from clipnoise.papers.base import Findings, Quantity, Reproduction, Row
from clipnoise.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SLICE = 2**16  # coordinates simulated at once: three float32 buffers that stay in the cache


def gaussian_branch(t: int, beta2: float, nu: float, alpha: float) -> float:
    """Return the first branch of Propositions 3 and 4, whether or not its condition is met.

    Args:
        t: the step, from 1.
        beta2: β2 in [0, 1).
        nu: ν of the proposition without its square root over t.
        alpha: α in (0, 1).

    Source: DP-AdamBC, Propositions 3 and 4.
    """
    spread = math.sqrt((1 - beta2 ** (2 * t)) / (1 - beta2**2))
    return (1 - beta2) / (1 - beta2**t) * spread * nu * math.sqrt(2 * math.log(2 / alpha))


def martingale_bound(
    t: int, beta2: float, sigma: float, clip_norm: float, batch_size: float, alpha: float
) -> float:
    """Bound how far noise moves v̂_t from its mean when θ_t may depend on earlier noise.

    Args:
        t: the step, from 1.
        beta2: β2 in [0, 1).
        sigma: σ.
        clip_norm: C.
        batch_size: B.
        alpha: α; the bound holds with probability 1 − α.

    Returns:
        ξ. Its first branch: ν²/b is so large here that the condition of that branch always holds.

    Raises:
        ValueError: the condition of the first branch is not met.

    Source: DP-AdamBC, Proposition 4.
    """
    phi = (sigma * clip_norm / batch_size) ** 2
    nu = 2 * (phi + sigma * clip_norm**2 / batch_size)
    spread_squared = (1 - beta2 ** (2 * t)) / (1 - beta2**2)
    if 2 * math.log(2 / alpha) > spread_squared * (nu / (4 * phi)) ** 2:
        raise ValueError(f"the first branch of Proposition 4 does not apply at t = {t}")
    return gaussian_branch(t, beta2, nu, alpha)


def exceedance(t: int, beta2: float, x: float) -> float:
    """Return P[v̂_t > xΦ] when v̂_t holds noise alone, without simulation.

    v̂_t/Φ is Σ w_j χ²_1 with w_j = (1−β2)β2^{t−j}/(1−β2^t). Its distribution function is the
    inversion integral of the characteristic function.

    Source: Imhof 1961, equation 3.2.
    """
    import numpy as np
    from scipy.integrate import quad

    if x <= 0:
        return 1.0
    weights = beta2 ** np.arange(t, dtype=float) * (1 - beta2) / (1 - beta2**t)

    def integrand(u: float) -> float:
        wu = weights * u
        angle = 0.5 * (np.arctan(wu).sum() - x * u)
        return float(np.sin(angle) / (u * np.exp(0.25 * np.log1p(wu**2).sum())))

    end = 60 / math.sqrt(2 * float((weights**2).sum()))
    value, _ = quad(integrand, 0, end, limit=2000, epsabs=1e-10)
    return 0.5 + value / math.pi


def deviation_quantile(
    t: int, beta2: float, alpha: float, *, variance: float = 1.0, upper: bool = False
) -> float:
    """Return the ξ with P[|v̂_t − Φ| ≥ ξΦ] = α when v̂_t holds noise alone.

    Args:
        t: the step, from 1.
        beta2: β2 in [0, 1).
        alpha: α in (0, 1).
        variance: the variance of the noise as a multiple of Φ.
        upper: count v̂_t − Φ ≥ ξΦ only.
    """
    from scipy.optimize import brentq

    def tails(xi: float) -> float:
        above = exceedance(t, beta2, (1 + xi) / variance)
        below = 0.0 if upper else 1 - exceedance(t, beta2, (1 - xi) / variance)
        return above + below - alpha

    return float(brentq(tails, 1e-3, 20, xtol=1e-10))


@dataclass(frozen=True, kw_only=True)
class Tables3To5(Reproduction):
    """The bounds of Propositions 3 and 4, and the deviation they bound, simulated and exact.

    The simulation runs the recursion v ← β2 v + (1−β2)z² of the second moment on noise alone, in
    units of Φ, once for every clip norm: the deviation is proportional to Φ. Table 5 is measured
    twice: as it is described, and as it seems to have been made, namely the upper tail of
    v̂ᵖ − v̂ᶜ − Φ with Φ for B but with noise divided by `realised_denominator`.

    Source: DP-AdamBC, appendix C, Tables 3 to 5.
    """

    id: ClassVar[str] = "dp-adambc/tables3-5"

    expected_batch_size: Positive
    realised_denominator: Positive
    noise_multiplier: Positive
    beta2: Decay
    clip_norms: tuple[Positive, ...]
    steps: tuple[Count, ...]
    alphas: tuple[Probability, ...]
    coordinates: Count
    seed: int

    def run(self) -> Findings:
        ways = {3: self._table3, 4: self._table4, 5: self._table5()}
        rows: list[Row] = []
        quantities: list[Quantity] = []
        for table, clip_norm, alpha, t in product(ways, self.clip_norms, self.alphas, self.steps):
            cell = f"Table {table}, C = {clip_norm:g}, α = {alpha:.2f}, t = {t}"
            key = {"table": table, "clip_norm": clip_norm, "alpha": alpha, "step": t}
            for way, value in ways[table](clip_norm, alpha, t).items():
                quantities.append(Quantity(f"{cell}, {way}", value, cell))
                rows.append({**key, "way": way, "value": value})
        return Findings({"data": rows}, quantities)

    def _phi(self, clip_norm: float) -> float:
        return (self.noise_multiplier * clip_norm / self.expected_batch_size) ** 2

    def _table3(self, clip_norm: float, alpha: float, t: int) -> dict[str, float]:
        phi = self._phi(clip_norm)
        return {
            "ln(2/α)": concentration_bound(t, self.beta2, phi, alpha),
            "ln(2/α), first branch": gaussian_branch(t, self.beta2, 4 * phi, alpha),
            # ln(1/α), as the conference version prints it, is ln(2/α) at twice the α.
            "ln(1/α)": concentration_bound(t, self.beta2, phi, 2 * alpha),
        }

    def _table4(self, clip_norm: float, alpha: float, t: int) -> dict[str, float]:
        def bound(level: float) -> float:
            return martingale_bound(
                t, self.beta2, self.noise_multiplier, clip_norm, self.expected_batch_size, level
            )

        return {"ln(2/α)": bound(alpha), "ln(1/α)": bound(2 * alpha)}

    def _table5(self) -> Callable[[float, float, int], dict[str, float]]:
        """Find every deviation in units of Φ, and return what puts them in a cell."""
        import numpy as np

        excess = (self.expected_batch_size / self.realised_denominator) ** 2
        made = f"upper tail, noise over {self.realised_denominator:g}"
        noise = self._simulate()
        found: dict[tuple[float, int], dict[str, float]] = {}
        for alpha, t in product(self.alphas, self.steps):
            two_sided = np.abs(noise[t] - 1)
            found[alpha, t] = {
                "as described, simulated": float(np.quantile(two_sided, 1 - alpha)),
                "as described, exact": deviation_quantile(t, self.beta2, alpha),
                f"{made}, simulated": excess * float(np.quantile(noise[t], 1 - alpha)) - 1,
                f"{made}, exact": deviation_quantile(
                    t, self.beta2, alpha, variance=excess, upper=True
                ),
            }

        def cell(clip_norm: float, alpha: float, t: int) -> dict[str, float]:
            return {way: self._phi(clip_norm) * xi for way, xi in found[alpha, t].items()}

        return cell

    def _simulate(self) -> dict[int, NDArray[np.float32]]:
        """Return v̂_t/Φ of every coordinate at each of the steps of the tables."""
        import numpy as np
        import torch

        draws = generator("noise", self.seed)
        found: dict[int, list[NDArray[np.float32]]] = {t: [] for t in self.steps}
        for start in range(0, self.coordinates, SLICE):
            z = torch.empty(min(SLICE, self.coordinates - start))
            state = State(like=z)
            for t in range(1, max(self.steps) + 1):
                v = state.decay("v", z.normal_(generator=draws).square_(), self.beta2)
                if t in found:
                    found[t].append((v / (1 - self.beta2**t)).numpy())
        return {t: np.concatenate(parts) for t, parts in found.items()}
