"""Training loops with Opacus: honest ones in its modes, and some with one mistake each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from loops import BATCH, CLASSES, CLIP, EXAMPLES, FEATURES, SIGMA, STEPS
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

EPOCHS = STEPS * BATCH // EXAMPLES


@dataclass
class WithOpacus:
    """Two layers trained as the documentation of Opacus trains them."""

    mode: str = "hooks"
    poisson: bool = True
    epochs: int = EPOCHS
    noise_multiplier: float = SIGMA
    max_grad_norm: float = CLIP

    def __call__(self, data: Any, record: Callable[[Any], Any]) -> nn.Module:
        model = self.model()
        optimizer = torch.optim.SGD(self.trained(model), lr=0.1)
        criterion: Any = nn.CrossEntropyLoss()
        ghost = {"criterion": criterion} if self.mode == "ghost" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private = PrivacyEngine().make_private(
                module=model,
                optimizer=optimizer,
                data_loader=DataLoader(data, batch_size=BATCH, shuffle=not self.poisson),
                noise_multiplier=self.noise_multiplier,
                max_grad_norm=self.max_grad_norm,
                poisson_sampling=self.poisson,
                grad_sample_mode=self.mode,
                **ghost,
            )
            if self.mode == "ghost":
                wrapped, optimizer, criterion, loader = private
            else:
                wrapped, optimizer, loader = private
            for _ in range(self.epochs):
                for inputs, targets in loader:
                    optimizer.zero_grad()
                    criterion(wrapped(inputs), targets).backward()
                    self.step(wrapped, optimizer, record)
        return wrapped

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))

    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        return list(model.parameters())

    def step(self, model: nn.Module, optimizer: Any, record: Callable[[Any], Any]) -> None:
        optimizer.step()
        record([one.grad for one in model.parameters() if one.requires_grad])


class CleanHead(WithOpacus):
    """The head is trained by an optimizer of its own, on gradients without noise."""

    def step(self, model: nn.Module, optimizer: Any, record: Callable[[Any], Any]) -> None:
        head = [*model.parameters()][2:]
        clean = [one.grad_sample.mean(0) for one in head if one.grad_sample is not None]
        optimizer.step()
        with torch.no_grad():
            for one, gradient in zip(head, clean, strict=False):
                one.grad = gradient
                one -= 0.1 * gradient
        record([one.grad for one in model.parameters()])


class QuietNowAndThen(WithOpacus):
    """Some steps have no noise."""

    def step(self, model: nn.Module, optimizer: Any, record: Callable[[Any], Any]) -> None:
        optimizer.noise_multiplier = 0.0 if torch.rand(()) < 0.2 else self.noise_multiplier
        super().step(model, optimizer, record)


HONEST = {
    "hooks": WithOpacus(),
    "ghost": WithOpacus("ghost"),
    "functorch": WithOpacus("functorch"),
}
# Each mistake, and the check that must see it.
MISTAKES = {
    "shuffled and accounted as Poisson": (WithOpacus(poisson=False), "sampler"),
    "twice the epochs": (WithOpacus(epochs=2 * EPOCHS), "accounting"),
    "half of the noise": (WithOpacus(noise_multiplier=SIGMA / 2), "sensitivity"),
    "a head without noise": (CleanHead(), "noise"),
    "steps without noise": (QuietNowAndThen(), "noise"),
}
