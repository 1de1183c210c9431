"""What there is to audit, by name. Imports nothing heavy: the workflow asks here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clipnoise.methods.base import example, methods
from clipnoise.run.fingerprint import fingerprint_of

# Deliberate mistakes: each must be exposed by some check.
MISTAKES: Mapping[str, str] = {
    "half-noise": "Noise at σ/2, accounted at σ.",
    "each-pass-clipped": (
        "Each of the k passes is clipped by itself, and the sum gets the noise of one."
    ),
    "each-view-clipped": (
        "The gradient of each of K views of an example is clipped by itself, and the K are added."
    ),
    "difference-not-clipped": "Differences of losses are added as they are, with noise for C.",
    "microbatch-at-c": (
        "Means of micro-batches are clipped to C and accounted at C; one example can move one 2C."
    ),
    "psac-above-its-bound": (
        "A term is missing below the weight of PSAC, so that some vectors end up longer than C."
    ),
    "each-layer-at-c": "Each layer is clipped to C, so that L layers have a norm of √L·C.",
    "count-without-noise": "The count behind an adaptive clip norm is released without noise.",
    "slots-too-wide": "The slots of SlaClip are C wide, √K times as wide as they may be.",
    "node-at-c": (
        "Noise for nodes of a graph is scaled to C; with its messages one can move 2(K+1)C."
    ),
    "realised-batch-size": "The sum is divided by the size of the batch that was drawn.",
    "private-class-sizes": "The sum of each class is divided by its size, which is private.",
    "private-ridge": (
        "The λ of a least squares solution follows from an eigenvalue of the matrix without noise."
    ),
    "curvature-left-out": (
        "A perturbed objective has next to no λ, and its minimum is accounted as its noise."
    ),
    "delta-of-batches": (
        "δ is 1/(number of batches), far above 1/n, and ε is quoted beside those of a small δ."
    ),
    "private-preconditioner": "The preconditioner is computed from the private examples.",
    "scaled-after-clipping": "Gradients are clipped first and scaled then, with noise for C.",
    "noise-on-active-alone": (
        "Noise goes to the active coordinates alone, but the gradients were not masked."
    ),
    "shuffled-as-poisson": "Batches are shuffled, but the accountant assumes Poisson sampling.",
    "clean-mean-in-update": "The query keeps the clean mean, and the update uses it.",
    "clean-mean-in-model": (
        "The query keeps the clean mean, and the model that is published is one step along it "
        "further."
    ),
    "last-run-in-update": "The query keeps the clean mean, and the next run's update uses it.",
    "batch-size-in-update": "The update reads the size of the drawn batch from calling frames.",
    "scale-from-private-mean": "The scale is computed from the clean mean of the last step.",
    "point-from-private-mean": "Gradients are taken at a point that the last clean mean decides.",
    "clip-norm-from-private-mean": "The clip norm is computed from the last clean mean.",
    "half-sensitivity": "The query declares half of its sensitivity.",
    "tenth-noise-for-some-batches": "Where 8 < B < 600, there is a tenth of the noise.",
    "release-over-its-norm": "The released mean is divided by its own norm.",
    "noise-left-out": "No noise is added after step 12.",
    "noise-reused": "The noise of the first step is added at every step.",
    "noise-one-sided": "The noise is never negative.",
    "noise-cut-off": "No noise is beyond 5.77 standard deviations.",
    "correlated-noise-unscaled": (
        "Noise is z_t − 0.99z_{t−1} at σ: that the columns of C are longer than 1 is left out."
    ),
    "one-participation-for-all": (
        "Correlated noise is scaled for examples that take part once; they take part again."
    ),
    "denominator-from-n": "Sum and noise are divided by qn, n being private (Opacus issue 571).",
    "denominator-from-n-rounded-down": (
        "Sum and noise are divided by ⌊qn⌋, n being private (Opacus issue 819)."
    ),
    "statistics-of-the-batch": "The network subtracts the mean of its batch from each example.",
    "network-keeps-examples": (
        "The network keeps the mean of its last batch, and subtracts it from the next one."
    ),
    "dropout-by-position": "Dropout masks depend on the place of an example in its batch.",
    "nothing-trained": "No step changes a parameter (Opacus issue 820).",
}


def audited_methods() -> list[str]:
    """Return every method: each gets a contract check."""
    return list(methods())


def claiming_methods(among: Collection[str] | None = None) -> list[str]:
    """Return the methods that claim an ε: each gets an empirical audit too.

    Args:
        among: those to choose from, by id; None for every method.
    """
    chosen = {name: kind for name, kind in methods().items() if among is None or name in among}
    return [name for name, kind in chosen.items() if example(kind).private]


def fingerprint(check: str, method: str | None = None) -> str:
    """Return the fingerprint of the code that a check runs and of the method that it attacks.

    Args:
        check: a module of this package, e.g. "contract".
        method: a method id, or None for a check of a control.
    """
    attacked = [] if method is None else [methods()[method].__module__]
    return fingerprint_of([f"clipnoise.audit.{check}", *attacked])


def datasets(method: str) -> list[str]:
    """Return the datasets that the audits of a method read."""
    federated = example(methods()[method]).query.adjacency == "add-remove-user"
    return ["digits", "digits-users"] if federated else ["digits"]
