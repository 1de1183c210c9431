"""AdaDPS and AdaS with side information: a scale fixed before training."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import (
    SGD,
    ClippedMean,
    NonNegative,
    PlainMean,
    PrivateMethod,
    Public,
    State,
    Tensor,
)


@dataclass(frozen=True, kw_only=True)
class SideScale(SGD):
    """What AdaDPS with side information shares with AdaS: s = 1/(A + γ), fixed before training.

    A is public side information: token frequencies, TF-IDF values, or any given vector. Counted on
    the private training file it would not be side information, and a guarantee would be void.

    Source: AdaDPS, Algorithm 1, option 2.
    """

    uses_side_information = True

    gamma: NonNegative = 1e-3

    def scale(self, state: State, public: Public) -> Tensor:
        return 1 / (public.require("side_information") + self.gamma)


@dataclass(frozen=True, kw_only=True)
class AdaDPSSide(SideScale, PrivateMethod):
    """Clip g_i/(A + γ) with A fixed before training; θ ← θ − η u_t.

    Source: AdaDPS, Algorithm 1, option 2.
    """

    id = "adadps-side"
    query = ClippedMean()


@dataclass(frozen=True, kw_only=True)
class AdaSSide(SideScale):
    """θ ← θ − η ḡ/(A + γ) with A fixed before training. Non-private.

    Source: AdaDPS, appendix C.2 and Table 9 (AdaS without public data).
    """

    id = "adas-side"
    query = PlainMean()
