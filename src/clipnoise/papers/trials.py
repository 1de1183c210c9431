"""Methods as the experiments run them: built from settings, and stepped in many trials at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Method
from clipnoise.core.state import Public, State
from clipnoise.core.step import step
from clipnoise.fields import parse
from clipnoise.methods.base import method_class
from clipnoise.papers.base import Section

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MethodOptions(Section):
    """Base of the sections that name a method."""

    method: str  # the id
    options: dict[str, object]  # hyper-parameters that are not tuned

    def build(self, **choice: float) -> Method:
        """Return the method; a choice of the tuned hyper-parameters replaces options."""
        return parse(method_class(self.method), {**self.options, **choice}, key=self.method)

    def trials(self, sigma: float, steps: int, start: Tensor, **choice: float) -> Trials:
        """Return trials of the method on batches of one example, from `start`, (trials, d)."""
        public = Public(noise_multiplier=sigma, expected_batch_size=1, total_steps=steps)
        return Trials(self.build(**choice), public, start)


def combinations(grid: Mapping[str, Sequence[float]]) -> Iterator[dict[str, float]]:
    """Yield every combination of the values of a grid; the last name varies fastest."""
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def choice_text(choice: Mapping[str, float]) -> str:
    """Return a combination as the tables of an experiment show it: `learning_rate=0.1, …`."""
    return ", ".join(f"{name}={value:g}" for name, value in choice.items())


def take_step(
    method: Method, state: State, public: Public, gradients: Tensor, noise: Sequence[Tensor]
) -> None:
    """Take the step of training on given gradients.

    Args:
        method, public: the optimizer and the public constants.
        state: θ and the memory of the optimizer, which are updated.
        gradients: per-example gradients, shape (b, d).
        noise: standard normals of shape (d,), at least as many as the method's query draws.
    """
    from clipnoise.gradients.clipping import clip_and_add, form_vectors

    def form(clipping: Clipping) -> ClippedSum:
        # Not `clipped_sum`, which looks for vectors that are not finite: trials are mapped by vmap,
        # where no branch may depend on a value.
        return ClippedSum(clip_and_add(form_vectors([gradients], clipping), clipping))

    step(method, state, public, clipped_sum=form, noise=tuple(noise))


@dataclass
class Trials:
    """Independent trials of one method, stepped at once: `take_step`, mapped over the trials."""

    method: Method
    public: Public
    theta: Tensor  # the parameters, shape (trials, d)
    buffers: dict[str, Tensor] = field(default_factory=dict)  # the state, each of (trials, …)
    steps: int = 0  # that have been taken

    @property
    def betas(self) -> tuple[float, float]:
        """β1 and β2 of a method that has them."""
        betas: tuple[float, float] = self.method.betas  # type: ignore[attr-defined]
        return betas

    def advance(self, gradients: Tensor, noise: Tensor) -> None:
        """Take one step in every trial, given gradients and noise as in `take_step` for each.

        Args:
            gradients: shape (trials, b, d).
            noise: shape (trials, r, d).
        """
        import torch

        def trial(
            buffers: dict[str, Tensor], theta: Tensor, rows: Tensor, normals: Tensor
        ) -> dict[str, Tensor]:
            state = State(theta, step=self.steps, buffers=buffers)
            take_step(self.method, state, self.public, rows, normals.unbind())
            return {**state.buffers, "theta": state.theta}

        def is_shared(x: Tensor) -> bool:
            # A number that depends on the step alone comes back from vmap as one value many times.
            return x.dim() == 1 and (len(x) == 1 or x.stride(0) == 0)

        dimensions = {name: None if is_shared(x) else 0 for name, x in self.buffers.items()}
        buffers = {n: x[0] if dimensions[n] is None else x for n, x in self.buffers.items()}
        mapped = torch.vmap(trial, in_dims=(dimensions, 0, 0, 0))
        self.buffers = mapped(buffers, self.theta, gradients, noise)
        self.theta = self.buffers.pop("theta")
        self.steps += 1
