"""Adam and AdaGrad with both moments released: each by itself (IME), or as one vector (JME)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clipnoise.methods.base import (
    Adam,
    IndependentMoments,
    IndependentMomentsForFree,
    JointMoments,
    JointMomentsAsPublished,
    Positive,
    PrivateMethod,
    Public,
    Query,
    Released,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class IndependentlyReleased(PrivateMethod):
    """Base of both: `for_free` leaves out the √2 that a second release costs. Non-private then."""

    for_free: bool = False

    @property
    def query(self) -> Query:
        return IndependentMomentsForFree() if self.for_free else IndependentMoments()


@dataclass(frozen=True, kw_only=True)
class IMEAdam(Adam, IndependentlyReleased):
    """m from ḡ + √2(σC/B)z¹, v from ḡ² + √2(2B+1)(C²/B²)σz²; θ ← θ − η m̂/(√max(v̂, 0) + γ).

    ḡ is projected onto the ball of radius C before it is squared. `for_free` leaves out both √2:
    what a second moment at no cost would bring. Non-private then.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 6.
    """

    id = "ime-adam"

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, g_squared = released
        return self.update_from(g, g_squared, state)


@dataclass(frozen=True, kw_only=True)
class IMEAdaGrad(IndependentlyReleased):
    """ν ← ν + (ḡ² with noise of its own); θ ← θ − η g̃/max(1, √max(ν, 0)).

    Source: On Design Principles for Private Adaptive Optimizers, section 3.2 and the
    one-dimensional study of section 5.
    """

    id = "ime-adagrad"

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, g_squared = released
        state["v"] = state["v"] + g_squared
        return -self.learning_rate * g / state["v"].clamp(min=1).sqrt()


@dataclass(frozen=True, kw_only=True)
class JMEAdam(Adam, PrivateMethod):
    """Release (ḡ, cḡ²) as one vector; m and v from its halves; θ ← θ − η m̂/(√max(v̂, 0) + γ).

    c is `moment_weight`, 1/(2C²) unless given. Its ε is for replacing an example, not comparable
    with add/remove. `accounting: as-published` adds noise for the sensitivity 2C/B of ḡ alone: that
    holds for the square of one gradient, not of a mean of several, so it is marked non-private.

    Source: On Design Principles for Private Adaptive Optimizers, section 3.2; Kalinin et al. 2025.
    """

    id = "jme-adam"
    may_change = ("learning_rate",)  # c belongs to one C

    moment_weight: Positive | None = None
    accounting: Literal["corrected", "as-published"] = "corrected"

    def __post_init__(self) -> None:
        largest = 1 / (2 * self.clip_norm**2)
        if self.moment_weight is not None and self.moment_weight > largest:
            raise ValueError(f"moment_weight must be at most 1/(2C²) = {largest:.6g}")

    @property
    def query(self) -> Query:
        kind = JointMoments if self.accounting == "corrected" else JointMomentsAsPublished
        return kind(self.moment_weight)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        g, g_squared = released
        return self.update_from(g, g_squared, state)
