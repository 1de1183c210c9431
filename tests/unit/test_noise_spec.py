"""The noise section of a run spec: plain data, validated, and light to import."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation
from clipnoise.privacy.noise.banded import BandedNoise
from clipnoise.privacy.noise.banded_inverse import BandedInverseNoise
from clipnoise.privacy.noise.buffered import BufferedNoise
from clipnoise.privacy.noise.cancelling import CancellingNoise
from clipnoise.privacy.noise.dense import DenseNoise
from clipnoise.privacy.noise.tree import TreeNoise


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "independent"},
        {"kind": "dense"},
        {"kind": "banded", "bands": 16},
        {"kind": "banded-inverse", "bands": 4},
        {"kind": "lambda-cgd", "cancelled": 0.9},
        {"kind": "blt", "buffers": 3},
        {"kind": "tree"},
        {"kind": "dense", "rates": "learning_rate"},
        {"kind": "blt", "buffers": 3, "rates": {"kind": "step", "peak": 1, "breakpoints": [0.5]}},
    ],
)
def test_a_spec_survives_a_round_trip(values: dict[str, Any]) -> None:
    noise = parse(NoiseCorrelation, values)
    assert parse(NoiseCorrelation, to_plain(noise)) == noise


def test_noise_is_independent_by_default() -> None:
    assert parse(NoiseCorrelation, {}) == IndependentNoise()


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "banded"},
        {"kind": "banded", "bands": 0},
        {"kind": "banded", "band": 3},
        {"kind": "dense", "bands": 3},
        {"kind": "pink"},
        {"bands": 3},
        {"kind": "banded-inverse"},
        {"kind": "lambda-cgd", "cancelled": 1.0},
        {"kind": "lambda-cgd", "cancelled": -0.1},
        {"kind": "lambda-cgd", "bands": 2},
        {"kind": "blt", "bands": 3},
        {"kind": "blt", "buffers": 0},
        {"kind": "blt", "buffers": 9},
        {"kind": "tree", "buffers": 3},
        {"kind": "tree", "rates": "learning_rate"},
        {"kind": "banded", "bands": 3, "rates": "learning rate"},
        {"kind": "banded", "bands": 3, "rates": {"kind": "line", "peak": 1}},
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"noise.*(bands|kind|cancelled|buffers|rates)"):
        parse(NoiseCorrelation, values, key="noise")


@pytest.mark.parametrize(
    ("noise", "steps", "bands"),
    [
        (IndependentNoise(), 10, 1),
        (BandedNoise(bands=4), 10, 4),
        (BandedNoise(bands=40), 10, 10),
        (DenseNoise(), 10, 10),
        (DenseNoise(), 0, 1),
        (BandedInverseNoise(bands=4), 10, 10),
        (BandedInverseNoise(bands=1), 10, 1),
        (CancellingNoise(cancelled=0.5), 10, 10),
        (CancellingNoise(cancelled=0), 10, 1),
        (BufferedNoise(buffers=2), 10, 10),
        (TreeNoise(), 10, 10),
    ],
)
def test_bands_never_exceed_the_steps(noise: NoiseCorrelation, steps: int, bands: int) -> None:
    assert noise.bands_over(steps) == bands


def test_one_step_of_tree_noise_costs_one_release() -> None:
    assert [TreeNoise().prefix_cost(steps, 1) for steps in (0, 1)] == [1.0, 1.0]


def test_importing_the_spec_and_the_accounting_loads_nothing_heavy() -> None:
    code = (
        "import sys, clipnoise.privacy.noise, clipnoise.privacy.participation\n"
        "print(sorted({'torch', 'scipy', 'opacus'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
