"""Checks of whole runs: that steps, batches and samplers do not depend on the data."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from clipnoise.audit.constants import Finding
from clipnoise.audit.sensitivity import EXCESS
from clipnoise.audit.subject import Recorder
from clipnoise.data.base import DenseExamples
from clipnoise.data.digits import Digits, DigitsUsers
from clipnoise.data.side_information import PublicGradients
from clipnoise.methods.base import WithSideInformation
from clipnoise.models.dense import Logistic
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.samplers.fixed_size import ShuffledSampler
from clipnoise.run.setup import sampler
from clipnoise.run.spec import RunSpec, Training
from clipnoise.run.train import Run
from clipnoise.seeds import generator

if TYPE_CHECKING:
    from pathlib import Path

    from clipnoise.audit.subject import Subject
    from clipnoise.core.clipping import ClippedSum
    from clipnoise.data.base import Dataset
    from clipnoise.gradients.engine import LogicalBatch
    from clipnoise.privacy.accountants.poisson import PoissonAccountant
    from clipnoise.privacy.samplers.poisson import Sampler

PUBLIC_EXAMPLES = 100
BATCHES = 400
SAMPLED = ((20, None), (64, 80))  # B and n; None for that of the digits
DEVIATIONS = 5.0
STEPS = 12


def run_spec(
    subject: Subject,
    *,
    noise_multiplier: float,
    expected_batch_size: int,
    steps: int,
    delta: float = 1e-5,
    accountant: PoissonAccountant = "rdp",
    units: int | None = None,
    dataset: Dataset | None = None,
    seed: int = 0,
) -> RunSpec:
    """Return the spec of a run of logistic regression on digits with an audited method.

    The expected batch size is in micro-batches and at most the number of private units, which is
    that of the digits unless it is given.
    """
    privacy = Privacy(
        noise_multiplier=noise_multiplier,
        delta=delta,
        accountant=accountant,
        sampler=subject.sampler,  # type: ignore[arg-type]
        noise=subject.noise,
        microbatch_size=subject.microbatches.size,
        microbatch_accounting=subject.microbatches.accounting,
    )
    chosen, method = dataset or digits_for(subject, units), subject.method
    if isinstance(method, WithSideInformation):  # digits occur in no public text
        method = replace(method, side_information=PublicGradients(source="public-gradients"))
    n, m = chosen.user_count() or chosen.sizes()["train"], subject.microbatches.size
    size = min(expected_batch_size * m, n - n % m)
    training = Training(expected_batch_size=size, steps=steps, evaluations=1)
    return RunSpec(
        dataset=chosen,
        model=Logistic(),
        method=method,
        privacy=privacy if subject.method.query.draws else None,
        training=replace(training, physical_batch_size=512),
        seed=seed,
    )


def digits_for(subject: Subject, units: int | None = None) -> Digits:
    """Return the digits, handed out to users where the method protects users.

    Args:
        subject: the method.
        units: n, the number of private examples or users; examples that are left over are public.
    """
    if subject.method.local_training() is not None:
        users = DigitsUsers(public_examples=PUBLIC_EXAMPLES)
        return users if units is None else replace(users, users=units)
    private = sum(Digits().sizes()[part] for part in ("train", "public"))
    return Digits(public_examples=PUBLIC_EXAMPLES if units is None else private - units)


def batches(subject: Subject, spec: RunSpec) -> Sampler:
    """Return the stream of batches of a run: the real one, or that of a broken variant."""
    if subject.batches == "shuffled":
        size = spec.training.expected_batch_size
        return ShuffledSampler(spec.examples, size, generator("sampling", spec.seed))
    return sampler(spec)


def check_steps(subject: Subject, cache: Path) -> Finding:
    """Train on neighbouring datasets with batches so small that some are empty; count releases.

    Args:
        subject: the method.
        cache: the folder of prepared datasets.
    """
    spec = run_spec(subject, noise_multiplier=1.0, expected_batch_size=2, steps=STEPS)
    counts, sizes = [], []
    for wild in (False, True):
        recorder = Recorder(subject.cross)
        run = Run.prepare(spec, cache, "cpu", noise_multiplier=1.0)
        run.cross = recorder
        run.sampler = batches(subject, spec)
        run.sums = partial(_sum_of, subject, wild)
        drawn = []
        for batch in run.batches():
            drawn.append(len(batch))
            run.step(batch)
        counts.append(len(recorder.releases))
        sizes.append(drawn)
    holds = counts == [STEPS, STEPS] and sizes[0] == sizes[1]
    said = f"releases for {STEPS} steps on neighbouring datasets: {counts[0]} and {counts[1]}"
    return Finding("steps", holds, f"{said}; empty batches among them: {sizes[0].count(0)}")


def _sum_of(subject: Subject, wild: bool, batch: LogicalBatch) -> ClippedSum:
    """Form the sum over a dataset, or over a neighbour whose first example is far out of range.

    A user cannot be: the neighbour has the data of the second one in place of the first.
    """
    examples = batch.examples.dense()
    inputs = examples.inputs.clone()
    if wild and inputs.is_floating_point():
        inputs[:1] *= EXCESS
    elif wild:
        inputs[:1] = inputs[1:2]
    return subject.form(replace(batch, examples=DenseExamples(inputs, examples.targets)))


def check_sampler(subject: Subject) -> Finding:
    """Draw batches and hold their sizes and overlaps to what the accountant assumes of Poisson.

    Args:
        subject: the method; a sampler other than Poisson is not checked here.
    """
    if subject.sampler != "poisson":
        return Finding("sampler", True, f"statistics of the sampler {subject.sampler} not checked")
    off: dict[str, float] = {}
    for examples, units in SAMPLED:
        size = max(1, examples // subject.microbatches.size)
        spec = run_spec(
            subject, noise_multiplier=1.0, expected_batch_size=size, steps=BATCHES, units=units
        )
        found = _off_poisson(spec, batches(subject, spec))
        off |= {f"{what} at q = {spec.sampling_rate:.2g}": value for what, value in found.items()}
    name = max(off, key=lambda what: abs(off[what]))
    if abs(off[name]) <= DEVIATIONS:
        return Finding("sampler", True, "batches are drawn as Poisson sampling draws them")
    said = f"batches are not Poisson: {name} is off by {abs(off[name]):.0f} standard deviations"
    return Finding("sampler", False, said)


def _off_poisson(spec: RunSpec, source: Sampler) -> dict[str, float]:
    """Return how far statistics of batches are off those of Poisson, in standard deviations."""
    n, q = spec.examples, spec.sampling_rate
    drawn = torch.zeros(BATCHES, n)
    for row in drawn:
        row[source.sample()] = 1
    spread = q * (1 - q)
    return {
        "mean batch size": (float(drawn.mean()) - q) / math.sqrt(spread / drawn.numel()),
        "variance of the batch size": _excess(drawn.sum(1), n * q, n * spread),
        "variance of how often an example takes part": _excess(
            drawn.sum(0), BATCHES * q, BATCHES * spread
        ),
        "overlap of batches next to each other": (
            float((drawn[1:] * drawn[:-1]).mean() - q * q)
            / math.sqrt(q * q * (1 - q * q) * 2 / drawn.numel())
        ),
    }


def _excess(counts: torch.Tensor, mean: float, variance: float) -> float:
    """Return how far a variance is from the expected one, in standard deviations."""
    ratio = float((counts - mean).square().mean()) / variance
    return (ratio - 1) / math.sqrt(2 / len(counts))
