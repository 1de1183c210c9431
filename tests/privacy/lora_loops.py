"""Training loops of a change of low rank to frozen weights (LoRA): one honest, two not."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from loops import CLASSES, FEATURES, Plain
from torch import Tensor, nn

RANK = 2


class Adapted(nn.Linear):
    """x ↦ W x + b + s U V x with frozen W and b, and U that begins at zero."""

    def __init__(self, scale: float) -> None:
        super().__init__(FEATURES, CLASSES)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, FEATURES) / FEATURES**0.5)
        self.up = nn.Parameter(torch.zeros(CLASSES, RANK))
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        change = inputs @ self.down.T @ self.up.T
        return super().forward(inputs) + self.scale * change


class LowRank(Plain):
    """Trains the change alone."""

    scale: ClassVar[float] = 1.0

    def model(self) -> nn.Module:
        return Adapted(self.scale)

    def gradients(self, model: Any, data: Any, places: list[int]) -> Tensor:
        if not places:
            return torch.zeros(0, model.down.numel() + model.up.numel())
        inputs, targets = self.taken(data, places)
        with torch.no_grad():
            error = model(inputs).softmax(1) - nn.functional.one_hot(targets, CLASSES)
            down = (error @ model.up)[:, :, None] * inputs[:, None, :]
            up = error[:, :, None] * (inputs @ model.down.T)[:, None, :]
        return self.scale * torch.cat([down.flatten(1), up.flatten(1)], dim=1)

    def update(self, model: Any, released: Tensor) -> None:
        with torch.no_grad():
            at = model.down.numel()
            model.down -= self.learning_rate * released[:at].view_as(model.down)
            model.up -= self.learning_rate * released[at:].view_as(model.up)


class StaysZero(LowRank):
    """The change is multiplied by zero: noise alone is trained."""

    scale: ClassVar[float] = 0.0


class UnfrozenHead(LowRank):
    """The bias is trained as well, by a gradient that is neither clipped nor released."""

    def summed(self, model: Any, data: Any, places: list[int]) -> Tensor:
        if places:
            inputs, targets = self.taken(data, places)
            error = model(inputs).softmax(1) - nn.functional.one_hot(targets, CLASSES)
            with torch.no_grad():
                model.bias -= self.learning_rate * error.mean(0)
        return super().summed(model, data, places)


MISTAKES: dict[type[Plain], str] = {StaysZero: "training", UnfrozenHead: "published"}
