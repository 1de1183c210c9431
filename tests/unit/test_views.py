"""Several views of an example: their mean is clipped once, in every engine and batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clipnoise.audit.contract import check_contract
from clipnoise.audit.subject import SummedBy, subject
from clipnoise.core.clipping import Clipping
from clipnoise.data.base import Examples
from clipnoise.data.digits import Digits
from clipnoise.data.rows import Rows
from clipnoise.errors import UserError
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.gradients.dropout import Masks
from clipnoise.gradients.engine import (
    GradientEngine,
    VmapEngine,
)
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.run.train import Run
from clipnoise.seeds import derive, words

KEY, C, VIEWS, COUNT = 0x0123456789ABCDEF, 0.1, 3, 10
BATCH = torch.tensor([4, 0, 9, 7, 2])


@dataclass(frozen=True)
class Shaken(Rows):
    """Rows whose view is shifted by a number that the key and the index decide."""

    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Tensor | slice) -> Tensor:
        return self.rows[chosen]

    def seen(self, chosen: Tensor, key: int) -> Tensor:
        shifts = words(key, chosen.numpy(), 1)[:, 0].astype(np.float64) / 2**64
        return self.rows[chosen] + torch.from_numpy(shifts).unsqueeze(1)


@pytest.fixture
def population() -> Examples:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(COUNT, 6, generator=draw, dtype=torch.float64)
    return Examples(Shaken(rows), torch.arange(COUNT) % 3)


def engine(kind: type[GradientEngine]) -> GradientEngine:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
    return kind(network.double(), nn.CrossEntropyLoss(reduction="none"))


def by_hand(engine: GradientEngine, data: Examples, batch: Tensor, theta: Tensor) -> Tensor:
    """Return the mean of K gradients of each example, one view after the other."""
    views = []
    for view in range(VIEWS):
        inputs, targets = data.seen(batch, derive("views", KEY, view) if view else KEY)
        masks = Masks(KEY, batch * VIEWS + view)
        views.append(engine.per_example_gradients(inputs, targets, theta, masks))
    return torch.stack(views).mean(dim=0)


def total(
    engine: GradientEngine, data: Examples, batch: Tensor, size: int = 100, **options: Any
) -> Tensor:
    theta = engine.flat.theta.clone()
    clipping = Clipping(C, key=KEY, **options).at(theta)
    return PrivateUnits(engine, data, PhysicalBatch(size), VIEWS).clipped_sum(batch, clipping)


every_engine = pytest.mark.parametrize("kind", [VmapEngine, FactoredEngine])


@every_engine
@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_mean_over_views_is_clipped_once(
    kind: type[GradientEngine], size: int, population: Examples
) -> None:
    own = engine(kind)
    means = by_hand(own, population, BATCH, own.flat.theta.clone())
    assert means.norm(dim=1).min() > C
    torch.testing.assert_close(
        total(own, population, BATCH, size), clipped_sum([means], Clipping(C))
    )
    unclipped = PrivateUnits(own, population, PhysicalBatch(size), VIEWS).clipped_sum(
        BATCH, Clipping(None, key=KEY).at(own.flat.theta.clone())
    )
    torch.testing.assert_close(unclipped, means.sum(dim=0))


@every_engine
def test_micro_batches_average_the_means_of_their_examples(
    kind: type[GradientEngine], population: Examples
) -> None:
    own, groups = engine(kind), torch.tensor([0, 0, 3, 3, 5])
    means = by_hand(own, population, BATCH, own.flat.theta.clone())
    plan = Clipping(C, group_size=2, groups=groups)
    found = total(own, population, BATCH, group_size=2, groups=groups)
    torch.testing.assert_close(found, clipped_sum([means], plan))


@every_engine
def test_scale_and_offset_act_on_the_mean(kind: type[GradientEngine], population: Examples) -> None:
    own = engine(kind)
    theta = own.flat.theta.clone()
    public = {"scale": torch.linspace(0.5, 2, len(theta)).double(), "offset": 0.1 * theta}
    means = by_hand(own, population, BATCH, theta)
    expected = clipped_sum([means], Clipping(C, **public))
    torch.testing.assert_close(total(own, population, BATCH, **public), expected)


@every_engine
def test_an_example_moves_the_sum_by_at_most_the_clip_norm(
    kind: type[GradientEngine], population: Examples
) -> None:
    own = engine(kind)
    whole = total(own, population, BATCH)
    for gone in range(len(BATCH)):
        rest = torch.cat([BATCH[:gone], BATCH[gone + 1 :]])
        moved = float((whole - total(own, population, rest)).norm())
        assert moved == pytest.approx(C, rel=1e-9)  # every mean is longer than C


def test_one_view_is_the_sum_without_views(population: Examples) -> None:
    own = engine(FactoredEngine)
    clipping = Clipping(C, key=KEY).at(own.flat.theta.clone())
    plain = PrivateUnits(own, population, PhysicalBatch(100))
    once = replace(plain, views=1)
    assert torch.equal(plain.clipped_sum(BATCH, clipping), once.clipped_sum(BATCH, clipping))
    nobody = torch.zeros(0, dtype=torch.int64)
    assert not replace(plain, views=VIEWS).clipped_sum(nobody, clipping).any()


@pytest.mark.long
def test_the_audit_finds_that_views_keep_the_contract() -> None:
    def in_views(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        return replace(units, views=VIEWS).clipped_sum(indices, clipping)

    result = check_contract(subject("dp-pmlf", sums=in_views), attacked=(2,))
    assert result.verdict == "kept", result.broken
    assert result.measured.joint > 0.7


def spec(views: int, **changes: Any) -> RunSpec:
    values = {
        "dataset": {"id": "digits"},
        "model": "mlp",
        "method": {"id": "dp-pmlf", "learning_rate": 0.1, "clip_norm": 1.0},
        "privacy": {"epsilon": 8.0},
        "training": {"expected_batch_size": 12, "steps": 2, "views": views},
        "seed": 1,
    }
    return from_mapping({**values, **changes})


def test_a_run_takes_the_views_that_its_spec_asks_for(tmp_path: Path) -> None:
    Digits().prepare(tmp_path)
    assert (spec(1).passes, spec(3).passes) == (2, 6)
    assert spec(1).hash != spec(3).hash
    seen: list[int] = []
    run = Run.prepare(spec(3), tmp_path, "cpu", noise_multiplier=1.0)

    def watched(units: PrivateUnits, indices: Tensor, clipping: Clipping) -> Tensor:
        seen.append(units.views)
        return units.clipped_sum(indices, clipping)

    run.units = SummedBy.of(run.units, watched)
    for drawn in run.batches():
        run.step(drawn)
    assert seen == [3, 3]


def test_a_user_has_no_views() -> None:
    users = {"id": "digits-users"}
    method = {"id": "dp-fedavg", "learning_rate": 1.0, "clip_norm": 1.0}
    with pytest.raises(UserError, match=r"training\.views: must be 1 for dp-fedavg"):
        spec(2, dataset=users, method=method)
