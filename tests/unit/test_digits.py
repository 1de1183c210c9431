"""The digits: which examples are private or public, and what no seed may change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clipnoise.data.digits import Digits
from clipnoise.errors import UserError
from clipnoise.fields import parse


def test_the_test_set_is_the_same_for_every_split(cache: Path) -> None:
    expected = Digits().load(cache).test.inputs
    for dataset in (Digits(split_seed=5), Digits(public_examples=100)):
        assert torch.equal(dataset.load(cache).test.inputs, expected)


def test_public_examples_come_out_of_the_training_part(cache: Path) -> None:
    without, splits = Digits().load(cache), Digits(public_examples=300).load(cache)
    assert splits.public is not None
    assert len(splits.train) == 1000
    together = torch.cat([splits.train.inputs, splits.public.inputs])
    assert torch.equal(together, without.train.inputs)
    assert torch.equal(splits.validation.inputs, without.validation.inputs)


def test_the_parts_together_are_all_the_digits(cache: Path) -> None:
    from sklearn.datasets import load_digits

    splits = Digits(split_seed=3).load(cache)
    parts = (splits.train, splits.validation, splits.test)
    mine = sorted(
        (x.flatten().tolist(), int(y))
        for part in parts
        for x, y in zip(part.inputs, part.targets, strict=True)
    )
    bunch = load_digits()
    assert mine == sorted(zip((bunch.data / 16).tolist(), bunch.target.tolist(), strict=True))


def test_too_many_public_examples_are_refused() -> None:
    with pytest.raises(UserError, match="public_examples must be below 1300"):
        parse(Digits, {"public_examples": 1300})
