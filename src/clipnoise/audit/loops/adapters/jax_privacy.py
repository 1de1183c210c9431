"""Loops with JAX Privacy: what clips, draws batches and adds noise says what is claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clipnoise.audit.loops.adapters.watching import Record, claim_of, recording, replaced, tried
from clipnoise.errors import UserError, reason

if TYPE_CHECKING:
    from clipnoise.audit.loops.adapters.watching import Found
    from clipnoise.audit.loops.claim import Claim
    from clipnoise.audit.loops.watched import WatchedData


def from_jax_privacy(
    train: Callable[..., Any], data: Any, **given: Any
) -> tuple[Claim, Callable[..., Any]]:
    """Return the claim of a loop with JAX Privacy 2, and the loop as it is judged.

    C is that of `clipped_grad`, σ that of `gaussian_privatizer` relative to it, B and the sampler
    those of `CyclicPoissonSampling` with one cycle. The loop runs without compilation.

    Args:
        train: (data) → the parameters, a tree of arrays. It makes its clipped gradient and its
            privatizer itself; keys and generators must differ from run to run, so that they follow
            from the argument seed or NumPy's global generator.
        data: the private examples.
        given: of `Claim`, in place of what is found; ε and δ among them.

    Raises:
        UserError: JAX Privacy is not installed, or what the loop does cannot be claimed.
    """
    _imported()

    @wraps(train)
    def with_tensors(*words: Any, **named: Any) -> Any:
        return _as_tensors(train(*words, **named))

    found = tried(with_tensors, watch, data)
    deviation, bound = found.pop("stddev"), found.pop("l2_norm_bound", None)
    if bound is not None:
        found["noise_multiplier"] = deviation / bound
    if "sampler" not in {**found, **given}:
        raise UserError("sampler: how batches are drawn is not known; give sampler=….")
    return claim_of(found, given), recording(with_tensors, watch, {})


def _imported() -> Any:
    try:
        import jax_privacy
    except ImportError as error:
        raise UserError(f"jax-privacy: {reason(error)}. Run: pip install jax-privacy") from None
    return jax_privacy


@contextmanager
def watch(record: Record, found: Found, data: WatchedData) -> Iterator[None]:
    """Note what clips, draws and adds noise, and record what a privatizer returns."""
    import jax
    from jax_privacy import batch_selection, clipping, noise_addition

    plain = noise_addition.gaussian_privatizer.args[0]  # independent noise
    privatizer = "_streaming_matrix_factorization_privatizer"  # whatever name calls it

    def adding(make: Any) -> Any:
        def made(matrix: Any, **named: Any) -> Any:
            if matrix is not plain:
                raise UserError("train: noise that is correlated across steps cannot be claimed.")
            if "stddev" in found:
                raise UserError("train: makes two privatizers; a claim is of one mechanism.")
            found["stddev"] = float(named["stddev"])
            transformation = make(matrix, **named)

            def update(values: Any, *more: Any) -> Any:
                released, state = transformation.update(values, *more)
                record([np.array(leaf) for leaf in jax.tree.leaves(released)])
                return released, state

            return transformation._replace(update=update)

        return made

    def bounding(make: Any) -> Any:
        def made(*words: Any, **named: Any) -> Any:
            clipped = make(*words, **named)
            unit = named.get("rescale_to_unit_norm", False)
            found["clip_norm"] = 1.0 if unit else float(named["l2_clip_norm"])
            found["l2_norm_bound"] = float(clipped.l2_norm_bound)
            return clipped

        return made

    def drawing(iterate: Any) -> Any:
        def drawn(strategy: Any, examples: int, *more: Any, **named: Any) -> Any:
            if strategy.cycle_length == 1 and strategy.truncated_batch_size is None:
                size = strategy.sampling_prob * examples
                found.update(sampler="poisson", expected_batch_size=size)
                found["steps"] = strategy.iterations
            return iterate(strategy, examples, *more, **named)

        return drawn

    with (
        replaced(noise_addition, privatizer, adding),
        replaced(clipping, "clipped_fun", bounding),
        replaced(batch_selection.CyclicPoissonSampling, "batch_iterator", drawing),
        jax.disable_jit(),  # inside compiled code a release has no numbers
    ):
        yield


def _as_tensors(published: Any) -> Any:
    """Return a tree of arrays as tensors by name; anything else as it is."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(published)
    if callable(published) or not all(isinstance(leaf, jax.Array) for _, leaf in leaves):
        return published
    return {jax.tree_util.keystr(path): torch.tensor(np.array(leaf)) for path, leaf in leaves}
