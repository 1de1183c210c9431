"""How per-example vectors are formed and bounded, and their opaque sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Never, final
from weakref import WeakKeyDictionary

from annotated_types import Ge

from clipnoise.errors import UserError
from clipnoise.fields import STRICT
from clipnoise.plugins import SEALED, OwnKind, WithOwnKinds

if TYPE_CHECKING:
    from torch import Tensor

# Norms in float32 lose entries below 1e-19, whose squares are 0: C and γ are well above the norm of
# any number of these.
SHORTEST = 1e-12
ClipNorm = Annotated[float, Ge(SHORTEST)]


@dataclass(frozen=True, kw_only=True)
class ClipRule(WithOwnKinds):
    """What each vector is multiplied by. Under every rule the result has a norm of at most C.

    Attributes:
        kind: "hard" is min(1, C/‖v‖). "automatic" is C/(‖v‖ + γ): all vectors, short ones too, end
            up near C, and with a small γ the gradient is normalised. "psac" is
            C/(‖v‖ + γ/(‖v‖ + γ)), whose weights end at C/(2√γ − γ), that of ‖v‖ = √γ − γ: 5.26 C at
            γ = 0.01, where those of automatic end at 100 C. Any other is the id of an
            `OwnClipRule`.
        gamma: γ, called r for psac; 0.01 where it is not given. "hard" has none.
        per: "layer" clips what belongs to each of the L modules with parameters of their own by
            itself, to C/√L, so that all of v still has a norm of at most C.

    Source: Abadi et al. 2016 (hard); Bu et al. 2023, "Automatic Clipping", equation 4.1 (AUTO-S);
    Xia et al. 2023, "Per-Sample Adaptive Clipping", Algorithm 1; He et al. 2023, "Exploring the
    Limits of Differentially Private Deep Learning with Group-wise Clipping" (per layer).
    """

    __pydantic_config__: ClassVar = STRICT
    builtin: ClassVar[tuple[str, ...]] = ("hard", "automatic", "psac")

    kind: str = "hard"
    gamma: Annotated[float, Ge(SHORTEST)] | None = None
    per: Literal["example", "layer"] = "example"

    def __post_init__(self) -> None:
        if self.kind not in self.builtin:
            raise ValueError(f"kind: {self.kind!r} is not one of {', '.join(self.builtin)}")
        if self.kind == "hard" and self.gamma is not None:
            raise ValueError("gamma belongs to the kinds automatic and psac, not to hard")

    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Return f(‖v‖) for each norm: at least 0, and f(‖v‖)·‖v‖ ≤ C.

        Args:
            norms: of any shape.
            clip_norm: C > 0.

        Returns:
            Factors of the same shape: 0 for an infinite norm, nan for a norm that is nan.
        """
        if self.kind == "hard":
            return norms.reciprocal().mul_(clip_norm).clamp_(max=1.0)
        gamma = 0.01 if self.gamma is None else self.gamma
        return clip_norm / (
            norms + (gamma if self.kind == "automatic" else gamma / (norms + gamma))
        )

    def check(self, clip_norm: float) -> None:
        """Raise UserError where the rule cannot be used, before anything trains."""


@dataclass(frozen=True, kw_only=True)
class OwnClipRule(OwnKind, ClipRule):
    """Base of the clip rules that users bring: a factor for one norm at a time.

    Whatever the factor is, a vector is multiplied by at most C/‖v‖ and at least 0, and by 0 where
    the factor is not a number. A rule never sees a second norm, so that none can depend on it.
    """

    needs: ClassVar[tuple[str, ...]] = ("factor",)
    sealed: ClassVar[tuple[str, ...]] = (*SEALED, "_asked", "check", "factors")
    what: ClassVar[str] = "clip rule"

    gamma: None = None

    def factor(self, norm: Tensor, clip_norm: float) -> Tensor:
        """Return f(‖v‖), by which a vector is multiplied.

        It is called under `torch.vmap`: `norm` stands for any one norm, and has no value that
        Python could read. So write `torch.where` or `clamp` in place of `if` and `min`.

        Args:
            norm: ‖v‖ ≥ 0 of one vector, or of one layer's part; shape ().
            clip_norm: C > 0 of the vector or of the layer.

        Returns:
            At least 0 and at most C/‖v‖, finite also where the norm is 0; shape ().
        """
        raise NotImplementedError

    @final
    def factors(self, norms: Tensor, clip_norm: float) -> Tensor:
        if norms.numel() == 0:
            return norms
        factors = self._asked(norms.flatten(), clip_norm).view(norms.shape)
        # The computed norm of very short vectors is too small, so C/‖v‖ would be too large.
        most = clip_norm / norms.clamp(min=SHORTEST)
        return factors.nan_to_num(nan=0.0).clamp(min=0.0).minimum(most)

    @final
    def check(self, clip_norm: float) -> None:
        import torch

        norms = torch.cat([torch.tensor([0.0, clip_norm]), torch.logspace(-30, 30, 241)])
        with self.explained():
            first, second = (self._asked(norms, clip_norm) for _ in range(2))
            if first.shape != norms.shape:
                raise UserError("factor must return one number for one norm.")
            for bad, what in (
                (~first.isfinite() | (first < 0), "must be finite and at least 0"),
                (first != second, "must be the same whenever it is asked for"),
            ):
                if bad.any():
                    norm, factor = (float(tensor[bad][0]) for tensor in (norms, first))
                    raise UserError(
                        f"its factor {what}; it is {factor:g} for ‖v‖ = {norm:g} and "
                        f"C = {clip_norm:g}."
                    )

    def _asked(self, norms: Tensor, clip_norm: float) -> Tensor:
        """Return what the rule says of each norm, shape (b,), each asked for by itself."""
        import torch

        def one(norm: Tensor) -> Tensor:
            return torch.as_tensor(self.factor(norm, clip_norm), device=norm.device).to(norm.dtype)

        found: Tensor = torch.vmap(one)(norms)
        return found


ClipRule.own = OwnClipRule

HARD = ClipRule()
EACH_LAYER = ClipRule(per="layer")
Taken = Literal["gradients", "losses"]


def zeros(of: Taken, theta: Tensor, *, counts: bool = False) -> Tensor:
    """Return the sum over no examples: shape (d,), or (1,) of losses; θ gives dtype and device.

    With a count it has one number more.
    """
    return theta.new_zeros((theta.numel() if of == "gradients" else 1) + counts)


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
        of: what is taken at the points: gradients, or in their place losses, of shape (1,).
        counts: whether Σ (1[‖v_i‖ ≤ C] − ½) follows the sum as one number more, over the vectors
            before they are clipped. One that is not finite adds 0.
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
    of: Taken = "gradients"
    counts: bool = False

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
            total: Σ v_i, shape (d,), or with a count (d + 1,).
        """
        _SEALED[self] = total

    def __init_subclass__(cls) -> Never:
        """Refuse a subclass, which could add a way to read the sum."""
        raise TypeError("ClippedSum cannot be subclassed")


# The tensors are kept here and not on the object, so that no attribute leads to one.
_SEALED: WeakKeyDictionary[ClippedSum, Tensor] = WeakKeyDictionary()
