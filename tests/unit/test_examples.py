"""What lies in the folder of examples works as it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "own_loop.ipynb"
FOLDER = ROOT / "examples" / "folder"
TESTED = ROOT / "examples" / "test-your-code"


def python(code: str, folder: Path, **settings: str) -> str:
    """Return what code prints in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_numbers(text: str) -> list[str]:
    return re.sub(r"\d+(\.\d+)?(e-\d+)?", "#", text).splitlines()


@pytest.mark.long
def test_the_notebook_prints_what_it_shows_up_to_numbers() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = "".join(output.text for cell in cells for output in cell.outputs)
    printed = python("\n".join(cell.source for cell in cells), NOTEBOOK.parent)
    assert without_numbers(printed) == without_numbers(shown)
    assert "claim: guarantee" in printed
    assert re.search(r"140 steps, ε = (2\.99\d|3\.000)", printed)
    assert float(re.findall(r"accuracy (0\.\d+)", printed)[3]) > 0.6


TRAIN = """
from pathlib import Path
from clipnoise.privacy.calibration import calibrate
from clipnoise.run.results import privacy_statement
from clipnoise.run.train import train
from clipnoise.studies.study import load_study
study = load_study(Path("rings.yaml"))
for model, noise in (
    ("logistic", "independent"), ("residual-net", "independent"), ("residual-net", "square-root")
):
    spec = next(
        run.spec for run in study.runs
        if (run.spec.model.id, run.label) == (model, "dp-sgd-projected")
        and (run.spec.privacy.epsilon, run.spec.privacy.noise.id) == (8, noise)
    )
    spec.dataset.prepare(Path({cache!r}))
    calibration = calibrate(spec.budget)
    outcome = train(spec, cache=Path({cache!r}), calibration=calibration)
    print(privacy_statement(spec, calibration).claim, outcome.metrics[-1].test_accuracy)
"""


@pytest.mark.long
def test_everything_in_the_folder_trains_together(tmp_path: Path) -> None:
    told = python(TRAIN.format(cache=str(tmp_path)), FOLDER, CLIPNOISE_PLUGINS=str(FOLDER))
    claims, accuracies = zip(*(line.split() for line in told.splitlines()), strict=True)
    assert claims == ("guarantee",) * 3
    linear, residual, combined = map(float, accuracies)
    assert linear < 0.7 < 0.9 < min(residual, combined)  # no line divides two rings


@pytest.mark.long
def test_what_is_in_the_folder_passes_the_contract_of_its_kind() -> None:
    tests = [f"tests/contract/test_{kind}.py" for kind in ("methods", "datasets", "models")]
    names = "dp-sgd-projected or rings or residual-net"
    words = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-n0", "-k", names]
    words += [*tests, "tests/privacy/test_sensitivity.py"]
    settings = {**os.environ, "CLIPNOISE_PLUGINS": str(FOLDER)}
    done = subprocess.run(
        words, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
    for test in words[-4:]:
        assert f"{test}::" in done.stdout


def output_of(folder: Path) -> str:
    """Return what pytest says in a repository of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "ignore", "-p", "no:xdist", "--rootdir", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.stdout + done.stderr


@pytest.mark.long
def test_the_repository_with_a_private_training_passes_its_test(tmp_path: Path) -> None:
    folder = shutil.copytree(TESTED, tmp_path / "repository")
    said = output_of(folder)
    assert "1 passed" in said, said


@pytest.mark.long
def test_the_repository_fails_its_test_where_training_goes_on_for_too_long(tmp_path: Path) -> None:
    folder = shutil.copytree(TESTED, tmp_path / "repository")
    text = (folder / "train.py").read_text()
    longer = text.replace("for _ in range(EPOCHS)", "for _ in range(3 * EPOCHS)")
    assert longer != text
    (folder / "train.py").write_text(longer)
    said = output_of(folder)
    assert "1 failed" in said, said
    assert "the claim is refuted\naccounting: " in said


def test_the_workflow_of_the_repository_installs_the_fixture_and_runs_pytest() -> None:
    workflow = yaml.safe_load((TESTED / ".github" / "workflows" / "tests.yml").read_text())
    commands = [step.get("run", "") for step in workflow["jobs"]["tests"]["steps"]]
    assert commands[-2:] == ['pip install "clipnoise[audit]"', "pytest"]
