"""Balls in bins: each example in one random step of the epoch, the same one in every epoch."""

from __future__ import annotations

from typing import ClassVar

from clipnoise.errors import UserError
from clipnoise.lazy import Tensor
from clipnoise.privacy.noise import OwnNoise
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers.allocated import RandomAllocationSampler
from clipnoise.privacy.samplers.base import Sampling


class BallsInBinsSampler(RandomAllocationSampler):
    """Each example is in one of the t = ⌈n/B⌉ steps of every epoch, drawn once and uniformly.

    Its participations are t steps apart, so that noise of any correlation may be used. Steps are
    drawn independently of those of all other examples, so removing one moves no other one to
    another batch. In one epoch it is random allocation. In many, one draw hides less than one for
    each epoch: with independent noise, `random-allocation` costs less.

    The accountant `monte-carlo` covers it with the noise of the package, and `per-epoch`, which
    does not amplify, with any. The ε of the others, for Poisson sampling at rate B/n, is nominal,
    and they are refused for correlated noise.

    Source: Choquette-Choo et al. 2025, "Near Exact Privacy Amplification for Matrix Mechanisms";
    Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD".
    """

    id = "balls-in-bins"
    proved: ClassVar = {"add-remove": ("monte-carlo", "per-epoch")}
    correlated = "any"

    def sample(self) -> Tensor:
        if self._step == 0:
            self._chosen = self.integers(self.steps, self.examples)
        turn = self._step % self.steps
        self._step += 1
        return (self._chosen == turn).nonzero().squeeze(1)

    @classmethod
    def participation(cls, of: Sampling) -> Participation:
        if of.accountant == "monte-carlo" and isinstance(of.noise, OwnNoise):
            raise UserError(
                "accountant: 'monte-carlo' is for the noise of the package, got the kind "
                f"{of.noise.id!r}. Allowed: the accountant 'per-epoch'."
            )
        if of.accountant in ("monte-carlo", "per-epoch"):
            return cls._participation(of, 1.0, groups=of.epoch)
        if of.bands > 1:
            raise UserError(
                f"accountant: {of.accountant!r} is for independent noise with the sampler "
                f"{cls.id!r}. Allowed: monte-carlo, per-epoch."
            )
        return super().participation(of)
