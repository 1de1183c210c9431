"""The deliberately broken variants by name, what is wrong with each, and what exposes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clipnoise.audit import mistakes
from clipnoise.audit.catalog import MISTAKES
from clipnoise.audit.contract import check_contract
from clipnoise.audit.empirical import audit
from clipnoise.audit.findings import ControlFinding, FalseClaim
from clipnoise.audit.subject import Subject, subject
from clipnoise.errors import unknown
from clipnoise.lazy import np
from clipnoise.privacy.accountants.fixed_size import shuffled_epsilon_at_least
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import epsilon

if TYPE_CHECKING:
    from pathlib import Path

    from clipnoise.privacy.noise import NoiseCorrelation

ATTACKED = (1, 3)  # steps: mistakes are not as subtle as methods are complicated


def shuffled_as_poisson() -> FalseClaim:
    """Claim the ε of Poisson sampling for one epoch of shuffled batches."""
    batches, sigma, delta = 1000, 0.5, 1e-6
    claimed = epsilon(
        "pld", noise_multiplier=sigma, sampling_rate=1 / batches, steps=batches, delta=delta
    )
    at_least = shuffled_epsilon_at_least(sigma, batches, delta)
    return FalseClaim(
        claimed,
        at_least,
        f"one epoch of {batches} batches, σ {sigma}, δ {delta:g}: Poisson sampling would cost "
        f"ε {claimed:.2f}, an attack on shuffled batches shows at least {at_least:.2f}",
    )


def delta_of_batches() -> FalseClaim:
    """Claim, beside results at δ = 1e-5, the ε of a run accounted at δ = 1/(number of batches)."""
    examples, size, epochs, sigma = 104_743, 256, 10, 0.4
    batches = examples // size
    rate, taken = size / examples, epochs * batches
    claimed = epsilon(
        "pld", noise_multiplier=sigma, sampling_rate=rate, steps=taken, delta=1 / batches
    )
    at_least = optimistic_epsilon(sigma, rate, taken, 1e-5)
    return FalseClaim(
        claimed,
        at_least,
        f"{epochs} epochs of {batches} batches, σ {sigma}: ε {claimed:.2f} at δ = 1/{batches}, at "
        f"least {at_least:.2f} at δ = 1e-5; δ is {examples / batches:.0f} times 1/n",
    )


def curvature_left_out() -> FalseClaim:
    """Claim of objective perturbation what its noise would cost on the sum at a public point.

    With the slope s and one example, b = −s(θ) − λθ falls with θ, so it says how likely |θ| ≤ r is
    with the example and without it.
    """
    from scipy.special import expit, ndtr

    sigma, delta, ridge = 1.0, 1e-5, 1e-4
    claimed = gaussian_epsilon(sigma, delta)
    r = np.geomspace(1e-2, 1e3, 200)
    without = 2 * ndtr(ridge * r / sigma) - 1
    inside = ndtr((ridge * r - expit(-r)) / sigma) - ndtr((-ridge * r - expit(r)) / sigma)
    at_least = float(np.log(np.maximum(inside - delta, 1e-300) / without).max())
    return FalseClaim(
        claimed,
        at_least,
        f"σ {sigma}, δ {delta:g}, λ = {ridge:g}C²: the noise on the sum alone would cost ε "
        f"{claimed:.2f}, the size of the minimum shows at least {at_least:.2f}",
    )


@lru_cache(maxsize=64)
def optimistic_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """Return an ε that Poisson-subsampled Gaussian releases cost at least, at δ.

    Source: Doroshenko et al. 2022, the optimistic estimate of a privacy loss distribution.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    single = from_gaussian_mechanism(
        noise_multiplier,
        pessimistic_estimate=False,
        sampling_prob=sampling_rate,
        use_connect_dots=False,
    )
    return float(single.self_compose(steps).get_epsilon_for_delta(delta))


@dataclass(frozen=True)
class Control:
    """A mistake that an audit must expose.

    Attributes:
        build: the broken variant; None where the mistake is in the claim alone.
        empirical: whether the empirical audit applies: the release itself is wrong, by enough.
        claim: the false claim and what contradicts it; None where the claim would be right if the
            code were.
    """

    build: Callable[[], Subject] | None = None
    empirical: bool = False
    claim: Callable[[], FalseClaim] | None = None


def _broken(
    method: str = "dp-sgd",
    *,
    empirical: bool = False,
    claim: Callable[[], FalseClaim] | None = None,
    options: Mapping[str, object] | None = None,
    **settings: Any,
) -> Control:
    """Return a control that is a method of the suite with another attribute of `Subject`."""
    return Control(lambda: subject(method, options, **settings), empirical, claim)


def _leak(method: type[mistakes.LeakySGD], *, empirical: bool = False, **options: Any) -> Control:
    return Control(lambda: Subject(method(**options)), empirical)


def _correlated(noise: NoiseCorrelation, *, empirical: bool = False) -> Control:
    return _broken(noise=noise, sampler="cyclic", empirical=empirical)


