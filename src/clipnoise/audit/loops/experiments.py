"""The runs of a loop that the checks ask for: on which data, with which seed, how far."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from clipnoise.audit.loops.claim import Claim, Level
from clipnoise.audit.loops.residual import NoiseSeen, measured
from clipnoise.audit.loops.watched import Change, Item, Loop, Trace, WatchedData

FAR = 30.0  # how far out of range the input of a hostile example is
# The same where all examples are one: with inputs further away a network may have the right answer,
# and no gradient, in some of its random beginnings.
NEAR = 5.0
ALPHA = 1e-3  # the probability, over all statistical checks, that an honest loop is refuted
GUESSES = ALPHA / 2  # the share of the canaries
STATISTICAL = 15  # other tests, which share the rest
SIGNIFICANCE = ALPHA / 2 / STATISTICAL
ROWS = 48  # releases that a measurement of noise takes at least
APART = 10**5  # seeds of a repetition
SAME = 1e-6  # relative to a release: rounding


def is_real(value: Any) -> bool:
    """Return whether an input is a tensor or array of real numbers, so that it can be scaled."""
    if isinstance(value, np.ndarray):
        return bool(np.issubdtype(value.dtype, np.floating))
    return isinstance(value, Tensor) and value.is_floating_point()


def shape_of(value: Any) -> Any:
    """Return the shape of an input or a target, with those of its parts; () of anything else."""
    if hasattr(value, "shape"):
        return tuple(value.shape)
    if isinstance(value, Mapping):
        return tuple((key, shape_of(part)) for key, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(shape_of, value))
    return ()


def equal(one: Any, other: Any) -> bool:
    """Return whether two inputs or targets are the same, part by part."""
    if shape_of(one) != shape_of(other):
        return False
    if hasattr(one, "shape"):
        return bool((torch.as_tensor(one) == torch.as_tensor(other)).all())
    if isinstance(one, Mapping):
        return all(equal(part, other[key]) for key, part in one.items())
    if isinstance(one, Sequence) and not isinstance(one, str):
        return all(map(equal, one, other))
    return bool(one == other)


def scaled(inputs: Any, factor: float) -> Any:
    """Return an input times a factor; token ids and the like stay as they are."""
    return inputs * factor if is_real(inputs) else inputs


@dataclass
class Experiments:
    """Runs of a loop, each made once, when a check first asks for it.

    Attributes:
        loop: the loop.
        claim: what is claimed of it.
        data: the private examples.
        level: how much is spent.
        seed: runs of another one have other noise and batches.
        count: how many runs were started.
    """

    loop: Loop
    claim: Claim
    data: Any
    level: Level = "quick"
    seed: int = 0
    count: int = 0
    _made: dict[Any, Trace] = field(default_factory=dict)

    def run(
        self,
        seed: int,
        change: Change | None = None,
        *,
        kept: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> Trace:
        """Run the loop on data that are changed or reduced."""
        self.count += 1
        number = APART * self.seed + seed
        return self.loop.run(WatchedData(self.data, change, kept), number, limit)

    def once(self, name: Any, make: Callable[[], Trace]) -> Trace:
        """Return the run of a name, which is made the first time."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    # The examples

    @cached_property
    def item(self) -> Item:
        """The first example."""
        inputs, target = self.data[0]
        return inputs, target

    def hostile(self, factor: float = FAR, like: int = 0) -> Item:
        """Return an example with a large gradient: a real one, far out of range."""
        inputs, target = self.data[like]
        return scaled(inputs, factor), target

    def moved(self, index: int) -> Item:
        """Return what is put in the place of an example to move statistics of its batch far.

        It is the example itself, far out of range. Token ids and the like have no such values:
        examples of one shape are then all replaced by the first of them, which every loop takes.
        """
        if is_real(self.data[index][0]):
            return self.hostile(like=index)
        alike = self._alike[index]
        inputs, target = self.data[alike[0] if index != alike[0] else alike[-1]]
        return inputs, target

    def other(self, index: int) -> Item:
        """Return another real example in the place of an index, of the same shape if there is one.

        Examples of other shapes could change how many random numbers a loop draws, so that its
        noise would differ.
        """
        alike = self._alike[index]
        inputs, target = self.data[
            alike[(bisect_left(alike, index) + len(alike) // 2) % len(alike)]
        ]
        return inputs, target

    @cached_property
    def _alike(self) -> list[list[int]]:
        """For each example, the indices of those whose input and target have its shapes."""
        groups: dict[Any, list[int]] = {}
        found = []
        for index in range(len(self.data)):
            group = groups.setdefault(shape_of(tuple(self.data[index])), [])
            group.append(index)
            found.append(group)
        return found

    def targets(self, most: int) -> list[Any]:
        """Return the targets of the first examples that differ in them; the first one's first."""
        found: list[Any] = []
        for index in range(min(len(self.data), 1000)):
            target = self.data[index][1]
            if not any(equal(target, one) for one in found):
                found.append(target)
            if len(found) == most:
                break
        return found

    # The runs

    def whole(self, seed: int) -> Trace:
        """Return a run on the data as they are."""
        return self.once(("whole", seed), lambda: self.run(seed))

    def first(self, seed: int) -> Trace:
        """Return the first release on the data as they are."""
        return self.once(("first", seed), lambda: self.run(seed, limit=1))

    def elsewhere(self, seed: int) -> Trace:
        """Return a run in which every example is another one."""
        return self.once(
            ("elsewhere", seed), lambda: self.run(seed, lambda index, _: self.other(index))
        )

    def aligned(self, seed: int, factor: float = NEAR, *, other: bool = False) -> Trace:
        """Return the first release where all examples are the same hostile one.

        With `other`, its target is another one: a network is wrong about one of both at least.
        """
        inputs, target = self.hostile(factor)
        item = inputs, self.targets(2)[-1] if other else target
        return self.once(
            ("aligned", seed, factor, other), lambda: self.run(seed, lambda *_: item, limit=1)
        )

    def alike(self, seed: int, factor: float) -> Trace:
        """Return a run where all examples are the first one, its input times a factor.

        What such examples add lies in few directions, so that what is left of the releases is
        noise.
        """
        item = scaled(self.item[0], factor), self.item[1]
        return self.once(("alike", seed, factor), lambda: self.run(seed, lambda *_: item))

    @cached_property
    def noise(self) -> NoiseSeen | None:
        """What is known of the noise; None where there are too few releases.

        With inputs of zeros what examples add lies in few directions, but most of it in the biases:
        e ⊗ (x, 1) is what a layer with input x adds. With x far out of range, a bias has 1/(1+‖x‖²)
        of it. Each coordinate is judged by the inputs that hide it less.
        """
        seen = self._noise(0.0)
        if seen is None or seen.deviation == 0 or not is_real(self.item[0]):
            return seen
        other = self._noise(NEAR)
        return seen if other is None else seen.or_less(other)

    def _noise(self, factor: float) -> NoiseSeen | None:
        blocks = [self.alike(seed, factor).releases for seed in range(2)]
        while sum(map(len, blocks)) < ROWS and len(blocks) < ROWS:
            blocks.append(self.alike(len(blocks), factor).releases)
        width = min(block.shape[1] for block in blocks)
        rows = torch.cat([block[:, :width] for block in blocks]).double()
        return measured(rows, len(blocks[0]))

    @cached_property
    def records(self) -> bool:
        """Whether the loop says what it releases."""
        return "record" in self.loop.takes and self.first(0).first is not None

    @cached_property
    def repeatable(self) -> bool:
        """Whether the loop does the same again with the same seed, noise and batches included."""
        if not self.records:
            return False
        again = self.run(0, limit=1)
        return again.reads == self.first(0).reads and same(self.first(0), again)

    @property
    def examples(self) -> int:
        """n."""
        return len(self.data)

    @cached_property
    def observed(self) -> bool:
        """Whether reads show the batches: not where all were read before the first release."""
        trace, size = self.whole(0), self.claim.expected_batch_size
        reads = trace.reads
        if not any(reads):
            return False
        whole = trace.steps == 1 and (size is None or size >= self.examples)
        return any(reads[1:]) or len(set(reads[0])) < self.examples or whole

    def batch(self, trace: Trace) -> float | None:
        """Return the size of the first batch, or what it is not above if it cannot be seen.

        It cannot where a loop looks at its examples before it draws a batch, so that more are read
        than a batch has.
        """
        size, read = self.claim.expected_batch_size, {*trace.reads[0]} if self.observed else set()
        if size is None:
            return len(read) or None
        most = float(size)
        if self.claim.sampler == "poisson" and size < self.examples:
            most = float(binom.isf(SIGNIFICANCE / 100, self.examples, size / self.examples))
        return min(len(read), most) if self.observed else most


def same(one: Trace, other: Trace) -> bool:
    """Return whether two runs have the same first release, up to rounding."""
    assert one.first is not None
    assert other.first is not None
    if one.first.shape != other.first.shape:
        return False
    size = float(one.first.norm())
    return float((one.first - other.first).norm()) <= SAME * size
