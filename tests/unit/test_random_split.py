"""Datasets that are two arrays: what a class of one's own has to say, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipnoise.data.random_split import RandomSplit
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Squares(RandomSplit):
    """Numbers and their squares, with a row too few if it is asked for."""

    title = "Squares"
    licence = "none"
    source = "made up"
    preprocessing = "none"
    rows = 50
    id = "squares"
    prepared_with = ("missing",)

    missing: int = 0

    @property
    def signature(self) -> Signature:
        return Signature("features", (1,), 50)

    def arrays(self, cache: Path) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.arange(self.rows - self.missing)
        return numbers[:, None] / 10, numbers


SIZES = {"train_examples": 30, "validation_examples": 8, "test_examples": 10, "public_examples": 2}


def test_each_row_is_in_one_part_beside_its_own_target(tmp_path: Path) -> None:
    dataset = Squares(**SIZES)  # type: ignore[arg-type]
    dataset.prepare(tmp_path)
    splits = dataset.load(tmp_path)
    assert splits.public is not None
    parts = (splits.train, splits.validation, splits.test, splits.public)
    assert [len(part) for part in parts] == [30, 8, 10, 2]
    rows = [part.take(slice(None)) for part in parts]
    targets = [int(target) for _, some in rows for target in some]
    assert sorted(targets) == list(range(50))
    for inputs, some in rows:
        assert str(inputs.dtype) == "torch.float32"
        np.testing.assert_allclose(inputs[:, 0], some / 10, rtol=1e-6)  # type: ignore[index]


def test_the_test_set_is_that_of_every_split_seed(tmp_path: Path) -> None:
    Squares(**SIZES).prepare(tmp_path)  # type: ignore[arg-type]
    first, second = (
        Squares(**SIZES, split_seed=seed).load(tmp_path)  # type: ignore[arg-type]
        for seed in (0, 1)
    )
    assert first.test.dense().targets.equal(second.test.dense().targets)
    assert not first.train.dense().targets.equal(second.train.dense().targets)


def test_more_examples_than_there_are_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="together must be at most 50"):
        Squares(train_examples=41, validation_examples=0, test_examples=10)


def test_arrays_of_another_length_than_was_said_are_refused(tmp_path: Path) -> None:
    dataset = Squares(**SIZES, missing=1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Squares: arrays: expected 50 inputs, got an array of"):
        dataset.prepare(tmp_path)
    assert not (tmp_path / dataset.prepared).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x * np.nan, y), "inputs must be finite; row 0 is not"),
        (lambda x, y: (x, y + 1), "targets must be whole numbers from 0 to 49"),
        (lambda x, y: (x, y - 1), "targets must be whole numbers from 0 to 49"),
        (lambda x, y: (x, y / 2), "targets must be whole numbers from 0 to 49"),
        (lambda x, y: (x, y.astype(str)), "targets must be numbers, got <U"),
        (lambda x, y: (np.hstack([x, x]), y), r"inputs have shape \(2,\), but signature \(1,\)"),
        (lambda x, y: x, "too many values to unpack"),
        (lambda x, y: (x.tolist()[:-1], y), "expected 50 inputs, got an array of"),
    ],
)
def test_arrays_that_are_not_what_the_class_says_are_refused(
    change: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = Squares.arrays
    monkeypatch.setattr(Squares, "arrays", lambda self, cache: change(*arrays(self, cache)))
    dataset = Squares(**SIZES)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=rf"class Squares: arrays: {message}"):
        dataset.prepare(tmp_path)
