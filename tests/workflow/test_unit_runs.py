"""Runs with micro-batches and with users, from the command line to the report."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from clipnoise.cli import main
from clipnoise.core.clipping import Clipping
from clipnoise.gradients.clipping import clipped_sum
from clipnoise.report.blocks import TextBlock
from clipnoise.report.privacy import privacy_statement
from clipnoise.report.records import collected
from clipnoise.report.tables import build_table
from clipnoise.run.results import digest_of
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run
from clipnoise.studies.collect import collect
from clipnoise.studies.study import Study, load_study

pytestmark = pytest.mark.long  # all are of runs that train first
SGD = {"id": "dp-sgd", "learning_rate": 1.0, "clip_norm": 0.5}
FED = {"learning_rate": 0.3, "clip_norm": 0.5, "local_learning_rate": 0.3, "local_batch_size": 8}
PANEL = {"models": ["logistic"], "epsilons": [4], "seeds": [1]}
STUDY: dict[str, Any] = {
    "title": "Units",
    "defaults": {"training": {"steps": 6, "evaluations": 1, "expected_batch_size": 24}},
    "panels": {
        "examples": PANEL | {"datasets": ["synthetic"], "methods": [SGD]},
        "corrected": PANEL
        | {"datasets": ["synthetic"], "methods": [SGD], "privacy": {"microbatch_size": 4}},
        "published": PANEL
        | {
            "datasets": ["synthetic"],
            "methods": [SGD],
            "privacy": {"microbatch_size": 4, "microbatch_accounting": "as-published"},
        },
        "users": PANEL
        | {
            "datasets": [{"id": "digits-users", "public_examples": 40}],
            "methods": [
                *(FED | {"id": name} for name in ("dp-fedavg", "dp-fedadam")),
                FED | {"id": "adadps-fed", "side_information": {"source": "public-gradients"}},
            ],
        },
    },
    "report": [],
}


def train(run: RunSpec, folder: Path) -> dict[str, Any]:
    """Calibrate and train one run by the commands of its jobs; return its summary."""
    target = run.budget
    assert target is not None
    sigma, results, cache = folder / f"{target.key}.json", folder / "results", folder / "data"
    if not sigma.exists():  # one job calibrates for all runs with a budget
        assert main(["calibrate", *target.options().split(), "--out", str(sigma)]) == 0
    words = ["--spec", json.dumps(to_mapping(run)), "--calibration", str(sigma)]
    words += ["--results", str(results), "--cache", str(cache), "--device", "cpu"]
    assert main(["train", *words]) == 0
    summary: dict[str, Any] = json.loads(
        (results / "runs" / run.folder / "summary.json").read_text()
    )
    return summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("units")
    for name in ("synthetic", "digits-users"):
        assert main(["data", "prepare", name, "--cache", str(folder / "data")]) == 0
    (folder / "units.yaml").write_text(yaml.safe_dump(STUDY))
    return folder


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return load_study(folder / "units.yaml")


@pytest.fixture(scope="module")
def summaries(folder: Path, study: Study) -> dict[str, list[dict[str, Any]]]:
    """Return the summaries of every run of the study by panel, trained once."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in study.runs:
        found.setdefault(run.panel, []).append(train(run.spec, folder))
    return found


def test_every_run_completes_with_its_claim(summaries: dict[str, list[dict[str, Any]]]) -> None:
    said = {
        panel: {(one["status"], one["privacy"]["claim"], one["privacy"]["unit"]) for one in found}
        for panel, found in summaries.items()
    }
    assert said == {
        "examples": {("completed", "guarantee", "example")},
        "corrected": {("completed", "guarantee", "example")},
        "published": {("completed", "nominal", "example")},
        "users": {("completed", "guarantee", "user")},
    }


def test_micro_batches_cost_sensitivity_and_not_epsilon(
    summaries: dict[str, list[dict[str, Any]]],
) -> None:
    plain, corrected, published = (
        summaries[panel][0]["privacy"] for panel in ("examples", "corrected", "published")
    )
    assert corrected["epsilon"] == published["epsilon"] == plain["epsilon"] <= 4
    assert plain["sensitivity"] == pytest.approx(0.5 / 24)
    assert corrected["sensitivity"] == pytest.approx(2 * 0.5 / 6)
    assert published["sensitivity"] == pytest.approx(0.5 / 6)


