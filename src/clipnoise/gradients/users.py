"""Updates of users in place of per-example gradients: what federated training clips."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from clipnoise.data.base import Examples
from clipnoise.data.several import tensors_of
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import GradientEngine, pieces

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.method import LocalTraining
    from clipnoise.data.several import Inputs


class UserEngine(GradientEngine):
    """Each user's update after local SGD, as one vector: an "example" of this engine is a user.

    The vector of user u is Δ_u = θ_u − θ. It depends on that user's examples and on θ alone: local
    SGD visits the examples in stored order in every epoch and draws no random numbers. A user
    without examples has Δ_u = 0. One user's vector is held at a time.
    """

    name: ClassVar[str] = "users"
    piece = 1

    def __init__(
        self,
        engine: GradientEngine,
        examples: Examples,
        users: Tensor,
        count: int,
        training: LocalTraining,
        scale: Tensor | None = None,
    ) -> None:
        """Wrap the private examples and the engine that computes their gradients.

        Args:
            engine: computes the mean gradients of local batches.
            examples: the private examples of all users.
            users: the user of each example, int64 of shape (n,).
            count: N, the number of users.
            training: what a user does in a round.
            scale: factors that local gradients are multiplied by, shape (d,); None for ones.
        """
        self.flat, self.losses, self.together = engine.flat, engine.losses, engine.together
        self._engine, self._examples = engine, examples
        self._rows = [(users == user).nonzero().squeeze(1) for user in range(count)]
        self._training, self.scale = training, scale

    @property
    def units(self) -> Examples:
        """The users as examples: inputs are their numbers 0 … N−1, targets are not used."""
        numbers = torch.arange(len(self._rows))
        return Examples(numbers, numbers)

    def examples_of(self, batch: Tensor) -> int:
        return self._training.epochs * sum(len(self._rows[user]) for user in batch.tolist())

    def update_of(self, user: int, theta: Tensor, key: int = 0) -> Tensor:
        """Return Δ_u, the change that local SGD makes from θ; shape (d,).

        An example's dropout masks and its view are the same in every local epoch of a round.
        """
        local, rows = theta.clone(), self._rows[user]
        for _ in range(self._training.epochs):
            for chosen in pieces(len(rows), self._training.batch_size):
                inputs, targets = self._examples.seen(rows[chosen], key)
                masks = Masks(key, rows[chosen])
                gradient = self._engine.mean_gradient(inputs, targets, local, masks)
                scaled = gradient if self.scale is None else self.scale * gradient
                local = local - self._training.learning_rate * scaled
        return local - theta

    def per_example_gradients(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        """Return Δ_u of each user.

        Args:
            inputs: the numbers of users, shape (b,), b ≥ 1.
            targets: not used.
            theta: the global parameters, shape (d,).
            masks: their key decides the dropout masks of the users' examples.

        Returns:
            Shape (b, d).
        """
        key = 0 if masks is None else masks.key
        (numbers,) = tensors_of(inputs)
        return torch.stack([self.update_of(user, theta, key) for user in numbers.tolist()])

    def summed_gradient(
        self, inputs: Inputs, targets: Tensor, theta: Tensor, masks: Masks | None = None
    ) -> Tensor:
        """Return Σ Δ_u over users, shape (d,)."""
        key = 0 if masks is None else masks.key
        (numbers,) = tensors_of(inputs)
        updates = [self.update_of(user, theta, key) for user in numbers.tolist()]
        return torch.stack([torch.zeros_like(theta), *updates]).sum(dim=0)
