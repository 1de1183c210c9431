"""The noise part of a run spec: plain data, checked, and light to import."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.privacy.noise.spec import Noise


@pytest.mark.parametrize(
    "values", [{"kind": "independent"}, {"kind": "dense"}, {"kind": "banded", "bands": 16}]
)
def test_a_spec_survives_a_round_trip(values: dict[str, Any]) -> None:
    noise = parse(Noise, values)
    assert parse(Noise, to_plain(noise)) == noise


def test_noise_is_independent_unless_said_otherwise() -> None:
    assert parse(Noise, {}) == Noise(kind="independent", bands=None)


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
        parse(Noise, values, key="noise")


@pytest.mark.parametrize(
    ("noise", "steps", "bands"),
    [
        (Noise(), 10, 1),
        (Noise(kind="banded", bands=4), 10, 4),
        (Noise(kind="banded", bands=40), 10, 10),
        (Noise(kind="dense"), 10, 10),
        (Noise(kind="dense"), 0, 1),
    ],
)
def test_bands_never_exceed_the_steps(noise: Noise, steps: int, bands: int) -> None:
    assert noise.bands_over(steps) == bands


def test_importing_the_spec_and_the_accounting_loads_nothing_heavy() -> None:
    code = (
        "import sys, clipnoise.privacy.noise.spec, clipnoise.privacy.participation\n"
        "print(sorted({'torch', 'scipy', 'opacus'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
