"""Clip rules of users, which the package bounds whatever they return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from clipnoise.core.clip_rules.base import SHORTEST, ClipRule
from clipnoise.errors import UserError
from clipnoise.kinds import SEALED, OwnKind

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class OwnClipRule(OwnKind, ClipRule):
    """Base of the clip rules that users bring: a factor for one norm at a time.

    Whatever the factor is, a vector is multiplied by at most C/‖v‖ and at least 0, and by 0 where
    the factor is not a number. A rule never sees a second norm, so that none can depend on it.
    """

    needs: ClassVar[tuple[str, ...]] = ("factor",)
    sealed: ClassVar[tuple[str, ...]] = (*SEALED, "_asked", "check", "factors")
    what: ClassVar[str] = "clip rule"

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
