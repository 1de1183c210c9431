"""DP-Adafactor: the second moment of a matrix from one number per row and one per column."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import (
    ClippedMean,
    NonNegative,
    Positive,
    PrivateMethod,
    Public,
    Released,
    State,
    Tensor,
)


def root_mean_square(tensor: Tensor) -> Tensor:
    """Return the root of the mean of the squares, shape ()."""
    return tensor.square().mean().sqrt()


@dataclass(frozen=True, kw_only=True)
class DPAdafactor(PrivateMethod):
    """θ ← θ − max(ε2, RMS(θ))·min(η, 1/√t)·u/max(1, RMS(u)/d) − ηλθ for each tensor, u = g̃/√V̂.

    V̂ = RC/mean(R) for matrices, from the means R over columns and C over rows of what
    V ← β_t V + (1−β_t)(g̃² + ε1) would be with β_t = 1 − t^(−`decay`); of a tensor with more
    dimensions its last two are rows and columns, and of a vector V̂ = V. There is no momentum. The
    options `threshold`, `gamma` and `smallest_scale` are d, ε1 and ε2. Noise adds Φ to V̂ as it
    does to Adam's v̂, and a mean over rows or columns has less of its variance.

    Source: Shazeer and Stern 2018 (Adafactor, arXiv 1804.04235), Algorithms 4 and 5, on the
    released gradient, with η in the place of 10⁻² and the weight decay as in torch.optim.Adafactor.
    """

    id = "dp-adafactor"
    query = ClippedMean()

    decay: Positive = 0.8
    threshold: Positive = 1.0
    gamma: Positive = 1e-30
    smallest_scale: Positive = 1e-3
    weight_decay: NonNegative = 0.0

    def second_moment(self, g: Tensor, name: str, state: State) -> Tensor:
        """Return V̂ for one tensor of the gradient, shaped like it."""

        def averaged(part: str, value: Tensor) -> Tensor:
            key, new = f"{part} of {name}", state.step**-self.decay
            last = state.buffers.get(key, value)  # with β_1 = 0 what was before does not matter
            state[key] = last + new * (value - last)
            return state[key]

        squares = g.square() + self.gamma
        if g.ndim < 2:
            return averaged("v", squares)
        rows = averaged("rows", squares.mean(dim=-1, keepdim=True))
        columns = averaged("columns", squares.mean(dim=-2, keepdim=True))
        return rows / rows.mean(dim=-2, keepdim=True) * columns

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        change = -self.learning_rate * self.weight_decay * state.theta
        relative = min(self.learning_rate, state.step**-0.5)
        parts = zip(*(state.split(whole) for whole in (change, g, state.theta)), strict=True)
        for number, (part, gradient, theta) in enumerate(parts):
            u = gradient / self.second_moment(gradient, str(number), state).sqrt()
            shrunk = (root_mean_square(u) / self.threshold).clamp(min=1)
            size = relative * root_mean_square(theta).clamp(min=self.smallest_scale)
            part.sub_(size / shrunk * u)
        return change
