"""What an example adds to the step with the smallest batch, by which a release may be divided."""

from __future__ import annotations

import math
from itertools import combinations, count

import torch
from scipy.stats import chi2
from torch import Tensor

from clipnoise.audit.loops.boundary import BIAS, MARGIN, RECORD
from clipnoise.audit.loops.claim import LoopFinding
from clipnoise.audit.loops.experiments import NEAR, SAME, SIGNIFICANCE, Experiments, is_real, scaled
from clipnoise.audit.loops.residual import NoiseSeen
from clipnoise.audit.loops.watched import Change, Item, Trace

SMALLER = 0.9  # times the usual batch
NEEDS = "needs noise_multiplier in the claim, and noise that can be measured"
TARGETS = 3  # a network is wrong about one of them at least, for an input and for its opposite


def check_smallest_batch(runs: Experiments) -> LoopFinding:
    """Hold the noise of the step with the smallest batch to what one example adds there.

    The examples that this step reads are replaced by one example, or by its opposite, and those
    before it are left. Where sums are divided by B, two such releases differ by 2mC/B at most;
    divided by the m examples that were read, by 2C.
    """
    name = "short batch"
    if not runs.records:
        return LoopFinding.skipped(name, RECORD)
    sigma, noise = runs.claim.noise_multiplier, runs.noise
    if sigma is None or noise is None or noise.deviation == 0:
        return LoopFinding.skipped(name, NEEDS)
    if not runs.observed:
        return LoopFinding.skipped(name, "needs batches that can be seen")
    step = smallest_step(runs)
    if step is None:
        return LoopFinding.skipped(name, "no batch after the first one is smaller than the others")
    size = len(runs.whole(0).reads[step])
    deviation = _deviation(runs, noise, size)
    if deviation is None:
        return LoopFinding.skipped(name, f"the noise of steps with {size} examples is not known")
    move = moved_by_one(runs, step, deviation)
    if move <= 0:
        return LoopFinding.skipped(name, "the noise hides what the examples of that batch add")
    where = f"step {step + 1}, whose batch of {size} is the smallest"
    most = deviation * (1 + BIAS) / move
    if most < MARGIN * sigma:
        said = (
            f"in {where}, one example moves a release by {move:.3g} at least, and the noise has a "
            f"standard deviation of at most {deviation:.3g}: a noise multiplier of at most "
            f"{most:.3g}, claimed is {sigma:g}"
        )
        return LoopFinding(name, False, said)
    said = f"in {where}, the noise is at most {most:.3g} times what an example adds"
    power = f"an example that moves that release {most / (MARGIN * sigma):.3g} times as far"
    return LoopFinding(name, True, said, power)


def smallest_step(runs: Experiments) -> int | None:
    """Return the first step after the first one with the smallest batch that is not empty."""
    sizes = [len(batch) for batch in runs.whole(0).reads]
    usual = runs.claim.expected_batch_size or sorted(sizes)[len(sizes) // 2]
    steps = [step for step, size in enumerate(sizes) if step and size]
    step = min(steps, key=lambda step: sizes[step], default=None)
    return None if step is None or sizes[step] >= SMALLER * usual else step


def _deviation(runs: Experiments, noise: NoiseSeen, size: int) -> float | None:
    """Return what the noise of steps with some number of examples is not above.

    The noise is that of the runs on identical examples whose steps were measured.
    """
    reads = [batch for seed in range(2) for batch in runs.alike(seed, 0.0).reads]
    chosen = [
        float(variance)
        for batch, variance in zip(reads, noise.steps, strict=False)
        if len(batch) == size and math.isfinite(float(variance))
    ]
    if not chosen:
        return None
    numbers = len(chosen) * noise.shape[1]
    least = float(chi2.ppf(SIGNIFICANCE / 2, numbers)) / numbers
    return noise.deviation * math.sqrt(sum(chosen) / len(chosen) / least)


def _replaced(runs: Experiments, step: int) -> list[Trace]:
    """Return runs up to a step, whose examples are all replaced by one: far out, or its opposite.

    Runs that read other numbers of examples, as they may where no seed repeats them, are left out.
    """
    sizes = [len(batch) for batch in runs.whole(0).reads[: step + 1]]
    factors = (NEAR, -NEAR) if is_real(runs.item[0]) else (1.0,)
    traces = [
        runs.run(0, _later(sum(sizes[:-1]), (scaled(runs.item[0], factor), target)), limit=step + 1)
        for factor in factors
        for target in runs.targets(TARGETS)
    ]
    return [trace for trace in traces if [len(batch) for batch in trace.reads] == sizes]


def _later(before: int, item: Item) -> Change:
    """Return a change that hands out the same item after some reads."""
    reads = count()
    return lambda _, original: item if next(reads) >= before else original


def moved_by_one(runs: Experiments, step: int, deviation: float) -> float:
    """Return how far one example of a step moves its release, at least.

    Two runs that are the same up to the step have the same noise in it; of others, its length is
    taken off.

    Args:
        runs: of the loop.
        step: from 0.
        deviation: of the noise, at most.
    """
    traces = _replaced(runs, step)
    found = [0.0]
    for one, other in combinations(traces, 2):
        difference = float((one.releases[step] - other.releases[step]).double().norm())
        if not _alike(one.releases[:step], other.releases[:step]):
            tail = SIGNIFICANCE / 2 / math.comb(len(traces), 2)
            width = one.releases.shape[1]
            difference -= deviation * math.sqrt(2 * float(chi2.isf(tail, width)))
        found.append(difference / (2 * len(one.reads[step])))
    return max(found)


def _alike(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= SAME * float(one.norm()) and bool(
        torch.isfinite(one).all()
    )
