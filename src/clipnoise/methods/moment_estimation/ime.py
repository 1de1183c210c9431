"""Adam and AdaGrad with independently released moments."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import (
    Adam,
    IndependentMoments,
    IndependentMomentsForFree,
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
