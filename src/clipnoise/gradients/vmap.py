"""Per-example gradients by `torch.func`: any network that runs under vmap."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch.func import functional_call, grad, vmap

from clipnoise.gradients.engine import GradientEngine

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.gradients.engine import Losses


class VmapEngine(GradientEngine):
    """Per-example gradients by vmap over the gradient of one example's loss."""

    name: ClassVar[str] = "vmap"

    def __init__(self, network: nn.Module, losses: Losses) -> None:
        super().__init__(network, losses)
        # A call costs 0.6 ms, and rows that leave the processor's cache cost more: pieces of 32
        # suit large networks, and as many as fit into 4 MB suit small ones.
        self.piece = max(32, 2**20 // self.flat.theta.numel())

        def loss(parameters: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
            outputs = self.outputs(functional_call, network, parameters, (example.unsqueeze(0),))
            return losses(outputs, target.unsqueeze(0)).squeeze(0)

        self._gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def per_example_gradients(self, inputs: Tensor, targets: Tensor, theta: Tensor) -> Tensor:
        gradients = self._gradients(self.flat.views(theta.detach()), inputs, targets)
        return self.flat.join_rows([gradients[name] for name in self.flat.names])
