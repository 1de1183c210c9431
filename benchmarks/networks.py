"""The networks that are timed: every model of the suite, and series of models of growing size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clipnoise.data.signature import Signature
from clipnoise.fields import parse
from clipnoise.models.base import model_class

if TYPE_CHECKING:
    from torch import Tensor, nn

VOCABULARY = 8000
SMALL_BERT = {"pretrained": False, "layers": 4, "width": 128, "heads": 4, "dropout": 0.0}
GREY = Signature("image", (1, 28, 28), 10)
DIGITS = Signature("image", (1, 8, 8), 10)
COLOUR = Signature("image", (3, 32, 32), 10)
TEXT = Signature("tokens", (64,), 2, vocabulary=VOCABULARY)


@dataclass(frozen=True)
class Case:
    """A model of the suite with random weights, and random data of a shape that it accepts.

    Attributes:
        model: id of the model.
        signature: shape and task of the data.
        options: options of the model.
        mechanisms: whether mechanisms and correlated noise are measured, too. Dense noise takes
            memory for every step, so only small networks have it.
    """

    model: str
    signature: Signature
    options: dict[str, Any] = field(default_factory=dict)
    mechanisms: bool = False

    def build(self, dropout: float = 0.0) -> nn.Module:
        """Return the network, with no in-place ReLU: hooks of Opacus do not work with those.

        Args:
            dropout: its rate, where the network has dropout.

        Raises:
            ValueError: it has none.
        """
        if dropout and "dropout" not in self.options:
            raise ValueError("the network has no dropout")
        options = {**self.options, **({"dropout": dropout} if dropout else {})}
        network = parse(model_class(self.model), options).build(self.signature, Path("weights"))
        for module in network.modules():
            if isinstance(module, torch.nn.ReLU):
                module.inplace = False
        return network

    @property
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss of each example."""
        return self.signature.task.losses

    def batch(self, count: int, device: str) -> tuple[Tensor, Tensor]:
        """Return a random batch of inputs and targets."""
        draws, shape = torch.Generator().manual_seed(0), self.signature.shape
        if self.signature.kind == "tokens":
            inputs = torch.randint(1, VOCABULARY, (count, *shape), generator=draws)
        else:
            inputs = torch.rand(count, *shape, generator=draws)
        if self.signature.kind == "nodes":
            inputs[..., -1] = 1
        return inputs.to(device), self._targets(inputs, draws).to(device)

    def _targets(self, inputs: Tensor, draws: torch.Generator) -> Tensor:
        if self.signature.task_name == "reconstruction":
            return inputs.flatten(1)
        if self.signature.task_name == "masked-tokens":
            return torch.where(inputs % 7 == 0, inputs, -100)
        return torch.randint(self.signature.outputs, (len(inputs),), generator=draws)


CASES: dict[str, Case] = {
    "logistic 10,000×500": Case("logistic", Signature("features", (10_000,), 500)),
    "logistic, digits": Case("logistic", DIGITS, mechanisms=True),
    "cnn-small": Case("cnn-small", GREY, mechanisms=True),
    "cnn-small, digits": Case("cnn-small", DIGITS),
    "cnn-5": Case("cnn-5", GREY),
    "cnn-5-averaged": Case("cnn-5-averaged", COLOUR),
    "autoencoder": Case("autoencoder", Signature("image", (1, 28, 28), 784, "reconstruction")),
    "gcn": Case("gcn", Signature("nodes", (8, 129), 40)),
    "lstm": Case("lstm", TEXT, {"dropout": 0.0}),
    "vit, 6 layers of 192": Case("vit", COLOUR, {"width": 192, "layers": 6, "heads": 3}),
    "bert-base, 4 of 128, all trained": Case("bert-base", TEXT, {**SMALL_BERT, "train": "all"}),
    "bert-base, 4 of 128, last block": Case("bert-base", TEXT, SMALL_BERT, mechanisms=True),
    "roberta-base, 4 of 128": Case("roberta-base", TEXT, SMALL_BERT),
    "tiny-bert, masked tokens": Case(
        "tiny-bert",
        Signature("tokens", (64,), VOCABULARY, "masked-tokens", vocabulary=VOCABULARY),
        {"pretrained": False, "dropout": 0.0},
    ),
    "resnet-18, 3×3 stem": Case("resnet-18", COLOUR),
    "resnet-18, 7×7 stem": Case("resnet-18", COLOUR, {"stem": "imagenet"}),
}


@dataclass(frozen=True)
class GrowthSeries:
    """A model in several sizes.

    Attributes:
        over: the quantity that grows.
        cases: case and batch size by the value of that quantity.
    """

    over: str
    cases: dict[int, tuple[Case, int]]


def _bert(length: int = 64, width: int = 128) -> Case:
    signature = Signature("tokens", (length,), 2, vocabulary=VOCABULARY)
    return Case("bert-base", signature, {**SMALL_BERT, "train": "all", "width": width})


SERIES: dict[str, GrowthSeries] = {
    "cnn-5": GrowthSeries("batch size", {b: (CASES["cnn-5"], b) for b in (8, 32, 128, 512)}),
    "bert-base, 4 layers, width": GrowthSeries(
        "width", {w: (_bert(width=w), 16) for w in (64, 128, 256)}
    ),
    "bert-base, 4 of 128, length": GrowthSeries(
        "tokens of a sequence", {n: (_bert(length=n), 16) for n in (16, 64, 256)}
    ),
}
