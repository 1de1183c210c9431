"""The choice of a gradient engine for a network: made by trying each, never configured."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from clipnoise.core.clip_rules import SHORTEST
from clipnoise.core.clipping import Clipping
from clipnoise.data.several import tensors_of
from clipnoise.errors import UserError, out_of_memory, reason
from clipnoise.gradients.checks import ending_of, made_up, normal
from clipnoise.gradients.clipping import clipped_sum, row_norms
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import OneByOne, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.held import peak_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Examples
    from clipnoise.data.several import Inputs
    from clipnoise.fields import Precision
    from clipnoise.gradients.engine import GradientEngine, Losses

    Trial = Callable[[int], tuple[Inputs, Tensor]]

logger = logging.getLogger(__name__)

PLENTY = 100  # vectors as long as parameters and inputs, for each example: more than networks take
OF_VMAP = {
    r"data-dependent|\.item\(\)|dynamic shape": "its code depends on the values of its inputs",
    r"autograd\.Function": "it has a torch.autograd.Function that is not made for vmap",
    r"[Bb]atching rule|batching operators": "it uses a function that vmap does not know",
    r"vmap: ": "it writes to a tensor in place that is not part of an example",
}


@dataclass(frozen=True)
class EngineChoice:
    """An engine, its name, why it was chosen, and the size of its physical batches."""

    engine: GradientEngine
    name: str
    reason: str
    size: int


def choose_engine(
    network: nn.Module,
    losses: Losses,
    examples: Examples,
    precision: Precision = "float32",
    *,
    batch: int = 8,
    size: int = 256,
    free: int | None = None,
) -> EngineChoice:
    """Choose the fastest engine that takes a network and gives correct clipped sums in a trial.

    Each engine keeps the examples of a batch apart by how it runs the network; the trial finds
    faults of its arithmetic. It uses made-up examples, so the choice depends on the shapes of the
    data alone.

    Args:
        network: on its device, in the mode in which it is trained.
        losses: (outputs, targets) → the loss of each example, shape (b,).
        examples: the private examples.
        precision: of the engine's passes; its results are checked at float32.
        batch: the expected number of examples in a batch.
        size: the most examples in a physical batch.
        free: bytes that a physical batch may take: where `size` examples would take more, it is
            halved until they do not. None does not ask.

    Raises:
        UserError: no engine can compute the network's per-example gradients; says why for each.
        MemoryError, RuntimeError: memory ran out in a trial.
    """
    first, target = examples.take(slice(1))
    ending = ending_of(network)

    def trial(count: int) -> tuple[Inputs, Tensor]:
        return made_up(first, count, ending=ending), target.new_zeros(count, *target.shape[1:])

    problems: list[str] = []
    for kind in (FactoredEngine, VmapEngine, OneByOne):
        engine, fitting = kind(network, losses), size
        problem = _tried(engine, partial(_difference, engine, trial, precision))
        if problem is None and free is not None:
            fitting = _fitting(engine, trial, size, free)
        if problem is None and isinstance(engine, FactoredEngine):
            together = min(batch, fitting)
            problem = _tried(engine, partial(_unequal_parts, engine, trial, together))
        if problem is None:
            apart = "every layer has a rule" + ("" if engine.together else ", vmap hides the batch")
            return EngineChoice(engine, kind.name, "; ".join(problems) or apart, fitting)
        problems.append(f"{kind.name} cannot: {problem}")
    raise UserError(
        f"model: no engine can compute its per-example gradients. {'; '.join(problems)}."
    )


def _tried(engine: GradientEngine, check: Callable[[Tensor], str | None]) -> str | None:
    """Return what a check finds wrong with an engine, or what it raises in words, or None.

    Its per-example gradients and its clipped sum must be those that autograd gives one example at
    a time, and the sum of a batch of the run's size that of its parts. The parameters are perturbed
    because a layer whose weights start at zero would hide whatever comes before it.

    Args:
        engine: is left at the parameters that it has.
        check: called with the perturbed parameters, shape (d,).
    """
    before = engine.flat.theta.clone()
    try:
        return check(before + 0.05 * normal(before))
    except Exception as error:  # a network's own code can raise anything under an engine
        # How much memory is free must not choose the engine: a repeated run would have other bits.
        if out_of_memory(error):
            raise
        return _in_words(error)
    finally:
        engine.flat.load(before)


def _fitting(engine: GradientEngine, trial: Trial, size: int, free: int) -> int:
    """Return the size of physical batches that fit, from what one and two examples take.

    Where memory is plentiful nothing is counted: that loads much of PyTorch.
    """
    theta = engine.flat.theta.clone()
    numbers = theta.numel() + sum(part.numel() for part in tensors_of(trial(1)[0]))
    if size * numbers * theta.element_size() * PLENTY <= free:
        return size

    def taken(count: int) -> int:
        inputs, targets = trial(count)
        clipping = Clipping(clip_norm=1.0).at(theta)
        return peak_bytes(lambda: engine.clipped_sum(inputs, targets, clipping))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of vmap, about speed
            one, two = taken(1), taken(2)
    except Exception as error:  # the network ran before, so it is the count that it does not bear
        if out_of_memory(error):
            raise
        return size
    finally:
        engine.flat.load(theta)
    each, fitting = max(0, two - one), size
    while fitting > 1 and one + (fitting - 1) * each > free:
        fitting //= 2
    if fitting < size:
        logger.warning(
            "physical batches of %d examples, not %d: each takes %.4g MB, and %.4g MB may be taken",
            fitting,
            size,
            each / 1e6,
            free / 1e6,
        )
    return fitting


def _in_words(error: Exception) -> str:
    """Return what an error of an engine says; those of vmap in terms of the network."""
    said = reason(error)
    for pattern, words in OF_VMAP.items():
        if re.search(pattern, said):
            return words
    return said


def _difference(
    engine: GradientEngine, trial: Trial, precision: Precision, theta: Tensor
) -> str | None:
    """Return how an engine differs from autograd, or None; give it the precision of its passes."""
    inputs, targets = trial(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of vmap, about speed
        problem = _of_full_precision(engine, inputs, targets, theta)
        if problem is None and precision != engine.precision:
            engine.precision = precision
            engine.clipped_sum(inputs, targets, Clipping(clip_norm=1.0).at(theta))
    return problem


def _of_full_precision(
    engine: GradientEngine, inputs: Inputs, targets: Tensor, theta: Tensor
) -> str | None:
    """Return how an engine differs from autograd, or None."""
    each = [
        engine.summed_gradient(inputs[one], targets[one], theta, Masks(0, one))
        for one in torch.arange(len(inputs)).unsqueeze(1)
    ]
    expected = torch.stack(each)
    if not expected.isfinite().all():
        return "the gradients of made-up examples are not finite"
    if not _close(engine.per_example_gradients(inputs, targets, theta), expected):
        return "its per-example gradients are not those of one example at a time"
    clipping = Clipping(clip_norm=max(SHORTEST, 0.5 * float(row_norms(expected).max())))
    if not _close(
        engine.clipped_sum(inputs, targets, clipping.at(theta)), clipped_sum([expected], clipping)
    ):
        return "its clipped sum is not that of one example at a time"
    return None


def _unequal_parts(engine: GradientEngine, trial: Trial, batch: int, theta: Tensor) -> str | None:
    """Return whether the clipped sum of a large batch is not that of its parts, or None.

    Which way the norms of a layer are computed depends on the size of the batch.
    """
    try:
        inputs, targets = trial(batch)
        clipping = Clipping(clip_norm=1.0).at(theta)
        order = torch.arange(batch - 1, -1, -1)
        whole, *parts = (
            engine.clipped_sum(inputs[part], targets[part], replace(clipping, examples=part))
            for part in (order, order[::3], order[1::3], order[2::3])
        )
    except (MemoryError, RuntimeError) as error:
        if batch > 1 and out_of_memory(error):
            return _unequal_parts(engine, trial, batch // 2, theta)
        raise
    if _close(whole, torch.stack(parts).sum(dim=0)):
        return None
    return f"its clipped sum of {batch} examples is not that of its parts"


def _close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
