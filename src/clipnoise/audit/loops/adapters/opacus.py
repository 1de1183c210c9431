"""Loops with Opacus: a PrivacyEngine says what is claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from clipnoise.audit.loops.adapters.pytorch import releases
from clipnoise.audit.loops.adapters.watching import Record, claim_of, recording, replaced, tried
from clipnoise.errors import UserError

if TYPE_CHECKING:
    from clipnoise.audit.loops.adapters.watching import Found
    from clipnoise.audit.loops.claim import Claim
    from clipnoise.audit.loops.watched import WatchedData


def from_opacus(
    train: Callable[..., Any], data: Any, **given: Any
) -> tuple[Claim, Callable[..., Any]]:
    """Return the claim of a loop with Opacus, and the loop as it is judged.

    σ, C, B and the sampler are those of `make_private`, ε and δ those of
    `make_private_with_epsilon`; without it, ε is that of the engine's accountant at a given δ.

    Args:
        train: (data) → the model. It makes one PrivacyEngine, and trains with its optimizer.
        data: the private examples.
        given: of `Claim`, in place of what is found.

    Raises:
        UserError: there is no PrivacyEngine, or what it does cannot be claimed.
    """
    watched = partial(watch, {})
    found = tried(train, watched, data)
    engine = found.pop("engine")
    if "sampler" not in {**found, **given}:
        raise UserError("sampler: how the data loader draws is not known; give sampler=….")
    if "epsilon" not in {**found, **given} and "delta" in given:
        delta = given.pop("delta")
        # An accountant of several σ or q says nothing about a claim that has one of each.
        if len(engine.accountant.history) == 1:
            found |= {"epsilon": engine.get_epsilon(delta), "delta": delta}
    return claim_of(found, given), recording(train, watched, {})


@contextmanager
def watch(
    calibrated: dict[Any, float], record: Record, found: Found, data: WatchedData
) -> Iterator[None]:
    """Note what is asked of an engine, and record the gradients with which its optimizer steps.

    Args:
        calibrated: σ by what it was computed from: each run asks for the same again.
        record, found, data: as of every `Watch`.
    """
    from opacus import PrivacyEngine, privacy_engine

    private: list[Any] = []

    def noting(make_private: Any) -> Any:
        @wraps(make_private)
        def noted(engine: Any, **named: Any) -> Any:
            if private:
                raise UserError("train: calls make_private twice; a claim is of one mechanism.")
            if named.get("clipping", "flat") == "adaptive":
                raise UserError("train: a clip norm that adapts cannot be claimed.")
            made = make_private(engine, **named)
            private.append(made[1])
            found.update(engine=engine, **_asked(made[1], made[-1]))
            return made

        return noted

    def budgeted(make_private: Any) -> Any:
        @wraps(make_private)
        def noted(engine: Any, **named: Any) -> Any:
            made = make_private(engine, **named)
            steps = round(named["epochs"] * len(made[-1]))
            wanted = {"epsilon": named["target_epsilon"], "delta": named["target_delta"]}
            found.update(steps=steps, **wanted)
            return made

        return noted

    def calibrating(compute: Any) -> Any:
        def sigma(**named: Any) -> float:
            key = tuple(sorted(named.items()))
            if key not in calibrated:
                calibrated[key] = compute(**named)
            return calibrated[key]

        return sigma

    with (
        replaced(privacy_engine, "get_noise_multiplier", calibrating),
        replaced(PrivacyEngine, "make_private", noting),
        replaced(PrivacyEngine, "make_private_with_epsilon", budgeted),
        releases(record, lambda: private[0].original_optimizer if private else None),
    ):
        yield


def _asked(optimizer: Any, loader: Any) -> Found:
    """Return σ, C, B as the accountant takes it, and the sampler if it is a known one."""
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    from torch.utils.data import RandomSampler, SequentialSampler

    claimed = {
        "noise_multiplier": optimizer.noise_multiplier,
        "clip_norm": optimizer.max_grad_norm,
        "expected_batch_size": len(loader.dataset) / len(loader),
    }
    sampler = getattr(loader, "sampler", None)
    if isinstance(getattr(loader, "batch_sampler", None), UniformWithReplacementSampler):
        return {**claimed, "sampler": "poisson"}
    if isinstance(sampler, SequentialSampler):
        return {**claimed, "sampler": "cyclic"}
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        return {**claimed, "sampler": "shuffled"}
    return claimed
