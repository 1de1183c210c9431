"""Run a recorded stream of gradients and noise through a method, outside any model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Method, WithClipRule
from clipnoise.core.state import Public, State
from clipnoise.core.step import step
from clipnoise.errors import UserError, nearest
from clipnoise.fields import STRICT, Count, NonNegative, Positive, parse
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.methods.base import method_class
from clipnoise.privacy.microbatches import Accounting, MicroBatches
from clipnoise.run.public import warm_step

REQUIRED = ("noise_multiplier", "expected_batch_size")  # of a method that adds noise


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of the run that a stream is of; without B it has the width of the stream."""

    __pydantic_config__: ClassVar = STRICT

    noise_multiplier: NonNegative = 0.0
    expected_batch_size: Positive | None = None
    microbatch_size: Count = 1
    microbatch_accounting: Accounting = "corrected"


def replay(
    method: str,
    hyperparameters: Mapping[str, Any],
    initial: ArrayLike,
    per_example_gradients: ArrayLike,
    noise: ArrayLike,
    public_gradients: ArrayLike | None = None,
    *,
    side_information: ArrayLike | None = None,
    warm_gradients: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Run a recorded stream through a method in float64 and return where it goes.

    The code that steps is the one that trains; only the gradients and the noise are given instead
    of computed. Clipping is exactly v·min(1, C/‖v‖), or what a `clip_rule` says.

    Args:
        method: a method id, e.g. `"dp-adambc"`.
        hyperparameters: by the names of the run spec: the method's own fields, and
            `noise_multiplier` (σ) and `expected_batch_size` (B) of the run. A method that adds
            noise needs both; without noise B defaults to the width of the stream. `clip_norm` may
            be given to a method that does not clip; it has no effect there. `microbatch_size` (m, a
            divisor of B) clips sums of m examples next to each other, divided by m, with noise for
            2C, or for C with `microbatch_accounting: as-published`.
        initial: θ_0, shape (d,).
        per_example_gradients: shape (T, B, d), or (T, k, B, d) where [t, j] holds the gradients of
            batch t at the j-th point where the method takes them: of a method that reads past
            iterates, j steps back. What is not there yet (j > t) is not read. For a federated
            method the updates Δ_u of users (what local training adds to θ, not its negative), with
            B the expected number of users b. For a method on losses, these, shape (T, k, B, 1).
        noise: standard normals, shape (T, d), or (T, r, d) for a method with r releases per step;
            (T, 1) for one on losses, whose directions are those of seed 0; (T, d + K) for one that
            releases K numbers with the gradient, as dp-sgd-slaclip does for its K slots.
            A method without noise takes them and does not use them.
        public_gradients: mean public gradient of each step, shape (T, d), for methods that use one.
        side_information: the public vector A of adadps-side, shape (d,).
        warm_gradients: mean public gradients of a warm start, shape (W, d), for dp-sgd-warm. They
            move θ_0 before the first step; left out, `initial` is where the warm start has ended.

    Returns:
        The iterates θ_0 … θ_T, float64, shape (T+1, d).

    Raises:
        UserError: an unknown method or hyper-parameter, or arrays that do not fit together.

    Examples:
        One step of DP-SGD, checked by hand. At C = 1 the gradients (3, 4) and (0, 0.5) become
        (0.6, 0.8) and (0, 0.5); their sum over B = 2 is (0.3, 0.65). The noise on the mean is
        σC/B·z = 0.25·(2, −1). So g̃ = (0.8, 0.4), and θ_1 = −η g̃ at η = 0.5.

        >>> from clipnoise import replay
        >>> constants = {"noise_multiplier": 0.5, "expected_batch_size": 2}
        >>> iterates = replay(
        ...     "dp-sgd",
        ...     {"learning_rate": 0.5, "clip_norm": 1.0, **constants},
        ...     initial=[0, 0],
        ...     per_example_gradients=[[[3, 4], [0, 0.5]]],
        ...     noise=[[2, -1]],
        ... )
        >>> iterates.round(12).tolist()
        [[0.0, 0.0], [-0.4, -0.2]]
    """
    optimizer, constants = _split(method_class(method), hyperparameters)
    if isinstance(optimizer, WithClipRule) and optimizer.clip_rule.per == "layer":
        raise UserError(
            "clip_rule.per: layer needs a model; a recorded stream has no layers. "
            "Give clip_rule: {per: example}."
        )
    size = constants.microbatch_size
    microbatches = MicroBatches(size, constants.microbatch_accounting)
    gradients = _gradients(optimizer, per_example_gradients)
    steps, _, width, dimension = gradients.shape
    normals = _tensor("noise", noise, (2, 3))
    normals = normals[:, None] if normals.ndim == 2 else normals
    start = _tensor("initial", initial, (1,))
    if optimizer.query.of.losses:
        _expect("per_example_gradients", gradients, (*gradients.shape[:3], 1))
    else:
        _expect("initial", start, (dimension,))
    normal = optimizer.query.noise_like(gradients.new_empty(dimension))
    _expect("noise", normals, (steps, max(1, optimizer.query.draws), len(normal)))
    if optimizer.uses_public_gradient and public_gradients is None:
        raise UserError(f"public_gradients: {method} needs them, shape (T, d).")
    at_public = _optional("public_gradients", public_gradients, (steps, len(start)))
    side = _optional("side_information", side_information, (len(start),))
    local = optimizer.local_training() is not None
    if optimizer.uses_side_information and side is None and not local:
        raise UserError(f"side_information: {method} needs it, shape (d,).")
    batch_size = constants.expected_batch_size or float(max(width, 1))
    sigma = optimizer.effective_noise_multiplier(constants.noise_multiplier, batch_size)
    groups = torch.arange(width) // size if size > 1 else None
    public = Public(
        noise_multiplier=sigma,
        expected_batch_size=microbatches.count(batch_size),
        sensitivity_factor=microbatches.sensitivity_factor(optimizer.query),
        total_steps=steps,
        side_information=side,
    )
    state = State(_warmed(optimizer, start, warm_gradients))
    iterates = [state.theta]
    for t, batch in enumerate(gradients):

        def form(clipping: Clipping, batch: torch.Tensor = batch) -> ClippedSum:
            clipping = replace(clipping, group_size=size, groups=groups)
            return ClippedSum(clipped_sum(list(batch[: len(clipping.weights)]), clipping))

        step(
            optimizer,
            state,
            replace(public, gradient=None if at_public is None else at_public[t]),
            clipped_sum=form,
            noise=list(normals[t]),
        )
        iterates.append(state.theta)
    return torch.stack(iterates).numpy()


def _split(kind: type[Method], hyperparameters: Mapping[str, Any]) -> tuple[Method, Constants]:
    """Separate the method's own fields from the constants of the run, and check both."""
    options, of_run = ({field.name for field in fields(one)} for one in (kind, Constants))
    allowed = sorted(options | of_run | {"clip_norm"})
    for name in hyperparameters:
        if name not in allowed:
            raise UserError(
                f"{kind.id}: unknown hyper-parameter {name!r}.{nearest(str(name), allowed)} "
                f"Allowed: {', '.join(allowed)}."
            )
    plain = {name: _plain(value) for name, value in hyperparameters.items()}
    optimizer = parse(kind, {name: plain[name] for name in plain if name in options}, key=kind.id)
    constants = parse(Constants, {name: plain[name] for name in plain if name in of_run})
    missing = [name for name in REQUIRED if name not in plain]
    if optimizer.query.draws and missing:
        raise UserError(f"{kind.id}: adds noise, so {' and '.join(missing)} must be given.")
    return optimizer, constants


def _plain(value: Any) -> Any:
    """Turn numpy scalars and arrays into Python numbers and lists; leave the rest alone."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _gradients(method: Method, values: ArrayLike) -> torch.Tensor:
    """Return gradients (or losses) in shape (T, k, B, d), k at least what the method reads."""
    gradients = _tensor("per_example_gradients", values, (3, 4))
    gradients = gradients[:, None] if gradients.ndim == 3 else gradients
    steps, given = gradients.shape[:2]
    losses = method.query.of.losses
    points = method.passes() if losses else method.iterates()
    if given < (points if losses else min(points, steps)):
        raise UserError(
            f"per_example_gradients: {method.id} reads {points} "
            f"{'losses' if losses else 'iterates'} per step, got {given}; give shape "
            f"(T, {points}, B, {1 if losses else 'd'})."
        )
    return gradients


def _warmed(
    method: Method, initial: torch.Tensor, warm_gradients: ArrayLike | None
) -> torch.Tensor:
    """Return θ_0 after the warm start that the method asks for, on recorded public gradients."""
    if warm_gradients is None:
        return initial
    warm = method.warm_start()
    if warm is None:
        raise UserError(f"warm_gradients: {method.id} has no warm start.")
    gradients = _tensor("warm_gradients", warm_gradients, (2,))
    _expect("warm_gradients", gradients, (len(gradients), initial.shape[0]))
    state = State(initial)
    public = Public(noise_multiplier=0.0, expected_batch_size=1, total_steps=len(gradients))
    for gradient in gradients:
        warm_step(warm.method, state, public, gradient)
    return state.theta


def _optional(name: str, values: ArrayLike | None, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Copy an array that need not be there, checking its shape."""
    if values is None:
        return None
    tensor = _tensor(name, values, (len(shape),))
    _expect(name, tensor, shape)
    return tensor


def _tensor(name: str, values: ArrayLike, dimensions: tuple[int, ...]) -> torch.Tensor:
    """Copy an array to a float64 tensor, checking its number of dimensions."""
    try:
        array = np.array(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: not an array of numbers: {error}.") from None
    if array.ndim not in dimensions:
        wanted = " or ".join(map(str, dimensions))
        raise UserError(f"{name}: expected {wanted} dimensions, got shape {array.shape}.")
    return torch.from_numpy(array)


def _expect(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise UserError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}.")
