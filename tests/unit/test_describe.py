"""`clipnoise data describe` prints a block with which the described files are prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from clipnoise.cli import main
from clipnoise.data.own import Own
from clipnoise.fields import parse

COUNT = 60
DRAWS = np.random.default_rng(0)
LABELS = np.arange(COUNT) % 3


def save(path: Path, columns: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".csv":
        pd.DataFrame(columns).to_csv(path, index=False)
    else:
        pd.DataFrame({name: list(x) for name, x in columns.items()}).to_parquet(path)
    return path


def described(
    capsys: pytest.CaptureFixture[str], path: Path, cache: Path, *words: str
) -> tuple[Own, dict[str, Any]]:
    capsys.readouterr()
    words = ("data", "describe", str(path), "--target", "y", "--cache", str(cache), *words)
    assert main(words) == 0
    (block,) = yaml.safe_load(capsys.readouterr().out)["datasets"]
    values = {name: value for name, value in block.items() if name != "id"}
    return parse(Own, values), values


CASES: dict[str, tuple[str, Any, tuple[str, ...], dict[str, Any]]] = {
    "numbers": (
        "csv",
        {"a": DRAWS.normal(size=COUNT), "b": LABELS, "y": np.array(["b", "c", "a"])[LABELS]},
        (),
        {"kind": "features", "inputs": ["a", "b"], "shape": [2], "classes": ["a", "b", "c"]},
    ),
    "labels that are no places": (
        "parquet",
        {"x": DRAWS.normal(size=(COUNT, 4)), "y": LABELS * 4 + 2},
        (),
        {"shape": [4], "classes": ["2", "6", "10"], "outputs": 3},
    ),
    "grey images": (
        "npz",
        {"x": DRAWS.integers(0, 256, (COUNT, 4, 5)).astype("uint8"), "y": LABELS},
        (),
        {"kind": "image", "shape": [1, 4, 5], "outputs": 3},
    ),
    "images": (
        "npz",
        {"x": DRAWS.integers(0, 256, (COUNT, 4, 5, 3)).astype("uint8"), "y": LABELS},
        ("--channels", "last"),
        {"kind": "image", "shape": [3, 4, 5], "channels": "last"},
    ),
    "token ids": (
        "parquet",
        {"x": [[1 + i % 7] * (1 + i % 3) for i in range(COUNT)], "y": LABELS},
        (),
        {"kind": "tokens", "shape": [3], "vocabulary": 8},
    ),
    "words": ("csv", {"x": ["one two", "tree", "ü"] * 20, "y": LABELS}, (), {"kind": "words"}),
    "text": (
        "csv",
        {"x": ["one two", "tree", "ü"] * 20, "y": LABELS},
        ("--kind", "text"),
        {"kind": "text", "shape": [2], "vocabulary": 10_000},
    ),
    "numbers to predict": (
        "csv",
        {"x": LABELS, "y": DRAWS.normal(size=COUNT)},
        (),
        {"task": "regression", "outputs": 1},
    ),
    "tags": (
        "npz",
        {"x": LABELS, "y": np.eye(3)[LABELS]},
        (),
        {"task": "multi-label", "outputs": 3},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_cut_described_and_prepared(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    form, columns, words, expected = CASES[case]
    path = save(tmp_path / f"mine.{form}", columns)
    dataset, block = described(capsys, path, tmp_path / "data", *words, "--split", "0.25")
    assert {name: block[name] for name in expected} == expected
    assert (block["name"], block["training_file"], block["test_file"]) == ("mine", 45, 15)
    dataset.prepare(tmp_path / "data")
    splits = dataset.load(tmp_path / "data")
    assert len(splits.validation) == 4
    train = tmp_path / "data" / "raw" / "mine" / f"train.{form}"
    assert described(capsys, train, tmp_path / "data", *words)[0] == dataset
    if "validation_per_class" in block:
        counts = splits.validation.dense().targets.bincount(minlength=3).tolist()
        assert counts == block["validation_per_class"]


def test_the_two_files_share_all_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "mine.csv", {"x": range(COUNT), "y": LABELS})
    described(capsys, path, tmp_path / "data", "--split", "0.25")
    parts = [tmp_path / "data" / "raw" / "mine" / f"{part}.csv" for part in ("train", "test")]
    rows = [pd.read_csv(part)["x"] for part in parts]
    assert sorted(pd.concat(rows)) == list(range(COUNT))


FAULTS = {
    "no test file": (("mine.csv",), "where is the test file? Cut one off with --split 0.2"),
    "no such column": (
        ("mine.csv", "--split", "0.2", "--inputs", "xx"),
        "column 'xx'. Did you",
    ),
    "no share": (("mine.csv", "--split", "2"), "--split: 2.0 is no share between 0 and 1"),
    "no order of channels": (("images.npz", "--split", "0.2"), "--channels first"),
    "text beside numbers": (("mixed.csv", "--split", "0.2"), "sex hold text, and other inputs"),
    "no file": (("none.csv",), "no file whose name ends in .csv, .parquet, .npz"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_described_is_said(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "mine.csv", {"x": range(COUNT), "y": LABELS})
    save(tmp_path / "mixed.csv", {"x": range(COUNT), "sex": ["f", "m"] * 30, "y": LABELS})
    save(tmp_path / "images.npz", {"x": np.zeros((COUNT, 4, 4, 3), "uint8"), "y": LABELS})
    (name, *words), message = FAULTS[fault]
    cache = ("--target", "y", "--cache", str(tmp_path / "data"))
    assert main(["data", "describe", str(tmp_path / name), *cache, *words]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_there_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "mine.csv", {"x": range(COUNT), "y": LABELS})
    described(capsys, path, tmp_path, "--split", "0.2")
    words = ["data", "describe", str(path), "--target", "y", "--split", "0.3"]
    assert main([*words, "--cache", str(tmp_path)]) == 2
    assert "train.csv: is there already" in capsys.readouterr().err
