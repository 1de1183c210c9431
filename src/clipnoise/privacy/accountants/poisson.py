"""The accountants of Poisson sampling: RDP, PRV and PLD, and the cost of cutting its batches.

Each takes T releases of the Poisson-subsampled Gaussian mechanism under add-remove adjacency and
returns an ε that is never below the true one. Where floating-point numbers cannot promise that, it
raises.
"""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from annotated_types import Gt, Le

from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Count, Natural, Positive, Probability, parse
from clipnoise.lazy import np
from clipnoise.privacy.accountants.patterns import Pattern

if TYPE_CHECKING:
    from numpy.typing import NDArray

PoissonAccountant = Literal["rdp", "prv", "pld"]
POISSON_ACCOUNTANTS: tuple[PoissonAccountant, ...] = get_args(PoissonAccountant)
# Each ε takes tenths of a second, or seconds.
NUMERICAL = ("prv", "pld", "pld-allocation", "monte-carlo")

Rate = Annotated[float, Gt(0), Le(1)]

# Rényi orders α: near 1 for large ε (tiny σ), dense at the ε of DP training, and up to 1024 (the
# last whose binomial coefficients fit a float64) for tiny ε. A superset of Opacus' own list.
ORDERS: tuple[float, ...] = tuple(
    sorted(
        {1.005}
        | {(100 + i) / 100 for i in range(1, 11)}
        | {(100 + i) / 100 for i in range(15, 100, 5)}
        | {(10 + i) / 10 for i in range(1, 100)}
        | {float(i) for i in range(11, 64)}
        | {float(i) for i in range(64, 128, 8)}
        | {float(i) for i in range(128, 256, 16)}
        | {float(i) for i in range(256, 512, 32)}
        | {float(i) for i in range(512, 1025, 64)}
    )
)

# Opacus' log moments agree with 30-digit quadrature to 2e-13, or relatively to 1e-15 where large.
LOG_MOMENT_ERROR = 1e-12

SMALLEST_SIGMA = 1e-4  # below it, ε exceeds 10^7 and Opacus' series may not end

PRV_EPSILON_ERROR = 0.01  # Opacus' default; part of the bound it returns
PRV_POINTS = 2**24  # about 1.5 GB of working memory
PLD_ROUNDING = 2.0**-51  # per release: its convolutions are off by up to 2^-53 for each
PLD_INTERVALS = (1e-4, 2e-4, 5e-4, 1e-3)  # widths of the grid of privacy losses
LARGEST_LOSS = 690.0  # exp() of more leaves the range of float64


class AccountantError(UserError):
    """The accountant cannot bound ε for these values; another accountant may be able to."""


@dataclass(frozen=True, kw_only=True)
class Releases:
    """What ε is computed from: T releases of a Gaussian mechanism on sampled batches.

    Attributes:
        noise_multiplier: σ, relative to the sensitivity.
        sampling_rate: q, the probability that an example takes part in a release.
        steps: T, the number of releases that an example can take part in.
        delta: δ.
        affected_examples: how many per-example gradients one unit can change.
        examples: n, if batches have a fixed size and the analysis depends on n.
        pattern: in which of the steps of correlated noise an example takes part, if the analysis
            depends on it; T then is the number of steps.
    """

    __pydantic_config__: ClassVar = STRICT

    noise_multiplier: Positive
    sampling_rate: Rate
    steps: Natural
    delta: Probability
    affected_examples: Count = 1
    examples: Count | None = None
    pattern: Pattern | None = None

    def __str__(self) -> str:
        return (
            f"noise_multiplier {self.noise_multiplier:g}, sampling_rate {self.sampling_rate:g}, "
            f"steps {self.steps}, delta {self.delta:g}"
        )


