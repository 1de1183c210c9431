"""Predictions by class and group: counted on the test split, kept in results, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from real_files import prepare, small
from reporting_data import drawn, item_data, run_row, write_table
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from clipnoise.data.base import ExampleGroups, dataset_class
from clipnoise.data.own import Own
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.report import confusion
from clipnoise.report.records import read_runs
from clipnoise.run.confusion import Confusion
from clipnoise.run.job import run_job
from clipnoise.run.spec import from_mapping, to_mapping
from clipnoise.studies.columns import RUN_COLUMNS

OWN = {"name": "mine", "training_file": 60, "test_file": 40, "validation_examples": 10}


def test_predictions_are_counted_by_group_over_batches() -> None:
    draws = np.random.default_rng(0)
    logits, targets = draws.normal(size=(50, 3)), draws.integers(0, 3, 50)
    of = draws.integers(0, 2, 50)
    counted = Confusion(3, ExampleGroups(("f", "m"), torch.from_numpy(of)))
    for start in (0, 20, 40):
        part = slice(start, start + 20)
        counted.add(torch.from_numpy(logits[part]), torch.from_numpy(targets[part]))
    for number, name in enumerate(("f", "m")):
        here = of == number
        expected = confusion_matrix(targets[here], logits[here].argmax(1), labels=[0, 1, 2])
        assert counted.counts()[name] == expected.tolist()


def test_nothing_is_counted_of_a_network_with_outputs_that_are_no_class() -> None:
    """As the CNN-5 that DP-PMLF released: 100 outputs for ten classes."""
    counted = Confusion(10, None)
    counted.add(torch.eye(100)[[3, 97]], torch.tensor([3, 4]))
    assert counted.counts() == {}


def test_scores_of_classes_follow_from_the_counts() -> None:
    draws = np.random.default_rng(1)
    targets, predicted = draws.integers(0, 4, 200), draws.integers(0, 4, 200)
    counts = confusion_matrix(targets, predicted).astype(float)
    precision, recall, f1, _ = precision_recall_fscore_support(targets, predicted)
    assert confusion.recalls(counts) == pytest.approx(recall)
    assert confusion.precisions(counts) == pytest.approx(precision)
    assert confusion.f1_scores(counts) == pytest.approx(f1)
    assert confusion.accuracies(counts) == pytest.approx((targets == predicted).mean())
    never = np.array([[3.0, 0.0], [2.0, 0.0]])  # predicts the first class alone
    assert np.isnan(confusion.precisions(never)).tolist() == [False, True]


def spec(**dataset: Any) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "model": "logistic",
        "method": {"id": "sgd", "learning_rate": 0.5},
        "training": {"expected_batch_size": 25, "steps": 4, "evaluations": 2},
        "seed": 1,
    }


def write_own(cache: Path, sex: Any) -> None:
    folder = cache / "raw" / "mine"
    folder.mkdir(parents=True)
    draws = np.random.default_rng(0)
    for part, count in (("train", 60), ("test", 40)):
        rows = {"inputs": draws.normal(size=count), "target": draws.integers(0, 2, count)}
        rows |= {"sex": sex} if part == "test" else {}  # only the test file has groups
        pd.DataFrame(rows).to_csv(folder / f"{part}.csv", index=False)


def test_a_run_keeps_what_it_predicted_at_the_end_by_group(tmp_path: Path) -> None:
    sex = np.array(["f", "m", None, "m"] * 10)
    write_own(tmp_path, sex)
    dataset = parse(Own, {**OWN, "groups": "sex"})
    dataset.prepare(tmp_path)
    run = from_mapping(spec(id="own", **OWN, groups="sex"))
    folders = {"results": tmp_path / "results", "cache": tmp_path, "weights": tmp_path}
    summary = run_job(run, None, device="cpu", **folders)
    told = summary["confusion"]
    assert told["column"] == "sex"
    counts = {name: np.array(matrix) for name, matrix in told["groups"].items()}
    assert {name: matrix.sum() for name, matrix in counts.items()} == {
        "f": 10,
        "m": 20,
        "missing": 10,
    }
    right = sum(np.trace(matrix) for matrix in counts.values())
    assert right / 40 == pytest.approx(summary["final"]["test_accuracy"])


def test_groups_that_number_rows_are_refused(tmp_path: Path) -> None:
    write_own(tmp_path, np.linspace(0, 1, 40))
    with pytest.raises(UserError, match="groups: sex has 40 different values"):
        parse(Own, {**OWN, "groups": "sex"}).prepare(tmp_path)
    with pytest.raises(UserError, match="groups is for classification only"):
        parse(Own, {**OWN, "task": "regression", "groups": "sex"})
    with pytest.raises(UserError, match="target is a target or the user"):
        parse(Own, {**OWN, "groups": "target"})


def test_a_run_without_groups_has_the_hash_and_the_files_that_it_had() -> None:
    plain = from_mapping(spec(id="own", **OWN))
    assert "groups" not in to_mapping(plain)["dataset"]
    grouped = from_mapping(spec(id="own", **OWN, groups="sex"))
    assert from_mapping(to_mapping(grouped)) == grouped
    assert len({plain.hash, grouped.hash}) == 2
    assert "groups" not in plain.dataset.preparation()
    assert "groups" not in to_mapping(from_mapping(spec(id="adult")))["dataset"]


def test_persons_of_adult_are_grouped_by_what_the_census_says(tmp_path: Path) -> None:
    prepare(tmp_path, "adult")
    splits = small("adult", groups="sex").load(tmp_path)
    assert splits.groups is not None
    assert splits.groups.names == ("Female", "Male")
    stated = splits.test.dense().inputs[:, 98:100].argmax(1)  # of the invented codebook
    assert torch.equal(splits.groups.of, stated)
    assert dataset_class("adult")().groups is None
    with pytest.raises(UserError, match=r"holds no race\. Prepare it again"):
        small("adult", groups="race").load(tmp_path)


LEVELS = {"f": [[8, 2], [1, 9]], "m": [[20, 0], [10, 10]]}  # accuracies 85% and 75%


@pytest.fixture
def runs(tmp_path: Path) -> pd.DataFrame:
    told = {"classes": ["no", "yes"], "column": "sex", "groups": LEVELS}
    other = {**told, "groups": {"f": [[10, 0], [3, 7]], "m": [[20, 0], [8, 12]]}}  # 85% and 80%
    rows = [
        run_row(method=method, seed=seed, confusion=one)
        for method in ("dp-sgd", "dp-adam")
        for seed, one in ((1, told), (2, other))
    ]
    return read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))


def test_groups_have_a_worst_one_and_a_gap_by_seed(runs: pd.DataFrame) -> None:
    data = item_data("metrics", runs, by="group")
    (block,) = data.item.blocks(data)
    rows = [dict(zip(block.heads, row, strict=True)) for row in block.rows[:3]]
    assert [row["group"] for row in rows] == ["sex f", "sex m (worst)", "gap"]
    assert [row["examples"] for row in rows[:2]] == ["20", "40"]
    # The gaps of the seeds are 10 and 5 points.
    assert [row["accuracy (%)"] for row in rows] == ["85.00 ± 0.00", "77.50 ± 3.54", "7.50 ± 3.54"]
    assert rows[1]["recall of yes (%)"] == "55.00 ± 7.07"


def test_a_class_without_test_examples_has_no_recall_and_no_gap(tmp_path: Path) -> None:
    told = {
        "classes": [],
        "column": "sex",
        "groups": {"f": [[5, 1], [0, 0]], "m": [[4, 2], [0, 0]]},
    }
    row = run_row(method="dp-sgd", seed=1, confusion=told)
    runs = read_runs(write_table(tmp_path / "r.parquet", RUN_COLUMNS, [row]))
    data = item_data("metrics", runs, by="group")
    (block,) = data.item.blocks(data)
    assert [row[-1] for row in block.rows] == ["–", "–", "–"]
    assert block.rows[-1][-3] == "16.67"


def test_classes_have_recall_precision_and_f1(runs: pd.DataFrame) -> None:
    data = item_data("metrics", runs, by="class")
    (block,) = data.item.blocks(data)
    first = dict(zip(block.heads, block.rows[0], strict=True))
    assert (first["class"], first["examples"]) == ("no", "30")
    recall = [28 / 30, 30 / 30]
    assert first["recall (%)"].startswith(f"{50 * sum(recall):.2f} ±")
    precision = [28 / 39, 30 / 41]
    assert first["precision (%)"].startswith(f"{50 * sum(precision):.2f} ±")


def test_a_matrix_is_drawn(runs: pd.DataFrame) -> None:
    figure = drawn("confusion-matrix", runs)
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == ["97", "3", "37", "63"]  # means of 28/30 and 1, of 11/30 twice
