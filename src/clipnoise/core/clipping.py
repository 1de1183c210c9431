"""How per-example vectors are formed and bounded, and their opaque sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Never, final
from weakref import WeakKeyDictionary

from clipnoise.core.clip_rules import HARD, SHORTEST, ClipRule, OwnClipRule
from clipnoise.core.taken import GRADIENTS, Taken
from clipnoise.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ClipRule", "ClippedSum", "Clipping", "OwnClipRule"]


@dataclass(frozen=True)
class Clipping:
    """How per-example vectors are formed and bounded: v_i = clip(s ⊙ (Σ_j w_j g_i(p_j) + o)).

    Every field is public: fixed before the step from released or public values.

    Attributes:
        clip_norm: C, the L2 bound on each v_i; None means no clipping (non-private runs only).
        weights: w_j over the points.
        scale: s of shape (d,), or None for all ones.
        offset: o of shape (d,), or None for zero.
        group_size: m, by which the sum of a micro-batch is divided before clipping; 1 clips each
            example by itself.
        groups: the micro-batch of each example of the batch, int64 of shape (b,), equal ones next
            to each other; None where each example is by itself.
        examples: the index of each example of the batch in its dataset, int64 of shape (b,), which
            decides its dropout masks and its view; None counts from 0.
        key: of the run and the step, which decides them too; 64 bits.
        points: p_j, where the gradients g_i are taken, one per weight; each of shape (d,).
        rule: what a vector is multiplied by; its norm is then at most C.
        of: what is taken at the points: gradients, or in their place losses, of shape (1,); and
            the K coordinates that follow from the norm of each v_i. A v_i that is not finite adds
            0 to them.
        weighed_at: θ of shape (d,), where `of` multiplies each v_i by the slope of a loss of θ·v_i,
            or None for 1.
    """

    clip_norm: float | None
    weights: tuple[float, ...] = (1.0,)
    scale: Tensor | None = None
    offset: Tensor | None = None
    group_size: int = 1
    groups: Tensor | None = None
    examples: Tensor | None = None
    key: int = 0
    points: tuple[Tensor, ...] = ()
    rule: ClipRule = HARD
    of: Taken = GRADIENTS
    weighed_at: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a clip norm at which the norm of a vector could be lost, wherever it comes from.

        Raises:
            UserError: it is too small, or not a finite number.
        """
        if self.clip_norm is not None and not SHORTEST <= self.clip_norm < math.inf:
            raise UserError(
                f"clip_norm: must be finite and at least {SHORTEST:g}, because squares of smaller "
                f"numbers are 0 in float32; got {self.clip_norm:g}."
            )

    @property
    def bound(self) -> float:
        """C as a number: infinite where nothing is clipped."""
        return math.inf if self.clip_norm is None else self.clip_norm

    def at(self, *points: Tensor) -> Clipping:
        """Return the same with gradients at these points, each of shape (d,)."""
        return replace(self, points=points)


@final
class ClippedSum:
    """Σ v_i over a logical batch. It depends on private data, so it is opaque.

    There is no arithmetic on it and no way to read it: only `clipnoise.core.step` opens it.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, total: Tensor) -> None:
        """Seal a sum.

        Args:
            total: Σ v_i, shape (d,), with the K extra coordinates (d + K,).
        """
        _SEALED[self] = total

    def __init_subclass__(cls) -> Never:
        """Refuse a subclass, which could add a way to read the sum."""
        raise TypeError("ClippedSum cannot be subclassed")


# The tensors are kept here and not on the object, so that no attribute leads to one.
_SEALED: WeakKeyDictionary[ClippedSum, Tensor] = WeakKeyDictionary()
