"""Every dataset with each of its models, from raw files in the real format to the table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_files import DATASETS, small, write_raw
from test_workflow import rows, snakemake
from tiny_models import MODELS, tiny

from clipnoise.fields import to_plain

pytestmark = pytest.mark.workflow

ASKED = {"fashion-mnist": {"task": "reconstruction"}}  # classes are asked of the other images
METHODS = [
    {"id": "sgd", "learning_rate": 0.01},
    {"id": "dp-sgd", "learning_rate": 0.01, "clip_norm": 1},
]


def panel(dataset: str) -> dict[str, Any]:
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
        "panels": {name: panel(name) for name in DATASETS},
        "report": [{"kind": "table", "panel": name} for name in DATASETS],
    }
    config = {
        "studies": ["studies/every.yaml"],
        "tracking": "off",
        "resources": {"threads": 1, "memory_mb": 2000, "minutes": 9},
    }
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "every.yaml").write_text(yaml.safe_dump(study))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_every_dataset_trains_with_each_of_its_models_through_the_workflow(project: Path) -> None:
    snakemake(project, "results/studies/every/runs.csv", timeout=1500)
    found = rows(project / "results/studies/every/runs.csv")
    assert {row["dataset"] for row in found} == set(DATASETS)
    pairs = {(row["dataset"], row["model"]) for row in found}
    assert len(found) == len(METHODS) * len(pairs)
    assert {model for _, model in pairs} == set(MODELS)
    assert {row["status"] for row in found} == {"completed"}
    claims = Counter(row["claim"] for row in found)
    assert claims == {"guarantee": len(found) // 2, "non-private": len(found) // 2}
