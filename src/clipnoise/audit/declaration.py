"""What a query declares, held to what it returns, at many clip norms and expected batch sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from clipnoise.audit.findings import Finding
from clipnoise.audit.sensitivity import change_between
from clipnoise.privacy.units import Example, User

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.audit.subject import Subject
    from clipnoise.core.method import Method
    from clipnoise.core.query import Query

QUERY = "query"
WHOLE_SIZES, RANDOM_SIZES, AGAIN = 2048, 1000, 100  # B, random (C, B), and means asked for twice
DIMENSION, LARGEST = 650, 20_000  # that of the digits' network, and the largest of the others
NORMS = (0.0, 0.5, 1.0, 2.0)  # of an example's vector before it is clipped, in units of C
ROUNDING = 1e-6


def check_query(subject: Subject, seed: int = 0) -> Finding:
    """Hold a private query to its declaration at every whole B up to 2,048, and at random (C, B).

    Two means that differ by what one example adds must have values no further apart than the noise
    covers, each a finite vector no longer than the mean that it comes from; and a mean must have
    the same values bit for bit whenever they are asked for. The means are of any size that a batch
    of up to 4B examples can have, next to nothing included, of up to 20,000 numbers, in single and
    in double precision. The adjacency must be that of what is clipped: what one example adds says
    nothing of a user with many.

    Args:
        subject: the method. Its C is that of the whole B; the others have random ones, from 10⁻³
            to 10³.
        seed: of the random pairs and means.
    """
    method, query = subject.method, subject.method.query
    adjacency = check_adjacency(method)
    if not adjacency.holds:
        return adjacency
    clip_norm, draw = method.clip_norm_at(1) or 1.0, torch.Generator().manual_seed(seed)
    asked: list[tuple[Tensor, float, Sequence[Tensor]]] = []
    for c, b in _settings(clip_norm, draw):
        means = _means_apart(query, c, b, draw)
        values = [query.values(mean.clone(), c) for mean in means]
        problem = _problem(query, c, b, means, values)
        if problem is not None:
            return Finding(QUERY, False, f"at C = {c:.4g} and B = {b:.6g}, {problem}")
        asked.append((means[0], c, values[0]))
    for i in torch.randperm(len(asked), generator=draw)[:AGAIN].tolist():
        mean, c, before = asked[i]
        if not all(map(torch.equal, before, query.values(mean.clone(), c))):
            return Finding(QUERY, False, "the values of a mean depend on what was asked before")
    return Finding(QUERY, True, f"it declares enough at {len(asked):,} pairs of C and B")


def check_adjacency(method: Method) -> Finding:
    """Hold the adjacency that a query declares to what the method clips, as training does."""
    declared = method.query.adjacency
    allowed = (Example if method.local_training() is None else User).declarable
    if declared in allowed:
        return Finding(QUERY, True, f"it declares {declared!r}")
    said = f"it declares {declared!r}, and what it clips is protected under {allowed[0]!r}"
    return Finding(QUERY, False, said)


def _settings(clip_norm: float, draw: torch.Generator) -> Iterator[tuple[float, float]]:
    """Yield pairs of C and B."""
    yield from ((clip_norm, float(size)) for size in range(1, WHOLE_SIZES + 1))
    exponents = torch.rand(RANDOM_SIZES, 2, generator=draw) * torch.tensor([6.0, 5.0])
    yield from ((10 ** (float(c) - 3), 10 ** float(b)) for c, b in exponents)


def _problem(
    query: Query, c: float, b: float, means: Sequence[Tensor], values: Sequence[Sequence[Tensor]]
) -> str | None:
    """Return what is wrong with the values of two means that one example keeps apart, or None."""
    for mean, found in zip(means, values, strict=True):
        for value in found:  # as `privatize` takes them, and finite
            like = type(value) is torch.Tensor and value.dtype == mean.dtype
            vector = like and value.dim() == 1 and 0 < len(value) <= len(mean)
            if not (vector and bool(value.isfinite().all())):
                return "it releases something else than finite vectors like the mean"
    components = query.components(c, b)
    if {len(components)} != set(map(len, values)):
        return f"it declares {len(components)} values, not all"
    if len({tuple(map(len, found)) for found in values}) > 1:
        return "how many numbers it releases depends on the mean"
    joint = change_between(values[0], values[1], components, 1.0).joint
    # What the rounding of the means themselves can add, relative to C/B.
    rounding = 16 * torch.finfo(means[0].dtype).eps * (1 + float(means[0].norm()) / c) ** 2 * b
    if joint > 1 + ROUNDING + rounding:
        return too_far(joint)
    return None


def too_far(times: float) -> str:
    """Say how far one example moves a release, with as many digits as tell it from 1."""
    many = f"{times:.{8 if times < 1.01 else 3}g}" if times < 1000 else f"{times:,.0f}"
    many = many if math.isfinite(times) else "infinitely many"
    return f"one example moves the release {many} times as far as declared"


def _means_apart(
    query: Query, clip_norm: float, expected_batch_size: float, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return two means, of neighbouring batches, that a query could be asked about."""

    def choose(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=draw))]

    double = expected_batch_size > WHOLE_SIZES or choose(True, False)
    other = round(LARGEST ** float(torch.rand(1, generator=draw)))
    d = 1 if query.of.losses else choose(DIMENSION, other)
    one = torch.zeros(d, dtype=torch.float64)
    one[int(torch.randint(d, (1,), generator=draw))] = choose(1.0, -1.0)
    dense = torch.randn(d, generator=draw, dtype=torch.float64)
    rest, added = choose(dense, one), choose(dense, one, -one)
    tiny = 10.0 ** (-12 * float(torch.rand(1, generator=draw)))
    size = choose(0.0, tiny, 0.5, 1.0, 4.0) if double else choose(0.0, tiny, 0.5, 1.0)
    mean = rest * (size * clip_norm / float(rest.norm()))
    # Where extra coordinates follow from the norm, a vector that is not as long as C counts too.
    # At random B an example may also add next to nothing, which must not be made large.
    length = choose(tiny, 1.0) if expected_batch_size % 1 else 1.0
    of_both = [choose(*NORMS), choose(*NORMS)] if query.of.extra else [length, 1.0]
    norms = mean.new_tensor(of_both)
    norms *= clip_norm
    clipped = norms.clamp(max=clip_norm)
    change = added * (float(clipped[0]) / expected_batch_size / float(added.norm()))
    if query.of.extra:
        of_added, of_rest = query.of.coordinates(norms, clipped, clip_norm).unbind()
        mean = torch.cat([mean, choose(0.0, 1.0) * of_rest])
        change = torch.cat([change, of_added / expected_batch_size])
    before = mean - change if query.adjacency == "replace" else mean
    dtype = torch.float64 if double else torch.float32
    return before.to(dtype), (mean + change).to(dtype)
