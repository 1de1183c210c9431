"""`clipnoise data describe` prints a block with which the described files are prepared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow  # type: ignore[import-untyped]
import pytest
import torch
import yaml
from pyarrow import csv

from clipnoise.cli import main
from clipnoise.data.columns import ColumnRule
from clipnoise.data.describe import Wanted, describe
from clipnoise.data.own import Own
from clipnoise.data.tables import read_columns
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.run.spec import from_mapping
from clipnoise.run.train import Run

COUNT = 60
DRAWS = np.random.default_rng(0)
LABELS = np.arange(COUNT) % 3
VALUES = list(range(COUNT))[::-1]


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
    path = save(tmp_path / "mine.csv", {"x": VALUES, "y": LABELS})
    described(capsys, path, tmp_path / "data", "--split", "0.25")
    parts = [tmp_path / "data" / "raw" / "mine" / f"{part}.csv" for part in ("train", "test")]
    rows = [pd.read_csv(part)["x"] for part in parts]
    assert sorted(pd.concat(rows)) == sorted(VALUES)


FAULTS = {
    "no test file": (("mine.csv",), "where is the test file? Cut one off with --split 0.2"),
    "no such column": (
        ("mine.csv", "--split", "0.2", "--inputs", "xx"),
        "column 'xx'. Did you",
    ),
    "no share": (("mine.csv", "--split", "2"), "--split: 2.0 is no share between 0 and 1"),
    "no order of channels": (("images.npz", "--split", "0.2"), "--channels first"),
    "text beside numbers": (("mixed.csv", "--split", "0.2"), "sex holds text, and other inputs"),
    "the target among the inputs": (
        ("mine.csv", "--split", "0.2", "--inputs", "x", "y"),
        "y is the target, so it can be no input",
    ),
    "an input twice": (
        ("mine.csv", "--split", "0.2", "--inputs", "x", "x"),
        "--inputs has x twice",
    ),
    "numbers as an image": (
        ("mine.csv", "--split", "0.2", "--kind", "image"),
        "an image has rows and columns, but inputs have the shape",
    ),
    "text to be regressed": (
        ("mixed.csv", "--split", "0.2", "--task", "regression", "--target", "sex"),
        "sex must be numbers for regression",
    ),
    "broken YAML": (
        ("mine.csv", "--split", "0.2", "--columns", "{x: {"),
        "--columns: not valid YAML",
    ),
    "YAML of another kind": (
        ("mine.csv", "--split", "0.2", "--columns", "x"),
        "expected a mapping",
    ),
    "no file": (("none.csv",), "none.csv: no such file."),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_described_is_said(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "mine.csv", {"x": VALUES, "y": LABELS})
    save(tmp_path / "mixed.csv", {"x": VALUES, "sex": ["f", "m"] * 30, "y": LABELS})
    save(tmp_path / "images.npz", {"x": np.zeros((COUNT, 4, 4, 3), "uint8"), "y": LABELS})
    (name, *words), message = FAULTS[fault]
    target = () if "--target" in words else ("--target", "y")
    cache = (*target, "--cache", str(tmp_path / "data"))
    assert main(["data", "describe", str(tmp_path / name), *cache, *words]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_there_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "mine.csv", {"x": VALUES, "y": LABELS})
    described(capsys, path, tmp_path, "--split", "0.2")
    words = ["data", "describe", str(path), "--target", "y", "--split", "0.3"]
    assert main([*words, "--cache", str(tmp_path)]) == 2
    assert "train.csv: is there already" in capsys.readouterr().err


# Text files as other programs write them


def raw(folder: Path, text: str, encoding: str = "utf-8", name: str = "mine.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def said(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    """Return what the command complains of."""
    cache = ("--cache", str(path.parent / "data"))
    assert main(["data", "describe", str(path), "--target", "y", *cache, *words]) == 2
    return capsys.readouterr().err


GERMAN = "größe;y\n" + "\n".join(f"{i % 7},5;{'ja' if i % 2 else 'nein'}" for i in range(COUNT))


def test_separator_decimal_comma_and_encoding_are_said_and_then_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = raw(tmp_path, GERMAN, "latin-1")
    layout = "{separator: ;, decimal: ',', encoding: latin-1}"
    dataset, block = described(
        capsys, path, tmp_path / "data", "--split", "0.2", "--layout", layout
    )
    assert block["inputs"] == ["größe"]
    assert "layout" not in block  # what was cut off is written the usual way
    dataset.prepare(tmp_path / "data")
    inputs = dataset.load(tmp_path / "data").test.dense().inputs
    assert set(inputs.flatten().tolist()) <= {i + 0.5 for i in range(7)}

    folder = tmp_path / "data" / "raw" / "given"
    for part in ("train", "test"):
        raw(folder, GERMAN, "latin-1", f"{part}.csv")
    given, block = described(capsys, folder / "train.csv", tmp_path / "data", "--layout", layout)
    assert block["layout"] == {"separator": ";", "decimal": ",", "encoding": "latin-1"}
    given.prepare(tmp_path / "data")


TROUBLES = {
    "another separator": ("a;y\n1;0\n", (), "If ';' separates its columns"),
    "another encoding": ("größe,y\nü,0\n", (), "such as encoding: latin-1"),
    "a decimal comma": ('a,y\n"1,5",0\n', ("--kind", "features"), "give the layout: decimal: ','"),
    "two columns of one name": ("a,a,y\n1,2,0\n", (), "several columns are called 'a'"),
    "a header alone": ("a,y\n", (), "holds no rows"),
    "a missing label": ("a,y\n1,no\n2,\n", (), "y: a missing label in row 1"),
    "times": ("a,y\n2026-01-05 10:00:00,0\n", (), "a holds times (timestamp[s]"),
    "an unknown encoding": ("a,y\n1,0\n", ("--layout", "{encoding: utf-9}"), "'utf-9' is unknown"),
    "a missing input": ("a,b,y\n1,,0\n2,3,1\n", ("--inputs", "b"), "b: a missing value in row 0"),
    "a number of persons": ("person_id,a,y\n7,1,0\n", (), "'person_id': numbers of rows or of"),
    "a number of rows": (
        "a,y\n" + "\n".join(f"{i},{i % 2}" for i in range(100, 150)),
        (),
        "'a': numbers of rows or of persons? Say with --inputs",
    ),
    "numbers or classes": (
        "a,y\n" + "\n".join(f"{i % 3},{i}" for i in range(200)),
        (),
        "y holds 200 different whole numbers: say whether",
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_text_file_that_cannot_be_read_as_meant_says_what_to_do(
    trouble: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words, message = TROUBLES[trouble]
    encoding = "latin-1" if trouble == "another encoding" else "utf-8"
    for part in ("train", "test"):
        path = raw(tmp_path, text, encoding, f"{part}.csv")
    assert message in said(capsys, path.with_name("train.csv"), *words)


def test_after_a_mistake_the_cut_files_do_not_block_the_next_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "mine.csv", {"x": range(COUNT), "y": LABELS})
    assert "numbers of rows" in said(capsys, path, "--split", "0.25")
    dataset, _ = described(capsys, path, tmp_path / "data", "--split", "0.25", "--inputs", "x")
    assert dataset.inputs == ("x",)


def test_what_cannot_be_prepared_is_not_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = save(tmp_path / "train.csv", {"x": VALUES, "z": [0.5] * COUNT, "y": LABELS})
    test = save(tmp_path / "test.csv", {"x": VALUES, "z": [np.inf] * COUNT, "y": LABELS})
    assert main(["data", "describe", str(train), "--target", "y", "--inputs", "x", "z"]) == 2
    assert f"{test}: inputs must be finite" in capsys.readouterr().err


def test_a_missing_value_is_named_by_its_row_in_the_file_that_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [*map(str, LABELS[:-1]), ""]
    file = save(tmp_path / "mine.csv", {"x": DRAWS.normal(size=COUNT), "y": labels})
    words = ["data", "describe", str(file), "--target", "y", "--split", "0.2"]
    assert main([*words, "--cache", str(tmp_path / "data")]) == 2
    assert f"{file}: y: a missing value in row {COUNT - 1}." in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"y": LABELS[1:]}, f"x {COUNT}, y {COUNT - 1}"),
        ({"y": LABELS, "class_names": np.array(["a", "b", "c"])}, f"y {COUNT}, class_names 3"),
        ({"y": LABELS, "version": np.array(1)}, f"y {COUNT}, version 1"),
    ],
)
def test_arrays_of_different_lengths_are_not_cut(
    more: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "mine.npz", {"x": DRAWS.normal(size=(COUNT, 2)), **more})
    words_given = ["data", "describe", str(file), "--target", "y", "--split", "0.2"]
    options = ["--inputs", "x", "--cache", str(tmp_path / "data")]
    assert main([*words_given, *options]) == 2
    said = capsys.readouterr().err
    assert f"{file}: cannot be cut by rows" in said
    assert words in said


def test_bytes_and_floats_are_not_taken_for_the_same_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = DRAWS.integers(0, 256, (COUNT, 8, 8))
    train = save(tmp_path / "train.npz", {"x": pixels.astype("uint8"), "y": LABELS})
    save(tmp_path / "test.npz", {"x": pixels.astype("float32"), "y": LABELS})
    assert main(["data", "describe", str(train), "--target", "y"]) == 2
    said = "x must have one type in all files, but is uint8 in train, float32 in test"
    assert said in capsys.readouterr().err


def test_rows_that_are_equal_by_chance_are_not_remarked_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = DRAWS.integers(0, 4, COUNT)
    train = save(tmp_path / "train.csv", {"x": values, "z": values[::-1] / 2, "y": LABELS})
    save(tmp_path / "test.csv", {"x": values[::-1], "z": values / 2, "y": LABELS[::-1]})
    assert main(["data", "describe", str(train), "--target", "y"]) == 0
    assert "are in train, too" not in capsys.readouterr().out


@pytest.mark.parametrize("form", ["csv", "npz"])
def test_rows_of_the_test_file_that_are_trained_on_are_counted(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = DRAWS.normal(size=(COUNT, 2)) if form == "npz" else DRAWS.normal(size=COUNT)
    train = save(tmp_path / f"train.{form}", {"x": inputs, "y": LABELS})
    others = inputs.copy()
    others[7:] += 1
    save(tmp_path / f"test.{form}", {"x": others, "y": LABELS})
    assert main(["data", "describe", str(train), "--target", "y"]) == 0
    said = capsys.readouterr().out
    assert f"# 7 of the {COUNT} rows of test are in train, too" in said


def test_a_column_that_is_not_used_may_lack_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"x": VALUES, "z": [None, *VALUES[1:]], "y": LABELS}
    path = save(tmp_path / "mine.csv", columns)
    dataset, _ = described(capsys, path, tmp_path / "data", "--split", "0.25", "--inputs", "x")
    dataset.prepare(tmp_path / "data")


def test_whole_numbers_are_labels_whether_they_are_written_as_floats_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for name, labels in (("whole", LABELS), ("floats", LABELS.astype(float))):
        path = save(tmp_path / f"{name}.parquet", {"x": VALUES, "y": labels})
        words = ("--split", "0.25", "--name", name)
        dataset, block = described(capsys, path, tmp_path / "data", *words)
        dataset.prepare(tmp_path / "data")
        targets = dataset.load(tmp_path / "data").train.dense().targets
        made.append(({k: v for k, v in block.items() if k != "name"}, targets.tolist()))
    assert made[0] == made[1]
    path = tmp_path / "data" / "raw" / "floats" / "train.parquet"
    assert described(capsys, path, tmp_path / "data", "--task", "regression")[0].outputs == 1


def test_several_columns_of_0_and_1_are_tags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "mine.csv", {"x": VALUES, "y": LABELS == 0, "z": LABELS == 1})
    frame = pd.read_csv(path).astype(int)
    frame.to_csv(path, index=False)
    words = ("--split", "0.25", "--target", "z")
    dataset, block = described(capsys, path, tmp_path / "data", *words)
    assert (block["task"], block["target"], block["outputs"]) == ("multi-label", ["y", "z"], 2)
    dataset.prepare(tmp_path / "data")
    assert dataset.load(tmp_path / "data").test.dense().targets.shape == (15, 2)


def test_what_should_be_looked_at_is_remarked_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{i % 9 + 1:05d},{(i % 9) * 1000},{i % 2}" for i in range(COUNT)]
    path = raw(tmp_path, "\n".join(["zip,income,y", *rows]))
    cache = ("--cache", str(tmp_path / "data"))
    assert main(["data", "describe", str(path), "--target", "y", "--split", "0.2", *cache]) == 0
    printed = capsys.readouterr().out
    assert "# income is more than 100 times as large as zip." in printed
    assert "8000" not in printed  # the description is public, and the numbers are not


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_numbers_with_leading_zeros_are_remarked_on(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ("zip", "plain", "share", "zero", "quoted", "below", "y")
    usual, once = (
        ("1067", "12", "0.5", "0", '"7"', "-12"),
        ("01067", "10", "00.5", "0", '"07"', "-5"),
    )
    rows = [header, *((*(once if i == 7 else usual), f"{i % 2:02d}") for i in range(COUNT))]
    text = "\n".join(("\t" if suffix == "tsv" else ",").join(row) for row in rows)
    files = [raw(tmp_path, text, "utf-8", f"{part}.{suffix}") for part in ("train", "test")]
    assert main(["data", "describe", str(files[0]), "--target", "y"]) == 0
    assert "# zip, quoted, y: numbers with leading zeros are read" in capsys.readouterr().out


def test_a_text_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()

    def counted(reader: Callable[..., Any]) -> Callable[..., Any]:
        def read(source: Any, *options: Any, **more: Any) -> Any:
            if isinstance(source, str | Path):
                reads[Path(source).name] += 1
            return reader(source, *options, **more)

        return read

    files = {
        part: save(tmp_path / f"{part}.csv", {"x": VALUES, "z": VALUES, "y": LABELS})
        for part in ("train", "test")
    }
    monkeypatch.setattr(pyarrow, "OSFile", counted(pyarrow.OSFile))
    monkeypatch.setattr(csv, "read_csv", counted(csv.read_csv))
    describe(files, Wanted(name="mine", target=("y",)))
    assert reads == {"train.csv": 1, "test.csv": 1}


# Persons


def of_persons(folder: Path, form: str, persons: int = 30) -> Path:
    draws = np.random.default_rng(1)
    owners = np.repeat(np.arange(persons), draws.integers(1, 6, persons))
    return save(
        folder / f"mine.{form}",
        {
            "who": np.array([f"p{owner}" for owner in owners]),
            "x": draws.normal(size=len(owners)),
            "y": owners % 2,
        },
    )


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_all_rows_of_a_person_are_in_one_file(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_persons(tmp_path, form)
    dataset, block = described(capsys, path, tmp_path / "data", "--split", "0.2", "--user", "who")
    assert block["inputs"] == ["x"]
    folder = tmp_path / "data" / "raw" / "mine"
    files = {part: folder / f"{part}.{form}" for part in ("train", "validation", "test")}
    owners = {part: set(read_columns(path)["who"]) for part, path in files.items()}
    assert [len(each) for each in owners.values()] == [22, 2, 6]
    assert len(set.union(*owners.values())) == 30
    dataset.prepare(tmp_path / "data")
    splits = dataset.load(tmp_path / "data")
    assert splits.users is not None
    assert len(splits.users) == len(splits.train) == dataset.sizes()["train"]
    assert sorted(splits.users.unique().tolist()) == list(range(22))
    unit = dataset.user_unit()
    assert unit is not None
    assert unit.count == 22


def test_a_run_can_protect_the_persons_of_own_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_persons(tmp_path, "csv")
    _, block = described(capsys, path, tmp_path / "data", "--split", "0.2", "--user", "who")
    spec = from_mapping(
        {
            "dataset": {"id": "own", **block},
            "model": "logistic",
            "method": {"id": "dp-fedavg", "learning_rate": 0.1, "clip_norm": 1},
            "privacy": {"noise_multiplier": 1},
            "training": {"expected_batch_size": 5, "steps": 2},
            "seed": 1,
        }
    )
    assert (spec.mechanism.unit.name, spec.mechanism.unit.count) == ("user", 22)
    parse(Own, block).prepare(tmp_path / "data")
    run = Run.prepare(spec, tmp_path / "data", "cpu")
    run.step(torch.arange(5))


def test_a_person_in_two_files_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_persons(tmp_path, "csv")
    dataset, _ = described(capsys, path, tmp_path / "data", "--split", "0.2", "--user", "who")
    folder = tmp_path / "data" / "raw" / "mine"
    test, train = pd.read_csv(folder / "test.csv"), pd.read_csv(folder / "train.csv")
    test.loc[0, "who"] = train["who"][0]
    test.to_csv(folder / "test.csv", index=False)
    with pytest.raises(UserError, match=f"the user '{train['who'][0]}' has rows in the files"):
        dataset.prepare(tmp_path / "data")


def test_persons_that_are_numbers_in_one_file_alone_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_persons(tmp_path, "csv")
    dataset, _ = described(capsys, path, tmp_path / "data", "--split", "0.2", "--user", "who")
    folder = tmp_path / "data" / "raw" / "mine"
    train, test = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "test.csv")
    names = {name: f"{number:03}" for number, name in enumerate(train["who"].unique())}
    train["who"] = train["who"].map(names)
    test["who"] = test["who"].map(lambda _: "A9")
    test.loc[0, "who"] = train["who"][0]  # who would be 0 in one file and 000 in the other
    for name, table in (("train", train), ("test", test)):
        table.to_csv(folder / f"{name}.csv", index=False)
    with pytest.raises(UserError, match="who has whole numbers alone in the file train, but not"):
        dataset.prepare(tmp_path / "data")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": None}, "user and users go together"),
        ({"target": "x"}, "x: both an input and a target"),
        ({"public_examples": 3}, "would divide users"),
        ({"validation_file": 0}, "would divide users"),
        ({"user": "x"}, "x says whose an example is"),
    ],
)
def test_a_cut_that_would_divide_persons_is_refused(changes: dict[str, Any], message: str) -> None:
    values = {"name": "mine", "inputs": ["x"], "target": "y", "training_file": 60, "test_file": 9}
    values |= {"user": "who", "users": 20, "validation_file": 9, "validation_examples": 9}
    parse(Own, values)
    with pytest.raises(UserError, match=message):
        parse(Own, {**values, **changes})


def test_fewer_persons_than_declared_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_persons(tmp_path, "csv")
    _, block = described(capsys, path, tmp_path / "data", "--split", "0.2", "--user", "who")
    with pytest.raises(UserError, match="has 22 users, but 23 are declared"):
        parse(Own, {**block, "users": 23}).prepare(tmp_path / "data")


# Categories, ranges and missing values, all by public numbers


def test_columns_become_numbers_by_public_rules_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns: dict[str, Any] = {
        "sex": ["f", "m", None] * 20,
        "income": [50.0, 250.0, None] * 20,
        "y": LABELS,
    }
    path = save(tmp_path / "mine.csv", columns)
    rules = "{sex: {categories: [m, f], missing: 0}, income: {range: [0, 200], missing: 100}}"
    words = ("--split", "0.25", "--columns", rules)
    dataset, block = described(capsys, path, tmp_path / "data", *words)
    assert block["columns"]["income"] == {"range": [0.0, 200.0], "missing": 100.0}
    assert block["shape"] == [5]
    dataset.prepare(tmp_path / "data")
    found = dataset.load(tmp_path / "data").test.dense()
    rows = {0: [0, 1, 0, 0.25, 0], 1: [1, 0, 0, 1, 0], 2: [0, 0, 1, 0.5, 1]}
    for row, label in zip(found.inputs.tolist(), found.targets.tolist(), strict=True):
        assert row == rows[label]
    assert "sex: one number for each of m, f" in dataset.preprocessing


@pytest.mark.parametrize(
    ("rule", "values", "message"),
    [
        (
            {"categories": ["m", "f"]},
            ["m", "w"],
            "sex: 'w' in row 1 is no category.* Allowed: m, f",
        ),
        ({"categories": ["m", "f"]}, ["m", ""], "sex: a missing value in row 1"),
        ({"range": [0, 1]}, ["a"], "sex: expected numbers"),
    ],
)
def test_a_value_that_a_rule_does_not_cover_is_named(
    rule: dict[str, Any], values: list[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse(ColumnRule, rule).numbers("sex", values)


@pytest.mark.parametrize(
    "rule", [{"range": [1, 1]}, {"categories": ["a"], "range": [0, 1]}, {"categories": ["a", "a"]}]
)
def test_a_rule_that_contradicts_itself_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        parse(ColumnRule, rule)


def test_classes_that_yaml_reads_as_booleans_are_refused() -> None:
    values = yaml.safe_load("{inputs: [x], target: y, classes: [no, yes]}")
    with pytest.raises(UserError, match="write them in quotes"):
        parse(Own, values)
