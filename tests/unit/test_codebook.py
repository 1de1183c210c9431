"""Tables in packages become what the YAML file of the dataset says of their columns."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_files import prepare, small, write_raw
from real_files.packages import CODEBOOKS, ROWS, r_file, rows_of, write_codebook

from clipnoise.data import codebook
from clipnoise.data.base import dataset_class
from clipnoise.data.codebook import Codebook
from clipnoise.data.r_tables import read_data_frame
from clipnoise.errors import UserError


def kind(name: str) -> type[Codebook]:
    found = dataset_class(name)
    assert issubclass(found, Codebook)
    return found


def table(name: str, **columns: Any) -> dict[str, Any]:
    return {**rows_of(kind(name)), **columns}


def prepared(cache: Path, name: str, rows: Mapping[str, Any]) -> dict[str, np.ndarray]:
    write_codebook(cache, name, rows)
    dataset = small(name)
    dataset.raw_files(cache).accept()
    dataset.prepare(cache)
    return dataset.read(cache)[0]


@pytest.mark.parametrize("name", CODEBOOKS)
def test_features_lie_between_0_and_1_and_every_row_is_in_one_part(
    name: str, tmp_path: Path
) -> None:
    arrays, _ = prepare(tmp_path, name).read(tmp_path)
    labels = [arrays[key] for key in arrays if key.endswith("_labels")]
    assert sum(map(len, labels)) == ROWS
    inputs = np.concatenate([arrays[key] for key in arrays if key.endswith("_inputs")])
    assert inputs.min() == 0
    assert inputs.max() <= 1
    assert inputs.shape == (ROWS, *small(name).signature.shape)


def test_a_number_is_of_the_first_class_whose_largest_value_it_does_not_exceed(
    tmp_path: Path,
) -> None:
    price = [0, 1000, 1001, 2500, 2501, 5000, 5001, 10**6] * (ROWS // 8)
    arrays = prepared(tmp_path, "diamonds", table("diamonds", price=price))
    test = codebook.mix64(np.arange(ROWS, dtype="uint64")) % np.uint64(5) == 0
    classes = np.array([0, 0, 1, 1, 2, 2, 3, 3] * (ROWS // 8))
    assert arrays["test_labels"].tolist() == classes[test].tolist()
    assert arrays["train_labels"].tolist() == classes[~test].tolist()


def test_whether_a_row_is_for_testing_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    one = table("diamonds")
    two = {**one, "carat": [*one["carat"][:-1], 3.0], "price": [*one["price"][:-1], 0]}
    first, second = (prepared(tmp_path / str(n), "diamonds", x) for n, x in enumerate((one, two)))
    changed = [int((first[part] != second[part]).any(axis=1).sum())
               for part in ("train_inputs", "test_inputs")]  # fmt: skip
    assert sorted(changed) == [0, 1]


def test_rows_that_the_source_does_not_keep_are_left_out_and_move_no_other(
    tmp_path: Path,
) -> None:
    days: list[Any] = [-31, -30, 30, 31, ""] * (ROWS // 5)
    fewer = ["", *days[1:]]
    fewer[1] = 99
    first, second = (
        prepared(tmp_path / str(n), "compas", table("compas", days_b_screening_arrest=column))
        for n, column in enumerate((days, fewer))
    )
    assert len(first["train_labels"]) + len(first["test_labels"]) == 2 * ROWS // 5
    lost = {part: len(first[f"{part}_labels"]) - len(second[f"{part}_labels"])
            for part in ("train", "test")}  # fmt: skip
    assert sorted(lost.values()) == [0, 1]


def test_parts_of_a_time_are_those_of_the_calendar() -> None:
    times = np.array(["2026-11-26T23:59", "1969-12-31T00:00", "2001-01-01T05:10"], "M8[us]")
    found = {part: codebook._part_of(times, part).tolist() for part in codebook.TIMES}
    assert found == {"month": [10, 11, 0], "weekday": [3, 2, 0], "hour": [23, 0, 5]}


def test_an_unlisted_category_has_no_column_but_is_marked(tmp_path: Path) -> None:
    arrays = prepared(tmp_path, "flights", rows := table("flights"))
    inputs = np.concatenate([arrays["train_inputs"], arrays["test_inputs"]])
    elsewhere = sum(place == "elsewhere" for place in rows["origin"])
    start = 12 + 7 + 24 + 1
    assert inputs[:, start + 35].sum() == elsewhere
    assert inputs[:, start : start + 35].sum() == ROWS - elsewhere


def test_large_tables_are_stored_sparsely_and_read_as_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = prepare(tmp_path / "dense", "flights").load(tmp_path / "dense")
    monkeypatch.setattr(codebook, "DENSE", 100)
    sparse = prepare(tmp_path / "sparse", "flights").load(tmp_path / "sparse")
    for one, other in ((dense.train, sparse.train), (dense.test, sparse.test)):
        assert one.take(slice(None))[0].equal(other.take(slice(None))[0])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"cut": ["Idael"] * ROWS}, r"cut: 'Idael' in row 0 is no category. Did you mean 'Ideal'"),
        ({"carat": ["heavy"] * ROWS}, "carat: expected numbers"),
        ({"price": ["dear"] * ROWS}, "price: expected numbers"),
        ({"z": None}, "has no column 'z'"),
    ],
    ids=["category", "number", "target", "column"],
)
def test_what_is_not_as_the_codebook_says_is_named(
    columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rows = {name: one for name, one in table("diamonds", **columns).items() if one is not None}
    with pytest.raises(UserError, match=message) as caught:
        prepared(tmp_path, "diamonds", rows)
    assert "plotnine/data/diamonds.csv" in str(caught.value)


def test_persons_and_their_column_go_together() -> None:
    from dataclasses import dataclass

    alone = type("Alone", (kind("diamonds"),), {"person": "cut"})
    with pytest.raises(ValueError, match="person and persons go together"):
        dataclass(frozen=True, kw_only=True)(alone)()


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    write_raw(tmp_path, "flights")
    path = tmp_path / "raw" / "flights" / small("flights").files[0].name
    path.write_bytes(path.read_bytes()[:200])
    small("flights").raw_files(tmp_path).accept()
    with pytest.raises(UserError, match="truncated or damaged"):
        small("flights").prepare(tmp_path)


def test_a_factor_of_r_becomes_its_levels_and_a_number_stays_one() -> None:
    frame = read_data_frame(r_file({"size": [0.5, 2, 1], "letter": ["b", "a", "b"]}))
    assert frame["size"].tolist() == [0.5, 2, 1]
    assert frame["letter"] == ["b", "a", "b"]


@pytest.mark.parametrize("damaged", [lambda one: one[:-40], lambda one: b"R" + one, lambda _: b""])
def test_a_damaged_data_frame_of_r_is_refused(damaged: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="R"):
        read_data_frame(damaged(r_file({"size": [0.5, 2, 1]})))


def test_a_data_frame_that_ends_too_early_is_refused() -> None:
    whole = lzma.decompress(r_file({"size": [0.5, 2, 1]}))
    for end in range(30, len(whole) - 4, 5):
        with pytest.raises(ValueError, match="damaged"):
            read_data_frame(whole[:end])
