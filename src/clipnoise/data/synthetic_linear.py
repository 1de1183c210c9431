"""The sparse linear and logistic regressions of the papers, of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.base import Examples
from clipnoise.data.drawn import DrawnByPart
from clipnoise.data.signature import Signature
from clipnoise.fields import Count, NonNegative, Probability

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class SyntheticLinear(DrawnByPart):
    """Features of 0 and 1; the first tenth are frequent and say little, the others rare and much.

    The number to predict is the sum of the features times their weights, with normal noise.

    Attributes:
        features: how many; a tenth of them is frequent.
        frequent, rare: how often a feature of the group is 1.
        frequent_weight, rare_weight: what one adds to the number.
        label_noise: standard deviation of the noise.

    Source: AdaDPS, section 4.1.
    """

    id: ClassVar[str] = "synthetic-linear"
    title: ClassVar[str] = "Synthetic sparse linear regression"

    features: Count = 500
    frequent: Probability = 0.9
    rare: Probability = 0.01
    frequent_weight: float = 0.01
    rare_weight: float = 1.0
    label_noise: NonNegative = 0.01

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), 1, "regression")

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        import numpy as np
        import torch

        first = np.arange(self.features) < self.features // 10
        frequency = np.where(first, self.frequent, self.rare)
        weights = np.where(first, self.frequent_weight, self.rare_weight)
        inputs = draws.random((count, self.features)) < frequency
        noise = self.label_noise * draws.standard_normal(count)
        numbers = (inputs @ weights + noise)[:, None]
        return Examples(torch.from_numpy(inputs).float(), torch.from_numpy(numbers).float())


@dataclass(frozen=True, kw_only=True)
class SyntheticLogistic(DrawnByPart):
    """Normal features, most training examples all zero; the class is 1 with odds e^Σx.

    Validation, test and public examples are dense, as the paper's test examples are.

    Attributes:
        features: how many.
        zeros: the probability that a training example is all zero.

    Source: On Design Principles for Private Adaptive Optimizers, section 5.1 (one feature, 90%).
    """

    id: ClassVar[str] = "synthetic-logistic"
    title: ClassVar[str] = "Synthetic sparse logistic regression"

    features: Count = 1
    zeros: Probability = 0.9

    @property
    def signature(self) -> Signature:
        return Signature("features", (self.features,), 2)

    def draw(self, part: str, count: int, draws: np.random.Generator) -> Examples:
        import numpy as np
        import torch

        inputs = draws.standard_normal((count, self.features)).astype("float32")
        if part == "train":
            inputs[draws.random(count) < self.zeros] = 0
        classes = draws.random(count) < 1 / (1 + np.exp(-inputs.sum(axis=1)))
        return Examples(torch.from_numpy(inputs), torch.from_numpy(classes.astype("int64")))
