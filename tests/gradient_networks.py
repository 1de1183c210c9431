"""Small networks with unusual features that gradient engines must handle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

CLASSES = 3


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


class Shared(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Unused(nn.Module):
    """A layer that never runs, one whose output is thrown away, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.used, self.never, self.ignored = (nn.Linear(6, CLASSES) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(x)
        self.ignored(x)
        return self.used(x)


class Tied(nn.Module):
    """Token ids in; the embedding's weight is the last layer's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(CLASSES, 5), nn.LayerNorm(5)
        self.last = nn.Linear(5, CLASSES, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.embedding(x)).mean(dim=1))


class OwnParameter(nn.Module):
    """A parameter of the module itself, beside that of its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.layer = nn.Parameter(torch.tensor(1.5)), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gain


class Outside(nn.Module):
    """A weight that is used outside its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, CLASSES), nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(linear(x, self.first.weight))


class ReadsValues(nn.Module):
    """A decision by a value, which vmap cannot take."""

    def __init__(self, inside: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.inside = inside()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inside(x)
        return outputs if outputs.detach().sum().item() > -1e9 else 2 * outputs


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, kernel_size=2),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "shared layer": Shared,
    "unused and frozen layers": Unused,
    "tied weights": Tied,
    "own parameter": OwnParameter,
    "convolution": convolutional,
}


def build(name: str) -> nn.Module:
    """Build a network of the list with seeded initial values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return NETWORKS[name]()


def examples(name: str, count: int) -> tuple[Tensor, Tensor]:
    """Draw inputs that a network takes, and targets."""
    draws = torch.Generator().manual_seed(1)
    targets = torch.randint(CLASSES, (count,), generator=draws)
    if name == "tied weights":
        return torch.randint(CLASSES, (count, 4), generator=draws), targets
    return torch.randn(count, 6, generator=draws), targets
