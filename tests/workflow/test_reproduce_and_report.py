"""Every reproduction at a reduced size, from its settings through the command line to its PDF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from pypdf import PdfReader

from clipnoise.cli import main
from clipnoise.reporting.reproductions.base import reports
from clipnoise.reproductions.base import COMPARISON, reproductions

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "reports" / "templates" / "reproduction.typ"
ADAM = {"method": "adam", "options": {}, "preconditioner": "noiseless"}
STP = {"method": "stp-adam", "options": {"clip_norm": 5.0}, "preconditioner": "noiseless"}

# What is left of the published size.
REDUCED: dict[str, dict[str, Any]] = {
    "adadps/fig3": {"seeds": [0], "tuning_seeds": [1]},
    "design-principles/fig2": {
        "examples": 30,
        "test_examples": 50,
        "noise_draws": 2,
        "experiments": 3,
        "learning_rates": [0.5],
    },
    "design-principles/fig3-header": {"steps": 300},
    "design-principles/negative-coordinates": {
        "steps": 20,
        "dimensions": [10, 100],
        "relative": [0.01, 1.0],
        "coordinates_at_least": 100,
    },
    "design-principles/quadratic": {
        "steps": 20,
        "trials": 3,
        "learning_rates": [0.01],
        "variants": [ADAM, STP],
    },
    "dp-adambc/dp-adam-tracks-dp-sgdm": {"steps": 3, "evaluations": 3, "seeds": [0]},
    "dp-adambc/fig2-left": {"steps": 5},
    "dp-adambc/tables3-5": {"steps": [10, 100], "coordinates": 1000},
}


def reduced(name: str) -> Mapping[str, Any]:
    settings = yaml.safe_load((ROOT / "workflow" / "reproductions" / f"{name}.yaml").read_text())
    settings |= REDUCED[name]
    for panel in settings.get("panels", []):
        panel["steps"] = panel["evaluate_every"] = 5
        for candidate in panel["candidates"]:
            candidate["grid"] = {key: values[:1] for key, values in candidate["grid"].items()}
    if "noises" in settings:
        settings["noises"] = settings["noises"][-1:]
    return settings


def reproduce(name: str, folder: Path) -> Path:
    settings = folder / "settings.yaml"
    settings.write_text(yaml.safe_dump(reduced(name)))
    out = folder / "data"
    published = ROOT / "reports" / "published" / f"{name}.csv"
    words = ["--settings", settings, "--published", published, "--out", out]
    assert main(["reproduce", name, *map(str, words)]) == 0
    return out


@pytest.mark.parametrize("name", sorted(REDUCED))
def test_a_reproduction_leaves_a_comparison_and_a_pdf_that_shows_it(
    name: str, tmp_path: Path
) -> None:
    data = reproduce(name, tmp_path)
    pdf = tmp_path / "reports" / f"{name}.pdf"
    words = ["--data", data, "--template", TEMPLATE, "--out", pdf]
    assert main(["reproduction-report", name, *map(str, words)]) == 0

    comparison = pd.read_csv(pdf.with_suffix(".csv"))
    assert tuple(comparison.columns) == COMPARISON
    both = comparison.dropna()
    assert len(both)
    assert (both.measured - both.published - both.difference).abs().max() <= 1e-6 * max(
        1, both.measured.abs().max()
    )
    text = "".join(page.extract_text() for page in PdfReader(pdf).pages)
    assert "Published and measured" in text
    assert "What was found" in text
    assert "Provenance" in text
    squeezed = "".join(text.split())
    assert all("".join(str(quantity).split()) in squeezed for quantity in comparison.quantity)


def test_every_reproduction_is_tried_here_and_has_a_report() -> None:
    assert set(REDUCED) == set(reproductions()) == set(reports())


def test_the_same_settings_give_the_same_files(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        reproduce("design-principles/fig2", folder)
    first, second = ((folder / "data" / "data.csv").read_bytes() for folder in folders)
    assert first == second
