"""What a run may claim about privacy, and the statement of it in its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self, cast, get_type_hints

from clipnoise.core.query import Adjacency
from clipnoise.fields import to_plain, unhashed_at
from clipnoise.privacy.accountants import ACCOUNTANTS, AccountantName
from clipnoise.privacy.budget import Privacy, Release
from clipnoise.privacy.calibration import Calibration
from clipnoise.privacy.draws import REACH
from clipnoise.privacy.mechanism import ADDITIVE, Mechanism
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.profile import PrivacyProfile
from clipnoise.privacy.samplers import SamplerName
from clipnoise.privacy.trials import DrawnTrials

Claim = Literal["guarantee", "nominal", "non-private"]

NEIGHBOURS: dict[Adjacency, str] = {
    "add-remove": "one example is added or removed",
    "add-remove-user": "one user is added or removed, with all their examples",
    "add-remove-node": "one node of the graph is added or removed, with its out-edges",
    "replace": "one example is replaced by another one",
    "zero-out": "one example (or user) is replaced by nothing, its place staying empty, so that "
    "the batches or splits of all others stay as they are",
}
NOT_COVERED: dict[Release, str] = {
    "full": "Not covered: losses and accuracies on private training examples and on validation "
    "examples; speed, time and memory, which depend on how many examples were drawn; digests of "
    "the data; whether a loss that was not finite stopped the run.",
    "strict": "Not covered: how long the run took, which anyone who watches it can see. No metric "
    "on training or validation examples, realised batch size or digest of the data was written.",
}

SEARCH = (
    "With its search, whose number of trials was drawn ({law}), ε is {epsilon:.4g} for whoever "
    "sees this run and what was chosen for it, and neither the number of trials, nor the other "
    "trials, nor their scores, nor the seed of the search."
)


def covered_by_epsilon(adjacency: Adjacency, unit: str, class_weights: Sequence[float] = ()) -> str:
    """Return what a guarantee covers, what is public and how far noise reaches, in sentences."""
    weights = ", ".join(f"{weight:g}" for weight in class_weights)
    given = f" The weights of the classes, {weights}, are public: they were given in advance."
    return (
        f"Covered: the model's parameters after every step, where {NEIGHBOURS[adjacency]}. n, the "
        f"number of private {unit}s, is public, and so are q, T and δ that follow from it, and "
        f"which rows of the data are private.{given if weights else ''} Noise reaches "
        f"{REACH:g} standard deviations, so that "
        "its tail is not cut off where it matters for δ."
    )


def claim(mechanism: Mechanism, *, private: bool = True, covered: bool = True) -> Claim:
    """Return what may be claimed about the ε of a mechanism.

    Args:
        mechanism: its batches are those that were really drawn.
        private: whether anything is protected at all.
        covered: whether the noise is scaled to what one unit can really change.

    Returns:
        "guarantee" if the accountant's analysis covers the sampler and the noise covers the
        sensitivity, "nominal" if not, "non-private" if nothing is protected.
    """
    if not private:
        return "non-private"
    return "guarantee" if covered and mechanism.proved else "nominal"


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """What a run claims about privacy, with every number that the claim rests on.

    It is the section `privacy` of summary.json. For a non-private run everything but the claim is
    None.

    Attributes:
        claim: what may be said about ε.
        epsilon: ε spent; None if nothing is protected.
        epsilon_target: ε asked for; None if σ was given.
        delta, noise_multiplier, accountant, sampler, microbatch_size, noise, release: δ, σ and
            the others as in `Privacy`.
        adjacency: the relation between neighbouring datasets.
        unit: what is protected: "example", "user" or "node".
        sensitivity: the furthest that one unit moves the released gradient in any step, before
            noise.
        caveat: why the claim is only nominal, if the reason is not the sampler.
        clip_norm: C; the largest of all steps if it changes, None if releases decide it.
        sampling_rate: q = B/n.
        randomness: "secure" if noise and batches came from a cryptographic source, else "seeded".
        groups, steps: as in `Participation`.
        examples: n, the number of private units.
        profile: what any attack can reach; None where it was not asked for. It is as nominal as ε.
        epsilon_with_tuning: ε with the search that chose the hyper-parameters, if the number of its
            trials was drawn; it covers the choice and this run, and not the rest of the search.
        covers, does_not_cover: for a guarantee, what it covers and what is public, and what it
            does not cover, in sentences.
    """

    claim: Claim
    epsilon: float | None = None
    epsilon_target: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    accountant: AccountantName | None = None
    sampler: SamplerName | None = None
    adjacency: Adjacency | None = None
    unit: str | None = None
    sensitivity: float | None = None
    microbatch_size: int | None = None
    caveat: str | None = None
    clip_norm: float | None = None
    sampling_rate: float | None = None
    noise: NoiseCorrelation | None = None
    randomness: Literal["secure", "seeded"] | None = None
    groups: int | None = None
    steps: int | None = None
    examples: int | None = None
    release: Release | None = None
    epsilon_with_tuning: Annotated[float | None, unhashed_at(None)] = None
    covers: str | None = None
    does_not_cover: str | None = None
    profile: PrivacyProfile | None = None

    def with_profile(self, calibration: Calibration | None) -> Self:
        """Return the statement with the profile of a calibrated mechanism, which takes a second."""
        if calibration is None or self.epsilon is None:
            return self
        return replace(self, profile=calibration.profile)


_LONG = ("noise", "covers", "does_not_cover", "profile", "epsilon_with_tuning")  # not in tables
_TYPES = get_type_hints(PrivacyStatement)
_SHORT = tuple(name for name in _TYPES if name not in _LONG)
STATEMENT_NUMBERS = tuple(name for name in _SHORT if _TYPES[name] in (float | None, int | None))
STATEMENT_WORDS = tuple(name for name in _SHORT if name not in STATEMENT_NUMBERS)


def composable(privacy: Mapping[str, Any]) -> bool:
    """Return whether a run's releases are plain Poisson-subsampled Gaussians.

    Those of a graph are not, because a node also changes the gradients of its neighbours.
    """
    noise = privacy.get("noise") or {"kind": "independent"}
    plain = privacy["sampler"] == "poisson" and noise["kind"] == "independent"
    return bool(plain and privacy["adjacency"] in ADDITIVE)


def with_search(statement: PrivacyStatement, law: DrawnTrials) -> PrivacyStatement:
    """Add to the statement of a run what it costs with the search that chose for it.

    Every trial had the noise of the run, and a seed of its own; a run follows the best of them.

    Args:
        statement: of the run.
        law: that of the number of trials.
    """
    from clipnoise.privacy.accountants.selection import selected_epsilon

    sigma, rate, steps = statement.noise_multiplier, statement.sampling_rate, statement.steps
    delta, numbers = statement.delta, (sigma, rate, steps)
    if statement.epsilon is None or delta is None or not composable(to_plain(statement)):
        return statement
    releases = cast("tuple[float, float, int]", numbers)
    epsilon = selected_epsilon(law, releases, then=releases, delta=delta)
    covers = None if statement.covers is None else f"{statement.covers} {SEARCH}"
    stated = None if covers is None else covers.format(law=law, epsilon=epsilon)
    return replace(statement, epsilon_with_tuning=epsilon, covers=stated)


def state(
    mechanism: Mechanism,
    privacy: Privacy,
    calibration: Calibration,
    *,
    private: bool,
    clip_norm: float | None,
    caveat: str | None = None,
    class_weights: Sequence[float] = (),
) -> PrivacyStatement:
    """Return what is claimed about the privacy of a mechanism.

    Args:
        mechanism: what releases.
        privacy: what was asked for.
        calibration: its σ, and the ε that it costs.
        private: whether what is released protects anything.
        clip_norm: the largest C of all steps; None where it is not known before.
        caveat: why no ε on these data is a guarantee, or None.
        class_weights: by which losses are multiplied; public numbers.
    """
    microbatches, unit, takes_part = mechanism.microbatches, mechanism.unit, mechanism.participation
    caveats = (caveat, microbatches.caveat(mechanism.query))
    caveat = "; ".join(reason for reason in caveats if reason) or None
    claimed = claim(mechanism, private=private, covered=caveat is None)
    guaranteed = claimed == "guarantee"
    covers = covered_by_epsilon(mechanism.adjacency, unit.name, class_weights)
    remark = ACCOUNTANTS[mechanism.accountant].remark
    sensitivity = None
    if clip_norm is not None:
        declared = mechanism.query.components(clip_norm, mechanism.denominator)[0].sensitivity
        sensitivity = mechanism.sensitivity_factor * declared
    return PrivacyStatement(
        claim=claimed,
        epsilon=None if claimed == "non-private" else calibration.epsilon,
        epsilon_target=privacy.epsilon,
        delta=calibration.budget.delta,
        noise_multiplier=calibration.noise_multiplier,
        accountant=mechanism.accountant,
        sampler=mechanism.sampler,
        adjacency=mechanism.adjacency,
        unit=unit.name,
        sensitivity=sensitivity,
        microbatch_size=microbatches.size,
        caveat=caveat,
        clip_norm=clip_norm,
        sampling_rate=mechanism.sampling_rate,
        noise=mechanism.noise,
        randomness="secure" if privacy.secure_noise else "seeded",
        groups=takes_part.groups,
        steps=mechanism.steps,
        examples=unit.count,
        release=privacy.release,
        covers=f"{covers} {remark}".strip() if guaranteed else None,
        does_not_cover=NOT_COVERED[privacy.release] if guaranteed else None,
    )
