"""What the boundary cannot hold: an error feedback, a private memory that no release has seen.

docs/limits.md quotes what is measured here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor

from clipnoise.audit.bench import join, least_squares, realise
from clipnoise.audit.empirical import audit
from clipnoise.audit.findings import Settings
from clipnoise.audit.subject import subject
from clipnoise.core.clipping import Clipping
from clipnoise.data.digits import Digits
from clipnoise.gradients.engine import GradientEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits

C = 1.0
FAR = 1e12  # a clip norm that clips nothing
PAGE = Path(__file__).parents[2] / "docs" / "limits.md"


class ErrorFeedback:
    """DiceSGD's mean where the suite has a clipped one, with the noise of the clipped one.

    v = Σ clip(g_i, C)/B + clip(e, C_2), and e ← e + Σ g_i/B − v: what was clipped off comes later.

    Source: Zhang et al. 2024 (DiceSGD, arXiv 2311.14632).
    """

    def __init__(self, memory_norm: float, expected_batch_size: float) -> None:
        """Take C_2 and B; every engine, and so every run, has a memory of its own."""
        self.memory_norm, self.size = memory_norm, expected_batch_size
        self.memory: WeakKeyDictionary[GradientEngine, Tensor] = WeakKeyDictionary()

    def __call__(self, units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        engine = units.engine
        e = self.memory.get(engine, torch.zeros_like(engine.flat.theta))
        clipped = units.clipped_sum(indices, clipping) / self.size
        known = getattr(engine, "known", None)  # the auditor knows the clipped sum of real examples
        mean = units.clipped_sum(indices, replace(clipping, clip_norm=FAR)) / self.size
        if known is not None:
            engine.known = known  # type: ignore[attr-defined]
        v = clipped + e * (self.memory_norm / e.norm().clamp(min=1e-30)).clamp(max=1.0)
        self.memory[engine] = e + mean - v
        return v * self.size


@pytest.mark.parametrize("memory_norm", [0.1, 1.0])
def test_one_example_moves_every_later_step_by_b_times_the_norm_of_the_memory(
    memory_norm: float,
) -> None:
    """It is in the first batch alone. Under DP-SGD no later release depends on it."""
    b, steps = 50.0, 6
    bench = least_squares(8)
    small = 1e-3 * torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).double()
    far = 1e9 * torch.eye(8, dtype=torch.float64)[:1]
    data = join(realise(small, bench.theta), realise(far, bench.theta))
    clipping = Clipping(C).at(bench.theta)

    def sums(first: int) -> list[Tensor]:
        form = ErrorFeedback(memory_norm, b)
        drawn = [torch.arange(first)] + [torch.arange(5)] * (steps - 1)
        units = PrivateUnits(bench.engine, data, PhysicalBatch(100))
        return [form(units, rows, clipping) for rows in drawn]

    moved = [float((one - other).norm()) for one, other in zip(sums(6), sums(5), strict=True)]
    assert moved[0] == pytest.approx(C)
    assert moved[1:] == pytest.approx([b * memory_norm] * (steps - 1), rel=1e-3)


SETTINGS = Settings(runs=10)
EXPECTED_BATCH_SIZE = round(0.9 * (Digits().sizes()["train"] + SETTINGS.canaries))


@pytest.mark.long
def test_the_audit_refutes_an_error_feedback_that_counts_as_released(cache: Path) -> None:
    broken = subject("dp-sgd", sums=ErrorFeedback(C, EXPECTED_BATCH_SIZE))
    found = audit(broken, cache, SETTINGS)
    claimed, bound = found.claimed_epsilon, found.bound.epsilon
    assert found.verdict == "refuted"
    assert bound > 2 * claimed
    said = PAGE.read_text()
    assert f"ε = {claimed:.2f}" in said
    assert f"show ε = {bound:.1f}" in said


def test_without_its_memory_it_is_dp_sgd_which_the_audit_does_not_refute(cache: Path) -> None:
    plain = subject("dp-sgd", sums=ErrorFeedback(0.0, EXPECTED_BATCH_SIZE))
    assert audit(plain, cache, replace(SETTINGS, runs=3)).verdict == "not refuted"
