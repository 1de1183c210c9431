"""The wheel works by itself: with the few packages that it asks for, and without the checkout."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"

# A model of one's own, trained privately for two steps, far from the checkout.
PROGRAM = """
import torch, clipnoise
print(clipnoise.__file__)
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
data = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.randint(2, (100,)))
training = clipnoise.private(
    model, torch.nn.CrossEntropyLoss(reduction="none"), data, method="dp-sgd",
    learning_rate=0.1, clip_norm=1, epsilon=3, delta=1e-5, expected_batch_size=20, steps=2,
)
for step in training:
    pass
print(round(training.spent, 1))
"""

# The runs of a study, for commands that Snakemake calls where clipnoise is checked out.
SPECS = """
import sys
from pathlib import Path
from clipnoise.studies.study import load_study
for run in load_study(Path(sys.argv[1])).runs:
    print(run.spec.to_json(), run.spec.budget.options(), sep="\\t")
"""


def run(*words: object, folder: Path, status: int = 0) -> str:
    left_out = {"PYTHONPATH", "CLIPNOISE_PLUGINS"}
    environment = {name: text for name, text in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, text=True, capture_output=True
    )
    assert done.returncode == status, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stderr if status else done.stdout


@pytest.mark.long
@pytest.mark.skipif(not UV.exists(), reason="uv, which builds the environment, is not installed")
def test_the_wheel_works_in_an_environment_with_only_what_it_asks_for(tmp_path: Path) -> None:
    run(
        UV, "build", "--quiet", "--offline", "--wheel", "--out-dir", tmp_path, ROOT, folder=tmp_path
    )
    (wheel,) = tmp_path.glob("*.whl")
    run(UV, "venv", "--quiet", "--python", sys.executable, "empty", folder=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    lock = ROOT / "envs" / "requirements.lock"
    install = (UV, "pip", "install", "--quiet", "--python", python, "--constraint", lock)
    run(*install, wheel, folder=tmp_path)
    clipnoise = python.parent / "clipnoise"

    place, spent = run(python, "-c", PROGRAM, folder=tmp_path).split()
    assert Path(place).is_relative_to(tmp_path / "empty")
    assert float(spent) <= 3
    assert "dp-adambc" in run(clipnoise, "methods", folder=tmp_path)
    assert "calibrate" in run(clipnoise, "--help", folder=tmp_path)
    words = ("--noise-multiplier", 2, "--sampling-rate", 0.1, "--steps", 10, "--delta", 1e-5)
    assert "none" not in run(clipnoise, "account", *words, folder=tmp_path)
    (tmp_path / "config.yaml").write_text("plugins: mine\n")
    assert "mine/own.py" in run(clipnoise, "new", "method", "own", folder=tmp_path)

    prepare = (clipnoise, "data", "prepare", "digits")
    (line,) = run(*prepare, folder=tmp_path, status=2).splitlines()
    assert "pip install 'clipnoise[bench]'" in line

    # And with all that it can ask for.
    run(*install, f"{wheel}[all]", folder=tmp_path)
    program, folder = clipnoise, tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "config.yaml").write_text("plugins: mine\n")
    assert "mine/own.py" in run(program, "new", "method", "own", folder=folder)
    assert "own: not refuted" in run(program, "judge", "mine/own.py", folder=folder)
    assert (folder / "judgement" / "judgement.json").exists()

    assert "mine/study.yaml" in run(program, "new", "study", "study", folder=folder)
    study = folder / "mine" / "study.yaml"
    text = study.read_text().replace("epsilons: [1, 8]", "epsilons: [8]")
    study.write_text(text.replace("seeds: [1, 2, 3]", "seeds: [1]"))
    assert "train 2" in run(program, "check", study, folder=folder)
    run(program, "data", "prepare", "digits", folder=folder)
    for line in run(python, "-c", SPECS, study, folder=folder).splitlines():
        spec, budget = line.split("\t")
        run(program, "calibrate", *shlex.split(budget), "--out", "it.json", folder=folder)
        run(program, "train", "--spec", spec, "--calibration", "it.json", folder=folder)
    run(program, "collect", study, "--out", "made", folder=folder)
    with (folder / "made" / "runs.csv").open(newline="") as stream:
        assert [row["status"] for row in csv.DictReader(stream)] == ["completed"] * 2
