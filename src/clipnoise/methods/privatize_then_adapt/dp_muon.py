"""DP-Muon: the momentum of each matrix is orthogonalised before the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from clipnoise.methods.base import (
    EACH_LAYER,
    Adam,
    ClippedMean,
    ClipRule,
    Count,
    Decay,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)

# a, b and c of a step Y ← aY + b(YYᵀ)Y + c(YYᵀ)²Y: those of Muon's released code, which bring
# singular values to between 0.68 and 1.13 fast, and those of the Taylor polynomial of order 2 of
# 1/√λ at 1, which bring them to 1.
POLYNOMIALS: Mapping[str, tuple[float, float, float]] = {
    "muon": (3.4445, -4.7750, 2.0315),
    "taylor": (15 / 8, -10 / 8, 3 / 8),
}


def orthogonalised(m: Tensor, polynomial: str, iterations: int) -> Tensor:
    """Return a matrix with the singular vectors of another, and singular values near 1.

    Args:
        m: shape (rows, columns).
        polynomial: of `POLYNOMIALS`.
        iterations: of Newton–Schulz.
    """
    a, b, c = POLYNOMIALS[polynomial]
    wide = m.shape[0] <= m.shape[1]
    y: Tensor = m if wide else m.mT
    y = y / (y.norm() + 1e-7)
    for _ in range(iterations):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y if wide else y.mT


@dataclass(frozen=True, kw_only=True)
class DPMuon(Adam, PrivateMethod):
    """θ ← θ − η NewtonSchulz(m̂) for each matrix, and Adam's θ ← θ − η m̂/(√v̂ + γ) elsewhere.

    A convolution is a matrix with one row for each of its outputs. The paper's momentum βm + g̃ is
    m̂ times a factor, from which Newton–Schulz does not differ: it divides by the norm first. That
    norm is floored at 1 in the paper, which would leave small momenta as they are; here it is
    not, as in Muon's released code. Muon gives the first and the last layer to Adam, too; here
    the shape alone decides. As in the paper, each layer is clipped by itself, here together with
    its bias and to C/√L; the clip rule `{per: example}` clips the gradient as a whole.

    Source: Kim and Fan 2026 (DP-Muon), without its bias correction; the polynomial `taylor` is the
    paper's, `muon` that of the released code of Jordan et al. 2024 (Muon), muon.py.
    """

    id = "dp-muon"
    query = ClippedMean()

    clip_rule: ClipRule = EACH_LAYER
    betas: tuple[Decay, Decay] = (0.95, 0.999)
    polynomial: Literal["muon", "taylor"] = "muon"
    iterations: Count = 5

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        m, v = state.moments(g, self.betas)
        change = self.descend(m, v)
        for part, momentum in zip(state.split(change), state.split(m), strict=True):
            if part.ndim > 1:
                step = orthogonalised(momentum.flatten(1), self.polynomial, self.iterations)
                part.copy_((-self.learning_rate * step).view_as(part))
        return change
