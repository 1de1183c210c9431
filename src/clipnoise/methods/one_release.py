"""References that need one release: sums over the private examples, and no optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from clipnoise.core.state import split
from clipnoise.methods.base import (
    SHORTEST,
    ClipNorm,
    ClippedMean,
    NonNegative,
    PerturbedMinimum,
    Positive,
    Probability,
    Public,
    Released,
    State,
    Tensor,
    UserError,
    WithClipRule,
)


@dataclass(frozen=True, kw_only=True)
class OneRelease(WithClipRule):
    """Base of the references that need one step of the sampler `full`.

    Unless a class says otherwise, the trained parameters are those of one linear layer.
    """

    made_for = "logistic"

    clip_norm: ClipNorm

    def clip_norm_at(self, step: int) -> float:
        return self.clip_norm

    def fits(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return whether parameters of these shapes are those of a network like `made_for`."""
        weight, *rest = shapes
        return len(weight) == 2 and rest in ([], [weight[:1]])

    def check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        if not self.fits(shapes):
            found = ", ".join(str(tuple(shape)) for shape in shapes)
            raise UserError(
                f"model: {self.id} is for a network like {self.made_for}; the trained parameters "
                f"of this one have the shapes {found}."
            )


@dataclass(frozen=True, kw_only=True)
class SumsOfFeatures(OneRelease):
    """Base of those that add up what is released of the gradients of class scores."""

    query = ClippedMean()
    gradients_of = "class score"

    def sums(self, released: tuple[Released, ...], state: State) -> Tensor:
        """Add what was released in this step to the sums of features, and return them, (d,)."""
        (g,) = released
        state["sums"] = state["sums"] - g  # minus the features are the gradient of minus the score
        return state["sums"]


@dataclass(frozen=True, kw_only=True)
class DPPrototypes(SumsOfFeatures):
    """w_k = S̃_k/‖S̃_k‖, S̃_k the released sum of the features of class k: the nearest class by angle.

    For a network of one linear layer on fixed features x. The sums of all classes are one vector,
    and an example adds the clipped pair (x, 1) to the part of its class. One step of the sampler
    `full` is all that it needs; the releases of several steps are added. Biases are 0, because an
    angle needs no size of a class.

    Source: Wahdany et al. 2025 (DPPL-Mean, arXiv 2406.08039), with the Gaussian mechanism on the
    sums of clipped features in the place of the paper's private mean.
    """

    id = "dp-prototypes"

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        sums = state.split(self.sums(released, state))[0]
        rows = sums.view(-1, sums.shape[-1])
        prototypes = rows / rows.norm(dim=1, keepdim=True).clamp(min=SHORTEST)
        change = -state.theta
        state.split(change)[0].add_(prototypes.view_as(sums))
        return change


@dataclass(frozen=True, kw_only=True)
class DPLeastSquares(SumsOfFeatures):
    """W = R̃(S̃ + λI)⁻¹, with S̃ and R̃ the released sums of xxᵀ and e_y xᵀ: one class against all.

    For the model `least-squares` on fixed features x, of which S̃ has p(p + 1)/2 numbers. An example
    adds one vector, its products x_i x_j for i ≤ j beside x at the place of its class, and that is
    clipped as a whole: an example that is clipped has less weight in the regression, in both sums
    alike. With `per: layer` the two weights differ.

    λ = max(0, κτ√p − λ₁), so that no eigenvalue of S̃ + λI is below κτ√p. κ is `ridge`, τ the
    deviation of the noise on a number of S̃, and λ₁ the smallest eigenvalue of S̃; the largest one of
    its noise is about 2τ√p. One step of the sampler `full` is all that it needs; the releases of
    several steps are added. S̃ takes the place of the products' parameters. A stream of
    `clipnoise.replay` is that of one feature.

    Source: Wang 2018 (AdaSSP, arXiv 1803.02596, Algorithm 2) for the noisy sums and
    λ = max(0, τ√(p log(2p²/ϱ)) − λ̃₁). There the budget is split between S̃, R̃ and λ̃₁, a release of
    the smallest eigenvalue of Σxxᵀ. Here both sums are one release of which λ₁ is a function, κ is
    in the place of √log(2p²/ϱ), and what is regressed is whether y is the class.
    """

    id = "dp-least-squares"
    made_for = "least-squares"
    may_change = ()  # τ belongs to one C

    ridge: Positive = 1.0

    def against_correlated_noise(self) -> str:
        return f"The λ of {self.id} is for noise that is independent from step to step."

    def fits(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        if [len(shape) for shape in shapes] != [2, 2]:
            return False
        products, (_, p) = shapes
        return tuple(products) == (1, p * (p + 1) // 2)

    def smallest(self, matrix: Tensor, state: State) -> Tensor:
        """Return λ₁, the smallest eigenvalue of S̃, shape ()."""
        import torch

        eigenvalues: Tensor = torch.linalg.eigvalsh(matrix)
        return eigenvalues[0]

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        import torch

        found = self.sums(released, state)
        shapes = state.shapes or ((1, 1), (len(found) - 1, 1))  # of a replay: one feature
        products, sums = split(found.double(), shapes)
        matrix = symmetric(products)
        p = len(matrix)
        tau = math.sqrt(state.step * public.noise_variance(self.clip_norm))
        rounding = p * torch.finfo(found.dtype).eps * matrix.abs().max()
        least = rounding.clamp(min=max(self.ridge * tau * math.sqrt(p), SHORTEST))
        lift = (least - self.smallest(matrix, state)).clamp(min=0)
        weights = torch.linalg.solve(matrix + lift * torch.eye(p).to(matrix), sums.mT).mT
        return torch.cat([products.flatten(), weights.flatten()]).to(found) - state.theta


@dataclass(frozen=True, kw_only=True)
class DPObjectivePerturbation(OneRelease):
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


def symmetric(products: Tensor) -> Tensor:
    """Return the symmetric matrix of some numbers, shape (p, p).

    Args:
        products: its rows from the diagonal on, p(p + 1)/2 numbers.
    """
    p = math.isqrt(2 * products.numel())
    import torch

    i, j = torch.triu_indices(p, p)
    places = torch.zeros(p, p, dtype=torch.int64)
    places[i, j] = places[j, i] = torch.arange(len(i))
    return products.flatten()[places.to(products.device)]
