"""NewPlugin: momentum on released gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import Decay
from clipnoise.methods.base import PrivateMethod, Public, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class NewPlugin(PrivateMethod):
    """m ← βm + g̃; θ ← θ − ηm.

    Source: Polyak 1964, equation 9, on released gradients.
    """

    id = "new-plugin"
    query = ClippedMean()  # what is released: sensitivity and noise follow from it

    beta: Decay = 0.9

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["m"] = self.beta * state["m"] + g
        return -self.learning_rate * state["m"]
