"""The league's published files: what they hold, what is refused, and the page printed from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from league_data import RIGHT, published, row

from clipnoise.errors import UserError
from clipnoise.report.league import (
    confirmed_runs,
    ended_at,
    published_rows,
    read_league,
    screenings,
)
from clipnoise.run import fingerprint
from clipnoise.run.fingerprint import training_code
from clipnoise.run.spec import from_mapping
from clipnoise.studies.study import load_study

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "workflow" / "studies"


def test_files_of_one_training_code_are_read_together(tmp_path: Path) -> None:
    found = read_league(published(tmp_path, adult=[row()], digits=[row(), row("disk")]))
    assert list(found) == ["adult", "digits"]
    assert list(found["digits"]["label"]) == ["dp-sgd", "disk"]


def test_files_whose_training_code_differs_for_a_method_are_refused(tmp_path: Path) -> None:
    other = row("disk", training_code="other")
    published(tmp_path, adult=[row(), row("disk")], digits=[row(), other])
    said = r"disk was trained by other code in digits.parquet \(other\) than in adult.parquet"
    with pytest.raises(UserError, match=said):
        read_league(tmp_path)
    assert list(read_league(tmp_path, "digits")["digits"]["label"]) == ["dp-sgd", "disk"]
    # another method's code is its own
    published(tmp_path, digits=[row(), row("dp-lion", training_code="other")])
    assert len(read_league(tmp_path)) == 2


def test_a_folder_that_is_not_there_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder: `clipnoise league publish TASK` makes it"):
        read_league(tmp_path / "other")


def test_bits_that_disagree_with_the_accuracy_are_refused(tmp_path: Path) -> None:
    rows = [row(), row(seed=2, status="diverged", correct=None, test_accuracy=None)]
    runs = read_league(published(tmp_path, adult=rows))["adult"]
    first, second = confirmed_runs(runs, "confirm")["right"]
    assert np.array_equal(first, RIGHT)
    assert second is None
    with pytest.raises(UserError, match=r"0\.8 of its bits are set, but its accuracy is 0\.7"):
        confirmed_runs(runs.assign(test_accuracy=0.7), "confirm")
    with pytest.raises(UserError, match="damaged: the bits are not those of 20 examples"):
        confirmed_runs(runs.assign(test_examples=20), "confirm")


def test_only_guarantees_are_screened_and_a_diverged_run_is_the_worst(tmp_path: Path) -> None:
    rows = [
        row(panel="screen", validation_accuracy=0.6),
        row("disk", panel="screen", status="diverged", validation_accuracy=None),
        row("jme-adam", panel="screen", claim="nominal"),
        row("sgd", panel="screen", claim="non-private", epsilon=None),
        row("dp-lion"),
    ]
    runs = read_league(published(tmp_path, adult=rows))["adult"]
    found = [(one.label, one.epsilon, one.score) for one in screenings(runs, "screen")]
    assert found == [("dp-sgd", 3, 0.6), ("disk", 3, 0.0)]


def test_what_methods_are_tuned_in_is_that_of_their_runs() -> None:
    study = load_study(STUDIES / "league" / "lite.yaml")
    known = study.tunes
    assert known == {run.label: run.tune for run in study.runs if run.tune}
    assert "dp-sgd" in known


def test_methods_whose_searches_mostly_ended_at_an_end_are_named(tmp_path: Path) -> None:
    """Of DP-SGD two of three choices lie in the highest fifth; of the others at most one does."""
    study = load_study(STUDIES / "league" / "german-credit.yaml")
    chosen = {"dp-sgd": (900, 800, 90), "dp-adam": (0.003, 2.9, 0.2), "dp-lion": (0.03,) * 3}
    rows = [
        row(label, panel="screen", epsilon=at, hyperparameters=f'{{"learning_rate": {rate}}}')
        for label, rates in chosen.items()
        for at, rate in zip((1.0, 3.0, 8.0), rates, strict=True)
    ]
    runs = read_league(published(tmp_path, german=rows))["german"]
    assert ended_at(study, runs) == {"highest": ["dp-sgd"]}


@pytest.mark.long
def test_a_task_with_missing_runs_is_not_published(tmp_path: Path) -> None:
    study = load_study(STUDIES / "league" / "german-credit.yaml")
    said = r"runs \d+ are missing and 0 were trained by other code. Run: snakemake .*german-credit"
    with pytest.raises(UserError, match=said):
        published_rows(study, tmp_path)


def test_the_training_code_depends_on_the_method_and_not_on_the_data_or_on_what_only_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spec(method: str, dataset: str = "digits", model: str = "logistic") -> Any:
        values = {"id": method, "learning_rate": 1.0, "clip_norm": 1.0}
        training = {"expected_batch_size": 50, "steps": 2}
        privacy = {"epsilon": 1.0, "delta": 1e-5}
        return from_mapping(
            {
                **{"dataset": dataset, "model": model, "method": values, "privacy": privacy},
                **{"training": training, "seed": 1},
            }
        )

    one = training_code(spec("dp-sgd"))
    assert one == training_code(spec("dp-sgd", "synthetic", "mlp"))
    assert one != training_code(spec("dp-adambc"))
    before = fingerprint.fingerprint(spec("dp-sgd"))
    monkeypatch.setattr(fingerprint, "GUARDS", frozenset())
    assert one != training_code(spec("dp-sgd"))
    assert before == fingerprint.fingerprint(spec("dp-sgd"))


def test_the_protocol_names_the_tasks_that_were_compared_with_opacus() -> None:
    page = (ROOT / "docs" / "league.md").read_text(encoding="utf-8")
    rows = (ROOT / "benchmarks" / "results" / "opacus.md").read_text(encoding="utf-8")
    compared = re.findall(r"^\| ([\w-]+) \|.*\[(-?[\d.]+), (-?[\d.]+)\] \|$", rows, re.M)
    ((number, listed),) = re.findall(r"compared on (\d+) tasks: (.*?) \(`benchmarks", page)
    named = re.findall(r"`([\w-]+)`", listed)
    assert sorted(named) == sorted(task for task, _, _ in compared)
    assert len(named) == int(number)
    (missed,) = [task for task, low, high in compared if not float(low) <= 0 <= float(high)]
    assert f"contains 0 on all but `{missed}`" in page
