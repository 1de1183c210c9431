"""Whether ε follows from σ, q and T, under the sampler that is observed."""

from __future__ import annotations

import math

import torch
from scipy.stats import beta, binom, chi2, norm

from clipnoise.audit.controls import optimistic_epsilon
from clipnoise.audit.loops.claim import Claim, LoopFinding
from clipnoise.audit.loops.experiments import SIGNIFICANCE, Experiments
from clipnoise.audit.loops.watched import Trace
from clipnoise.audit.runs import off_poisson
from clipnoise.errors import UserError
from clipnoise.privacy.accountants.poisson import LARGEST_LOSS
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import Calibration, calibrate
from clipnoise.privacy.mechanism import Mechanism
from clipnoise.privacy.profile import PrivacyProfile
from clipnoise.privacy.samplers import sampler_class
from clipnoise.privacy.units import Example

UNSEEN = (
    "the batches cannot be seen: the loop reads all examples before its first release, or in other "
    "processes (num_workers above 0)"
)
PRINTED = 0.005  # how far a printed ε may be rounded down; relative above 1
POISSON = "poisson"
DELTA = 1e-5  # at which accountants are compared where a claim has none


def check_accounting(runs: Experiments) -> LoopFinding:
    """Compute ε from what was claimed and observed: σ as claimed, q and T at least as observed."""
    name, claim = "accounting", runs.claim
    lacking = claim.lacks(("epsilon", "noise_multiplier"))
    if lacking:
        return LoopFinding.skipped(name, f"needs {', '.join(lacking)} in the claim")
    assert claim.epsilon is not None
    assert claim.noise_multiplier is not None
    trace = runs.whole(0)
    steps = max(claim.steps or 0, trace.steps)
    if not steps:
        return LoopFinding.skipped(name, "needs steps in the claim, or a loop that calls record")
    size = _size(runs, trace, steps)
    if size is None:
        return LoopFinding.skipped(name, f"needs expected_batch_size in the claim: {UNSEEN}")
    epsilon = least_epsilon(claim, runs.examples, size, steps)
    words = (
        f"σ {claim.noise_multiplier:g}, batches of {size:.4g} of {runs.examples} examples, "
        f"{steps} steps and δ {claim.delta:g}, sampler {claim.sampler}"
    )
    if epsilon > claim.epsilon + PRINTED * max(1.0, claim.epsilon):
        seen = _more(claim, trace, size)
        said = f"{words} cost ε {epsilon:.3g}; claimed is {claim.epsilon:g}{seen}"
        return LoopFinding(name, False, said)
    said = f"ε {claim.epsilon:g} covers {words}, which cost {epsilon:.3g}"
    return LoopFinding(name, True, said, "an ε that is too small by 0.5% or more")


def _more(claim: Claim, trace: Trace, size: float) -> str:
    parts = []
    if claim.steps is not None and trace.steps > claim.steps:
        parts.append(f"{trace.steps} releases in place of {claim.steps} steps")
    if claim.expected_batch_size is not None and size > claim.expected_batch_size:
        parts.append(f"batches of more than {size:.4g}, not {claim.expected_batch_size:g}")
    return f" (observed: {', '.join(parts)})" if parts else ""


def _size(runs: Experiments, trace: Trace, steps: int) -> float | None:
    """Return B: as claimed, or more where more were read than chance allows.

    The number of reads of a Poisson sampler is binomial; that of others varies less.
    """
    claimed, n = runs.claim.expected_batch_size, runs.examples
    reads = sum(map(len, trace.reads[1:]))  # before the first step a loop may look at its data
    if not runs.records:
        reads, trials = len(trace.rest), n * steps
    elif runs.observed:
        trials = n * (trace.steps - 1)
    else:
        return claimed
    if not reads:
        return claimed
    least = n * float(beta.ppf(SIGNIFICANCE, reads, trials - reads + 1)) if reads < trials else n
    return least if claimed is None else max(claimed, least)


def least_epsilon(claim: Claim, examples: int, size: float, steps: int) -> float:
    """Return an ε that the mechanism of a claim costs at least, or the least that is proved.

    For Poisson sampling it is a lower bound; for other samplers the smallest ε of the accountants
    that cover them.

    Args:
        claim: with σ and δ; its B and T are not used.
        examples, size, steps: n, B and T.
    """
    assert claim.noise_multiplier is not None
    assert claim.delta is not None
    rate = min(1.0, size / examples)
    if claim.sampler == POISSON and rate < 1:
        return optimistic_epsilon(claim.noise_multiplier, rate, steps, claim.delta)
    return min(one.epsilon for one in _calibrations(claim, examples, size, steps, claim.delta))


def claimed_profile(claim: Claim, examples: int) -> PrivacyProfile | None:
    """Return what any attack can reach if a claim is true; None where too little of it is given.

    It is that of the mechanism that is claimed, or else of the claimed ε and δ alone.

    Args:
        claim: what is claimed.
        examples: n.
    """
    size, steps = claim.expected_batch_size, claim.steps
    if claim.noise_multiplier is not None and size is not None and steps is not None:
        try:
            found = _calibrations(claim, examples, size, steps, claim.delta or DELTA)
        except UserError as error:
            return PrivacyProfile(unavailable=str(error))
        return min(found, key=lambda one: one.epsilon).profile
    if claim.epsilon is None or claim.delta is None:
        return None
    # Its total variation distance is δ at ε = 0.
    growth = math.exp(min(claim.epsilon, LARGEST_LOSS))
    return PrivacyProfile(
        epsilons=(0.0, claim.epsilon),
        deltas=((growth - 1 + 2 * claim.delta) / (growth + 1), claim.delta),
        unavailable="it does not follow from ε and δ alone",
    )


