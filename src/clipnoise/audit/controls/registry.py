"""The deliberately broken variants by name, and what must expose each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clipnoise.audit.contract import EXPECTED_BATCH_SIZE
from clipnoise.audit.controls import forms, leaks, noise
from clipnoise.audit.controls.claims import Claim, delta_of_batches, shuffled_as_poisson
from clipnoise.audit.subject import Subject, subject

if TYPE_CHECKING:
    from clipnoise.audit.subject import Form
    from clipnoise.privacy.queries import ClippedMean


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
    claim: Callable[[], Claim] | None = None


def _formed(method: str, form: Form, **options: float) -> Callable[[], Subject]:
    return lambda: subject(method, options, form=form)


def _leak(method: type[leaks.LeakySGD]) -> Control:
    return Control(build=lambda: Subject(method()))


def _queried(query: type[ClippedMean]) -> Control:
    return Control(build=lambda: Subject(leaks.LeakySGD(query=query())))


def _crossed(**changes: Any) -> Control:
    return Control(build=lambda: subject("dp-sgd", cross=noise.crossing(**changes)))


CONTROLS: Mapping[str, Control] = {
    "half-noise": Control(
        build=lambda: subject("dp-sgd", cross=noise.crossing(constants=noise.half)),
        empirical=True,
    ),
    "each-pass-clipped": Control(
        build=_formed("dp-pmlf-wo-lf", forms.clip_each_pass, history=3),
        empirical=True,
    ),
    "each-view-clipped": Control(
        build=_formed("dp-sgd", forms.clip_each_view),
        empirical=True,
    ),
    "difference-not-clipped": Control(
        build=_formed("dpzero", forms.leave_unclipped),
    ),
    "microbatch-at-c": Control(
        build=_formed("dp-sgd", forms.clip_microbatches),
    ),
    "psac-above-its-bound": Control(
        build=_formed("dp-sgd", forms.clip_by(forms.WithoutCrossTerm())),
    ),
    "each-layer-at-c": Control(
        build=_formed("dp-sgd", forms.clip_by(forms.EachLayerToC(per="layer"))),
    ),
    "count-without-noise": Control(
        build=lambda: subject(
            "dp-sgd-quantile", cross=noise.crossing(normals=noise.only_the_first)
        ),
    ),
    "node-at-c": Control(
        build=lambda: subject("dp-sgd", node_sensitivity=lambda degree: 1.0),
    ),
    "realised-batch-size": Control(
        build=_formed("dp-sgd", forms.divide_by_realised_size(EXPECTED_BATCH_SIZE)),
    ),
    "private-preconditioner": Control(
        build=_formed("dp-sgd", forms.scale_by_private_statistics),
    ),
    "scaled-after-clipping": Control(
        build=_formed("adaclip", forms.scale_after_clipping),
    ),
    "shuffled-as-poisson": Control(
        build=lambda: subject("dp-sgd", batches="shuffled"),
        claim=shuffled_as_poisson,
    ),
    "delta-of-batches": Control(
        claim=delta_of_batches,
    ),
    "clean-mean-in-update": Control(
        build=lambda: Subject(leaks.CleanUpdate()),
        empirical=True,
    ),
    "last-run-in-update": _leak(leaks.UpdateFromLastRun),
    "clean-mean-in-model": _leak(leaks.CleanModel),
    "batch-size-in-update": _leak(leaks.UpdateByBatchSize),
    "scale-from-private-mean": _leak(leaks.ScaleFromMean),
    "point-from-private-mean": _leak(leaks.PointFromMean),
    "clip-norm-from-private-mean": _leak(leaks.ClipNormFromMean),
    "half-sensitivity": _queried(leaks.HalfTheSensitivity),
    "tenth-noise-for-some-batches": _queried(leaks.TenthForSomeBatches),
    "release-over-its-norm": _queried(leaks.DividesByNorm),
    "noise-left-out": _crossed(constants=noise.quiet),
    "noise-reused": _crossed(normals=noise.reused),
    "noise-one-sided": _crossed(normals=noise.one_sided),
    "correlated-noise-unscaled": Control(
        build=lambda: subject(
            "dp-sgd", noise=noise.Unscaled(kind="lambda-cgd", cancelled=0.99), sampler="cyclic"
        ),
        empirical=True,
    ),
    "one-participation-for-all": Control(
        build=lambda: subject(
            "dp-sgd", noise=noise.ScaledForOne(kind="lambda-cgd", cancelled=0.9), sampler="cyclic"
        ),
    ),
    "denominator-from-n": _crossed(constants=noise.share_of_n),
    "denominator-from-n-rounded-down": _crossed(constants=noise.floored_share_of_n),
    "dropout-by-position": Control(
        build=_formed("dp-sgd", forms.mask_by_position),
    ),
    "nothing-trained": _leak(leaks.TrainsNothing),
}
