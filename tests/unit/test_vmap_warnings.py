"""Nothing that is mapped by vmap falls back to a loop over examples, of which vmap warns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from every_method import FAMILIES, METHODS, recorded
from gradient_networks import NETWORKS, build, examples, losses

from clipnoise.core.clip_rules import HARD, ClipRule, OwnClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.core.state import Public
from clipnoise.core.taken import GRADIENTS
from clipnoise.fields import Precision, parse
from clipnoise.gradients.engine import GradientEngine, OneByOne, VmapEngine
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


class Attention(torch.nn.Module):
    """Attention that is not a layer of torch's, with keys of padding left out."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.rows(x).unflatten(2, (2, 4)).transpose(1, 2)
        seen = (x[..., 0] > -1)[:, None, None, :]
        mixed = torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, seen)
        outputs: torch.Tensor = self.last(mixed.transpose(1, 2).flatten(2).mean(1))
        return outputs


def of_each(kind: type[GradientEngine], precision: Precision = "float32") -> torch.Tensor:
    """Return the gradients of the network with attention, one row an example."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(4, 5, 6), torch.arange(4) % 3
    engine = kind(Attention(), torch.nn.CrossEntropyLoss(reduction="none"))
    engine.precision = precision
    return engine.per_example_gradients(inputs, targets, engine.flat.theta.clone())


def test_attention_is_mapped_without_a_fallback() -> None:
    torch.testing.assert_close(of_each(VmapEngine), of_each(OneByOne))


def test_attention_in_bfloat16_has_the_same_gradients_mapped() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # here it falls back
        mapped, alone = (of_each(kind, "bfloat16") for kind in (VmapEngine, OneByOne))
    assert float((mapped - alone).norm() / alone.norm()) < 0.05


def mapped(name: str) -> bool:
    """Return whether trials of a method can be mapped: it reads gradients alone, and no values."""
    method = parse(methods()[name], recorded(name))
    public = method.uses_public_gradient or method.uses_side_information
    return method.query.of == GRADIENTS and not (public or method.local_training())


@pytest.mark.quick(name=FAMILIES)
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
