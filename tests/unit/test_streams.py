"""A draw from the global streams of Python, NumPy and torch is noticed, whatever it is."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from clipnoise.errors import UserError
from clipnoise.run.streams import GlobalStreams

DRAWS: dict[str, Callable[[], object]] = {
    "a number": random.random,
    "the second of a pair": lambda: random.gauss(0, 1),
    "an order": lambda: random.shuffle([1, 2, 3]),
    "as many as there are before they are made again": lambda: [
        random.getrandbits(32) for _ in range(624)
    ],
    "a number of NumPy": np.random.rand,
    "an order of NumPy": lambda: np.random.permutation(5),
    "as many of NumPy": lambda: np.random.rand(312),
    "a number of torch": lambda: torch.randn(1),
    "an order of torch": lambda: torch.randperm(5),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_is_noticed(draw: Callable[[], object]) -> None:
    for _ in range(2):
        streams = GlobalStreams()
        streams.require_unchanged()
        draw()
        with pytest.raises(UserError, match="the global stream of Python, NumPy or torch"):
            streams.require_unchanged()


def test_a_draw_of_another_generator_of_numpys_stream_is_noticed() -> None:
    before = np.random.mtrand.get_bit_generator()
    np.random.mtrand.set_bit_generator(np.random.PCG64(1))
    try:
        streams = GlobalStreams()
        np.random.rand()
        with pytest.raises(UserError, match="the global stream of Python, NumPy or torch"):
            streams.require_unchanged()
    finally:
        np.random.mtrand.set_bit_generator(before)


def test_generators_of_ones_own_and_reading_the_streams_are_no_draws() -> None:
    streams = GlobalStreams()
    np.random.default_rng(0).random()
    random.Random(0).random()
    torch.rand(1, generator=torch.Generator().manual_seed(0))
    random.getstate()
    np.random.get_state()
    streams.require_unchanged()
