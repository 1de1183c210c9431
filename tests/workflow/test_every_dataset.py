"""Every dataset with each of its models, from raw files in the real format to the table."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_files import DATASETS, small, write_raw
from tiny_models import MODELS, tiny

from clipnoise.fields import to_plain

pytestmark = pytest.mark.workflow

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RUNS_PER_JOB = 40
ASKED = {"fashion-mnist": {"task": "reconstruction"}}  # classes are asked of the other images
METHODS = [
    {"id": "sgd", "learning_rate": 0.01},
    {"id": "dp-sgd", "learning_rate": 0.01, "clip_norm": 1},
]


def part(dataset: str) -> dict[str, Any]:
    """Describe two runs, a private and a non-private one, on a dataset with each of its models."""
    chosen = small(dataset, **ASKED.get(dataset, {}))
    fitting = [name for name, model in MODELS.items() if model.takes(chosen.signature)]
    return {
        "datasets": [{"id": dataset, **to_plain(chosen)}],
        "models": [{"id": name, **to_plain(tiny(name))} for name in fitting],
        "epsilons": [8],
        "seeds": [1],
        "methods": METHODS,
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with raw files of every dataset that needs any, and a study of them all."""
    for name in DATASETS:
        write_raw(tmp_path / "data", name)
    study = {
        "title": "Every dataset with each of its models",
        "defaults": {"training": {"expected_batch_size": 10, "steps": 2, "evaluations": 1}},
        "parts": {name: part(name) for name in DATASETS},
        "report": [{"kind": "table", "part": name} for name in DATASETS],
    }
    config = {
        "studies": ["studies/every.yaml"],
        "tracking": "off",
        "resources": {"threads": 1, "memory_mb": 2000, "minutes": 9, "runs_per_job": RUNS_PER_JOB},
    }
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "every.yaml").write_text(yaml.safe_dump(study))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_every_dataset_trains_with_each_of_its_models_through_the_workflow(project: Path) -> None:
    done = subprocess.run(
        [
            *(BIN / "snakemake", "--snakefile", ROOT / "Snakefile", "--directory", project),
            *("--cores", "2", "--quiet", "rules", "--nocolor", "results/studies/every/runs.csv"),
        ],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with (project / "results/studies/every/runs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["dataset"] for row in rows} == set(DATASETS)
    pairs = {(row["dataset"], row["model"]) for row in rows}
    assert len(rows) == len(METHODS) * len(pairs)
    assert {model for _, model in pairs} == set(MODELS)
    assert {row["status"] for row in rows} == {"completed"}
    claims = Counter(row["claim"] for row in rows)
    assert claims == {"guarantee": len(rows) // 2, "non-private": len(rows) // 2}
