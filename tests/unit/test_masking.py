"""Masked tokens follow BERT, are drawn once, and are words of the text only."""

from __future__ import annotations

import numpy as np
import torch

from clipnoise.data.rows import RaggedRows
from clipnoise.data.signature import NO_TARGET
from clipnoise.data.text import MaskedRows, Masking

MASK, FIRST, SIZE, COUNT = 3, 10, 1000, 400


def rows(seed: int = 0, chosen: torch.Tensor | None = None) -> tuple[MaskedRows, MaskedRows]:
    """Return inputs and targets of sequences that begin and end with a special token."""
    draws = np.random.default_rng(0)
    sequences = [[1, *draws.integers(FIRST, SIZE, 20 + row % 80), 2] for row in range(COUNT)]
    starts = np.cumsum([0, *map(len, sequences)])
    order = torch.arange(COUNT) if chosen is None else chosen
    ragged = RaggedRows(starts, np.concatenate(sequences).astype("uint16"), order, 64)
    masking = Masking(seed, MASK, FIRST, SIZE)
    return MaskedRows(ragged, masking, False), MaskedRows(ragged, masking, True)


def test_a_seventh_of_the_ordinary_tokens_and_no_other_is_to_be_predicted() -> None:
    inputs, targets = (part[slice(None)] for part in rows())
    plain = rows()[0].rows[slice(None)]
    asked = targets != NO_TARGET
    text = plain >= FIRST
    assert not (asked & ~text).any()
    assert abs(float(asked.sum() / text.sum()) - 0.15) < 0.01
    assert torch.equal(targets[asked], plain[asked])
    assert torch.equal(inputs[~asked], plain[~asked])


def test_tokens_to_predict_are_hidden_replaced_or_left_as_in_bert() -> None:
    inputs, targets = (part[slice(None)] for part in rows())
    asked = targets != NO_TARGET
    hidden = (inputs[asked] == MASK).double().mean()
    left = (inputs[asked] == targets[asked]).double().mean()
    assert abs(float(hidden) - 0.8) < 0.03
    assert abs(float(left) - 0.1) < 0.02
    assert int(inputs.max()) < SIZE


def test_an_example_is_masked_the_same_wherever_it_is_taken() -> None:
    inputs, targets = rows()
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    shuffled = rows(chosen=order)
    row = int(order[7])
    assert torch.equal(inputs[torch.tensor([row])], shuffled[0][torch.tensor([7])])
    assert torch.equal(targets[torch.tensor([row])], shuffled[1][torch.tensor([7])])


def test_another_seed_masks_other_tokens() -> None:
    assert not torch.equal(rows(0)[1][slice(None)], rows(1)[1][slice(None)])
