"""A study whose runs take two processes each, by the resources of `config.yaml` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from workflows import rows, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.long]

STUDY: dict[str, Any] = {
    "title": "Two processes",
    "defaults": {
        "privacy": {"noise_multiplier": 1},
        "training": {"expected_batch_size": 40, "steps": 3, "evaluations": 1},
    },
    "panels": {
        "digits": {
            "datasets": ["digits"],
            "models": ["logistic"],
            "methods": [{"id": "dp-sgd", "learning_rate": 0.5, "clip_norm": 1}],
            "seeds": [1],
        }
    },
    "report": [{"kind": "table", "panels": "digits"}],
}


def project(folder: Path, **resources: int) -> dict[str, str]:
    """Run the study in a folder, and return the row of its run."""
    config = {
        "studies": ["study.yaml"],
        "tracking": "off",
        "resources": {"threads": 1, **resources},
    }
    folder.mkdir()
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    snakemake(folder, "results/studies/study/runs.csv")
    (row,) = rows(folder / "results/studies/study/runs.csv")
    return row


def test_runs_of_a_study_train_on_two_processes(tmp_path: Path) -> None:
    one, two = project(tmp_path / "one"), project(tmp_path / "two", processes=2)
    assert one["hash"] == two["hash"]
    assert two["status"] == "completed"
    assert two["cpu"] == f"{one['cpu']}, 2 processes"
    for name in ("train_loss", "test_loss", "test_accuracy"):
        assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-4)
    for name in ("epsilon_achieved", "noise_multiplier", "claim", "expected_batch_size"):
        assert two.get(name) == one.get(name)
