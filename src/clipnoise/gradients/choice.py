"""The choice of a gradient engine for a network: made by trying each, never configured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from clipnoise.core.clipping import Clipping
from clipnoise.errors import UserError, reason
from clipnoise.gradients.checks import made_up, normal
from clipnoise.gradients.clipping import clipped_sum, row_norms
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Examples
    from clipnoise.fields import Precision
    from clipnoise.gradients.engine import GradientEngine, Losses


@dataclass(frozen=True)
class EngineChoice:
    """An engine, its name and why it was chosen."""

    engine: GradientEngine
    name: str
    reason: str


def choose_engine(
    network: nn.Module, losses: Losses, examples: Examples, precision: Precision = "float32"
) -> EngineChoice:
    """Choose the fastest engine that gives correct clipped sums in a small trial.

    The trial uses two made-up examples, so the choice depends on the shapes of the data alone.

    Args:
        network: on its device, in the mode in which it is trained.
        losses: (outputs, targets) → the loss of each example, shape (b,).
        examples: the private examples.
        precision: of the engine's passes; its results are checked at float32.

    Raises:
        UserError: no engine can compute the network's per-example gradients; says why for each.
    """
    first, target = examples.take(slice(1))
    inputs, targets = made_up(first, 2), target.new_zeros(2, *target.shape[1:])
    problems: list[str] = []
    for kind in (FactoredEngine, VmapEngine):
        engine = kind(network, losses)
        problem = _trial(engine, inputs, targets, precision)
        if problem is None:
            return EngineChoice(engine, kind.name, "; ".join(problems) or "every layer has a rule")
        problems.append(f"{kind.name} cannot: {problem}")
    raise UserError(
        f"model: no engine can compute its per-example gradients. {'; '.join(problems)}."
    )


def _trial(
    engine: GradientEngine, inputs: Tensor, targets: Tensor, precision: Precision
) -> str | None:
    """Return what is wrong with an engine, or None.

    Its per-example gradients and its clipped sum must be those that autograd gives one example at
    a time. The parameters are perturbed because a layer whose weights start at zero would hide
    whatever comes before it.
    """
    before = engine.flat.theta.clone()
    theta = before + 0.05 * normal(before)
    try:
        problem = _difference(engine, inputs, targets, theta)
        if problem is None and precision != engine.precision:
            engine.precision = precision
            engine.clipped_sum(inputs, targets, Clipping(clip_norm=1.0).at(theta))
        return problem
    except Exception as error:  # a network's own code can raise anything under an engine
        return reason(error)
    finally:
        engine.flat.load(before)


def _difference(
    engine: GradientEngine, inputs: Tensor, targets: Tensor, theta: Tensor
) -> str | None:
    """Return how an engine differs from autograd, or None."""
    each = [
        engine.summed_gradient(
            inputs[i : i + 1], targets[i : i + 1], theta, Masks(0, torch.tensor([i]))
        )
        for i in range(len(inputs))
    ]
    expected = torch.stack(each)
    if not _close(engine.per_example_gradients(inputs, targets, theta), expected):
        return "its per-example gradients are not those of one example at a time"
    clipping = Clipping(clip_norm=0.5 * float(row_norms(expected).min()) or 1.0)
    if not _close(
        engine.clipped_sum(inputs, targets, clipping.at(theta)), clipped_sum([expected], clipping)
    ):
        return "its clipped sum is not that of one example at a time"
    return None


def _close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
