"""References that need one release: sums over the private examples, and no optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clipnoise.methods.base import (
    SHORTEST,
    ClipNorm,
    ClippedMean,
    Public,
    Released,
    State,
    Tensor,
    UserError,
    WithClipRule,
)


@dataclass(frozen=True, kw_only=True)
class DPPrototypes(WithClipRule):
    """w_k = S̃_k/‖S̃_k‖, S̃_k the released sum of the features of class k: the nearest class by angle.

    For a network of one linear layer on fixed features x. The sums of all classes are one vector,
    and an example adds the clipped pair (x, 1) to the part of its class. One step of the sampler
    `full` is all that it needs; the releases of several steps are added. Biases are 0, because an
    angle needs no size of a class.

    Source: Wahdany et al. 2025 (DPPL-Mean, arXiv 2406.08039), with the Gaussian mechanism on the
    sums of clipped features in the place of the paper's private mean.
    """

    id = "dp-prototypes"
    query = ClippedMean()
    gradients_of = "class score"

    clip_norm: ClipNorm

    def clip_norm_at(self, step: int) -> float:
        return self.clip_norm

    def check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        weight, *rest = shapes
        if len(weight) != 2 or rest not in ([], [weight[:1]]):
            found = ", ".join(str(tuple(shape)) for shape in shapes)
            raise UserError(
                f"model: {self.id} is for a network whose trained parameters are those of one "
                f"linear layer, such as logistic; these have the shapes {found}."
            )

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["sums"] = state["sums"] - g  # −x is the gradient of a class's negative score
        sums = state.split(state["sums"])[0]
        rows = sums.view(-1, sums.shape[-1])
        prototypes = rows / rows.norm(dim=1, keepdim=True).clamp(min=SHORTEST)
        change = -state.theta
        state.split(change)[0].add_(prototypes.view_as(sums))
        return change
