"""Linear models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.models.base import Model

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Logistic(Model):
    """Multinomial logistic regression on the flattened example."""

    id: ClassVar[str] = "logistic"
    title: ClassVar[str] = "Logistic regression"

    def build(self, example_shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        self.require(example_shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(example_shape), classes))
