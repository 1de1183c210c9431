"""Seeds: one stream per purpose, the same on every machine and in every process."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from typing import get_args

import numpy as np
import pytest
import torch

from clipnoise.seeds import Purpose, derive, generator

PURPOSES = get_args(Purpose)


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("seed", [0, 1, 12345, -3, 2**70])
def test_seeds_are_the_first_63_bits_of_sha256(purpose: Purpose, seed: int) -> None:
    assert (
        derive(purpose, seed) == int(sha256(f"{purpose}:{seed}".encode()).hexdigest()[:16], 16) // 2
    )


def test_known_answer() -> None:
    # printf 'noise:0' | sha256sum → a6abd3ad7f6cfdcb…
    assert derive("noise", 0) == 0xA6ABD3AD7F6CFDCB >> 1


def test_another_process_with_another_hash_seed_derives_the_same() -> None:
    code = "from clipnoise.seeds import derive; print(derive('sampling', 7))"
    for hash_seed in ("1", "2"):
        output = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert int(output) == derive("sampling", 7)


def test_purposes_and_seeds_never_share_a_stream() -> None:
    derived = {derive(purpose, seed) for purpose in PURPOSES for seed in range(1_000)}
    assert len(derived) == len(PURPOSES) * 1_000
    assert len({derive("dropout", seed, t) for seed in range(30) for t in range(30)}) == 900


def test_the_cpu_stream_is_numpys_mersenne_twister_with_every_word_of_its_state_filled() -> None:
    entropy = int(sha256(b"noise:3").hexdigest(), 16)
    words = np.random.SeedSequence(entropy).generate_state(624)
    words[0] |= 1 << 31
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.empty(1000, dtype=torch.int64).random_(0, 2**32, generator=generator("noise", 3))
    pairs = twister.random_raw(2000).reshape(-1, 2)  # torch takes 64 bits and keeps the lower half
    assert drawn.tolist() == pairs[:, 1].tolist()


def test_streams_of_different_purposes_are_uncorrelated() -> None:
    draws = torch.stack([torch.randn(50_000, generator=generator(p, 0)) for p in PURPOSES])
    correlation = torch.corrcoef(draws) - torch.eye(len(PURPOSES))
    assert correlation.abs().max() < 6 / 50_000**0.5


def test_generators_do_not_touch_the_global_stream_or_each_other() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first, second = generator("noise", 1), generator("noise", 1)
    torch.rand(10, generator=first)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(
        torch.rand(2, generator=second), torch.rand(2, generator=generator("noise", 1))
    )
