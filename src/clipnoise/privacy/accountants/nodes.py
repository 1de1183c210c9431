"""The accountant of graph nodes: one node changes its own gradient and those of its neighbours."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from clipnoise.errors import UserError
from clipnoise.lazy import np
from clipnoise.privacy.accountants.fixed_size import whole_batch
from clipnoise.privacy.accountants.poisson import (
    LOG_MOMENT_ERROR,
    ORDERS,
    Releases,
    refuse_tiny,
    renyi_delta,
    renyi_epsilon,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


@lru_cache(maxsize=16)
def node_curve(
    noise_multiplier: float,
    affected_examples: int,
    sampling_rate: float,
    examples: int | None = None,
) -> NDArray[np.float64]:
    """Bound the Rényi divergence of one release at each of ORDERS, rounding errors included.

    Both sums are over the same random batch, which holds ρ of the K + 1 affected nodes. Given the
    batch, the divergence at order α is that of a Gaussian mechanism, α(ρ/(K+1))²/(2λ²), and
    e^((α−1)·divergence) is jointly convex, so the divergence is at most
    ln E_ρ[e^(α(α−1)(ρ/(K+1))²/(2λ²))]/(α−1). With noise of standard deviation s = λ·2(K+1)C the
    exponent is 2α(α−1)ρ²C²/s².

    Args:
        noise_multiplier: λ, relative to 2(K+1)C.
        affected_examples: K + 1.
        sampling_rate: q.
        examples: n, if batches have q·n nodes drawn without replacement: ρ is then hypergeometric.
            None for Poisson sampling: ρ is then binomial.

    Returns:
        One value per order, non-negative. Read-only.

    Source: Daigavane et al. 2021, "Node-Level Differentially Private Graph Neural Networks", the
    amplification bound for one-layer networks (hypergeometric).
    """
    from scipy.special import logsumexp

    orders = np.array(ORDERS)[:, None]
    share = np.arange(1, affected_examples + 1) / affected_examples
    exponent = orders * (orders - 1) / (2 * noise_multiplier**2) * share**2
    # E[e^x] = 1 + E[e^x − 1], so that nothing is lost where x or its probability is tiny.
    weights = _log_probabilities(affected_examples, sampling_rate, examples)[1:]
    excess = logsumexp(weights + exponent + np.log(-np.expm1(-exponent)), axis=1)
    bound = np.logaddexp(0.0, excess) / (orders[:, 0] - 1) * (1 + LOG_MOMENT_ERROR)
    curve = np.asarray(bound, dtype=np.float64)
    curve.setflags(write=False)
    return curve


def node_epsilon(releases: Releases) -> float:
    """Bound the ε of T releases for adding or removing one node, by Rényi DP.

    Args:
        releases: what a node takes part in; σ is relative to 2(K+1)C.

    Raises:
        AccountantError: the noise is too small for a finite bound.
        UserError: there are fewer nodes than one of them affects.
    """
    return renyi_epsilon(_every_node_curve(releases), releases.delta) if releases.steps else 0.0


def node_delta(releases: Releases, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bound δ at each ε, as `node_epsilon` bounds ε at δ."""
    return renyi_delta(_every_node_curve(releases), epsilons)


def _every_node_curve(releases: Releases) -> NDArray[np.float64]:
    """Bound the Rényi divergence of all releases together at each of ORDERS."""
    sigma, affected = releases.noise_multiplier, releases.affected_examples
    examples = releases.examples
    if examples is not None and examples < affected:
        raise UserError(
            f"affected_examples: must not exceed the number of nodes, {examples}, got {affected}."
        )
    refuse_tiny(sigma)
    return node_curve(sigma, affected, releases.sampling_rate, examples) * releases.steps


def _log_probabilities(affected: int, rate: float, examples: int | None) -> NDArray[np.float64]:
    """Return ln P[ρ] for ρ = 0 … K+1, accurate to rounding also for large n."""
    from scipy.stats import binom

    counts = np.arange(affected + 1)
    if examples is None:
        return np.asarray(binom.logpmf(counts, affected, rate), dtype=np.float64)
    batch = whole_batch(rate, examples)

    def falling(n: int) -> NDArray[np.float64]:
        """Return ln of n(n−1)…(n−ρ+1) for each ρ."""
        with np.errstate(divide="ignore"):
            factors = np.log(np.maximum(n - counts[:-1], 0).astype(np.float64))
        return np.concatenate([[0.0], np.cumsum(factors)])

    choices = np.log([float(math.comb(affected, int(count))) for count in counts])
    outside = falling(examples - batch)[::-1]
    return np.asarray(choices + falling(batch) + outside - falling(examples)[-1], dtype=np.float64)
