"""Public data in a run: its gradients, a warm start on it, and side information."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from clipnoise.core.clipping import ClippedSum
from clipnoise.core.method import Method
from clipnoise.core.state import Public, State
from clipnoise.core.step import step
from clipnoise.data.base import Examples
from clipnoise.data.side_information import PublicView
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import FlatModel, GradientEngine, pieces
from clipnoise.methods.base import WithSideInformation
from clipnoise.privacy.draws import Draws
from clipnoise.seeds import derive, generator

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.run.procedure import Procedure
    from clipnoise.run.setup import Material

PIECE = 64
FEATURE_AXIS = {"features": 1, "tokens": 0}  # of the weights of a linear layer, of an embedding


class PublicData(Draws):
    """The public examples of a run, and the random stream that picks some of them.

    None of them is private, so nothing here is protected.
    """

    def __init__(self, procedure: Procedure, examples: Examples, engine: GradientEngine) -> None:
        """Start the stream; the seed also decides dropout masks."""
        super().__init__(generator("public", procedure.seed))
        self.examples, self.engine = examples, engine
        self.method, self.seed = procedure.method, procedure.seed
        self.batch_size = min(procedure.training.expected_batch_size, len(examples))

    def gradient(self, theta: Tensor, step: int) -> Tensor:
        """Return ĝ of step t, shape (d,): the mean gradient of a mini-batch drawn with replacement.

        Where there are no more public examples than a mini-batch holds, it is all of them, once.
        """
        every = len(self.examples)
        few = self.batch_size == every
        chosen = torch.arange(every) if few else self.integers(every, self.batch_size)
        return self._mean(theta, Masks(derive("public dropout", self.seed, step), chosen))

    def gradient_sizes(self, theta: Tensor) -> Tensor:
        """Return the root mean square of each coordinate's gradient on public examples, (d,)."""
        squares = torch.zeros_like(theta)
        every = torch.arange(len(self.examples))
        for chosen in pieces(len(self.examples), PIECE):
            masks = Masks(derive("public dropout", self.seed, 0), every[chosen])
            inputs, targets = self.examples.take(chosen)
            gradients = self.engine.per_example_gradients(inputs, targets, theta, masks)
            squares += gradients.square().sum(0)
        return (squares / len(self.examples)).sqrt()

    def warm(self, theta: Tensor) -> Tensor:
        """Train on the public examples alone, if the method starts that way; shape (d,)."""
        start = self.method.warm_start()
        if start is None:
            return theta
        size = min(start.batch_size, len(self.examples))
        batches = len(self.examples) // size
        state = State(theta)
        public = Public(
            noise_multiplier=0.0, expected_batch_size=size, total_steps=start.epochs * batches
        )
        for _ in range(start.epochs):
            order = self.permutation(len(self.examples))
            for chosen in order[: batches * size].view(batches, size):
                key = derive("warm start", self.seed, state.step)
                gradient = self._mean(state.theta, Masks(key, chosen))
                warm_step(start.method, state, public, gradient)
        return state.theta

    def _mean(self, theta: Tensor, masks: Masks) -> Tensor:
        return self.engine.mean_gradient(*self.examples.take(masks.examples), theta, masks)


def side_information(
    method: Method, material: Material, flat: FlatModel, public: PublicData | None
) -> tuple[Tensor | None, dict[str, str]]:
    """Return A, shape (d,), or None, and where it comes from as data of the result.

    Args:
        method, material, public: what trains, on what, and the public data.
        flat: the network at its initial parameters.

    Raises:
        UserError: a source lacks what it reads, or the model has no weights per feature.
    """
    if not isinstance(method, WithSideInformation):
        return None, {}
    source, dataset, theta = method.side_information, material.dataset, flat.theta.clone()

    def gradient_sizes() -> np.ndarray:
        assert public is not None  # such a method says that it uses public data
        return np.asarray(public.gradient_sizes(theta).cpu())

    sizes = source.sizes(PublicView(dataset, material.cache, gradient_sizes))
    values = torch.from_numpy(sizes).to(flat.theta)
    if len(values) != len(flat.theta):
        values = over_parameters(values, flat, material.signature)
    written = hashlib.sha256(sizes.astype("<f8").tobytes()).hexdigest()
    origin = {"side information": source.origin(dataset), "sha256 of side information": written}
    return values, origin


def over_parameters(sizes: Tensor, flat: FlatModel, signature: Signature) -> Tensor:
    """Return A per feature as A per coordinate: 1 outside of the first layer's weights.

    In a linear layer on features A belongs to a column, in an embedding of tokens to a row; 0 is
    the token of padding, whose row keeps 1.

    Args:
        sizes: A of each feature or token, shape (features,).
        flat, signature: the network, and what an example looks like.

    Returns:
        Shape (d,).

    Raises:
        UserError: A has another length, or no weights belong to single features.
    """
    pieces = [torch.ones(shape).to(sizes) for shape in flat.shapes]
    features = signature.vocabulary or signature.size
    axis = FEATURE_AXIS.get(signature.kind)
    fitting = [p for p in pieces if axis is not None and p.ndim == 2 and p.shape[axis] == features]
    if len(sizes) != features or not fitting:
        raise UserError(
            f"method.side_information: {len(sizes)} numbers, but it takes one for each of the "
            f"{len(flat.theta)} parameters, or for each feature (or token) of a model whose first "
            f"layer has weights for each of its {features}."
        )
    if signature.kind == "tokens":
        sizes = torch.cat([sizes.new_ones(1), sizes[1:]])
    fitting[0].copy_(sizes if axis == 1 else sizes[:, None])
    return flat.join(pieces)


def warm_step(method: Method, state: State, public: Public, gradient: Tensor) -> None:
    """Take a step of a warm start on a mean public gradient, which needs no protection.

    Args:
        method, state: what trains, whose query is not private, and θ with its memory.
        public: B is the size of the mini-batch.
        gradient: shape (d,).
    """
    total = ClippedSum(gradient * public.expected_batch_size)
    step(method, state, public, clipped_sum=lambda _: total)


def public_data(
    procedure: Procedure, examples: Examples | None, engine: GradientEngine
) -> PublicData | None:
    """Return the public data, or None where the method uses none."""
    if not procedure.method.uses_public_data():
        return None
    assert examples is not None  # no procedure takes such a method without
    return PublicData(procedure, examples, engine)
