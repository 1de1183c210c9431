"""The noise section of a run spec: plain data, validated, and light to import."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.privacy.noise import NoiseCorrelation


@pytest.mark.parametrize(
    "values", [{"kind": "independent"}, {"kind": "dense"}, {"kind": "banded", "bands": 16}]
)
def test_a_spec_survives_a_round_trip(values: dict[str, Any]) -> None:
    noise = parse(NoiseCorrelation, values)
    assert parse(NoiseCorrelation, to_plain(noise)) == noise


def test_noise_is_independent_by_default() -> None:
    assert parse(NoiseCorrelation, {}) == NoiseCorrelation(kind="independent", bands=None)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "banded"},
        {"kind": "banded", "bands": 0},
        {"kind": "banded", "band": 3},
        {"kind": "dense", "bands": 3},
        {"kind": "pink"},
        {"bands": 3},
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"noise.*(bands|kind)"):
        parse(NoiseCorrelation, values, key="noise")


@pytest.mark.parametrize(
    ("noise", "steps", "bands"),
    [
        (NoiseCorrelation(), 10, 1),
        (NoiseCorrelation(kind="banded", bands=4), 10, 4),
        (NoiseCorrelation(kind="banded", bands=40), 10, 10),
        (NoiseCorrelation(kind="dense"), 10, 10),
        (NoiseCorrelation(kind="dense"), 0, 1),
    ],
)
def test_bands_never_exceed_the_steps(noise: NoiseCorrelation, steps: int, bands: int) -> None:
    assert noise.bands_over(steps) == bands


def test_importing_the_spec_and_the_accounting_loads_nothing_heavy() -> None:
    code = (
        "import sys, clipnoise.privacy.noise, clipnoise.privacy.participation\n"
        "print(sorted({'torch', 'scipy', 'opacus'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
