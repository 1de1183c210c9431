"""Loops with JAX Privacy: what clips, draws batches and adds noise says what is claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clipnoise.audit.loops.adapters.watching import Record, claim_of, recording, replaced, tried
from clipnoise.errors import UserError, reason

if TYPE_CHECKING:
    from clipnoise.audit.loops.adapters.watching import Found
    from clipnoise.audit.loops.claim import Claim
    from clipnoise.audit.loops.watched import WatchedData

LAGS = 16  # steps across which noise is looked at for correlation


def from_jax_privacy(
    train: Callable[..., Any], data: Any, **given: Any
) -> tuple[Claim, Callable[..., Any]]:
    """Return the claim of a loop with JAX Privacy 2, and the loop as it is judged.

    C is that of `clipped_grad`, σ the `stddev` of the privatizer relative to the bound of
    `clipped_grad`, B and the sampler those of `CyclicPoissonSampling` with one cycle.

    Args:
        train: (data) → the parameters, a tree of arrays. It makes its clipped gradient and its
            privatizer itself; keys and generators must differ from run to run, so that they follow
            from the argument seed or NumPy's global generator.
        data: the private examples.
        given: of `Claim`, in place of what is found; ε and δ among them.

    Raises:
        UserError: JAX Privacy is not installed, or what the loop does cannot be claimed.
    """
    try:
        import jax_privacy  # noqa: F401
    except ImportError as error:
        raise UserError(f"jax-privacy: {reason(error)}. Run: pip install jax-privacy") from None

    @wraps(train)
    def with_tensors(*words: Any, **named: Any) -> Any:
        return _as_tensors(train(*words, **named))

    watched = partial(watch, [])
    found = tried(with_tensors, watched, data)
    deviation, bound = found.pop("stddev"), found.pop("bound", None)
    if bound is not None:
        found["noise_multiplier"] = deviation / bound
    if "sampler" not in {**found, **given}:
        raise UserError("sampler: how batches are drawn is not known; give sampler=….")
    return claim_of(found, given), recording(with_tensors, watched, {})


@contextmanager
def watch(waiting: list[Any], record: Record, found: Found, data: WatchedData) -> Iterator[None]:
    """Note what clips, draws and adds noise, and record what a privatizer returns.

    Compiled code hands over releases while the loop goes on: they are recorded, in order, before
    anything else is read.

    Args:
        waiting: releases that are not recorded yet, in all runs: compiled code may be of an
            earlier one.
        record, found, data: as of every `Watch`.
    """
    import jax
    from jax_privacy import batch_selection, clipping, noise_addition

    privatizers: list[float] = []
    waiting.clear()

    def settle() -> None:
        jax.effects_barrier()
        while waiting:
            record([np.array(leaf, np.float64) for leaf in waiting.pop(0)])

    def adding(make: Any) -> Any:
        def made(matrix: Any, **named: Any) -> Any:
            if not _independent(matrix):
                raise UserError("train: noise that is correlated across steps cannot be claimed.")
            privatizers.append(float(named["stddev"]))
            if len(privatizers) > 1:
                raise UserError("train: makes two privatizers; a claim is of one mechanism.")
            found["stddev"] = privatizers[0]
            transformation = make(matrix, **named)

            def update(values: Any, *more: Any, **others: Any) -> Any:
                released, state = transformation.update(values, *more, **others)
                jax.debug.callback(waiting.append, jax.tree.leaves(released), ordered=True)
                return released, state

            return transformation._replace(update=update)

        return made

    def bounding(make: Any) -> Any:
        def made(*words: Any, **named: Any) -> Any:
            clipped = make(*words, **named)
            unit, norm = named.get("rescale_to_unit_norm", False), named.get("l2_clip_norm", 1.0)
            bounds = {"clip_norm": 1.0 if unit else float(norm), "bound": clipped.l2_norm_bound}
            if any(found.get(name, value) != value for name, value in bounds.items()):
                raise UserError("train: clips to two norms; a claim is of one mechanism.")
            found.update(bounds)
            return clipped

        return made

    def drawing(iterate: Any) -> Any:
        def drawn(strategy: Any, examples: int, *more: Any, **named: Any) -> Iterator[Any]:
            if strategy.cycle_length == 1 and strategy.truncated_batch_size is None:
                size = strategy.sampling_prob * examples
                found.update(sampler="poisson", expected_batch_size=size)
                found["steps"] = strategy.iterations
            for places in iterate(strategy, examples, *more, **named):
                settle()
                yield places

        return drawn

    data.before_read = settle
    with (
        replaced(noise_addition, "_dense_matrix_factorization_privatizer", adding),
        replaced(noise_addition, "_streaming_matrix_factorization_privatizer", adding),
        replaced(clipping, "clipped_fun", bounding),
        replaced(batch_selection.CyclicPoissonSampling, "batch_iterator", drawing),
    ):
        yield
        settle()


def _independent(matrix: Any) -> bool:
    """Return whether a noising matrix is the identity: noise of one step is in that step alone."""
    dense = np.asarray(matrix.materialize(LAGS) if hasattr(matrix, "materialize") else matrix)
    return np.array_equal(dense, np.eye(len(dense)))


def _as_tensors(published: Any) -> Any:
    """Return a tree of arrays as tensors by name; anything else as it is."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(published)
    if callable(published) or not all(isinstance(leaf, jax.Array) for _, leaf in leaves):
        return published
    return {jax.tree_util.keystr(path): torch.tensor(np.array(leaf)) for path, leaf in leaves}
