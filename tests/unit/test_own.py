"""A user's own data: every format is read, and data that do not match are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from real_files import prepare, small
from real_files.own import FEATURES, table

from clipnoise.data.own import Own
from clipnoise.errors import UserError
from clipnoise.fields import parse

COUNTS = {"train": 8, "test": 4}
ROWS = {"training_file": 8, "test_file": 4, "validation_examples": 2}


def own(**options: Any) -> Own:
    return parse(Own, {"name": "mine", **ROWS, **options})


def write(cache: Path, form: str, **columns: Any) -> None:
    """Write both files; each value is what the training file holds, the test file its beginning."""
    folder = cache / "raw" / "mine"
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in COUNTS.items():
        cut = {name: values[:count] for name, values in columns.items()}
        path = folder / f"{part}.{form}"
        if form == "npz":
            np.savez(path, **cut)
        elif form == "csv":
            pd.DataFrame(cut).to_csv(path, index=False)
        else:
            pd.DataFrame({name: list(values) for name, values in cut.items()}).to_parquet(path)


def test_columns_become_vectors_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    splits = prepare(tmp_path, "own").load(tmp_path)
    expected = table(20, 1)
    found = splits.test.dense()
    order = found.targets.argsort(stable=True)
    columns = np.column_stack([expected[name] for name in FEATURES]).astype("float32")
    assert {tuple(row) for row in found.inputs.tolist()} == {tuple(row) for row in columns.tolist()}
    assert found.targets[order].tolist() == sorted(expected["outcome"])
    turned = small("own", inputs=FEATURES[::-1])
    turned.prepare(tmp_path)
    assert torch.equal(turned.load(tmp_path).test.dense().inputs, found.inputs.flip(1))


def test_different_options_are_prepared_into_different_folders(tmp_path: Path) -> None:
    one, other = small("own"), small("own", inputs=FEATURES[:2], shape=(2,))
    assert one.prepared != other.prepared
    assert one.prepared == small("own", split_seed=3, validation_examples=5).prepared


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_parquet_and_npz_give_the_same_features(form: str, tmp_path: Path) -> None:
    inputs = np.arange(24.0).reshape(8, 3)
    write(tmp_path, form, inputs=inputs, target=np.arange(8) % 2)
    dataset = own(shape=(3,))
    dataset.prepare(tmp_path)
    splits = dataset.load(tmp_path)
    both = torch.cat([splits.train.dense().inputs, splits.validation.dense().inputs])
    assert sorted(both.tolist()) == inputs.tolist()


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_bytes_of_images_are_scaled(form: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 1, 8, 8)).astype("uint8")
    flat = images if form == "npz" else images.reshape(8, -1).tolist()
    write(tmp_path, form, inputs=flat, target=np.arange(8) % 2)
    dataset = own(kind="image", shape=(1, 8, 8))
    dataset.prepare(tmp_path)
    test = dataset.load(tmp_path).test.dense().inputs
    expected = torch.from_numpy(images[:4]).float() / 255
    assert sorted(test.flatten(1).tolist()) == sorted(expected.flatten(1).tolist())


def test_floats_of_images_are_left_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, "npz", inputs=np.full((8, 1, 8, 8), -1.5), target=np.arange(8) % 2)
    dataset = own(kind="image", shape=(1, 8, 8))
    dataset.prepare(tmp_path)
    assert (dataset.load(tmp_path).train.dense().inputs == -1.5).all()


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("flat", [False, True], ids=["arrays", "flat"])
def test_images_have_their_channels_where_the_description_says(
    order: str, flat: bool, tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 2, 4)).astype("uint8")
    stored = np.moveaxis(images, 1, -1) if order == "last" else images
    write(
        tmp_path, "npz", inputs=stored.reshape(8, -1) if flat else stored, target=np.arange(8) % 2
    )
    dataset = own(kind="image", shape=(3, 2, 4), channels=order)
    dataset.prepare(tmp_path)
    found = dataset.load(tmp_path).test.dense().inputs * 255
    assert sorted(found.round().flatten(1).tolist()) == sorted(images[:4].reshape(4, -1).tolist())


def test_images_in_another_order_than_described_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "npz", inputs=np.zeros((8, 4, 4, 3), "uint8"), target=np.arange(8) % 2)
    with pytest.raises(UserError, match=r"shape \(4, 4, 3\), but \(3, 4, 4\) with channels first"):
        own(kind="image", shape=(3, 4, 4), channels="first").prepare(tmp_path)


@pytest.mark.parametrize("shape", [(8, 2, 2), (8, 1, 2, 2), (8, 2, 2, 1), (8, 4)], ids=str)
def test_a_grey_image_has_one_order_only(shape: tuple[int, ...], tmp_path: Path) -> None:
    images = np.arange(32).astype("uint8")
    write(tmp_path, "npz", inputs=images.reshape(shape), target=np.arange(8) % 2)
    dataset = own(kind="image", shape=(1, 2, 2))
    dataset.prepare(tmp_path)
    found = dataset.load(tmp_path).test.dense().inputs.flatten(1) * 255
    assert sorted(found.round().tolist()) == images[:16].reshape(4, 4).tolist()


def test_bright_floats_of_images_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "npz", inputs=np.full((8, 1, 2, 2), 255.0), target=np.arange(8) % 2)
    own(kind="image", shape=(1, 2, 2)).prepare(tmp_path)
    assert "floats of up to 255, and are left as they are" in caplog.text


def test_a_csv_file_has_the_same_numbers_as_parquet(tmp_path: Path) -> None:
    columns = {"a": np.arange(8) / 7, "b": np.arange(8), "target": ["no", "yes"] * 4}
    described = {"inputs": ["b", "a"], "shape": (2,), "classes": ["yes", "no"]}
    found = []
    for form in ("csv", "parquet"):
        write(tmp_path / form, form, **columns)
        dataset = own(**described)
        dataset.prepare(tmp_path / form)
        test = dataset.load(tmp_path / form).test.dense()
        found.append(sorted(zip(test.inputs.tolist(), test.targets.tolist(), strict=True)))
    assert found[0] == found[1]
    assert found[0][0] == ([0.0, 0.0], 1)


@pytest.mark.parametrize("labels", [["3", "7"], [7, 3]], ids=str)
def test_labels_are_numbered_in_the_order_of_the_classes(labels: list[Any], tmp_path: Path) -> None:
    write(tmp_path, "parquet", inputs=np.arange(8.0), target=np.array([3, 7] * 4))
    dataset = own(classes=labels)
    dataset.prepare(tmp_path)
    test = dataset.load(tmp_path).test.dense()
    expected = [int(str(labels[0]) != "3"), int(str(labels[0]) == "3")]
    assert test.targets[test.inputs[:, 0].argsort()].tolist() == expected * 2


TEXTS = ["Spam spam eggs", "Ärger, don't", "", *(["ham"] * 5)]


def test_hashed_words_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "parquet", inputs=TEXTS, target=np.arange(8) % 2)
    dataset = own(kind="words", shape=(4096,))
    dataset.prepare(tmp_path)
    assert dataset.signature.kind == "features"
    inputs = dataset.load(tmp_path).test.dense().inputs
    rows = {tuple(sorted(row[row > 0].tolist())) for row in inputs}
    assert rows == {tuple(np.float32([1 / 3, 2 / 3]).tolist()), (0.5, 0.5), (), (1.0,)}


def test_words_without_a_tokenizer_become_hashed_ids(tmp_path: Path) -> None:
    write(tmp_path, "csv", inputs=TEXTS, target=np.arange(8) % 2)
    dataset = own(kind="text", shape=(2,), vocabulary=1000)
    dataset.prepare(tmp_path)
    rows = sorted(dataset.load(tmp_path).test.dense().inputs.tolist())
    assert rows[0] == [0, 0]
    assert sum(row[1] == 0 for row in rows) == 2  # the empty text, and the one of one word
    assert sum(row[0] == row[1] != 0 for row in rows) == 1
    assert all(0 <= number < 1000 for row in rows for number in row)


def test_a_text_is_tokenised_by_a_model_of_the_weights_folder(tmp_path: Path) -> None:
    import tokenizers

    words = {"<s>": 0, "<pad>": 1, "ham": 2, "eggs": 3}
    folder = tmp_path / "weights" / "mine"
    folder.mkdir(parents=True)
    model = tokenizers.models.WordLevel(words, unk_token="<s>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"pad_token_id": 1}')
    write(tmp_path, "parquet", inputs=["eggs ham", "ham spam"] * 4, target=np.arange(8) % 2)
    dataset = own(kind="text", shape=(3,), vocabulary=9, tokenizer="mine")
    dataset.prepare(tmp_path, tmp_path / "weights")
    rows = {tuple(row) for row in dataset.load(tmp_path).test.dense().inputs.tolist()}
    assert rows == {(3, 2, 0), (2, 1, 0)}  # padding is 0 everywhere: <s> takes its place
    with pytest.raises(UserError, match="a vocabulary of 4 tokens, but mine has 3"):
        own(kind="text", shape=(3,), vocabulary=3, tokenizer="mine").prepare(
            tmp_path, tmp_path / "weights"
        )


def test_validation_has_as_many_of_each_class_as_it_is_told(tmp_path: Path) -> None:
    labels = np.array([0, 0, 0, 0, 0, 0, 1, 1])
    write(tmp_path, "npz", inputs=np.arange(8.0), target=labels)
    for seed in range(5):
        dataset = own(validation_examples=3, validation_per_class=(2, 1), split_seed=seed)
        dataset.prepare(tmp_path)
        splits = dataset.load(tmp_path)
        assert sorted(splits.validation.dense().targets.tolist()) == [0, 0, 1]
        rows = torch.cat([splits.validation.dense().inputs, splits.train.dense().inputs])
        assert sorted(rows[:, 0].tolist()) == list(range(8))
    with pytest.raises(UserError, match="asks for 3 examples of the class 1 of the training file"):
        own(validation_examples=3, validation_per_class=(0, 3)).load(tmp_path)


def test_no_private_example_decides_which_others_are_private() -> None:
    """Whatever the label of a private row is, the other rows are cut as they were."""
    labels = np.random.default_rng(0).integers(0, 2, 30)
    dataset = own(training_file=30, validation_examples=7, validation_per_class=(4, 3))
    order = dataset.shuffled(labels)
    for row in order[7:].tolist():
        without = labels.copy()
        without[row] = 9  # in no class: as good as not there
        assert dataset.shuffled(without).tolist() == order.tolist()


def test_tokens_are_padded_to_the_longest(tmp_path: Path) -> None:
    lists = [[1 + i % 6] * (1 + i % 4) for i in range(8)]
    write(tmp_path, "parquet", inputs=lists, target=np.arange(8) % 2)
    dataset = own(kind="tokens", shape=(5,), vocabulary=7)
    dataset.prepare(tmp_path)
    test = dataset.load(tmp_path).test.dense().inputs
    assert test.dtype == torch.int64
    expected = [row + [0] * (5 - len(row)) for row in lists[:4]]
    assert sorted(test.tolist()) == sorted(expected)


@pytest.mark.parametrize(
    ("task", "targets"),
    [("regression", np.linspace(-1, 1, 8)), ("multi-label", np.eye(8, 3))],
    ids=["regression", "multi-label"],
)
def test_other_tasks_have_floats_as_targets(task: str, targets: np.ndarray, tmp_path: Path) -> None:
    write(tmp_path, "npz", inputs=np.zeros((8, 2)), target=targets)
    outputs = 1 if targets.ndim == 1 else targets.shape[1]
    dataset = own(shape=(2,), task=task, outputs=outputs)
    dataset.prepare(tmp_path)
    found = dataset.load(tmp_path).test.dense().targets
    assert found.dtype == torch.float32
    assert sorted(found.tolist()) == sorted(targets[:4].astype("float32").reshape(4, -1).tolist())


GOOD = {"inputs": np.zeros((8, 3)), "target": np.arange(8) % 2}
RAGGED = [[1], [1, 2], *([[1]] * 6)]
FAULTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "another shape": ("npz", GOOD, {"shape": (4,)}, r"shape \(3,\), but \(4,\) is declared"),
    "fewer rows": ("npz", GOOD, {"shape": (3,), "training_file": 9}, "8 rows of inputs, but 9"),
    "a label too high": (
        "npz",
        {**GOOD, "target": np.arange(8)},
        {"shape": (3,)},
        "the label 2; allowed are 0 to 1",
    ),
    "a label of floats": (
        "npz",
        {**GOOD, "target": np.full(8, 0.5)},
        {"shape": (3,)},
        "one whole number",
    ),
    "no such array": ("npz", GOOD, {"shape": (3,), "target": "targets"}, "Did you mean 'target'"),
    "no such column": (
        "parquet",
        GOOD,
        {"shape": (3,), "inputs": ["input"]},
        "Did you mean 'inputs'",
    ),
    "too large": ("npz", {**GOOD, "inputs": np.full((8, 3), 1e30)}, {"shape": (3,)}, "below 1e"),
    "not finite": ("npz", {**GOOD, "inputs": np.full((8, 3), np.nan)}, {"shape": (3,)}, "finite"),
    "text": ("parquet", {**GOOD, "inputs": ["a"] * 8}, {"shape": (1,)}, "expected numbers"),
    "a missing value": (
        "parquet",
        {**GOOD, "inputs": [1.0, None] * 4},
        {"shape": (1,)},
        "a missing value",
    ),
    "ragged": ("parquet", {**GOOD, "inputs": RAGGED}, {"shape": (2,)}, "of different lengths"),
    "an unknown token": (
        "parquet",
        {**GOOD, "inputs": RAGGED},
        {"kind": "tokens", "shape": (4,), "vocabulary": 2},
        "the token id 2; allowed are 0 to 1",
    ),
    "too long": (
        "parquet",
        {**GOOD, "inputs": RAGGED},
        {"kind": "tokens", "shape": (1,), "vocabulary": 9},
        "row 1 is not a list of up to 1",
    ),
    "a pixel too bright": (
        "npz",
        {**GOOD, "inputs": np.full((8, 1, 2, 2), 256)},
        {"kind": "image", "shape": (1, 2, 2)},
        "the pixel 256; allowed are 0 to 255",
    ),
    "labels of text": (
        "parquet",
        {**GOOD, "inputs": [1.0] * 8, "target": ["b", "a"] * 4},
        {},
        r"target holds text: name its classes .*classes: \[a, b\]",
    ),
    "a label that is no class": (
        "parquet",
        {**GOOD, "inputs": [1.0] * 8, "target": ["spam", "hamm"] * 4},
        {"classes": ["spam", "ham"]},
        "the label 'hamm' is no class. Did you mean 'ham'",
    ),
    "numbers for text": (
        "parquet",
        {**GOOD, "inputs": [1.0] * 8},
        {"kind": "words", "shape": (9,)},
        "row 0 is no text",
    ),
    "tags that are none": (
        "npz",
        {**GOOD, "target": np.full((8, 2), 0.5)},
        {"shape": (3,), "task": "multi-label"},
        "must hold 0 and 1 only",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_data_that_do_not_match_their_description_are_reported_with_the_file(
    fault: str, tmp_path: Path
) -> None:
    form, columns, options, message = FAULTS[fault]
    write(tmp_path, form, **columns)
    with pytest.raises(UserError, match=rf"train\.{form}(.|\n)*{message}"):
        own(**options).prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_a_truncated_file_is_reported(form: str, tmp_path: Path) -> None:
    write(tmp_path, form, **GOOD)
    path = tmp_path / "raw" / "mine" / f"test.{form}"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=rf"test\.{form}: .*damaged"):
        own(shape=(3,)).prepare(tmp_path)


def test_arrays_of_python_objects_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "npz", inputs=np.array([{}] * 8), target=GOOD["target"])
    with pytest.raises(UserError, match="not of plain arrays"):
        own().prepare(tmp_path)


def test_a_folder_without_the_files_or_with_both_formats_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"expected one file train\.csv or .* or train\.npz, found 0",
    ):
        own(shape=(3,)).prepare(tmp_path)
    write(tmp_path, "npz", **GOOD)
    write(tmp_path, "parquet", **GOOD)
    with pytest.raises(UserError, match="found 2"):
        own(shape=(3,)).prepare(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "../secrets"}, "name must consist of letters"),
        ({"kind": "image"}, "shape must have 3 numbers for image"),
        ({"kind": "tokens"}, "vocabulary must be given for tokens"),
        ({"vocabulary": 5}, "vocabulary must be given for tokens"),
        ({"kind": "text"}, "vocabulary must be given for tokens, text and tables"),
        ({"tokenizer": "tiny-bert"}, "tokenizer is for text only"),
        ({"kind": "image", "shape": [3, 4, 4]}, "channels must say where .* first or last"),
        ({"channels": "last"}, "channels is for images only"),
        ({"classes": ["a", "b", "c"]}, "classes are 3, but outputs is 2"),
        ({"classes": ["1", 1]}, "classes must differ"),
        ({"classes": ["a", "b"], "task": "multi-label"}, "classes are for classification only"),
        ({"validation_per_class": [1, 2]}, "must have a number for each class"),
        ({"validation_examples": 8}, "together must be at most 8"),
    ],
    ids=str,
)
def test_an_impossible_description_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        own(**options)
