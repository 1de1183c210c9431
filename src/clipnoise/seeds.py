"""One seed per run, and one independent random stream per purpose."""

from __future__ import annotations

import hashlib
from typing import Literal

from clipnoise.lazy import np, torch

GAMMA = 0x9E3779B97F4A7C15  # the increment of SplitMix64's counter
WORDS = 624  # of the state of a Mersenne Twister

Purpose = Literal[
    "split",
    "initialisation",
    "sampling",
    "micro-batches",
    "noise",
    "dropout",
    "views",
    "directions",
    "public",
    "public dropout",
    "warm start",
    "evaluation",
    "trials",
]


def derive(purpose: Purpose, seed: int, *step: int) -> int:
    """Derive the seed of one purpose: the first 63 bits of SHA-256("purpose:seed[:step]").

    Unlike Python's hash(), it is the same in every process and on every machine. A step, t, is
    given for a purpose whose seed is another one in each step.
    """
    return int.from_bytes(_digest(purpose, seed, *step)[:8], "big") >> 1


def _digest(purpose: Purpose, seed: int, *step: int) -> bytes:
    return hashlib.sha256(":".join([purpose, *map(str, (seed, *step))]).encode()).digest()


def generator(purpose: Purpose, seed: int, device: str = "cpu") -> torch.Generator:
    """Return the random stream of one purpose.

    On the CPU it is a Mersenne Twister (MT19937) whose state of 19,937 bits NumPy's SeedSequence
    fills from all 256 bits of SHA-256("purpose:seed"); on a GPU it is Philox with 63 of them.

    The streams are for repeatable research: anyone who knows the seed knows the noise. A model that
    protects real people needs noise from a cryptographic source: `privacy.secure_noise`.

    Numbers differ between kinds of device. The generator is a new one, at its start.
    """
    started = torch.Generator(device)
    if started.device.type != "cpu":
        return started.manual_seed(derive(purpose, seed))
    # `manual_seed` would keep 32 bits on the CPU: fill all 624 words of the state instead.
    entropy = int.from_bytes(_digest(purpose, seed), "big")
    words = np.random.SeedSequence(entropy).generate_state(WORDS)
    words[0] |= 1 << 31  # any state but the one of only zeros is valid
    return twister(words)


def twister(words: np.ndarray) -> torch.Generator:
    """Return a Mersenne Twister on the CPU with a given state, of `WORDS` 32-bit words."""
    started = torch.Generator().manual_seed(0)
    filled = words.astype("<u8").tobytes()
    # They follow 24 bytes that hold the seed and the position, in 8 bytes each.
    state = bytearray(started.get_state().numpy().tobytes())
    state[24 : 24 + len(filled)] = filled
    return started.set_state(torch.frombuffer(state, dtype=torch.uint8))


def words(key: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Return pseudorandom words, each a function of the key, one index and its turn alone.

    Args:
        key: 64 bits.
        indices: integers of shape (b,).
        count: words for each index.

    Returns:
        uint64 of shape (b, count).
    """
    turns = np.arange(1, count + 1, dtype="uint64") * np.uint64(GAMMA)
    counters = np.uint64(key % 2**64) + (indices.astype("uint64") + np.uint64(1)) * np.uint64(GAMMA)
    return mix64(mix64(counters)[:, None] + turns)


def mix64(values: np.ndarray) -> np.ndarray:
    """Scramble 64-bit counters into pseudorandom numbers, elementwise: uint64 → uint64.

    Source: Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators" (the output
    function of SplitMix64).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
