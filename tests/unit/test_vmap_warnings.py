"""Nothing that is mapped by vmap falls back to a loop over examples, of which vmap warns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from every_method import METHODS, recorded
from gradient_networks import NETWORKS, build, examples, losses

from clipnoise.core.clip_rules import HARD, ClipRule, OwnClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.core.state import Public
from clipnoise.core.taken import GRADIENTS
from clipnoise.fields import parse
from clipnoise.gradients.engine import GradientEngine, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.methods.base import methods
from clipnoise.papers.trials import Trials

RULES = [
    parse(ClipRule, {"kind": kind, "per": per})
    for kind in ClipRule.package_kinds()
    for per in ("example", "layer")
]
pytestmark = pytest.mark.filterwarnings("error")


class Halved(OwnClipRule):
    """A user's rule that builds on one of the package."""

    id = "halved"

    def factor(self, norm: torch.Tensor, clip_norm: float) -> torch.Tensor:
        return 0.5 * HARD.factors(norm, clip_norm)


@pytest.fixture(autouse=True)
def every_warning() -> Iterator[None]:
    """Warn each time, not once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.parametrize("rule", [*RULES, Halved()], ids=str)
@pytest.mark.parametrize("kind", [VmapEngine, FactoredEngine], ids=lambda kind: kind.name)
def test_engines_clip_without_a_fallback(kind: type[GradientEngine], rule: ClipRule) -> None:
    for name in NETWORKS:
        engine = kind(build(name), losses)
        clipping = Clipping(0.5, rule=rule).at(engine.flat.theta.clone())
        total = engine.clipped_sum(*examples(name, 5), clipping)
        assert 0 < float(total.norm()) <= 5 * 0.5


def mapped(name: str) -> bool:
    """Return whether trials of a method can be mapped: it reads gradients alone, and no values."""
    method = parse(methods()[name], recorded(name))
    public = method.uses_public_gradient or method.uses_side_information
    return method.query.of == GRADIENTS and not (public or method.local_training())


@pytest.mark.parametrize("name", [name for name in METHODS if mapped(name)])
def test_trials_take_steps_without_a_fallback(name: str) -> None:
    method = parse(methods()[name], recorded(name))
    public = Public(noise_multiplier=1.0, expected_batch_size=1, total_steps=4)
    trials = Trials(method, public, torch.zeros(3, 4, dtype=torch.float64))
    draws: dict[str, Any] = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(0)}
    for _ in range(2):
        noise = torch.randn(3, max(1, method.query.draws), 4, **draws)
        trials.advance(torch.randn(3, 1, 4, **draws), noise)
    assert bool(trials.theta.isfinite().all())
