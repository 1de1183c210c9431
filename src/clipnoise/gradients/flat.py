"""A network whose trained parameters are one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from clipnoise.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn


class FlatModel:
    """A network whose trained parameters are views into one vector θ of shape (d,).

    Frozen parameters stay where they are; a parameter used in several places counts once. Move the
    network to its device before, not after: moving it would cut the parameters loose from θ.

    Attributes:
        network: the network itself.
        theta: θ, shape (d,); writing into it changes the network.
        names: the trained parameters, in the order in which θ holds them.
        shapes: their shapes.
        parameters: the parameters themselves.
    """

    def __init__(self, network: nn.Module) -> None:
        """Gather the trained parameters of a network into one vector.

        Args:
            network: changed in place: its parameters become views into `theta`.

        Raises:
            UserError: nothing is trained, or the parameters differ in dtype or device.
        """
        trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        kinds = {(p.dtype, p.device) for p in trained.values()}
        if len(kinds) != 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "none"
            raise UserError(
                "model: the trained parameters must exist and share one dtype and device; "
                f"found: {found}."
            )
        self.network = network
        self.names = tuple(trained)
        self.parameters = tuple(trained.values())
        self.shapes = tuple(p.shape for p in self.parameters)
        self.theta = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        for parameter, view in zip(self.parameters, self.split(self.theta), strict=True):
            parameter.data = view

    def load(self, theta: Tensor) -> None:
        """Set the network's parameters, in place.

        Args:
            theta: shape (d,).
        """
        self.theta.copy_(theta)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector of shape (d,) in the shapes of the parameters."""
        pieces = torch.split(vector, [shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a vector by parameter name, as `torch.func.functional_call` takes them.

        Args:
            vector: shape (d,).
        """
        return dict(zip(self.names, self.split(vector), strict=True))

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors in the shapes of the parameters as one vector, the inverse of `split`."""
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def join_rows(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors of shape (b, *parameter shape) as one matrix of shape (b, d)."""
        return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1)
