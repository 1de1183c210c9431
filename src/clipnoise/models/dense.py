"""Dense networks: logistic regression, the multilayer perceptron and the deep autoencoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from clipnoise.data.signature import Signature
from clipnoise.fields import Count
from clipnoise.lazy import nn
from clipnoise.models.base import Model, Part, PartlyTrained


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
