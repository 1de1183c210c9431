"""The contract check: whether releases keep what a method declares about them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clipnoise.audit.bench import Bench, digits, join, layers, least_squares, realise, users
from clipnoise.audit.declaration import check_adjacency, check_query, too_far
from clipnoise.audit.findings import ContractFinding, Finding, Largest
from clipnoise.audit.moments import WHOLE, life
from clipnoise.audit.neighbours import climb, made_pairs, real_pairs
from clipnoise.audit.nodes import check_nodes
from clipnoise.audit.noise import check_noise
from clipnoise.audit.runs import check_sampler, check_steps, check_updates
from clipnoise.audit.sensitivity import largest_changes
from clipnoise.audit.subject import at_clip_norm, in_microbatches
from clipnoise.gradients.units import PrivateUnits
from clipnoise.privacy.queries import ClippedMean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clipnoise.audit.findings import NoiseFinding
    from clipnoise.audit.moments import Moment
    from clipnoise.audit.neighbours import Pair
    from clipnoise.audit.subject import Subject, Values
    from clipnoise.core.clipping import ClippedSum, Clipping
    from clipnoise.core.query import Query
    from clipnoise.core.state import Public

DIMENSION = 6
EXPECTED_BATCH_SIZE = 4.0
SIZES = (1, 3, WHOLE)  # of physical batches
COPIES = (2, 4, 40)  # of an example, to find the denominator
ROUNDING = 1e-6
MADE, REAL = (1, 2, 3, 4, 8), (1, 4)  # the steps that are attacked
# B, the factor on the clip norm, σ, T and the steps that are attacked: the first, a middle and the
# last one where the run is as long as a study's.
GRID = (
    (1.0, 0.03, 8.0, 6, (6,)),
    (40.0, 5.0, 0.3, 500, (1, 250, 500)),
    (300.0, 1.0, 2.0, 6, (6,)),
    (2000.0, 0.5, 1.0, 6, (6,)),
)
WORST = 3  # pairs of a step that go through every path


def check_contract(
    subject: Subject,
    cache: Path | None = None,
    *,
    attacked: tuple[int, ...] = MADE,
    seed: int = 0,
) -> ContractFinding:
    """Attack a method and compare what it does with what it declares.

    Args:
        subject: the method.
        cache: the folder of prepared digits; None leaves out real data and all checks of whole
            runs: updates, noise, steps and batches.
        attacked: which of the first eight steps are attacked with made data.
        seed: of the means that the query is asked about.

    Returns:
        What is declared, what was measured, on which paths, the noise, the other checks, and the
        verdict.
    """
    adjacency = check_adjacency(subject.method)
    if not adjacency.holds:  # training refuses it
        return _verdict(subject, None, None, [adjacency])
    checks: list[Finding] = []
    if cache is not None:
        checks += [check_steps(subject, cache), *check_updates(subject, cache)]
        checks += [check_sampler(subject), check_nodes(subject)]
    # What is private is attacked even where it names no clip norm: its clipping may have one.
    if subject.method.clip_norm_at(1) is None and not subject.method.private:
        return _verdict(subject, None, None, checks)
    noise = None
    if cache is not None and subject.method.query.draws:
        noise = check_noise(subject, cache)
    if subject.method.private:
        checks.append(check_query(subject, seed))
    declared, subject = subject, in_microbatches(subject, EXPECTED_BATCH_SIZE)
    largest, size = Largest(), EXPECTED_BATCH_SIZE
    bench = least_squares(DIMENSION)
    for moment in life(subject, bench, expected_batch_size=size, attacked=attacked):
        _attack(moment, largest)
        checks.append(check_denominator(moment))
    if cache is not None:
        _attack_grid(declared, bench, largest, checks)
        training = subject.method.local_training()
        real = [(digits(cache), REAL), (layers(), REAL[-1:])]
        real += [] if training is None else [(users(training), REAL[-1:])]
        for bench, steps in real:
            for moment in life(subject, bench, expected_batch_size=size, attacked=steps):
                for pair in real_pairs(moment):
                    _on_every_path(moment, pair, largest)
    return _verdict(subject, largest, noise, checks)


def check_denominator(moment: Moment) -> Finding:
    """Release batches of two, four and forty copies of an example: the mean must grow with them.

    A sum over a constant B does; a sum over the realised batch size does not. A micro-batch of many
    copies is clipped, so there the noise must stay as large as it is. What is looked at is the mean
    itself: a query never sees the size of a batch, and may bound a large mean. The moment has a
    bench of `least_squares`.
    """
    subject, theta = moment.subject, moment.state.theta
    example = realise(torch.ones(1, len(theta), dtype=theta.dtype), theta)
    query, means = subject.method.query, list[Tensor]()
    plain = type("Plain", (ClippedMean,), {"of": query.of, "private": False})()
    ones = [plain.noise_like(theta) + 1]

    def cross(
        total: ClippedSum, query: Query, clipping: Clipping, noise: Sequence[Tensor], public: Public
    ) -> Values:
        means.extend(subject.cross(total, plain, clipping, ones, public))
        return subject.cross(total, query, clipping, noise, public)

    aside = replace(moment, subject=replace(subject, cross=cross))

    def size(count: int) -> float:
        copies = join(*[example] * count)
        bound = aside.release(copies).clipping.bound
        if not all(bool(x.isfinite().all()) for x in query.values(means[-1].clone(), bound)):
            return math.nan
        if subject.microbatches.size == 1:
            return float(means[-1].norm()) / count
        aside.release(copies, sigma=1.0)
        return float((means[-1] - means[-2]).norm())

    norms = [size(count) for count in COPIES]
    least, most = min(norms), max(norms)
    sound = least > 0 and all(map(math.isfinite, norms))
    ratio = most / least if sound else math.inf
    if ratio <= 1 + ROUNDING:
        return Finding("denominator", True, "the denominator is the same for every batch size")
    said = f"the denominator changes with the batch, by a factor of {ratio:.3g}"
    return Finding("denominator", False, said)


def _attack_grid(subject: Subject, bench: Bench, largest: Largest, checks: list[Finding]) -> None:
    """Attack steps at other B, C, σ and T with made pairs; q, which is B/n, is not seen by a step.

    B is rounded up to whole micro-batches.
    """
    for least, factor, sigma, steps, attacked in GRID:
        size = least + -least % subject.microbatches.size
        here = in_microbatches(at_clip_norm(subject, factor), size)
        for moment in life(
            here, bench, expected_batch_size=size, attacked=attacked, steps=steps, sigma=sigma
        ):
            checks.append(check_denominator(moment))
            for pair in made_pairs(moment):
                largest.note(pair.kind, "vmap, other B, C, σ and T", moment.change(pair.sides()))


def _attack(moment: Moment, largest: Largest) -> None:
    """Try every pair on one path, make the worst worse, and take the worst through all paths."""
    found: list[tuple[float, int, Pair]] = []
    for pair in made_pairs(moment):
        change = moment.change(pair.sides())
        largest.note(pair.kind, "vmap, whole batch", change)
        found.append((change.joint, len(found), pair))
    found.sort(reverse=True)
    small = next(pair for _, _, pair in found if 0 < len(pair.rest) <= DIMENSION)
    hurt = climb(small, lambda pair: moment.change(pair.sides()).joint)
    for pair in [hurt, *(pair for _, _, pair in found[:WORST])]:
        _on_every_path(moment, pair, largest)
    subject, bench = moment.subject, moment.bench
    if subject.sums is PrivateUnits.clipped_sum:  # the reference sum, with its own adversaries too
        (examples, _), _ = hurt.sides()
        clipping = moment.clipping
        changes = largest_changes(
            subject.method.query,
            clipping,
            bench.gradients(examples, clipping),
            expected_batch_size=moment.public.expected_batch_size,
            layers=bench.engine.flat.layer_sizes,
        )
        largest.note("recorded gradients", "reference", changes)


def _on_every_path(moment: Moment, pair: Pair, largest: Largest) -> None:
    for name, engine in moment.bench.engines.items():
        for size in SIZES:
            change = moment.change(pair.sides(), engine=engine, size=size)
            words = "whole batch" if size == WHOLE else f"physical batches of {size}"
            largest.note(pair.kind, f"{name}, {words}", change)


def _verdict(
    subject: Subject, largest: Largest | None, noise: NoiseFinding | None, checks: list[Finding]
) -> ContractFinding:
    """Put the result together: any broken promise breaks the contract."""
    method, every = subject.method, list(checks)
    if largest is not None:
        every.append(_sensitivity(largest))
    if noise is not None:
        every.append(Finding("noise", noise.holds, noise.said))
    found: dict[str, Finding] = {}  # a check that was made several times must hold every time
    for finding in every:
        if found.setdefault(finding.name, finding).holds:
            found[finding.name] = finding
    failed = [finding for finding in found.values() if not finding.holds]
    clip_norm = method.clip_norm_at(1)
    denominator = subject.microbatches.count(EXPECTED_BATCH_SIZE)
    components = () if clip_norm is None else method.query.components(clip_norm, denominator)
    return ContractFinding(
        method=method.id,
        private=method.private,
        adjacency=method.query.adjacency,
        declared=[
            replace(component, sensitivity=component.sensitivity * subject.sensitivity_factor)
            for component in components
        ],
        microbatch_size=subject.microbatches.size,
        clip_norm=clip_norm,
        expected_batch_size=EXPECTED_BATCH_SIZE,
        measured=largest,
        noise=noise,
        checks=list(found.values()),
        broken=[finding.said for finding in failed],
        broken_checks=[finding.name for finding in failed],
        verdict=("broken" if failed else "kept") if method.private else "no claim",
    )


def _sensitivity(largest: Largest) -> Finding:
    """Hold the largest change that one example caused to what is declared."""
    if largest.joint <= 1 + ROUNDING:
        return Finding("sensitivity", True, "no example moves a release further than declared")
    return Finding("sensitivity", False, too_far(largest.joint))
