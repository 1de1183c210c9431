"""Training a part of a network: its head, its biases, or low-rank adapters of its layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from clipnoise.errors import UserError
from clipnoise.fields import Count, Positive
from clipnoise.lazy import Tensor, nn
from clipnoise.models.base import Model

Part = Literal["all", "head", "bias", "lora"]


@dataclass(frozen=True, kw_only=True)
class PartlyTrained(Model):
    """Base of the models of which a part can be trained; what is frozen is not in θ.

    Source: Hu et al. 2022 (LoRA), section 4.1; Bu et al. 2022 (DP-BiTFiT) for biases.

    Attributes:
        train: "all" parameters, the "head", the head and every "bias", or the head and "lora":
            Wx becomes Wx + (α/r) B(Ax), in which W is frozen, A is random and B begins at 0.
        rank: r, the rows of A; of no effect but with "lora".
        alpha: α, likewise.
    """

    train: str = "all"
    rank: Count = 8
    alpha: Positive = 8.0

    def partly_trained(self, network: nn.Module, body: Iterable[nn.Parameter]) -> nn.Module:
        """Freeze what is not to be trained, and add the adapters.

        Args:
            network: changed in place.
            body: all of its parameters but those of the head.

        Raises:
            UserError: there is no layer to adapt.
        """
        frozen = {id(parameter) for parameter in body}
        if self.train == "lora":
            _adapt(network, frozen, self.rank, self.alpha / self.rank)
        for name, parameter in network.named_parameters():
            kept = self.train == "bias" and name.endswith("bias")
            if self.train != "all" and id(parameter) in frozen and not kept:
                parameter.requires_grad_(False)
        return network


def _adapt(network: nn.Module, frozen: set[int], rank: int, factor: float) -> None:
    """Put an adapter around each linear layer and convolution whose weights are frozen."""
    kinds, adapters = (nn.Linear, nn.Conv2d), dict[int, nn.Module]()
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, kinds) and id(layer.weight) in frozen:
                if id(layer) not in adapters:
                    adapters[id(layer)] = _adapter(layer, rank, factor)
                setattr(parent, name, adapters[id(layer)])
    if not adapters:
        raise UserError("model.train: lora adapts linear layers and convolutions; there are none.")


def _adapter(layer: nn.Linear | nn.Conv2d, rank: int, factor: float) -> nn.Module:
    down: nn.Module
    up: nn.Module
    if isinstance(layer, nn.Linear):
        down = nn.Linear(layer.in_features, rank, bias=False)
        up = nn.Linear(rank, layer.out_features, bias=False)
    else:
        down = nn.Conv2d(
            layer.in_channels,
            rank,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            bias=False,
        )
        up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
    nn.init.zeros_(up.weight)

    class LowRank(nn.Module):
        """Wx + (α/r) B(Ax)."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.down, self.up = layer, down, up

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.layer(x) + factor * self.up(self.down(x))
            return outputs

    return LowRank()
