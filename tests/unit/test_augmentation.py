"""Augmentation: a view depends on the key and the example, and on nothing else in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import Examples, dataset_class
from clipnoise.data.cache import write_arrays
from clipnoise.data.images import PADDING, Augmentation, CifarImages, augmented, cropped_and_flipped
from clipnoise.data.rows import StoredRows
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.units import PhysicalBatch, PrivateUnits
from clipnoise.run.spec import from_mapping
from clipnoise.run.train import Run
from clipnoise.seeds import words

KINDS = [kind for kind in get_args(Augmentation) if kind != "none"]
KEY = 0x0123456789ABCDEF


@pytest.fixture
def images() -> Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.randint(256, (12, 3, 32, 32), generator=draws, dtype=torch.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_does_not_depend_on_who_else_is_in_the_batch(
    kind: Augmentation, images: Tensor
) -> None:
    torch.manual_seed(1)
    whole = augmented(kind, images, KEY, np.arange(12))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    some = augmented(kind, images[[6, 2]], KEY, np.array([6, 2]))
    assert torch.equal(some, whole[[6, 2]])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", KINDS)
def test_another_step_has_other_views(kind: Augmentation, images: Tensor) -> None:
    first, second = (augmented(kind, images, key, np.arange(12)) for key in (KEY, KEY + 1))
    assert (first != second).flatten(1).any(1).sum() > 6
    assert first.shape == images.shape
    assert first.dtype == torch.uint8


def test_a_crop_is_a_window_of_the_padded_image_mirrored_or_not(images: Tensor) -> None:
    draws = np.array([[0, 8, 0], [13, 9, 1 << 63]], dtype="uint64")  # 13 and 9 are 4 and 0 (mod 9)
    first, second = cropped_and_flipped(images[:2], draws)
    assert torch.equal(first[:, PADDING:, :-PADDING], images[0, :, :-PADDING, PADDING:])
    assert not first[:, :PADDING].any()
    assert torch.equal(second.flip(-1)[:, :, PADDING:], images[1, :, :, :-PADDING])


def test_every_place_of_a_crop_is_as_likely_as_any_other() -> None:
    drawn = words(KEY, np.arange(90_000), 3)
    counts = np.bincount((drawn[:, 0] % 9 * 9 + drawn[:, 1] % 9).astype(int), minlength=81)
    expected = 90_000 / 81
    assert abs(((counts - expected) ** 2 / expected).sum() - 80) < 5 * np.sqrt(160)
    assert abs((drawn[:, 2] >> 63).mean() - 0.5) < 0.01


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(1800, 4))

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layers(images)
        return outputs


def population(images: Tensor, kind: Augmentation) -> Examples:
    def views(taken: Tensor, key: int, indices: np.ndarray) -> Tensor:
        return augmented(kind, taken, key, indices)

    inputs = StoredRows(images.numpy(), torch.arange(12), lambda x: x.double() / 255, views)
    return Examples(inputs, torch.arange(12) % 4)


@pytest.mark.parametrize("kind", KINDS)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(
    kind: Augmentation, images: Tensor
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Small().double()
    engine = FactoredEngine(network, nn.CrossEntropyLoss(reduction="none"))
    theta, examples = engine.flat.theta.clone(), population(images, kind)

    def total(batch: list[int], size: int = 100) -> Tensor:
        clipping = Clipping(clip_norm=0.1, key=KEY)
        return PrivateUnits(engine, examples, PhysicalBatch(size)).clipped_sum(
            torch.tensor(batch), clipping.at(theta)
        )

    whole = total(list(range(12)))
    for gone in (0, 7):
        moved = float((whole - total([i for i in range(12) if i != gone])).norm())
        assert 0 < moved <= 0.1 * (1 + 1e-9)
    torch.testing.assert_close(total(list(range(12)), size=5), whole, rtol=1e-9, atol=1e-12)


def test_measuring_takes_images_as_they_are(images: Tensor) -> None:
    rows = population(images, "crop-flip").inputs
    assert torch.equal(rows[torch.tensor([3])], images[[3]].double() / 255)


def test_an_augmented_image_cannot_be_its_own_target() -> None:
    options = {"task": "reconstruction", "pixels": "unit", "augmentation": "crop-flip"}
    with pytest.raises(UserError, match="augmentation must be none for reconstruction"):
        parse(dataset_class("cifar-10"), options)


@pytest.fixture
def cifar(tmp_path: Path) -> CifarImages:
    draws = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = draws.integers(256, size=(40, 3, 32, 32), dtype="uint8")
        arrays[f"{part}_labels"] = draws.integers(10, size=40, dtype="uint8")
    sizes = {"train_examples": 24, "validation_examples": 2, "test_examples": 2}
    options = {**sizes, "public_examples": 2, "augmentation": "crop-flip"}
    dataset = parse(dataset_class("cifar-10"), options)
    assert isinstance(dataset, CifarImages)
    write_arrays(tmp_path / dataset.prepared, arrays, {"source": "", "licence": ""})
    return dataset


def test_only_private_examples_are_augmented(cifar: CifarImages, tmp_path: Path) -> None:
    splits = cifar.load(tmp_path)
    assert splits.public is not None
    chosen = torch.arange(2)
    for part in (splits.train, splits.validation, splits.test, splits.public):
        changed = not torch.equal(part.seen(chosen, KEY)[0], part.take(chosen)[0])
        assert changed == (part is splits.train)


def test_neither_resuming_nor_physical_batches_change_a_run(
    cifar: CifarImages, tmp_path: Path
) -> None:
    def prepared(size: int) -> Run:
        values = {
            "dataset": {"id": cifar.id, **to_plain(cifar)},
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 0.1, "clip_norm": 1.0},
            "privacy": {"epsilon": 8.0},
            "training": {"expected_batch_size": 12, "steps": 4, "physical_batch_size": size},
            "seed": 1,
        }
        return Run.prepare(from_mapping(values), tmp_path, "cpu", noise_multiplier=1.0)

    whole, resumed, cut = prepared(24), prepared(24), prepared(5)
    for run in (whole, cut):
        for number, batch in enumerate(run.batches()):
            run.step(batch)
            if run is whole and number == 1:
                saved = {name: value.clone() for name, value in run.get_state().items()}
    resumed.set_state(saved)
    for batch in resumed.batches(after=2):
        resumed.step(batch)
    assert torch.equal(resumed.state.theta, whole.state.theta)
    torch.testing.assert_close(cut.state.theta, whole.state.theta, rtol=1e-5, atol=1e-7)
