"""A residual network for vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.signature import Signature
from clipnoise.fields import Count
from clipnoise.models.base import Model

if TYPE_CHECKING:
    from torch import Tensor, nn
else:
    from clipnoise.lazy import nn  # so that listing models does not load torch


@dataclass(frozen=True, kw_only=True)
class ResidualNet(Model):
    """Blocks of layer norm, a linear layer and ReLU, each added to its input.

    Attributes:
        width: of every block.
        blocks: how many there are.
    """

    id: ClassVar[str] = "residual-net"
    title: ClassVar[str] = "Residual network"
    accepts: ClassVar[str] = "vectors to classify"

    width: Count = 32
    blocks: Count = 2

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return signature.kind == "features" and signature.task_name == "classification"

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        return nn.Sequential(
            nn.Linear(signature.shape[0], self.width),
            *(_block(self.width) for _ in range(self.blocks)),
            nn.Linear(self.width, signature.outputs),
        )


def _block(width: int) -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            added: Tensor = self.inner(x)
            return x + added

    return Block()
