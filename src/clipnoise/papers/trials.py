"""Independent trials of one method, stepped at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipnoise.methods.base import State, step

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.methods.base import Method, Public
    from clipnoise.privacy.queries import Clipping, Unreleased

    Buffers = dict[str, Tensor]


class Trials:
    """The same method on many independent streams: one call of `step`, mapped over the trials.

    Attributes:
        theta: the parameters, shape (trials, d).
        buffers: the memory of the method, each of shape (trials, …).
        steps: how many steps have been taken.
    """

    def __init__(self, method: Method, public: Public, theta: Tensor) -> None:
        """Start every trial.

        Args:
            method: the optimizer.
            public: the constants, the same for all trials.
            theta: initial parameters, shape (trials, d).
        """
        self.method = method
        self.public = public
        self.theta = theta
        self.buffers: Buffers = {}
        self.steps = 0

    def advance(self, gradients: Tensor, noise: Tensor) -> None:
        """Take one step in every trial.

        Args:
            gradients: per-example gradients, shape (trials, b, d).
            noise: standard normals, shape (trials, r, d), where r is at least the draws of the
                method's query.
        """
        import torch

        from clipnoise.gradients.per_example import clipped_sum

        def one(buffers: Buffers, like: Tensor, rows: Tensor, normals: Tensor) -> Buffers:
            def form(plan: Clipping) -> Unreleased:
                return clipped_sum([rows], plan)

            state = State(like=like, step=self.steps, buffers=buffers)
            change = step(
                self.method,
                state,
                self.public,
                available=1,
                clipped_sum=form,
                noise=normals.unbind(),
            )
            return {**state.buffers, "change": change}

        dimensions = {name: _dimension(value) for name, value in self.buffers.items()}
        buffers = {
            name: value[0] if dimensions[name] is None else value
            for name, value in self.buffers.items()
        }
        stepped = torch.vmap(one, in_dims=(dimensions, 0, 0, 0))(
            buffers, self.theta, gradients, noise
        )
        self.theta = self.theta + stepped.pop("change")
        self.buffers = stepped
        self.steps += 1


def _dimension(value: Tensor) -> int | None:
    """Return along which dimension a buffer differs between trials; None for one they share.

    A number that depends on the step alone comes back from the map as one value seen many times.
    """
    return None if value.dim() == 1 and (len(value) == 1 or value.stride(0) == 0) else 0
