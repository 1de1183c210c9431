"""Loops with `clipnoise.private`: a training says what is claimed, and crosses its own boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clipnoise.audit.loops.adapters.watching import Record, claim_of, recording, replaced, tried
from clipnoise.errors import UserError

if TYPE_CHECKING:
    from clipnoise.audit.loops.adapters.watching import Found
    from clipnoise.audit.loops.claim import Claim
    from clipnoise.audit.loops.watched import WatchedData


def from_private(
    train: Callable[..., Any], data: Any, **given: Any
) -> tuple[Claim, Callable[..., Any]]:
    """Return the claim of a loop with `clipnoise.private`, and the loop as it is judged.

    Args:
        train: (data) → the model. It prepares one training; a seed that it is given and passes on
            lets the checks repeat its noise.
        data: the private examples.
        given: of `Claim`, in place of what is found.

    Raises:
        UserError: no training is prepared, or what it does cannot be claimed.
    """
    return claim_of(tried(train, watch, data), given), recording(train, watch, {})


@contextmanager
def watch(record: Record, found: Found, data: WatchedData) -> Iterator[None]:
    """Note what a training claims, and record what crosses its boundary."""
    from clipnoise.core.step import privatize
    from clipnoise.privacy.queries import ClippedMean
    from clipnoise.run.private import PrivateTraining

    def crossing(*parts: Any) -> Any:
        released = privatize(*parts)
        record(list(released))
        return released

    def noting(prepare: Any) -> Any:
        def noted(training: Any, trainer: Any, *more: Any) -> None:
            prepare(training, trainer, *more)
            mechanism, statement = trainer.procedure.mechanism, training.statement
            simple = type(mechanism.query) is ClippedMean and mechanism.microbatches.size == 1
            if not simple or mechanism.bands > 1 or statement.unit != "example":
                raise UserError(
                    "train: several releases in a step, correlated noise, micro-batches and users "
                    "cannot be claimed; `clipnoise judge` and `clipnoise audit` are for methods."
                )
            names = ("epsilon", "delta", "noise_multiplier", "clip_norm", "sampler")
            found.update({name: getattr(statement, name) for name in names})
            found["expected_batch_size"] = mechanism.expected_batch_size
            found["steps"] = training.steps
            data.take_reads()  # which were looked at for their shapes
            trainer.cross = crossing

        return noted

    with replaced(PrivateTraining, "__init__", noting):
        yield
