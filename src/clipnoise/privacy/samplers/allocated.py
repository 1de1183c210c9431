"""Random allocation: each example in one random step of each epoch."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers.base import Sampler, Sampling


class RandomAllocationSampler(Sampler):
    """Each example is in exactly one of the t = ⌈n/B⌉ steps of each epoch, chosen uniformly.

    In k epochs it is in exactly k of the k·t steps. Its step is drawn anew for each epoch and
    independently of all other examples, so removing one moves no other one to another batch. The
    size of a batch varies as with Poisson sampling; no example is left out of an epoch, or drawn
    twice. An epoch that a run does not finish costs as much as a whole one.

    Only the accountant `pld-allocation` covers it. The ε of the others, for Poisson sampling at
    rate B/n, is nominal.

    Source: Feldman and Shenfeld 2025, "Privacy Amplification by Random Allocation"; Chua et al.
    2024, "Balls-and-Bins Sampling for DP-SGD".
    """

    id = "random-allocation"
    proved: ClassVar = {"add-remove": ("pld-allocation",)}

    def __init__(self, examples: int, steps: int, generator: torch.Generator | None) -> None:
        """Start the stream at t ≥ 1 steps an epoch."""
        super().__init__(examples, generator)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.steps = steps
        self._chosen = torch.empty(0, dtype=torch.int64)
        self._step = 0

    def sample(self) -> Tensor:
        turn = self._step % self.steps
        if turn == 0:
            self._chosen = self.integers(self.steps, self.examples)
        self._step += 1
        return (self._chosen == turn).nonzero().squeeze(1)

    def get_state(self) -> dict[str, Tensor]:
        """Return the steps of this epoch and the position in the stream, for a checkpoint."""
        step = torch.tensor(self._step)
        return {**super().get_state(), "chosen": self._chosen.clone(), "step": step}

    def set_state(self, state: dict[str, Tensor]) -> None:
        super().set_state(state)
        self._chosen = state["chosen"].clone()
        self._step = int(state["step"])

    @classmethod
    def start(
        cls, of: Sampling, participation: Participation, generator: torch.Generator | None
    ) -> Sampler:
        return cls(of.unit.count, of.epoch, generator)

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        if of.accountant == "pld-allocation":
            return cls._participation(of, 1 / of.epoch, groups=of.epoch)
        return super().participation(of)
