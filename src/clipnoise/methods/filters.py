"""Linear filters of what is released, and Adam without the noise that they leave in v̂.

A filter y_t = −Σ_{r≥1} a_r y_{t−r} + Σ_{r≥0} b_r x_{t−r} turns independent noise of variance Φ into
noise of variance A_t Φ, where A_t = Σ_{r<t} h_r² and h is its impulse response. Where it is stable,
A_t goes to the noise gain A.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from clipnoise.methods.base import (
    Adam,
    ClippingMethod,
    Positive,
    Public,
    Released,
    State,
    Tensor,
)

Coefficients = tuple[float, ...]
Correction = Literal["none", "stationary", "exact"]


def recurse(name: str, x: Tensor, a: Coefficients, b: Coefficients, state: State) -> Tensor:
    """Compute y_t = −Σ_{r≥1} a_r y_{t−r} + Σ_{r≥0} b_r x_{t−r}, with zero history.

    Args:
        name: under which the past x and y are kept in the state, in as many slots as there are
            taps: x_t in slot t mod n_b, y_t in slot t mod n_a.
        x: x_t.
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.
        state: the memory; its step counter is t.

    Returns:
        y_t, shaped like x_t.
    """
    t = state.step

    def slot(kind: str, r: int, taps: int) -> str:
        return f"{name} {kind}{(t - r) % taps}"

    y = b[0] * x
    for r in range(1, min(len(b), t)):
        y.add_(state[slot("x", r, len(b) - 1)], alpha=b[r])
    for r in range(1, min(len(a) + 1, t)):
        y.sub_(state[slot("y", r, len(a))], alpha=a[r - 1])
    if len(b) > 1:
        state[slot("x", 0, len(b) - 1)] = x
    if a:
        state[slot("y", 0, len(a))] = y
    return y


def companion(a: Coefficients, b: Coefficients) -> list[list[float]]:
    """Return F of the filter's other form: w_t = x_t − Σ a_r w_{t−r}, y_t = Σ b_r w_{t−r}.

    F takes (w_{t−1}, …, w_{t−n}) to (w_t, …, w_{t−n+1}) where x_t = 0.
    """
    n = max(len(a) + 1, len(b))
    first = [-value for value in a] + [0.0] * (n - len(a))
    return [first, *([float(j == i) for j in range(n)] for i in range(n - 1))]


def noise_gain(a: Coefficients, b: Coefficients) -> float:
    """Return A = Σ_r h_r², by how much a filter multiplies the variance of independent noise.

    Args:
        a: a_1 … a_{n_a}.
        b: b_0 … b_{n_b}.

    Raises:
        ValueError: the filter is not stable: the sum is infinite.
    """
    import numpy as np

    forward = np.array(companion(a, b))
    largest = max(abs(np.linalg.eigvals(forward)))
    if largest >= 1:
        raise ValueError(
            "noise_correction: the filter must be stable, the roots of 1 + Σ a_r z^r outside the "
            f"unit circle, but it keeps {largest:.6g} of what it remembers; allowed: none"
        )
    n = len(forward)
    added = np.eye(n * n)[0]  # a 1 enters w_t
    covariance = np.linalg.solve(np.eye(n * n) - np.kron(forward, forward), added).reshape(n, n)
    taps = np.pad(b, (0, n - len(b)))
    return float(taps @ covariance @ taps)


def pass_noise_on(
    a: Coefficients, b: Coefficients, variance: float, state: State
) -> tuple[float, float]:
    """Follow independent noise through a filter by one step.

    Args:
        a, b: of the filter.
        variance: of the noise in x_t.
        state: remembers the covariance of w_t, …, w_{t−n+1} (see `companion`) and, as its last
            column, what they are for a constant x of 1.

    Returns:
        The variance of the noise in y_t, and y_t for a constant x of 1.
    """
    import torch

    forward = state.theta.new_tensor(companion(a, b), dtype=torch.float64)
    n = len(forward)
    memory = state.buffers.get("filtered noise", forward.new_zeros(n, n + 1))
    memory = forward @ memory
    memory[:, :n] = memory[:, :n] @ forward.mT
    memory[0, 0] += variance
    memory[0, n] += 1
    state["filtered noise"] = memory
    taps = forward.new_tensor([*b, *[0.0] * (n - len(b))])
    seen = taps @ memory
    return float(seen[:n] @ taps), float(seen[n])


@dataclass(frozen=True, kw_only=True)
class FilteredAdam(Adam, ClippingMethod):
    """Adam on a filtered gradient x_t, with what its noise adds to v̂ taken off.

    With `noise_correction: none` this is θ ← θ − η m̂/(√v̂ + γ), otherwise
    θ ← θ − η m̂/(√max(v̂ − N, γ′) + γ). N = AΦ with `stationary`: the noise of a filter that has run
    for ever. With `exact` it is Σ_{i≤t} w_i A_i Φ_i, what v̂ has of the noise in expectation, with
    w_i = (1−β2)β2^{t−i}/(1−β2^t): filters begin with less noise than that, or with more.
    """

    noise_correction: Correction = "none"
    gamma_prime: Positive = 1e-8

    def against_correlated_noise(self) -> str | None:
        if self.noise_correction == "none":
            return None
        return (
            f"method.noise_correction: {self.noise_correction} takes off v̂ what a filter leaves of "
            "independent noise. Give independent noise, or the correction none."
        )

    def filtered(self, g: Tensor, state: State) -> Tensor:
        """Return x_t, shape (d,)."""
        raise NotImplementedError

    def stationary_gain(self) -> float:
        """Return A."""
        raise NotImplementedError

    def exact_gain(self, state: State) -> float:
        """Return A_t: the variance of the noise in x_t, relative to that in g̃_t."""
        raise NotImplementedError

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(self.filtered(g, state), self.betas)
        if self.noise_correction == "none":
            return self.descend(m, v)
        exact = self.noise_correction == "exact"
        gain = self.exact_gain(state) if exact else self.stationary_gain()
        filtered = replace(public, noise_row_norm_squared=gain)
        noise = state.noise_bias(filtered, self.clip_norm, self.betas[1])
        return self.descend(m, (v - noise).clamp(min=self.gamma_prime))