def test_the_report_names_the_doubt_and_the_unit(
    study: Study, folder: Path, summaries: dict[str, list[dict[str, Any]]]
) -> None:
    runs, _ = collected(study, folder / "results")
    said = (one for one in privacy_statement(runs, study.specs) if isinstance(one, TextBlock))
    words = " ".join(one.paragraphs[0] for one in said)
    assert "one example can move the clipped mean of a micro-batch of 4 by twice" in words
    assert "under add-remove-user adjacency" in words
    assert set(runs["unit"]) == {"example", "user"}
    marks = {panel: _marks(runs, panel) for panel in summaries}
    assert marks["examples"] == marks["corrected"] == {""}
    assert len(marks["published"] | marks["users"]) == 2
    assert "" not in marks["published"] | marks["users"]


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [({"noise_multiplier": 9.0}, "states ε"), ({"noise_multiplier": 0.1, "epsilon": 3.9}, "0.1")],
)
def test_a_result_that_states_another_epsilon_than_its_noise_costs_is_not_collected(
    study: Study,
    folder: Path,
    summaries: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
    changed: dict[str, float],
    wrong: str,
) -> None:
    """Its digest fits: the ε itself must be computed again."""
    shutil.copytree(folder / "results", tmp_path, dirs_exist_ok=True)
    run = next(run for run in study.runs if run.panel == "examples")
    path = tmp_path / "runs" / run.spec.folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["privacy"] |= changed
    summary["digest"] = digest_of(summary, path.with_name("metrics.csv").read_text())
    path.write_text(json.dumps(summary))
    rows = collect(study, tmp_path)[0].to_pylist()
    assert Counter(row["status"] for row in rows) == {"completed": len(rows) - 1, "corrupt": 1}
    (bad,) = [row for row in rows if row["status"] == "corrupt"]
    assert bad["hash"] == run.spec.hash
    assert wrong in bad["reason"]
    assert "costs ε" in bad["reason"]


def _marks(runs: Any, panel: str) -> set[str]:
    return {cell.mark for _, _, cell in build_table(runs, panel).cells()}


def test_training_clips_the_micro_batches_that_were_drawn(folder: Path) -> None:
    """One step of a run, with the engine that was chosen for it, against the formula."""
    values = {"dataset": "synthetic", "model": "logistic", "method": SGD, "seed": 3}
    values |= {"privacy": {"noise_multiplier": 1.0, "microbatch_size": 4}}
    values |= {"training": {"expected_batch_size": 40, "steps": 1, "physical_batch_size": 7}}
    run, again = (Run.prepare(from_mapping(values), folder / "data", "cpu") for _ in range(2))
    theta, batch = run.state.theta.clone(), next(run.batches())
    run.step(batch)
    assert again.microbatches is not None
    order, groups = again.microbatches.arrange(batch)
    rows = again.engine.per_example_gradients(
        again.splits.train.inputs[order], again.splits.train.targets[order], theta
    )
    total = torch.zeros_like(theta)
    for group in groups.unique():
        mean = rows[groups == group].sum(dim=0) / 4
        total += mean * min(1.0, 0.5 / float(mean.norm()))
    torch.testing.assert_close(run.state.theta - theta, -total / 10, rtol=1e-4, atol=1e-6)
    by_position = Clipping(0.5, group_size=4, groups=torch.arange(len(order)) // 4)
    assert not torch.allclose(total, clipped_sum([rows], by_position), rtol=1e-2)


def test_a_batch_is_the_same_whatever_is_averaged(folder: Path) -> None:
    values = {"dataset": "synthetic", "model": "logistic", "method": SGD, "seed": 3}
    values |= {"training": {"expected_batch_size": 40, "steps": 5}}
    drawn = []
    for size in (1, 4):
        budget = {"noise_multiplier": 1.0, "microbatch_size": size}
        run = Run.prepare(from_mapping(values | {"privacy": budget}), folder / "data", "cpu")
        drawn.append(list(run.batches()))
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
