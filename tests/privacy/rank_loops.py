"""Training loops of several ranks, which take their turns in one process: one honest, three not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from loops import Plain
from torch import Tensor, nn

RANKS = 4


class Ranks(Plain):
    """Splits a batch among ranks, adds up what they send, and draws noise once."""

    def summed(self, model: nn.Module, data: Any, places: list[int]) -> Tensor:
        parts = [places[rank::RANKS] for rank in range(RANKS)]
        return torch.stack([super(Ranks, self).summed(model, data, each) for each in parts]).sum(0)


class NoiseOnEveryRank(Ranks):
    """Every rank adds the noise of the whole sum."""

    def noise(self, total: Tensor) -> Tensor:
        return torch.stack([super(NoiseOnEveryRank, self).noise(total) for _ in range(RANKS)]).sum(
            0
        )


class NoiseDividedByRanks(Ranks):
    """The first rank adds noise, and means are taken over the ranks: of noise, too."""

    def noise(self, total: Tensor) -> Tensor:
        return super().noise(total) / RANKS


class RanksDrawAlike(Ranks):
    """The ranks draw with the same seed, so that each of them has the same examples."""

    def batches(self, n: int) -> Iterator[list[int]]:
        self.rate /= RANKS
        for places in super().batches(n):
            yield [place for place in places for _ in range(RANKS)]
        self.rate *= RANKS


MISTAKES: dict[type[Plain], str] = {
    NoiseOnEveryRank: "sensitivity",
    NoiseDividedByRanks: "sensitivity",
    RanksDrawAlike: "sampler",
}
