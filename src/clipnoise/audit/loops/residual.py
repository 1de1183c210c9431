"""What is left of releases on identical examples when the directions of the data are taken out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LEAST_ROWS = 8
DIRECTIONS = 24  # in which what identical examples add may lie, at most
FEW = 4  # directions: where no more can be taken out, it matters that none is left
PARTLY = 0.3  # of a step or coordinate that may be taken out, for what is left to be judged
EDGE = 1.1  # times the largest singular value of noise
NOTHING = 1e-12
COMPARED = 4096  # coordinates that are compared with each other, at most
USUAL = (0.4, 1.6)  # times the median variance: a step with as much noise as most, and no data


@dataclass(frozen=True)
class NoiseSeen:
    """What is left of releases when the directions of the data are taken out.

    Attributes:
        deviation: the standard deviation of a number; 0 without noise.
        steps, coordinates: the variance of each, relative to that of all; nan where too much of it
            was taken out, or too few releases are left.
        repeated: the largest correlation between two releases of usual steps.
        twins: the largest correlation between two usual coordinates over these releases.
        compared: how many coordinates were compared.
        fourth: the fourth moment over the square of the second, 3 for normal numbers.
        usual: how many releases the variances of coordinates are taken from.
        shape: how many releases, and numbers of each.
        steps_of_run: T.
    """

    deviation: float
    steps: Tensor
    coordinates: Tensor
    repeated: float
    twins: float
    compared: int
    fourth: float
    usual: int
    shape: tuple[int, int]
    steps_of_run: int

    def or_less(self, other: NoiseSeen) -> NoiseSeen:
        """Return this with the smaller variance of each coordinate, here and on other examples.

        What examples add can only be added to a variance of noise.
        """
        rows = [each.usual for each in (self, other) if each.usual >= LEAST_ROWS]
        variances = other.coordinates * (other.deviation / self.deviation) ** 2
        return replace(
            self,
            coordinates=torch.fmin(self.coordinates, variances),
            usual=min(rows, default=0),
        )


def measured(rows: Tensor, steps: int) -> NoiseSeen | None:
    """Take out the largest directions, and return what is left, corrected for what it lost.

    To first order in the noise N, what is left of signal and noise is (1 − UUᵀ) N (1 − VVᵀ), with
    the singular vectors U, V that are taken out: a coordinate keeps one minus the sum of squares of
    its row of V, of its variance.

    Args:
        rows: releases on identical examples, shape (releases, numbers).
        steps: T, the number of releases of a run.

    Returns:
        None where there are too few releases, numbers that are not finite, or so few numbers in a
        release that what examples add cannot be taken out.
    """
    if len(rows) < LEAST_ROWS or not torch.isfinite(rows).all():
        return None
    count, width = rows.shape
    u, values, v = torch.linalg.svd(rows, full_matrices=False)
    taken, all_taken = _outlying(values, count, width)
    left = rows - (u[:, :taken] * values[:taken]) @ v[:taken]
    by_row, by_column = u[:, :taken].square().sum(1), v[:taken].square().sum(0)
    squares = left.square()
    by_step = squares.sum(1) / (width - taken) / (1 - by_row).clamp(min=1e-9)
    # Steps in which the data are left over, as at the beginning of a training, are a minority.
    judged = by_step[by_row <= PARTLY] if bool((by_row <= PARTLY).any()) else by_step
    middle = float(judged.median()) / (1 - 2 / (9 * width)) ** 3
    variance = middle if middle > NOTHING * float(rows.square().mean()) else 0.0
    if variance and not all_taken:
        return None
    unit = max(variance, 1e-300)
    step = by_step / unit
    usual = (step > USUAL[0]) & (step < USUAL[1]) & (by_row <= PARTLY)
    rows_judged = int(usual.sum())
    column = squares[usual].sum(0) / unit / max(1, rows_judged) * count / (count - taken)
    column /= (1 - by_column).clamp(min=1e-9)
    step[by_row > PARTLY], column[by_column > PARTLY] = math.nan, math.nan
    if rows_judged < LEAST_ROWS:
        column[:] = math.nan
    noise = left[usual]
    plain = ((column > USUAL[0]) & (column < USUAL[1])).nonzero().flatten()
    among = plain[torch.randperm(len(plain), generator=torch.Generator().manual_seed(0))]
    among = among[:COMPARED]
    squared = noise[:, plain].square()
    return NoiseSeen(
        deviation=math.sqrt(variance),
        steps=step,
        coordinates=column,
        repeated=_most_alike(noise),
        twins=_most_alike(noise[:, among].T),
        compared=len(among),
        fourth=float(squared.square().mean() / squared.mean().square()),
        usual=rows_judged,
        shape=(count, width),
        steps_of_run=steps,
    )


def _most_alike(rows: Tensor) -> float:
    """Return the largest correlation between two rows, whatever its sign; 0 without any."""
    if len(rows) < 2 or rows.shape[1] < 2:
        return 0.0
    alike = torch.corrcoef(rows)
    return float((alike - torch.diag(alike.diagonal())).abs().max())


def _outlying(values: Tensor, count: int, width: int) -> tuple[int, bool]:
    """Return how many singular values are too large for noise alone, and whether these are all.

    Of releases of few numbers, no more than a third of the directions are taken out. The largest
    value of noise is near √count + √width standard deviations (Marchenko and Pastur).
    """
    most, squares = min(DIRECTIONS, count // 4, width // 3), values.square()
    for taken in range(most + 1):
        variance = float(squares[taken:].sum()) / ((count - taken) * (width - taken))
        edge = EDGE * math.sqrt(variance) * (math.sqrt(count) + math.sqrt(width))
        if float(values[taken]) <= edge:
            return taken, True
    return most, most >= FEW
