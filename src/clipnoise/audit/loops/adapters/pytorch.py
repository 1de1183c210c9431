"""Loops in plain PyTorch: the gradients with which an optimizer steps are the release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from clipnoise.audit.loops.adapters.watching import Record, claim_of, recording, tried
from clipnoise.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.audit.loops.adapters.watching import Found
    from clipnoise.audit.loops.claim import Claim
    from clipnoise.audit.loops.watched import WatchedData

Stepping = Callable[[], Optimizer | None]


def from_pytorch(
    train: Callable[..., Any], data: Any, **given: Any
) -> tuple[Claim, Callable[..., Any]]:
    """Return the claim of a loop in plain PyTorch, and the loop as it is judged.

    Args:
        train: (data) → the model, or whatever is published. One optimizer steps in it, with the
            noisy gradient in `grad`.
        data: the private examples.
        given: of `Claim`; the number of steps is found, and nothing else.

    Raises:
        UserError: no optimizer steps, or several; a value is wrong.
    """
    return claim_of(tried(train, watch, data), given), recording(train, watch, {})


@contextmanager
def watch(record: Record, found: Found, data: WatchedData) -> Iterator[None]:
    """Record the gradients of the optimizer that steps first."""
    first: list[Optimizer] = []

    def stepping() -> Optimizer | None:
        return first[0] if first else None

    def seen(optimizer: Optimizer) -> None:
        if not first:
            first.append(optimizer)
        if optimizer is not first[0]:
            raise UserError("train: several optimizers step; call record with what is released.")

    with releases(record, stepping, seen):
        yield


@contextmanager
def releases(
    record: Record, stepping: Stepping, seen: Callable[[Optimizer], None] = lambda _: None
) -> Iterator[None]:
    """Record the gradients with which one optimizer steps.

    Args:
        record: what is called with them, before each step.
        stepping: returns the optimizer; None while it is not known.
        seen: called with every optimizer that steps.
    """
    after: list[Tensor] = []

    def before_step(optimizer: Optimizer, words: tuple[Any, ...], named: dict[str, object]) -> None:
        seen(optimizer)
        if optimizer is not stepping():
            return
        if any(words[1:]) or any(named.values()):  # the first one is the optimizer
            raise UserError("train: step takes a closure, whose gradients are not seen before it.")
        parameters = parameters_of(optimizer)
        if after and not all(map(torch.equal, parameters, after)):
            raise UserError(
                "train: something beside the optimizer changes parameters between two steps; call "
                "record with all that is released."
            )
        record([each.grad for each in parameters if each.grad is not None])

    def after_step(optimizer: Optimizer, *_: Any) -> None:
        if optimizer is stepping():
            after[:] = [each.detach().clone() for each in parameters_of(optimizer)]

    hooks = [
        register_optimizer_step_pre_hook(before_step),
        register_optimizer_step_post_hook(after_step),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer, in order."""
    return [each for group in optimizer.param_groups for each in group["params"]]
