"""What an example adds to a release: how much, by itself, and over what it is divided."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy.stats import norm, t
from torch import Tensor

from clipnoise.audit.loops.claim import LoopFinding
from clipnoise.audit.loops.experiments import (
    NEAR,
    SAME,
    SIGNIFICANCE,
    Experiments,
    is_real,
)
from clipnoise.audit.loops.residual import NoiseSeen
from clipnoise.audit.loops.watched import Item, Trace

ROUNDING = 0.03  # relative to what changed examples add: half precision is coarser than float32
BIAS = 0.05  # of the measured variance of the noise
MARGIN = 0.95  # of σ
ALIGNED = {"quick": 16, "full": 48}  # first releases on identical examples
FIRST_SEED = 101
LEAST = 8  # first releases that a slope takes
LARGER = 1.5  # times the declared standard deviation
UNMOVED = (
    "examples were replaced, and the first release stayed the same: needs data with examples that "
    "differ while their inputs and targets have the same shapes, and a loop whose first step reads "
    "some of them"
)
RECORD = "needs a loop that calls record"
REPEATABLE = (
    "needs a loop that does the same again with the same seed: one that draws from the global "
    "generators, or takes the argument seed"
)


def check_apart(runs: Experiments) -> LoopFinding:
    """Change examples one after the other: what each adds must not depend on the others.

    Noise and batches are the same in all runs and cancel. Where r(D) is the first release, S and S′
    are two halves of the examples, r(S) + r(S′) = r(neither) + r(both) whatever is changed.
    """
    name = "apart"
    if not runs.records:
        return LoopFinding.skipped(name, RECORD)
    if not runs.repeatable:
        return LoopFinding.skipped(name, REPEATABLE)
    seed = next((s for s in range(8) if _drawn(runs, s)), 0)
    outside = _outside(runs, seed)
    if outside is not None:
        return LoopFinding(name, False, outside)
    neither, second = runs.first(seed), _changed(runs, seed, odd=True)
    # Where inputs further out change no clipped gradient, one half is exchanged as the other is.
    for how in (runs.moved, runs.other):
        first = _changed(runs, seed, even=how)
        both = _changed(runs, seed, even=how, odd=True)
        if not all(_finite(trace) for trace in (neither, first, second, both)):
            said = "a release holds numbers that are not finite, for examples that were changed"
            return LoopFinding(name, False, said)
        alone, apart = _difference(first, neither), _difference(both, second)
        size = max(float(alone.norm()), float(apart.norm()))
        assert neither.first is not None
        if size > SAME * float(neither.first.norm()):
            break
    else:
        return LoopFinding.skipped(name, UNMOVED)
    off = float((apart - alone).norm()) / size
    if off > ROUNDING:
        said = (
            "what examples add to a release depends on the other examples: by "
            f"{100 * off:.3g}% of it, when the others are changed"
        )
        return LoopFinding(name, False, said)
    said = f"what half of the examples add is the same to {100 * off:.2g}% beside other ones"
    power = f"a dependence of {100 * ROUNDING:g}% of what examples add; in the first step"
    return LoopFinding(name, True, said, power)


def _drawn(runs: Experiments, seed: int) -> bool:
    return not runs.observed or bool(runs.first(seed).reads[0])


def _changed(
    runs: Experiments, seed: int, *, even: Callable[[int], Item] | None = None, odd: bool = False
) -> Trace:
    """Return the first release with examples changed at even places, at odd ones, or at both.

    Args:
        runs: of the loop.
        seed: of the run.
        even: what is put at even places; None leaves them.
        odd: whether examples at odd places are exchanged.
    """

    def change(index: int, item: Item) -> Item:
        if index % 2:
            return runs.other(index) if odd else item
        return item if even is None else even(index)

    return runs.run(seed, change, limit=1)


def _finite(trace: Trace) -> bool:
    return trace.first is not None and bool(torch.isfinite(trace.first).all())


def _difference(one: Trace, other: Trace) -> Tensor:
    assert one.first is not None
    assert other.first is not None
    return one.first - other.first


def _outside(runs: Experiments, seed: int) -> str | None:
    """Change an example that the first step does not read: the first release must not change."""
    before = runs.first(seed)
    if not runs.observed:
        return None
    place = next((i for i in range(runs.examples) if i not in set(before.reads[0])), None)
    if place is None:
        return None
    after = runs.run(seed, lambda i, item: runs.moved(i) if i == place else item, limit=1)
    assert before.first is not None
    moved = float(_difference(after, before).norm()) / max(float(before.first.norm()), 1e-300)
    if moved > SAME:
        return f"an example outside of the first batch changes its release by {moved:.2g} of it"
    return None


def check_sensitivity_of_loop(runs: Experiments) -> LoopFinding:
    """Hold the noise to what one example adds: the ratio must be σ at least, whatever the scale."""
    name, claim = "sensitivity", runs.claim
    if not runs.records:
        return LoopFinding.skipped(name, RECORD)
    if claim.noise_multiplier is None:
        return LoopFinding.skipped(name, "needs noise_multiplier in the claim")
    noise = runs.noise
    if noise is None:
        return LoopFinding.skipped(name, "needs noise that can be measured")
    if runs.batch(runs.aligned(FIRST_SEED)) is None:
        return LoopFinding.skipped(name, "needs expected_batch_size in the claim")
    low, middle = _moves(runs, noise)
    if low <= 0:
        return LoopFinding.skipped(
            name, "the noise hides what all examples of a batch add together: B is too small"
        )
    sigma, most = claim.noise_multiplier, noise.deviation * (1 + BIAS) / low
    around = noise.deviation / max(middle, low)
    if most < MARGIN * sigma:
        said = (
            f"one example moves a release by {low:.3g} at least, and the noise has a standard "
            f"deviation of {noise.deviation:.3g}: a noise multiplier of at most {most:.3g}, "
            f"claimed is {sigma:g}"
        )
        return LoopFinding(name, False, said)
    large = _too_large(runs, noise, middle)
    if large:
        return LoopFinding(name, False, large)
    said = f"the noise is about {around:.3g} times what an example adds; claimed is {sigma:g}"
    seen = around * low / max(middle, low) * MARGIN
    return LoopFinding(name, True, said, f"a noise multiplier of {seen:.3g} or less")


def _too_large(runs: Experiments, noise: NoiseSeen, move: float) -> str | None:
    """Return that noise is far larger than declared, at the scale of releases: sums or means."""
    claim = runs.claim
    if claim.lacks(("clip_norm", "expected_batch_size", "noise_multiplier")) or move <= 0:
        return None
    assert claim.clip_norm is not None
    assert claim.expected_batch_size is not None
    assert claim.noise_multiplier is not None
    of_mean = claim.clip_norm / claim.expected_batch_size
    # Means and sums are B apart; what is nearer, in logarithms, is what the loop releases.
    # What cannot be put out of range may move a sum as little as a mean: no more is said of it than
    # that its noise is too large for a sum.
    nearer_sum = move > math.sqrt(claim.clip_norm * of_mean) or not is_real(runs.item[0])
    declared = claim.noise_multiplier * (claim.clip_norm if nearer_sum else of_mean)
    if noise.deviation <= LARGER * declared:
        return None
    return (
        f"the noise has a standard deviation of {noise.deviation:.3g}, "
        f"{noise.deviation / declared:.3g} times the one declared, {declared:.3g}: this is not the "
        "mechanism that is claimed"
    )


def _aligned(runs: Experiments, *, other: bool) -> list[Trace]:
    """Return first releases on identical hostile examples, with one of two targets."""
    return [runs.aligned(FIRST_SEED + i, other=other) for i in range(ALIGNED[runs.level])]


def _moves(runs: Experiments, noise: NoiseSeen) -> tuple[float, float]:
    """Return how far one example moves a release: a lower bound, and an estimate.

    Where runs can be repeated, a second bound takes the difference of two runs on opposite
    examples, in which the noise cancels.
    """
    found = [_bound(runs, _aligned(runs, other=other), noise) for other in (False, True)]
    if runs.repeatable:
        exact = [_opposite(runs, FIRST_SEED + i) for i in range(2)]
        found += [(each, each) for each in exact]
    low, middle = (max(values) for values in zip(*found, strict=True))
    return low, middle


def _bound(runs: Experiments, traces: list[Trace], noise: NoiseSeen) -> tuple[float, float]:
    """Return the same from releases on identical examples: n of them add n times what one adds.

    The square of a release less that of its noise is the square of what they add.
    """
    variance, total, spread, weight, numbers = noise.deviation**2, 0.0, 0.0, 0.0, 0
    for trace in traces:
        assert trace.first is not None
        size, width = runs.batch(trace) or 0.0, len(trace.first)
        added = float(trace.first.square().sum()) - width * variance
        total, weight, numbers = total + added, weight + size**2, numbers + width
        spread += 2 * width * variance**2 + 4 * max(added, 0.0) * variance
    if weight == 0:
        return 0.0, 0.0
    doubt = float(norm.isf(SIGNIFICANCE / 2)) * math.sqrt(spread) + BIAS * numbers * variance
    return math.sqrt(max(0.0, total - doubt) / weight), math.sqrt(max(0.0, total) / weight)


def _opposite(runs: Experiments, seed: int) -> float:
    """Return half of how far an example and its opposite are apart in a release."""
    one, other = runs.aligned(seed), runs.aligned(seed, -NEAR)
    size = runs.batch(one)
    return float(_difference(one, other).norm()) / (2 * size) if size else 0.0


def check_divisor(runs: Experiments) -> LoopFinding:
    """On identical examples a release must grow with the batch: its divisor is a constant."""
    name = "divisor"
    if not runs.records:
        return LoopFinding.skipped(name, RECORD)
    noise = runs.noise
    if noise is None or not runs.observed:
        return LoopFinding.skipped(name, "needs batches that can be seen, and noise to measure")
    pairs = zip(_aligned(runs, other=False), _aligned(runs, other=True), strict=True)
    lines = torch.tensor([_longer(pair, noise) for pair in pairs]).double()
    sizes, lengths = lines[lines[:, 0] > 0].T
    if len(sizes) < LEAST or float(sizes.std()) == 0:
        return LoopFinding.skipped(name, "all batches have the same size")
    if float(lengths.min()) <= 0:
        return LoopFinding.skipped(name, "the noise hides what a batch adds")
    slope, error = _slope(sizes / sizes.mean(), lengths / lengths.mean())
    reach = float(t.isf(SIGNIFICANCE, len(sizes) - 2)) * error
    if slope + reach < 0.5:
        said = (
            "a release does not grow with the number of identical examples in its batch "
            f"(relative slope {slope:.2f} ± {reach:.2f}): it is divided by the size of the batch, "
            "or clipped as a whole"
        )
        return LoopFinding(name, False, said)
    if reach >= 0.5:
        return LoopFinding.skipped(name, f"the slope is known to ± {reach:.2g} only")
    said = f"a release grows with its batch (relative slope {slope:.2f} ± {reach:.2f})"
    return LoopFinding(name, True, said, "a divisor that is the size of the batch")


def _longer(pair: tuple[Trace, Trace], noise: NoiseSeen) -> tuple[float, float]:
    """Return the size of a batch, and the length of what it adds, of the run that shows more."""
    found = []
    for trace in pair:
        assert trace.first is not None
        added = float(trace.first.square().sum()) - len(trace.first) * noise.deviation**2
        found.append((float(len(trace.reads[0])), math.sqrt(max(0.0, added))))
    return max(found, key=lambda each: each[1] / max(1.0, each[0]))


def _slope(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the slope of a least-squares line, and its standard error."""
    away = x - x.mean()
    slope = float((away @ y) / (away @ away))
    left = y - y.mean() - slope * away
    return slope, math.sqrt(float(left @ left) / (len(x) - 2) / float(away @ away))