def _calibrations(
    claim: Claim, examples: int, size: float, steps: int, delta: float
) -> list[Calibration]:
    """Return what the mechanism of a claim costs by each accountant that covers its sampler."""
    assert claim.noise_multiplier is not None
    asked = Privacy(noise_multiplier=claim.noise_multiplier, delta=delta)
    kind = sampler_class("full" if size >= examples else claim.sampler)
    found = []
    for accountant in kind.proved[next(iter(kind.proved))]:
        mechanism = Mechanism(
            unit=Example(count=examples),
            expected_batch_size=min(float(math.ceil(size)), float(examples)),
            steps=steps,
            sampler=kind.id,
            accountant=accountant,
        )
        found.append(calibrate(mechanism.budget(asked, claim.noise_multiplier)))
    return found


def check_sampling(runs: Experiments) -> LoopFinding:
    """Hold the batches that were read to the sampler that is claimed."""
    name, n = "sampler", runs.examples
    if not runs.records:
        return LoopFinding.skipped(name, "needs a loop that calls record, which ends a step")
    traces = [runs.whole(0), runs.whole(1)]
    if not runs.observed:
        return LoopFinding.skipped(name, UNSEEN)
    # Before its first step a loop may look at its data.
    batches = [batch for trace in traces for batch in trace.reads[1:]]
    if not batches:
        return LoopFinding.skipped(name, "needs two steps")
    twice = next((batch for batch in batches if len(set(batch)) < len(batch)), None)
    if twice is not None:
        said = (
            f"a step read an example twice: {len(twice)} reads of {len(set(twice))} examples; a "
            "loop that takes each of them once reads it once, as in inputs, target = data[i]"
        )
        return LoopFinding(name, False, said)
    if runs.claim.sampler != POISSON:
        return _of_another_sampler(runs, traces)
    claimed = runs.claim.expected_batch_size
    rate = min(1.0, (claimed or sum(map(len, batches)) / len(batches)) / n)
    said = _not_poisson(batches, n, rate)
    if said:
        return LoopFinding(name, False, f"batches are not Poisson: {said}")
    held = f"{len(batches)} batches are as Poisson sampling draws them"
    seen = "batches of a fixed size, epochs that are shuffled, and repeated batches"
    if binom.sf(0, len(batches), _empty(n, rate)) > 1 - SIGNIFICANCE:
        seen += ", and empty batches that are skipped"
    return LoopFinding(name, True, held, seen)


def _empty(n: int, rate: float) -> float:
    """Return the probability that a batch of Poisson sampling is empty."""
    return float((1 - rate) ** n)


def _of_another_sampler(runs: Experiments, traces: list[Trace]) -> LoopFinding:
    """Hold batches to what other samplers promise: no example more often than is accounted."""
    name, claim = "sampler", runs.claim
    size = claim.expected_batch_size
    if claim.sampler not in ("shuffled", "cyclic") or size is None:
        return LoopFinding.skipped(name, f"statistics of the sampler {claim.sampler}")
    for trace in traces:
        places = [place for batch in trace.reads[1:] for place in batch]
        counts = torch.bincount(torch.tensor(places))
        allowed = math.ceil(trace.steps / math.ceil(runs.examples / size))
        if int(counts.max()) > allowed:
            said = (
                f"an example takes part {int(counts.max())} times in {trace.steps} steps; "
                f"{claim.sampler} batches of {size:g} are accounted with {allowed}"
            )
            return LoopFinding(name, False, said)
    return LoopFinding(
        name, True, "no example takes part more often than is accounted", "one participation more"
    )


def _not_poisson(batches: list[list[int]], n: int, rate: float) -> str:
    """Return what of some batches Poisson sampling at a rate could not have drawn, or nothing."""
    sizes = torch.tensor([len(batch) for batch in batches])
    if rate >= 1:
        return (
            "" if bool((sizes == n).all()) else "the claimed rate is 1, and batches lack examples"
        )
    commonest = int((sizes == sizes.mode().values).sum())
    most = float(binom.pmf(math.floor((n + 1) * rate), n, rate))
    if float(binom.sf(commonest - 1, len(sizes), most)) * (n + 1) < SIGNIFICANCE:
        return f"{commonest} of {len(sizes)} have {int(sizes.mode().values)} examples"
    without, expected = int((sizes == 0).sum()), _empty(n, rate)
    if float(binom.cdf(without, len(sizes), expected)) < SIGNIFICANCE:
        return (
            f"{without} of {len(sizes)} are empty, and {100 * expected:.3g}% should be: a step "
            "whose batch is empty releases its noise all the same"
        )
    drawn = torch.zeros(len(batches), n)
    for row, batch in zip(drawn, batches, strict=True):
        row[batch] = 1
    for what, off in off_poisson(drawn, rate).items():
        low, high = _allowed(what, len(batches), n, rate)
        if not low <= off <= high:
            return f"{what} is off by {off:.0f} standard deviations"
    return ""


def _allowed(what: str, batches: int, n: int, rate: float) -> tuple[float, float]:
    """Return between which deviations a statistic of `off_poisson` stays by chance."""
    tail = SIGNIFICANCE / 8
    if "variance" not in what:
        reach = 1.5 * float(norm.isf(tail))  # sums of few reads have longer tails than normals
        return (-math.inf if "mean" in what else -reach), reach
    count, mean = (batches, n * rate) if "size" in what else (n, batches * rate)
    wider = 1 + 1 / min(mean, 1.0)  # counts of rare events have a larger fourth moment
    low, high = (float(chi2.ppf(p, count / wider)) / (count / wider) for p in (tail, 1 - tail))
    unit = math.sqrt(2 / count)
    return (low - 1) / unit, (high - 1) / unit
