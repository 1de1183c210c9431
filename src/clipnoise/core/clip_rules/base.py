"""What every clip rule is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge

from clipnoise.fields import STRICT
from clipnoise.kinds import Kinds

if TYPE_CHECKING:
    from torch import Tensor

# Norms in float32 lose entries below 1e-19, whose squares are 0: C and γ are well above the norm of
# any number of these.
SHORTEST = 1e-12
ClipNorm = Annotated[float, Ge(SHORTEST)]


@dataclass(frozen=True, kw_only=True)
class ClipRule(Kinds):
    """What each vector is multiplied by. Under every rule the result has a norm of at most C.

    Attributes:
        per: "layer" clips what belongs to each of the L modules with parameters of their own by
            itself, to C/√L, so that all of v still has a norm of at most C.

    Source: He et al. 2023, "Exploring the Limits of Differentially Private Deep Learning with
    Group-wise Clipping" (per layer).
    """

    __pydantic_config__: ClassVar = STRICT
    folder: ClassVar[str] = "clipnoise.core.clip_rules"
    default: ClassVar[str] = "hard"
    written: ClassVar[tuple[str, ...]] = ("kind", "gamma", "per")

    per: Literal["example", "layer"] = "example"

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Return f(‖v‖) for each norm: at least 0, and f(‖v‖)·‖v‖ ≤ C.

        Args:
            norms: of any shape.
            clip_norm: C > 0.

        Returns:
            Factors of the same shape: 0 for an infinite norm, nan for a norm that is nan.
        """
        raise NotImplementedError

    def check(self, clip_norm: float) -> None:
        """Raise UserError where the rule cannot be used, before anything trains."""
