"""Every experiment of a paper at a reduced size, from its settings to its PDF."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pandas as pd
import pytest
from pypdf import PdfReader

from clipnoise.cli import main
from clipnoise.papers.base import COMPARISON, experiments
from clipnoise.studies.scale import read_scale

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "reports" / "templates" / "reproduction.typ"
SMOKE = ROOT / "workflow" / "scales" / "smoke.yaml"


def reproduce(name: str, folder: Path, *scale: str | Path) -> Path:
    settings = ROOT / "workflow" / "reproductions" / f"{name}.yaml"
    out = folder / "data"
    published = ROOT / "reports" / "published" / f"{name}.csv"
    words = ["--settings", settings, "--published", published, "--out", out]
    words += scale or ("--scale", SMOKE)
    assert main(["reproduce", name, *map(str, words)]) == 0
    return out


@pytest.mark.quick(name=["dp-adambc/fig2-left", "design-principles/fig2"])
@pytest.mark.parametrize("name", experiments())
def test_an_experiment_leaves_a_comparison_and_a_pdf_that_shows_it(
    name: str, tmp_path: Path
) -> None:
    data = reproduce(name, tmp_path)
    pdf = tmp_path / "reports" / f"{name}.pdf"
    words = ["--data", data, "--template", TEMPLATE, "--out", pdf]
    assert main(["reproduction-report", name, *map(str, words)]) == 0

    comparison = pd.read_csv(pdf.with_suffix(".csv"))
    assert tuple(comparison.columns) == (*COMPARISON, "warning")
    assert set(comparison.pop("warning")) == {"smoke run: not evidence"}
    both = comparison.dropna()
    assert len(both)
    largest = both[["measured", "published"]].abs().max().max()
    errors = (both.measured - both.published - both.difference).abs()
    assert errors.max() <= 1e-6 * max(1, largest)
    pages = [page.extract_text() for page in PdfReader(pdf).pages]
    assert all("smoke run: not evidence" in page for page in pages)
    text = "".join(pages)
    assert "Published and measured" in text
    assert "What was found" in text
    assert "This run is smaller than what is described below" in " ".join(text.split())
    assert "Provenance" in text
    shown = bare(text)
    assert [name for name in comparison.quantity if bare(str(name)) not in shown] == []


def bare(text: str) -> str:
    """Return text without spaces and accents: pypdf reads a letter with an accent twice."""
    decomposed = unicodedata.normalize("NFD", text)
    once = re.sub(r"(\w)\1(?=[\u0300-\u036f])", r"\1", decomposed)
    return "".join(one for one in once if not (one.isspace() or unicodedata.combining(one)))


def test_every_experiment_has_a_smoke_size() -> None:
    assert set(read_scale(SMOKE).reproductions) == set(experiments())


def test_at_its_published_size_an_experiment_has_no_watermark(tmp_path: Path) -> None:
    data = reproduce("dp-adambc/fig2-left", tmp_path, "--scale")
    assert json.loads((data / "run.json").read_text())["watermark"] == ""
    settings = ROOT / "workflow" / "reproductions" / "dp-adambc" / "fig2-left.yaml"
    assert (data / "settings.yaml").read_text() == settings.read_text()


@pytest.mark.long
def test_a_report_is_made_without_torch(tmp_path: Path) -> None:
    data = reproduce("dp-adambc/fig2-left", tmp_path)
    words = ["reproduction-report", "dp-adambc/fig2-left", "--data", str(data)]
    words += ["--template", str(TEMPLATE), "--out", str(tmp_path / "report.pdf")]
    code = (
        f"import sys; from clipnoise.cli import main; assert main({words}) == 0; "
        "assert not {'torch', 'mlflow', 'opacus'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_same_settings_give_the_same_files(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        reproduce("design-principles/fig2", folder)
    first, second = ((folder / "data" / "data.csv").read_bytes() for folder in folders)
    assert first == second
