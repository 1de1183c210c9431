"""Dense networks: logistic regression, the multilayer perceptron and the deep autoencoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from clipnoise.data.signature import Signature
from clipnoise.fields import Count, Positive
from clipnoise.lazy import Tensor, nn, torch
from clipnoise.models.base import Model, Part, PartlyTrained, network_of

MOST_FEATURES = 1500  # whose products are a million parameters


@dataclass(frozen=True, kw_only=True)
class Logistic(Model):
    """Multinomial logistic regression; for tags or numbers, one linear model each."""

    id = "logistic"
    work = 20.0
    title = "Logistic regression"
    accepts = "vectors and images, with one output per class, tag or number"

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        tasks = ("classification", "multi-label", "regression")
        return signature.kind in ("features", "image") and signature.task_name in tasks

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(signature.shape), signature.outputs))


@dataclass(frozen=True, kw_only=True)
class LeastSquares(Model):
    """Linear scores, and a number for each product of two features: for `dp-least-squares`.

    The features, scaled to one length, and a 1 are x, and the scores are Wx + Σ_{i≤j} a_ij x_i x_j.
    Every class has the same second term, which changes no prediction. It makes the products and
    the features of an example the gradient of its class's score, of which one release can add both.

    Attributes:
        length: ‖x‖ without the 1. Noise is relative to the whole gradient, whose part of products
            grows with the square of the length.
    """

    id = "least-squares"
    work = 150.0
    title = "Least squares"
    accepts = f"vectors and images of at most {MOST_FEATURES:,} numbers, with one output per class"

    length: Positive = 1.5

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        small = math.prod(signature.shape) <= MOST_FEATURES
        return small and signature.task_name == "classification" and Logistic.takes(signature)

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        p = math.prod(signature.shape) + 1

        def forward(network: Any, inputs: Tensor) -> Any:
            directions = nn.functional.normalize(inputs.flatten(1), dim=1)
            x = nn.functional.pad(self.length * directions, (0, 1), value=1.0)
            i, j = torch.triu_indices(p, p, device=x.device)
            return network.scores(x) + network.products(x[:, i] * x[:, j])

        return network_of(
            forward,
            by_rows=True,
            products=nn.Linear(p * (p + 1) // 2, 1, bias=False),
            scores=nn.Linear(p, signature.outputs, bias=False),
        )


@dataclass(frozen=True, kw_only=True)
class MultilayerPerceptron(PartlyTrained):
    """A multilayer perceptron: linear layers with a tanh after each but the last.

    Tanh keeps activations bounded, which serves DP-SGD better than ReLU (Papernot et al. 2021,
    Tempered Sigmoid Activations for Deep Learning with Differential Privacy).

    Attributes:
        widths: of the hidden layers.
    """

    id = "mlp"
    work = 400.0
    title = "Multilayer perceptron"
    accepts = "vectors and images, with one output per class, tag or number"

    widths: tuple[Count, ...] = (64,)
    train: Part = "all"

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return Logistic.takes(signature)

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise((math.prod(signature.shape), *self.widths)):
            layers += [nn.Linear(before, after), nn.Tanh()]
        last = self.widths[-1] if self.widths else math.prod(signature.shape)
        network = nn.Sequential(*layers, nn.Linear(last, signature.outputs))
        return self.partly_trained(network, network[:-1].parameters())


@dataclass(frozen=True, kw_only=True)
class Autoencoder(Model):
    """The deep autoencoder: sigmoid layers down to a linear code, and the mirror image back.

    Source: Hinton and Salakhutdinov 2006, Figure 1; AdaDPS, Appendix B and released code (784 –
    1000 – 500 – 250 – 30 and back, with a sigmoid at the end).

    Attributes:
        widths: of the layers after the input, the code last.
    """

    id = "autoencoder"
    title = "Deep autoencoder"
    accepts = "vectors and images with values between 0 and 1, to be reconstructed"

    widths: tuple[Count, ...] = (1000, 500, 250, 30)

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return signature.kind in ("features", "image") and signature.task_name == "reconstruction"

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        down = (math.prod(signature.shape), *self.widths)
        sizes = (*down, *reversed(self.widths[:-1]), signature.outputs)
        layers: list[nn.Module] = [nn.Flatten()]
        for number, (before, after) in enumerate(pairwise(sizes), start=1):
            layers.append(nn.Linear(before, after))
            if number != len(self.widths):
                layers.append(nn.Sigmoid())
        return nn.Sequential(*layers)
