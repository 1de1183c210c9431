"""What an update is given besides released values: what is public, and its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from clipnoise.errors import UserError, nearest
from clipnoise.seeds import derive

if TYPE_CHECKING:
    from torch import Tensor

PublicVector = Literal["gradient", "side_information"]


@dataclass(frozen=True)
class Public:
    """All that a step may know besides the sum of its batch: constants, and public data.

    Attributes:
        noise_multiplier: σ, the standard deviation of the noise relative to the sensitivity.
        expected_batch_size: the constant denominator, never the realised batch size: B = q·n, or
            B/m where micro-batches of m examples are clipped.
        total_steps: T.
        noise_row_norm_squared: ρ_t, the variance of this step's noise relative to independent noise
            at the same σ; 1 unless noise is correlated across steps.
        sensitivity_factor: how far one example can move the clipped sum, in units of C for adding
            or removing it: 1, or 2 for micro-batches. The noise is scaled by it.
        seed: of draws that are public, as directions are; nothing private is drawn from it.
        gradient: mean gradient on a public mini-batch for this step, shape (d,), or None.
        side_information: how large or frequent each coordinate is known to be, shape (d,), from
            public sources and fixed before training, or None. Never from the private examples.
    """

    noise_multiplier: float
    expected_batch_size: float
    total_steps: int
    noise_row_norm_squared: float = 1.0
    sensitivity_factor: float = 1.0
    seed: int = 0
    gradient: Tensor | None = None
    side_information: Tensor | None = None

    def direction(self, state: State) -> Tensor:
        """Return the public direction of a step: standard normal numbers, shape (d,).

        They follow from the seed and the step alone: each call in a step returns the same.
        """
        import torch

        draws = torch.Generator().manual_seed(derive("directions", self.seed, state.step))
        return torch.randn(state.theta.shape, generator=draws, dtype=torch.float64).to(state.theta)

    def noise_variance(self, clip_norm: float) -> float:
        """Return Φ, the variance of independent noise on a coordinate of the mean.

        It is (σC/B)²; for micro-batches (σ·2C/(B/m))².
        """
        sensitivity = self.sensitivity_factor * clip_norm / self.expected_batch_size
        return (self.noise_multiplier * sensitivity) ** 2

    def require(self, name: PublicVector) -> Tensor:
        """Return one of the vectors that not every run has.

        Raises:
            ValueError: this run has none.
        """
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(f"the method reads public.{name}, but this run has none")
        return value


@dataclass
class State:
    """θ and what a method remembers: past iterates, and flat buffers, all zero at the start.

    All of it is released, or follows from what is.

    Attributes:
        theta: θ, shape (d,); in a step, that before it. The buffers have its dtype and device.
        step: t, counted from 1; 0 before the first step.
        buffers: the memory itself; plain data, so that a checkpoint can hold it.
        unwritten: the buffers that were read before they were written.
        shapes: of the parameters that θ holds one after another; one vector if not known.
        past: the iterates before the next one, newest first; as many as the method reads.
    """

    theta: Tensor
    step: int = 0
    buffers: dict[str, Tensor] = field(default_factory=dict)
    unwritten: set[str] = field(default_factory=set)
    shapes: tuple[tuple[int, ...], ...] = ()
    past: tuple[Tensor, ...] = ()

    def __getitem__(self, name: str) -> Tensor:
        """Return a buffer; one that was not written yet is zero, and must be by the step's end."""
        if name not in self.buffers:
            self.buffers[name] = self.theta.new_zeros(self.theta.shape)
            self.unwritten.add(name)
        return self.buffers[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.buffers[name] = value
        self.unwritten.discard(name)

    def require_written(self) -> None:
        """Refuse what was read in a step and not written: a mistyped name would read zeros.

        Raises:
            UserError: names the buffer, and the nearest one that is written.
        """
        read = {name for name in self.unwritten if not self.buffers[name]._version}  # not in place
        written = self.buffers.keys() - read
        for name in sorted(read):
            raise UserError(
                f"state[{name!r}] is read, but was never written.{nearest(name, written)} "
                f"Written: {', '.join(sorted(written)) or 'nothing'}."
            )
        self.unwritten.clear()

    def copy(self) -> State:
        """Return the same memory in tensors of its own."""
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        return State(self.theta, self.step, buffers, shapes=self.shapes, past=self.past)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector of shape (d,) in the shapes of the parameters."""
        return split(vector, self.shapes or (vector.shape,))

    def get_state(self) -> dict[str, Tensor]:
        """Return θ, the step number, the buffers and the past iterates, for a checkpoint."""
        import torch

        held = {f"buffer {name}": value for name, value in self.buffers.items()}
        past = {f"past {age}": iterate for age, iterate in enumerate(self.past)}
        return {"theta": self.theta, "step": torch.tensor(self.step), **held, **past}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Go to a saved step; those that follow are the same bit for bit.

        Raises:
            KeyError, ValueError: something is missing, or parameters of another kind are there.
        """
        ages = range(sum(name.startswith("past ") for name in state))
        self.past = tuple(self.saved_parameters(f"past {age}", state) for age in ages)
        self.theta = self.saved_parameters("theta", state)
        self.step = int(state["step"])
        self.buffers = {
            name.removeprefix("buffer "): value.to(self.theta.device)
            for name, value in state.items()
            if name.startswith("buffer ")
        }

    def saved_parameters(self, name: str, saved: Mapping[str, Tensor]) -> Tensor:
        """Return saved parameters, shape (d,), where θ is.

        Raises:
            KeyError, ValueError: there are none, or of another kind than θ.
        """
        value, theta = saved[name], self.theta
        alike = (value.shape, value.dtype) == (theta.shape, theta.dtype)
        if not (alike and bool(value.isfinite().all())):
            raise ValueError(f"{name} is not {theta.numel()} finite parameters")
        return value.to(theta.device)

    def decay(self, name: str, value: Tensor, beta: float) -> Tensor:
        """Update the running average x ← βx + (1−β)·value in place and return it.

        Args:
            name: the buffer that holds x.
            value: the new value, shape (d,).
            beta: β in [0, 1).

        Returns:
            x, shape (d,): the buffer itself.
        """
        self[name] = self[name].mul_(beta).add_(value, alpha=1 - beta)
        return self[name]

    def average(self, name: str, value: Tensor, beta: float) -> Tensor:
        """Update x as `decay` does and return it bias-corrected: x/(1−β^t), shape (d,), new."""
        return self.decay(name, value, beta) / (1 - beta**self.step)

    def moments(self, g: Tensor, betas: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Update Adam's two moments with g and return them bias-corrected, (m̂, v̂)."""
        return self.average("m", g, betas[0]), self.average("v", g.square(), betas[1])

    def noise_bias(self, public: Public, clip_norm: float, beta: float) -> float:
        """Return the bias that noise leaves in a bias-corrected running average of squares.

        Call it once per step. Under independent noise and one clip norm it is Φ at every step.

        Args:
            public: of the step, with the relative variance ρ_t of its noise.
            clip_norm: C_t, of this step.
            beta: β of the running average.

        Returns:
            Σ_{i≤t} w_i Φ_i ρ_i with w_i = (1−β)β^{t−i}/(1−β^t), and Φ_i in proportion to C_i².

        Source: On Design Principles for Private Adaptive Optimizers, appendix A.
        """
        import torch

        before = float(self.buffers.get("noise_bias", 0.0))
        last = float(self.buffers.get("noise_bias_clip_norm", clip_norm))
        if last != clip_norm:  # in units of the Φ of this step
            before *= (last / clip_norm) ** 2
        factor = next_bias_factor(before, public.noise_row_norm_squared, beta, self.step)
        self.buffers["noise_bias"] = self.theta.new_tensor(factor, dtype=None)
        self.buffers["noise_bias_clip_norm"] = self.theta.new_tensor(clip_norm, dtype=torch.float64)
        return public.noise_variance(clip_norm) * factor


def split(
    vector: Tensor, shapes: Sequence[tuple[int, ...]], sizes: list[int] | None = None
) -> list[Tensor]:
    """Return views of a vector of shape (d,) in some shapes, which have d numbers together.

    Args:
        vector: shape (d,).
        shapes: of the views.
        sizes: how many numbers each has, where a caller splits so often that it keeps them.
    """
    pieces = vector.split_with_sizes(sizes or [math.prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def next_bias_factor(factor: float, row_norm_squared: float, beta: float, step: int) -> float:
    """Advance Σ_{i≤t} w_i ρ_i, w_i = (1 − β)β^{t−i}/(1 − β^t), by one step.

    Times Φ it is the bias that the noise leaves in a bias-corrected running average of squares.
    The recursion keeps independent noise (ρ = 1) at exactly 1.

    Args:
        factor: the value at t − 1; any number at t = 1.
        row_norm_squared: ρ_t = ‖row t of C⁻¹‖².
        beta: β in [0, 1).
        step: t, from 1.

    Returns:
        The value at t.

    Source: On Design Principles for Private Adaptive Optimizers, appendix A (its weights follow
    from D(β, t) there; the exponent i − 1 printed in the sum above it is a misprint of t − i).
    """
    if step == 1:
        return row_norm_squared
    share = (1 - beta) / (1 - beta**step)
    return factor + share * (row_norm_squared - factor)
