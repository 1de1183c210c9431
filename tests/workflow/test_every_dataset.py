"""Every dataset and every model on each shape of data, from raw files to a table.

That a model takes some number of classes or words is tested by tests/contract/test_models.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from real_files import DATASETS, small, write_raw
from tiny_models import MODELS, tiny
from workflows import rows, run_planned

from clipnoise.data.base import Dataset
from clipnoise.fields import to_plain
from clipnoise.privacy.units import Node

pytestmark = [pytest.mark.workflow, pytest.mark.long]

ASKED = {"fashion-mnist": {"task": "reconstruction"}}  # classes are asked of the other images
SGD = {"id": "sgd", "learning_rate": 0.01}
DP_SGD = {"id": "dp-sgd", "learning_rate": 0.01, "clip_norm": 1}

TABLE = "table"  # for several inputs, which only a kind of `own` has: tests/unit/test_tables.py


def chosen(dataset: str) -> Dataset:
    return small(dataset, **ASKED.get(dataset, {}))


def models() -> dict[str, list[str]]:
    """Return the models of each dataset: those that have not had data of that shape, or one."""
    found, seen = {}, set()
    for dataset in DATASETS:
        signature = chosen(dataset).signature
        fitting = [name for name, model in MODELS.items() if model.takes(signature)]
        shape = (signature.kind, signature.task_name, signature.shape)
        found[dataset] = [name for name in fitting if (name, shape) not in seen] or fitting[:1]
        seen.update((name, shape) for name in fitting)
    return found


def panels(dataset: str, fitting: list[str]) -> dict[str, Any]:
    """Describe a private run on a dataset with each of some models, and a non-private one."""
    models = [{"id": name, **to_plain(tiny(name))} for name in fitting]
    both = {"datasets": [{"id": dataset, **to_plain(chosen(dataset))}], "seeds": [1]}
    accountant = {"accountant": "rdp"} if isinstance(chosen(dataset).unit(), Node) else {}
    private = {
        "privacy": {"noise_multiplier": 1, **accountant},
        "models": models,
        "methods": [DP_SGD],
    }
    return {
        dataset: both | private,
        f"{dataset}-non-private": both | {"models": models[:1], "methods": [SGD]},
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with raw files of every dataset that needs any, and a study of them all."""
    for name in DATASETS:
        write_raw(tmp_path / "data", name)
    study = {
        "title": "Every dataset and every model",
        "defaults": {"training": {"expected_batch_size": 10, "steps": 2, "evaluations": 1}},
        "panels": {name: panel for one in models().items() for name, panel in panels(*one).items()},
        "report": [{"kind": "table", "panels": name} for name in DATASETS],
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


def test_every_dataset_and_every_model_trains_through_the_workflow(project: Path) -> None:
    run_planned(project, "results/studies/every/runs.csv")
    found = rows(project / "results/studies/every/runs.csv")
    assert {row["dataset"] for row in found} == set(DATASETS)
    assert {row["status"] for row in found} == {"completed"}
    claims: dict[str, list[tuple[str, str]]] = {"guarantee": [], "non-private": []}
    for row in found:
        claims[row["claim"]].append((row["dataset"], row["model"]))
    assert len(claims["guarantee"]) == len(set(claims["guarantee"]))
    assert {model for _, model in claims["guarantee"]} == set(MODELS) - {TABLE}
    assert sorted(dataset for dataset, _ in claims["non-private"]) == sorted(DATASETS)
