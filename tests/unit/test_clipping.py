"""Norms and clipping are accurate for very long gradients in float32."""

from __future__ import annotations

import pytest
import torch

from clipnoise.core.clip_rules import HardClip
from clipnoise.core.clipping import Clipping
from clipnoise.gradients.clipping import clipped_sum, row_norms

LONG = 5_000_001


@pytest.fixture(scope="module")
def long_rows() -> torch.Tensor:
    return torch.randn(2, LONG, generator=torch.Generator().manual_seed(0)) * 1e-3


def test_row_norms_are_accurate_for_long_rows(long_rows: torch.Tensor) -> None:
    exact = torch.stack([row.double().norm() for row in long_rows])
    torch.testing.assert_close(row_norms(long_rows).double(), exact, rtol=2e-7, atol=0)


def test_clipped_vectors_of_long_rows_stay_within_the_clip_norm(long_rows: torch.Tensor) -> None:
    for row in long_rows:
        total = clipped_sum([row.unsqueeze(0)], Clipping(0.1))
        assert float(total.double().norm()) == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("length", [1, 5, 1023, 1024, 1025, 3000])
def test_row_norms_are_those_of_float64_at_every_length(length: int) -> None:
    rows = torch.randn(3, length, generator=torch.Generator().manual_seed(1))
    exact = torch.linalg.vector_norm(rows.double(), dim=1)
    torch.testing.assert_close(row_norms(rows).double(), exact, rtol=1e-6, atol=0)


def test_short_vectors_are_left_alone_and_zero_stays_zero() -> None:
    assert HardClip().factors(torch.tensor([0.0, 0.5, 1.0, 4.0]), 1.0).tolist() == [1, 1, 1, 0.25]
    rows = torch.tensor([[0.0, 0.0], [0.3, 0.4], [3.0, 4.0]])
    total = clipped_sum([rows], Clipping(1.0))
    torch.testing.assert_close(total, torch.tensor([0.9, 1.2]))
