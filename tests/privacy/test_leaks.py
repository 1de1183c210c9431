"""Private data do not get past the privacy boundary: not in types, and not when code is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import leaks
import pytest
import torch
from torch import Tensor

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.query import Component
from clipnoise.core.step import privatize
from clipnoise.methods.base import Public, Released, State
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.privacy.queries import ClippedMean

ROOT = Path(__file__).parents[2]
FILE = Path(leaks.__file__)


@pytest.mark.long
def test_mypy_refuses_every_leak_and_nothing_else() -> None:
    lines = FILE.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# leak")}
    assert len(marked) == len(leaks.LEAKS)
    words = ["--config-file=", "--no-error-summary", "--follow-imports=silent"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "--cache-dir", ROOT / ".mypy_cache" / "leaks", FILE],
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {int(line.rpartition(": error: ")[0].split(":")[1]) for line in errors} == marked, errors


@pytest.mark.parametrize("leak", leaks.LEAKS, ids=lambda leak: leak.__name__)
def test_every_leak_fails_when_it_is_tried(leak: Callable[[ClippedSum], object]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        leak(ClippedSum(torch.ones(3)))


def test_a_method_cannot_keep_values_on_itself() -> None:
    class Hoarder(DPSGD):
        def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
            self.kept = released
            return super().update(released, state, public)

    with pytest.raises(FrozenInstanceError, match="keep it in the state"):
        leaks.take_step(Hoarder(learning_rate=1.0, clip_norm=1.0), ClippedSum(torch.ones(3)))


def test_a_private_query_cannot_declare_too_little_noise() -> None:
    class Quiet(ClippedMean):
        def components(self, clip_norm: float, expected_batch_size: float) -> tuple[Component, ...]:
            return (Component(clip_norm / expected_batch_size, noise_factor=0.5),)

    constants = Public(noise_multiplier=1.0, expected_batch_size=2.0, total_steps=1)
    with pytest.raises(ValueError, match="Quiet is declared private, but adds too little noise"):
        privatize(ClippedSum(torch.ones(3)), Quiet(), Clipping(1.0), [torch.ones(3)], constants)


def test_only_the_step_opens_a_sum() -> None:
    name = "_SEALED"
    users = {
        str(path.relative_to(ROOT / "src" / "clipnoise"))
        for path in (ROOT / "src").rglob("*.py")
        if name in path.read_text()
    }
    assert users == {"core/clipping.py", "core/step.py"}
