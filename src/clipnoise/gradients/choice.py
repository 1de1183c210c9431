"""The choice of a gradient engine for a network: made by trying each, never configured."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from clipnoise.core.clip_rules import SHORTEST
from clipnoise.core.clipping import Clipping
from clipnoise.errors import UserError, out_of_memory, reason
from clipnoise.gradients.checks import ending_of, made_up, normal
from clipnoise.gradients.clipping import clipped_sum, row_norms
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import OneByOne, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Examples
    from clipnoise.data.several import Inputs
    from clipnoise.fields import Precision
    from clipnoise.gradients.engine import GradientEngine, Losses


OF_VMAP = {
    r"data-dependent|\.item\(\)|dynamic shape": "its code depends on the values of its inputs",
    r"autograd\.Function": "it has a torch.autograd.Function that is not made for vmap",
    r"[Bb]atching rule|batching operators": "it uses a function that vmap does not know",
    r"vmap: ": "it writes to a tensor in place that is not part of an example",
}


@dataclass(frozen=True)
class EngineChoice:
    """An engine, its name and why it was chosen."""

    engine: GradientEngine
    name: str
    reason: str


def choose_engine(
    network: nn.Module,
    losses: Losses,
    examples: Examples,
    precision: Precision = "float32",
    *,
    batch: int = 8,
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
        batch: examples in a physical batch of the run.

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
        engine = kind(network, losses)
        problem = _problem(engine, trial, precision, batch)
        if problem is None:
            apart = "every layer has a rule" + ("" if engine.together else ", vmap hides the batch")
            return EngineChoice(engine, kind.name, "; ".join(problems) or apart)
        problems.append(f"{kind.name} cannot: {problem}")
    raise UserError(
        f"model: no engine can compute its per-example gradients. {'; '.join(problems)}."
    )


def _problem(
    engine: GradientEngine,
    trial: Callable[[int], tuple[Inputs, Tensor]],
    precision: Precision,
    batch: int,
) -> str | None:
    """Return what is wrong with an engine, or None.

    Its per-example gradients and its clipped sum must be those that autograd gives one example at
    a time, and the sum of a batch of the run's size that of its parts. The parameters are perturbed
    because a layer whose weights start at zero would hide whatever comes before it.
    """
    before = engine.flat.theta.clone()
    theta = before + 0.05 * normal(before)
    try:
        inputs, targets = trial(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of vmap, about speed
            problem = _difference(engine, inputs, targets, theta)
            if problem is None and precision != engine.precision:
                engine.precision = precision
                engine.clipped_sum(inputs, targets, Clipping(clip_norm=1.0).at(theta))
        if problem is None and isinstance(engine, FactoredEngine):
            problem = _unequal_parts(engine, trial, theta, batch)
        return problem
    except Exception as error:  # a network's own code can raise anything under an engine
        # How much memory is free must not choose the engine: a repeated run would have other bits.
        if out_of_memory(error):
            raise
        return _in_words(error)
    finally:
        engine.flat.load(before)


def _in_words(error: Exception) -> str:
    """Return what an error of an engine says; those of vmap in terms of the network."""
    said = reason(error)
    for pattern, words in OF_VMAP.items():
        if re.search(pattern, said):
            return words
    return said


def _difference(
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


def _unequal_parts(
    engine: GradientEngine,
    trial: Callable[[int], tuple[Inputs, Tensor]],
    theta: Tensor,
    batch: int,
) -> str | None:
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
            return _unequal_parts(engine, trial, theta, batch // 2)
        raise
    if _close(whole, torch.stack(parts).sum(dim=0)):
        return None
    return f"its clipped sum of {batch} examples is not that of its parts"


def _close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