CONTROLS: Mapping[str, Control] = {
    "half-noise": _broken(cross=mistakes.crossing(constants=mistakes.half), empirical=True),
    "each-pass-clipped": _broken(
        "dp-pmlf-wo-lf", options={"history": 3}, sums=mistakes.clip_each_pass, empirical=True
    ),
    "each-view-clipped": _broken(sums=mistakes.clip_each_view, empirical=True),
    "difference-not-clipped": _broken("dpzero", sums=mistakes.leave_unclipped),
    "microbatch-at-c": _broken(sums=mistakes.clip_microbatches),
    "psac-above-its-bound": _broken(sums=mistakes.clip_by(mistakes.WithoutCrossTerm())),
    "each-layer-at-c": _broken(sums=mistakes.clip_by(mistakes.EachLayerToC(per="layer"))),
    "count-without-noise": _broken(
        "dp-sgd-quantile", cross=mistakes.crossing(normals=mistakes.only_the_first)
    ),
    "slots-too-wide": _broken("dp-sgd-slaclip", sums=mistakes.fill_wide_slots),
    "node-at-c": _broken(node_sensitivity=1.0),
    "realised-batch-size": _broken(sums=mistakes.divide_by_realised_size),
    "private-class-sizes": _broken("dp-prototypes", sums=mistakes.divide_by_class_sizes),
    "private-ridge": Control(lambda: Subject(mistakes.RidgeFromMean())),
    "private-preconditioner": _broken(sums=mistakes.scale_by_private_statistics),
    "scaled-after-clipping": _broken("adaclip", sums=mistakes.scale_after_clipping),
    "noise-on-active-alone": _broken(
        "tp-topk", sums=mistakes.leave_unmasked, cross=mistakes.noise_where_asked
    ),
    "shuffled-as-poisson": _broken(batches=mistakes.shuffled, claim=shuffled_as_poisson),
    "curvature-left-out": Control(claim=curvature_left_out),
    "delta-of-batches": Control(claim=delta_of_batches),
    "clean-mean-in-update": _leak(mistakes.CleanUpdate, empirical=True),
    "last-run-in-update": _leak(mistakes.UpdateFromLastRun),
    "clean-mean-in-model": _leak(mistakes.CleanModel),
    "batch-size-in-update": _leak(mistakes.UpdateByBatchSize),
    "scale-from-private-mean": _leak(mistakes.ScaleFromMean),
    "point-from-private-mean": _leak(mistakes.PointFromMean),
    "clip-norm-from-private-mean": _leak(mistakes.ClipNormFromMean),
    "half-sensitivity": _leak(mistakes.LeakySGD, query=mistakes.HalfTheSensitivity()),
    "tenth-noise-for-some-batches": _leak(mistakes.LeakySGD, query=mistakes.TenthForSomeBatches()),
    "release-over-its-norm": _leak(mistakes.LeakySGD, query=mistakes.DividesByNorm()),
    "noise-left-out": _broken(cross=mistakes.crossing(constants=mistakes.quiet)),
    "noise-reused": _broken(cross=mistakes.crossing(normals=mistakes.reused)),
    "noise-one-sided": _broken(cross=mistakes.crossing(normals=mistakes.one_sided)),
    "noise-cut-off": _broken(noise=mistakes.CutOff()),
    "correlated-noise-unscaled": _correlated(mistakes.Unscaled(cancelled=0.99), empirical=True),
    "one-participation-for-all": _correlated(mistakes.ScaledForOne(cancelled=0.9)),
    "denominator-from-n": _broken(cross=mistakes.crossing(constants=mistakes.share_of_n)),
    "denominator-from-n-rounded-down": _broken(
        cross=mistakes.crossing(constants=mistakes.floored_share_of_n)
    ),
    "statistics-of-the-batch": _broken(sums=mistakes.centre_on_the_batch),
    "network-keeps-examples": _broken(sums=mistakes.recall_the_last_batch),
    "dropout-by-position": _broken(sums=mistakes.mask_by_position),
    "nothing-trained": _leak(mistakes.TrainsNothing),
}


def check_control(name: str, cache: Path) -> ControlFinding:
    """Put every check that applies to a broken variant.

    Args:
        name: of the control.
        cache: the folder of prepared datasets.

    Raises:
        UserError: there is no such control.
    """
    if name not in CONTROLS:
        raise unknown("control", name, list(CONTROLS), key="control")
    control, result = CONTROLS[name], ControlFinding(control=name, mistake=MISTAKES[name])
    if control.build is not None:
        broken = control.build()
        result.contract = check_contract(broken, cache, attacked=ATTACKED)
        if result.contract.verdict == "broken":
            by = f"contract check ({', '.join(result.contract.broken_checks)})"
            result.refuted_by.append(by)
            result.said += result.contract.broken
        if control.empirical:
            result.empirical = found = audit(broken, cache)
            if found.verdict == "refuted":
                result.refuted_by.append("empirical audit")
            bound, final = found.bound.epsilon, found.final_bound.epsilon
            seen = "the final parameters show" if final > bound else "releases show"
            shown, claimed = max(bound, final), found.claimed_epsilon
            result.said.append(f"{seen} an ε of {shown:.2f}, claimed is {claimed:.2f}")
    if control.claim is not None:
        result.claim = control.claim()
        result.said.append(result.claim.said)
        result.refuted_by += ["re-accounting"] if result.claim.refuted else []
    result.refuted = bool(result.refuted_by)
    return result
