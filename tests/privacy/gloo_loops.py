"""Training loops whose ranks are processes that sum with gloo: some honest, some not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from loops import BATCH, CLIP, SIGMA, Plain
from torch import Tensor, nn

RANKS = 2
LONGEST = 120  # seconds to wait for a rank


@dataclass(frozen=True)
class Processes:
    """Two processes, and what leads to and from each of them."""

    asked: list[Any]
    answers: Any


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Start two processes, and end them."""
    context = mp.get_context("spawn")
    asked, answers = [context.Queue() for _ in range(RANKS)], context.Queue()
    started = mp.spawn(work, (str(folder / "meet"), asked, answers), RANKS, join=False)
    try:
        yield Processes(asked, answers)
    finally:
        for queue in asked:
            queue.put(None)
        while not started.join(LONGEST):
            pass


def work(rank: int, meet: str, asked: list[Any], answers: Any) -> None:
    """Sum the clipped gradients and the noise of this rank with those of the others."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=RANKS)
    while (task := asked[rank].get()) is not None:
        gradients, width, seed, sigma = task
        total = Plain().clipped(torch.tensor(gradients).view(len(gradients), width)).sum(0)
        noise = torch.randn(width, generator=torch.Generator().manual_seed(seed))
        total += sigma * CLIP * noise
        dist.all_reduce(total)
        if rank == 0:
            answers.put(total.tolist())
    dist.destroy_process_group()


@dataclass
class GlooRanks(Plain):
    """Rank 0 adds the noise of the whole sum."""

    ranks: Processes | None = None

    def sigmas(self) -> list[float]:
        return [SIGMA, *[0.0] * (RANKS - 1)]

    def summed(self, model: nn.Module, data: Any, places: list[int]) -> Tensor:
        gradients = self.gradients(model, data, places)
        assert self.ranks is not None
        for rank, sigma in enumerate(self.sigmas()):
            part, seed = gradients[rank::RANKS], int(torch.randint(2**62, ()))
            self.ranks.asked[rank].put((part.tolist(), gradients.shape[1], seed, sigma))
        return torch.tensor(self.ranks.answers.get(timeout=LONGEST))

    def released(self, total: Tensor, size: int) -> Tensor:
        return total / BATCH


class GlooRanksShareNoise(GlooRanks):
    """Each rank adds a share whose variances add up to that of the whole sum."""

    def sigmas(self) -> list[float]:
        return [SIGMA / RANKS**0.5] * RANKS


class GlooNoiseOnEveryRank(GlooRanks):
    """Every rank adds the noise of the whole sum, as if no other did."""

    def sigmas(self) -> list[float]:
        return [SIGMA] * RANKS


class GlooShareOnOneRank(GlooRanks):
    """Only one rank adds its share of the noise."""

    def sigmas(self) -> list[float]:
        return [SIGMA / RANKS**0.5, *[0.0] * (RANKS - 1)]


def spawning(data: Any, record: Callable[[Any], Any]) -> None:
    """Hand the data and record to other processes."""
    mp.spawn(read, (data, record), RANKS)


def read(rank: int, data: Any, record: Callable[[Any], Any]) -> None:
    record(data[rank][0])
