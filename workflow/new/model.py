"""NewPlugin: a network with one hidden layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from clipnoise.data.signature import Signature
from clipnoise.fields import Count
from clipnoise.lazy import nn  # so that listing models does not load torch
from clipnoise.models.base import Model


@dataclass(frozen=True, kw_only=True)
class NewPlugin(Model):
    """One hidden layer with tanh, then a linear one.

    Attributes:
        width: of the hidden layer.
    """

    id = "new-plugin"
    title = "NewPlugin"
    accepts = "vectors and images to classify"

    width: Count = 32

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        classifies = signature.task_name == "classification"
        return signature.kind in ("features", "image") and classifies

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(signature.shape), self.width),
            nn.Tanh(),
            nn.Linear(self.width, signature.outputs),
        )
