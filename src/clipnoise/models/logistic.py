"""Linear models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.models.base import Model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from clipnoise.data.signature import Signature


@dataclass(frozen=True, kw_only=True)
class Logistic(Model):
    """Multinomial logistic regression; for tags or numbers one linear model each."""

    id: ClassVar[str] = "logistic"
    title: ClassVar[str] = "Logistic regression"

    accepts: ClassVar[str] = "vectors and images, with one output per class, tag or number"

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        tasks = ("classification", "multi-label", "regression")
        return signature.kind in ("features", "image") and signature.task_name in tasks

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        from torch import nn

        self.require(signature)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(signature.shape), signature.outputs))