def sampled_delta(
    accountant: PoissonAccountant, releases: Releases, epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bound δ at each ε, as `epsilon` bounds ε at δ.

    Args:
        accountant: as for `epsilon`.
        releases: T ≥ 1 releases. Their δ is the smallest that matters: what lies beyond a grid, and
            rounding errors, stay below it.
        epsilons: ε ≥ 0, ascending.

    Returns:
        δ at each ε, at most 1 and not below the true value.

    Raises:
        AccountantError: the accountant cannot bound δ for these values.
    """
    refuse_tiny(releases.noise_multiplier)
    compute = {"rdp": _rdp_delta, "prv": _prv_delta, "pld": _pld_delta}
    bound = np.minimum(compute[accountant](releases, epsilons), 1.0)
    if not np.isfinite(bound).all():
        raise _beyond(accountant, releases, "its bound is not a finite number")
    return np.asarray(bound, dtype=np.float64)


def epsilon(
    accountant: str, *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """Bound the ε of T releases of the Poisson-subsampled Gaussian mechanism (add-remove).

    Args:
        accountant: "rdp" (Rényi DP, from Opacus), "prv" (numerical composition, from Opacus: its
            upper bound) or "pld" (privacy loss distributions, from dp-accounting: its pessimistic
            estimate).
        noise_multiplier: σ, relative to the sensitivity; above 0.
        sampling_rate: q in (0, 1]; 1 means every example in every step.
        steps: T; 0 gives 0.
        delta: δ in (0, 1).

    Returns:
        ε ≥ 0, finite, not below the true value.

    Raises:
        AccountantError: the accountant cannot bound ε for these values.
        UserError: an unknown accountant, or a value out of range.

    Source: Mironov, Talwar, Zhang 2019 and Balle et al. 2020, Theorem 21 (rdp); Gopi, Lee,
    Wutschitz 2021 (prv); Koskela et al. 2020 and Doroshenko et al. 2022 (pld).
    """
    compute = {"rdp": _rdp, "prv": _prv, "pld": _pld}
    if accountant not in compute:
        raise unknown("accountant", accountant, POISSON_ACCOUNTANTS, key="accountant")
    mechanism = {"noise_multiplier": noise_multiplier, "sampling_rate": sampling_rate}
    releases = parse(Releases, {**mechanism, "steps": steps, "delta": delta})
    if releases.steps == 0:
        return 0.0
    refuse_tiny(releases.noise_multiplier)
    value = compute[accountant](releases)
    if not math.isfinite(value):
        raise _beyond(accountant, releases, "its bound is not a finite number")
    return max(0.0, value)


def refuse_tiny(noise_multiplier: float) -> None:
    """Refuse a σ at which every bound is useless, and some are computed wrongly or never.

    Raises:
        AccountantError: σ is below SMALLEST_SIGMA.
    """
    if noise_multiplier < SMALLEST_SIGMA:
        raise AccountantError(
            f"noise_multiplier: {noise_multiplier:g} is below {SMALLEST_SIGMA:g}, too small for a "
            "bound on epsilon."
        )


def _opacus(analysis: str) -> ModuleType:
    """Load one of Opacus' analyses under another name, without torch and the rest of Opacus.

    Importing the package itself takes seconds, and every run checks its calibration.
    dp-accounting has the same analysis, but at fractional orders it adds the terms of alternating
    sign by their size, and gives up on orders near 1: at σ = 0.5, q = 0.05, T = 200 and δ = 1e-5
    its ε is 28.27 and not 27.98.
    """
    name = "clipnoise_opacus_accountants"
    if name not in sys.modules:
        found = find_spec("opacus")
        assert found is not None
        assert found.submodule_search_locations is not None
        package = ModuleType(name)
        package.__path__ = [f"{folder}/accountants" for folder in found.submodule_search_locations]
        sys.modules[name] = package
    return importlib.import_module(f"{name}.analysis.{analysis}")


@lru_cache(maxsize=16)
def rdp_curve(noise_multiplier: float, sampling_rate: float) -> NDArray[np.float64]:
    """Bound the Rényi divergence of one release at each of ORDERS, rounding errors included.

    Returns:
        One value per order, non-negative; infinite where float64 overflows. Read-only.

    Source: Mironov, Talwar, Zhang 2019, Section 3.3.
    """
    bound = np.array([_divergence(noise_multiplier, sampling_rate, order) for order in ORDERS])
    bound.setflags(write=False)
    return bound


@lru_cache(maxsize=16 * len(ORDERS))
def _divergence(noise_multiplier: float, sampling_rate: float, order: float) -> float:
    refuse_tiny(noise_multiplier)
    with np.errstate(all="ignore"):
        found = _opacus("rdp").compute_rdp(
            q=sampling_rate, noise_multiplier=noise_multiplier, steps=1, orders=order
        )
    value = math.inf if math.isnan(found) else max(float(found), 0.0)
    return value + LOG_MOMENT_ERROR * max(value, 1 / (order - 1))


def renyi_epsilon(curve: NDArray[np.float64], delta: float) -> float:
    """Convert the Rényi divergences of all releases together, at each of ORDERS, into ε ≥ 0 at δ.

    Its own rounding errors are far below LOG_MOMENT_ERROR, by which the divergences are enlarged.

    Source: Balle et al. 2020, Theorem 21.
    """
    return max(_at_best_order(curve, delta)[0], 0.0)


def _at_best_order(curve: NDArray[np.float64], delta: float) -> tuple[float, float]:
    with warnings.catch_warnings():
        # If the best order is the first or the last, the bound still holds but is less tight.
        warnings.filterwarnings("ignore", message="Optimal order is the")
        value, order = _opacus("rdp").get_privacy_spent(orders=list(ORDERS), rdp=curve, delta=delta)
    return float(value), float(order)


def renyi_delta(
    curve: NDArray[np.float64],
    epsilons: NDArray[np.float64],
    orders: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Convert the Rényi divergences of all releases together into δ at each ε.

    It is the inverse of `renyi_epsilon`.

    Args:
        curve: divergences, one for each order.
        epsilons: ε, shape (E,).
        orders: those of the curve, above 1; ORDERS by default.

    Returns:
        δ, shape (E,).
    """
    orders = np.array(ORDERS) if orders is None else orders
    logs = (orders - 1) * (curve - epsilons[:, None] + np.log1p(-1 / orders)) - np.log(orders)
    return np.asarray(np.exp(np.minimum(np.nanmin(logs, axis=1), 0.0)), dtype=np.float64)


def _rdp(releases: Releases) -> float:
    """Return the least ε of all ORDERS, most of which it need not look at.

    Of T releases with the divergences D(α), (α − 1) ε(α) is T (α − 1) D(α) + (α − 1) log(α − 1) −
    α log α − log δ, which is convex in α. So ε(α) falls up to its least value, and rises behind it.
    """
    curve, value = np.full(len(ORDERS), np.inf), math.inf
    around = every = range(len(ORDERS))
    for stride in (25, 5, 1):
        for place in around[::stride]:
            one = _divergence(releases.noise_multiplier, releases.sampling_rate, ORDERS[place])
            curve[place] = one * releases.steps
        value, order = _at_best_order(curve, releases.delta)
        best = ORDERS.index(order)
        around = every[max(0, best - stride) : best + stride + 1]
    return max(value, 0.0)


def _rdp_delta(releases: Releases, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    curve = rdp_curve(releases.noise_multiplier, releases.sampling_rate)
    return renyi_delta(curve * releases.steps, epsilons)


def _prv(releases: Releases) -> float:
    with np.errstate(all="ignore"):
        try:
            composed, rounding = _composed_prv(releases)
            bounds = composed.compute_epsilon(
                releases.delta - rounding, releases.delta / 1000, PRV_EPSILON_ERROR
            )
        except (RuntimeError, ValueError, IndexError) as error:
            raise _beyond("prv", releases, str(error)) from None
    return float(bounds[2])


def _prv_delta(releases: Releases, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        try:
            composed, rounding = _composed_prv(releases)
        except (RuntimeError, ValueError, IndexError) as error:
            raise _beyond("prv", releases, str(error)) from None
        # The computed losses are within an ε of PRV_EPSILON_ERROR but for a mass of δ/1000 (Gopi
        # et al. 2021, theorem 5.5). What is above ε is Σ (1 − e^(ε − t)) pmf(t) over t ≥ ε.
        losses, masses = composed.domain.ts, composed.pmf
        above = np.append(np.flip(np.flip(masses).cumsum()), 0.0)
        weighted = np.append(np.flip(np.flip(masses * np.exp(-losses)).cumsum()), 0.0)
        shifted = epsilons - PRV_EPSILON_ERROR
        first = np.searchsorted(losses, shifted)
        found = above[first] - np.exp(shifted) * weighted[first]
    return np.asarray(np.maximum(found, 0.0) + rounding + releases.delta / 1000, dtype=np.float64)


@lru_cache(maxsize=1)
def _composed_prv(releases: Releases) -> tuple[Any, float]:
    """Return Opacus' losses of all releases together, and by how much rounding may change δ."""
    prv = _opacus("prv")
    domain = _prv_domain(releases, releases.delta / 1000)
    single = prv.discretize(_truncated_prv(releases, domain), domain)
    composed = prv.compose_heterogeneous([single], [releases.steps])
    # Where the true density vanishes, the Fourier transform leaves only rounding errors.
    noise = max(-composed.pmf.min(), composed.pmf.max() * 2**-53)
    rounding = float(noise * len(composed.pmf))
    if rounding > releases.delta / 2:
        raise _beyond("prv", releases, f"its rounding errors ({rounding:.1g}) rival delta")
    return composed, rounding


def _prv_domain(releases: Releases, delta_error: float) -> Any:
    """Choose the grid of privacy losses, or raise if too large (Gopi et al. 2021, Remark 5.6)."""

    def tail(steps: int, delta: float) -> float:
        return _rdp(replace(releases, steps=steps, delta=delta))

    steps = releases.steps
    reach = 3 + max(
        tail(steps, delta_error / 4), tail(1, delta_error / (8 * steps)), PRV_EPSILON_ERROR
    )
    if not reach <= LARGEST_LOSS:
        raise _beyond("prv", releases, f"privacy losses reach {reach:.3g}, beyond {LARGEST_LOSS:g}")
    mesh = PRV_EPSILON_ERROR / math.sqrt(steps * math.log(12 / delta_error) / 2)
    points = 2 * reach / mesh
    if points > PRV_POINTS:
        raise _beyond(
            "prv", releases, f"its grid would have {points:.2g} points, limit {PRV_POINTS:.2g}"
        )
    return _opacus("prv").Domain.create_aligned(-reach, reach, mesh)


def _truncated_prv(releases: Releases, domain: Any) -> Any:
    """Return Opacus' truncated privacy loss with its mean computed to float64 accuracy.

    Opacus' quadrature is off by up to 1e-9, and the error counts once per step: ten million steps
    use up the margin of the bound. The mean is the divergence of the mixture from the Gaussian, a
    smooth integral over the real line, which the trapezoidal rule computes up to rounding errors.
    """
    q, sigma = releases.sampling_rate, releases.noise_multiplier
    prv = _opacus("prv")
    base: Any = prv.TruncatedPrivacyRandomVariable

    class Accurate(base):  # type: ignore[misc]
        def mean(self) -> float:
            width = sigma / 100
            x = np.arange(-12 * sigma, 1 + 12 * sigma, width)
            loss = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * sigma**2))
            density = (1 - q) * np.exp(-((x / sigma) ** 2) / 2) + q * np.exp(
                -(((x - 1) / sigma) ** 2) / 2
            )
            return float(np.sum(density * loss) * width / (sigma * math.sqrt(2 * math.pi)))

    return Accurate(prv.PoissonSubsampledGaussianPRV(q, sigma), domain.t_min, domain.t_max)


def _pld(releases: Releases) -> float:
    composed, rounding = _composed_pld(releases)
    return float(composed.get_epsilon_for_delta(releases.delta - rounding))


def _pld_delta(releases: Releases, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    composed, rounding = _composed_pld(releases)
    return np.asarray(composed.get_delta_for_epsilon(epsilons) + rounding, dtype=np.float64)


def _composed_pld(releases: Releases) -> tuple[Any, float]:
    """Return the losses of all releases together, and by how much rounding may change δ."""
    if not _rdp(releases) <= LARGEST_LOSS:
        raise _beyond("pld", releases, f"privacy losses reach beyond {LARGEST_LOSS:g}")
    rounding = releases.steps * PLD_ROUNDING
    if rounding > releases.delta / 2:
        raise _beyond("pld", releases, f"its rounding errors ({rounding:.1g}) rival delta")
    every = loss_distribution(releases.noise_multiplier, releases.sampling_rate, releases.steps)
    return every, rounding


@lru_cache(maxsize=2)
def loss_distribution(noise_multiplier: float, sampling_rate: float, steps: int) -> Any:
    """Return a privacy loss distribution that dominates that of T releases, but for rounding.

    Its δ at any ε is off by up to T times PLD_ROUNDING.
    """
    return _one_loss(noise_multiplier, sampling_rate).self_compose(steps)


@lru_cache(maxsize=4)
def _one_loss(noise_multiplier: float, sampling_rate: float) -> Any:
    """Return the privacy loss distribution of one release: most of the time, at every step."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    # Pessimistic: losses are spread over the points of a grid beside them.
    return from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=_interval(noise_multiplier, sampling_rate),
    )


def _interval(noise_multiplier: float, sampling_rate: float) -> float:
    """Return the width of a grid of privacy losses that is fine beside their spread.

    The losses of a release spread by about q√(e^(1/σ²) − 1). A grid of a fiftieth of it adds less
    than a thousandth to their variance, and thereby to ε; a finer one takes longer.
    """
    spread = sampling_rate * math.sqrt(math.expm1(min(noise_multiplier**-2, LARGEST_LOSS)))
    return max(width for width in PLD_INTERVALS if width <= max(spread / 50, PLD_INTERVALS[0]))


def _beyond(accountant: str, releases: Releases, why: str) -> AccountantError:
    others = " or ".join(name for name in POISSON_ACCOUNTANTS if name != accountant)
    return AccountantError(
        f"accountant: {accountant} cannot bound epsilon for {releases}: {why}. Try {others}."
    )


def truncation_probability(examples: int, sampling_rate: float, largest_batch: int) -> float:
    """Return the probability that Poisson sampling draws more than K examples.

    It is that of the larger of two neighbouring datasets, which bounds both.

    Args:
        examples: n, of the smaller dataset or the larger one: n + 1 are counted.
        sampling_rate, largest_batch: q and K.
    """
    from scipy.stats import binom

    return float(binom.sf(largest_batch, examples + 1, sampling_rate))


def truncated_epsilon(
    spent: Callable[[float], float], delta: float, expected_truncations: float
) -> float:
    """Bound ε when steps that draw too many examples leave some of them out.

    If the steps are (ε, δ′)-DP without truncation, they are (ε, δ′ + (1 + e^ε) T P)-DP with it,
    where P is the probability that a step draws too many. The smallest ε for which the sum stays
    within δ is approached from below, so the last iterate is rounded up.

    Args:
        spent: ε without truncation as a function of δ′.
        delta: δ.
        expected_truncations: T·P.

    Raises:
        AccountantError: truncation alone costs more than δ.

    Source: Chua et al. 2024, "Scalable DP-SGD: Shuffling vs. Poisson Subsampling".
    """
    value = spent(delta)
    if expected_truncations == 0:
        return value
    for _ in range(100):
        remaining = delta - (1 + math.exp(min(value, 700.0))) * expected_truncations
        if remaining <= 0:
            break
        following = spent(remaining)
        if following <= value:
            return value
        value = following * (1 + 1e-9)
    raise AccountantError(
        f"largest_batch: batches are truncated so often ({expected_truncations:.2g} expected in "
        f"all steps) that this alone costs more than delta {delta:g}. Choose a larger one."
    )
