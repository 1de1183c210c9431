"""References that need one release of all private examples, and no learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clipnoise.methods.base import (
    SHORTEST,
    ClipNorm,
    ClippedMean,
    NonNegative,
    PerturbedMinimum,
    Probability,
    Public,
    Released,
    State,
    Tensor,
    UserError,
    WithClipRule,
)


@dataclass(frozen=True, kw_only=True)
class OnFixedFeatures(WithClipRule):
    """Base of the references for a network of one linear layer."""

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


@dataclass(frozen=True, kw_only=True)
class DPPrototypes(OnFixedFeatures):
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

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["sums"] = state["sums"] - g  # −x is the gradient of a class's negative score
        sums = state.split(state["sums"])[0]
        rows = sums.view(-1, sums.shape[-1])
        prototypes = rows / rows.norm(dim=1, keepdim=True).clamp(min=SHORTEST)
        change = -state.theta
        state.split(change)[0].add_(prototypes.view_as(sums))
        return change


@dataclass(frozen=True, kw_only=True)
class DPObjectivePerturbation(OnFixedFeatures):
    """θ̃, the mean of minima of Σ log(1 + e^{m − m_i(θ)}) + (λ/2)‖θ‖² + b·θ, one a step.

    m_i = −θ·u_i is the margin of an example's class, its score less the mean of all scores, with
    u_i clipped to C; m is `margin`, and b the noise. For a network of one linear layer on fixed
    features. One step of the sampler `full` is all that it needs. ε covers that the minimum is an
    approximate one; λ follows from σ, C and `curvature_share` ρ: of 1/σ² a share ρ is for what the
    curvature of the objective and the solver reveal, and the more that is, the smaller is λ. The
    proof is in the docstring of `clipnoise.core.taken.AtMinimum`.

    Source: Chaudhuri et al. 2011; Iyengar et al. 2019; Redberg, Koskela and Wang 2023 (arXiv
    2401.00583); the loss of several classes is that of Zou, Zhu and Hastie 2008 (arXiv 0901.3988).
    """

    id = "dp-objective-perturbation"
    gradients_of = "class margin"

    curvature_share: Probability = 0.3
    margin: NonNegative = 2.0

    @property
    def query(self) -> PerturbedMinimum:
        return PerturbedMinimum(self.curvature_share, self.margin)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        ridge = self.query.of.ridge(public.noise_multiplier, self.clip_norm)
        state["minima"] = state["minima"] - public.expected_batch_size / ridge * g
        return state["minima"] / state.step - state.theta
