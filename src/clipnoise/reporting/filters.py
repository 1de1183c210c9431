"""What a low-pass filter does to noise and to signal, from its coefficients alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import linalg

Coefficients = Sequence[float]


def noise_gain(a: Coefficients, b: Coefficients) -> float:
    """Return Σ κ_t², the factor by which a filter multiplies the variance of white noise.

    κ is the impulse response of m_t = −Σ_{r≥1} a_r m_{t−r} + Σ_{r≥0} b_r g_{t−r}. The sum is
    exact: the variance of the filter's state solves a discrete Lyapunov equation.

    Args:
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.

    Returns:
        The gain at steady state; infinity where the filter is unstable.

    Source: DP-PMLF, the noise term of the convergence bound.
    """
    if not a:
        return float(np.sum(np.square(b)))
    if max(abs(np.roots([1.0, *a]))) >= 1:
        return math.inf
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
    return float(weights @ covariance @ weights)


def frequency_response(
    a: Coefficients, b: Coefficients, frequencies: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return |H(f)| = |Σ b_r e^{−2πifr}| / |1 + Σ a_r e^{−2πifr}|.

    Args:
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.
        frequencies: in cycles per step, from 0 to 0.5.

    Returns:
        The amplitude of each frequency after the filter, relative to before; 1 at f = 0 when
        −Σa + Σb = 1.
    """
    z = np.exp(-2j * np.pi * np.asarray(frequencies))
    return np.abs(np.polyval(b[::-1], z) / np.polyval([*a[::-1], 1.0], z))
