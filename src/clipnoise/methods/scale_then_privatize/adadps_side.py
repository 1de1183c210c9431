"""AdaDPS with side information: a scale fixed before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipnoise.fields import NonNegative
from clipnoise.methods.base import PrivateMethod, Public, SingleRateMethod, State
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.privacy.queries import Released


@dataclass(frozen=True, kw_only=True)
class SideScale(SingleRateMethod):
    """What AdaDPS with side information shares with AdaS: s = 1/(A + γ), fixed before training.

    A is public side information: token frequencies, TF-IDF values, or any given vector. Counted on
    the private training file it would not be side information, and a guarantee would be void.

    Source: AdaDPS, Algorithm 1, option 2.
    """

    uses_side_information = True

    gamma: NonNegative = 1e-3

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / (public.require("side_information") + self.gamma)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (u,) = released
        return -self.learning_rate * u


@dataclass(frozen=True, kw_only=True)
class AdaDPSSide(SideScale, PrivateMethod):
    """Clip g_i/(A + γ) with A fixed before training; θ ← θ − η u_t.

    Source: AdaDPS, Algorithm 1, option 2.
    """

    id = "adadps-side"
    query = ClippedMean()
