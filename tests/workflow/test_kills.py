"""Runs killed at random moments, repeatedly: every result that exists is complete and right.

CLIPNOISE_KILLS says how often; the processes are forked from one that has imported everything, so
that kills fall on the run itself and not on its start. Every second one waits for a checkpoint
first: however slow the machine is, some runs are killed that have a checkpoint to resume from.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipnoise.data.base import dataset_class
from clipnoise.privacy.calibration import calibrate
from clipnoise.run.checkpoint import FILE as CHECKPOINT
from clipnoise.run.results import read_run, run_folder
from clipnoise.run.spec import RunSpec, to_mapping
from clipnoise.studies.collect import collect
from clipnoise.studies.study import Study, load_study

pytestmark = pytest.mark.workflow

KILLS = int(os.environ.get("CLIPNOISE_KILLS", "4"))
LONGEST = 1.2  # seconds to the kill; a run of the study takes about one
SHORTEST = 0.1  # seconds from a checkpoint to the kill
STUDY: dict[str, Any] = {
    "title": "Killed",
    "panels": {
        "killed": {
            "datasets": ["digits"],
            "models": ["logistic"],
            "epsilons": [8],
            "seeds": [1],
            "training": {"expected_batch_size": 50, "steps": 60, "evaluations": 6},
            "methods": [
                {"id": "sgd", "learning_rate": 0.5},
                {"id": "dp-pmlf", "learning_rate": 1, "clip_norm": 1},
                {"id": "stp-adam", "learning_rate": 0.01, "clip_norm": 3},
            ],
        }
    },
    "report": [{"kind": "table", "panels": "killed"}],
}
TIMES = ("seconds", "examples_per_second", "peak_memory_mb")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("studies")
    (folder / "killed.yaml").write_text(yaml.safe_dump(STUDY))
    dataset_class("digits")().prepare(folder / "data")
    study = load_study(folder / "killed.yaml")
    for run in study.runs:
        target = run.spec.budget
        if target is not None:
            calibrate(target).write(folder / f"{target.key}.json")
    return study


def command(study: Study, spec: RunSpec, results: Path) -> list[str]:
    folder, target = study.path.parent, spec.budget
    words = ["train", "--spec", json.dumps(to_mapping(spec)), "--cache", str(folder / "data")]
    if target is not None:
        words += ["--calibration", str(folder / f"{target.key}.json")]
    often = ["--checkpoint-minutes", "0.0005"]
    return [*words, *often, "--results", str(results), "--device", "cpu"]


def train(words: list[str]) -> None:
    from clipnoise.cli import main

    raise SystemExit(main(words))


def start(words: list[str]) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["clipnoise.run.job", "clipnoise.run.train"])
    process = context.Process(target=train, args=(words,))
    process.start()
    return process


def disturb(process: Any, checkpoint: Path | None, seconds: float) -> bool:
    """Kill a process after some seconds, counted from a checkpoint on; return whether it lived."""
    while checkpoint is not None and process.is_alive() and not checkpoint.exists():
        process.join(0.001)
    process.join(seconds)
    alive = bool(process.is_alive())
    process.kill()
    process.join()
    return alive


def measured(folder: Path) -> list[dict[str, str]]:
    files = read_run(folder)  # raises where a file is half-written
    assert files is not None
    return [{k: v for k, v in row.items() if k not in TIMES} for row in files.metrics]


def whole(study: Study, results: Path) -> dict[str, list[dict[str, str]]]:
    """Return what the runs measure when nobody disturbs them."""
    for run in study.runs:
        process = start(command(study, run.spec, results))
        process.join(120)
        assert process.exitcode == 0
    return {run.spec.hash: measured(run_folder(results, run.spec)) for run in study.runs}


def check(study: Study, results: Path, right: dict[str, list[dict[str, str]]]) -> int:
    """Check every result that exists; return how many do."""
    rows = collect(study, results)[0].to_pylist()
    assert Counter(row["hash"] for row in rows) == Counter(right.keys())
    assert {row["status"] for row in rows} <= {"completed", "missing"}
    done = [run.spec for run in study.runs if read_run(run_folder(results, run.spec))]
    for spec in done:
        assert measured(run_folder(results, spec)) == right[spec.hash]
    assert sum(row["status"] == "completed" for row in rows) == len(done)
    return len(done)


@pytest.mark.long
def test_what_is_there_after_kills_at_random_moments_is_complete_and_right(
    study: Study, tmp_path: Path
) -> None:
    right = whole(study, tmp_path / "undisturbed")
    draw = random.Random(KILLS)
    killed, resumed, rounds = 0, 0, 0
    while killed < KILLS or not resumed:
        rounds += 1
        assert rounds < 10 * KILLS, "no run went on from a checkpoint"
        results = tmp_path / str(rounds)
        left = [run.spec for run in study.runs]
        while left:
            spec = draw.choice(left)
            process = start(command(study, spec, results))
            saved = run_folder(results, spec) / CHECKPOINT
            if killed < KILLS or not (resumed or saved.exists()):
                late = killed % 2 == 1 and not saved.exists()
                seconds = draw.uniform(0, SHORTEST if late else LONGEST)
                alive = disturb(process, saved if late else None, seconds)
            else:
                process.join(120)
                alive = False
            if alive:
                killed += 1
            else:
                assert process.exitcode == 0
                files = read_run(run_folder(results, spec))
                assert files is not None
                resumed += bool(files.summary["resumed"])
                names = {path.name for path in run_folder(results, spec).iterdir()}
                assert names == {"spec.yaml", "metrics.csv", "summary.json"}
                left.remove(spec)
            assert check(study, results, right) >= len(study.runs) - len(left)
            left = [spec for spec in left if read_run(run_folder(results, spec)) is None]
    print(f"{killed} kills, {rounds} rounds, {resumed} runs went on from a checkpoint")
    assert resumed
