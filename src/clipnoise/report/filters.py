"""What filters and momentum do to noise and to signal, from their coefficients alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import linalg

Coefficients = Sequence[float]


def noise_gain(a: Coefficients, b: Coefficients) -> float:
    """Return Σ κ̂_t², the factor by which a normalised filter multiplies the variance of noise.

    κ is the impulse response of m_t = −Σ_{r≥1} a_r m_{t−r} + Σ_{r≥0} b_r g_{t−r}, and
    κ̂ = κ/Σκ: the filter passes a constant unchanged. The sum is exact: the variance of the filter's
    state solves a discrete Lyapunov equation.

    Args:
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.

    Returns:
        The gain at steady state, for white noise; infinity where the filter is unstable, or lets
        nothing of a constant through.

    Source: DP-PMLF, the noise term of the convergence bound.
    """
    constant = sum(b) / (1 + sum(a)) if 1 + sum(a) else math.inf
    if constant == 0 or (a and max(abs(np.roots([1.0, *a]))) >= 1):
        return math.inf
    if not a:
        return float(np.sum(np.square(b))) / constant**2
    # Direct form II: the state holds the last n values of w_t = g_t − Σ a_r w_{t−r}, and
    # m_t = Σ b_r w_{t−r}, so the gain is b'Rb with R the autocovariance of w.
    order = max(len(a), len(b))
    transition = np.eye(order, k=-1)
    transition[0, : len(a)] = -np.asarray(a)
    drive = np.zeros((order, order))
    drive[0, 0] = 1.0
    covariance = linalg.solve_discrete_lyapunov(transition, drive)
    weights = np.zeros(order)
    weights[: len(b)] = b
    return float(weights @ covariance @ weights) / constant**2


def frequency_response(
    a: Coefficients, b: Coefficients, frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return |H(f)|/|H(0)| with H(f) = Σ b_r e^{−2πifr} / (1 + Σ a_r e^{−2πifr}).

    Args:
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.
        frequencies: in cycles per step, from 0 to 0.5.

    Returns:
        The amplitude of each frequency after the normalised filter, relative to before; 1 at
        f = 0.
    """
    z = np.exp(-2j * np.pi * np.asarray(frequencies))
    response = np.polyval(b[::-1], z) / np.polyval([*a[::-1], 1.0], z)
    constant = sum(b) / (1 + sum(a))
    normalised: np.ndarray[tuple[int], np.dtype[np.float64]] = np.abs(response / constant)
    return normalised


def momentum_reduction(beta: float, history: int) -> float:
    """Return ρ, by which normalised per-sample momentum divides the deviation of sampling noise.

    ρ² = (1+β)(1−β^k) / ((1−β)(1+β^k)) = (Σ_j β^j)² / Σ_j β^{2j} for k independent gradients; it
    is written as the ratio of sums, which holds at β = 1 too, where it is k.

    Args:
        beta: β in [0, 1].
        history: k, at least 1.

    Source: DP-PMLF, Lemma 3.
    """
    powers = beta ** np.arange(history, dtype=float)
    return float(powers.sum() / np.sqrt(np.square(powers).sum()))
