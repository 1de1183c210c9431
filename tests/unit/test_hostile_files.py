"""Files that stand for more than they hold, headers that lie, full disks, and clocks that jump."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import full_disk
from reporting_data import quickstart, write_study

from clipnoise.cli import main
from clipnoise.data.tables import read_columns
from clipnoise.errors import UserError
from clipnoise.models.pretrained import Weights

# Archives.


def zeros_of(path: Path, header: bytes, count: int) -> Path:
    """Write an archive with one array of so many bytes 0, which are compressed a thousandfold."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + bytes(count))
    return path


def header_of(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


def test_an_archive_that_unpacks_to_more_than_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zeros_of(tmp_path / "train.npz", header_of((2**19,)), 2**22)
    assert path.stat().st_size < 10_000
    assert len(read_columns(path)["x"]) == 2**19
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 256}
    monkeypatch.setattr("clipnoise.data.tables.os.sysconf", pages.get)
    with pytest.raises(UserError, match=r"train\.npz: unpacks to 0\.0 GB, but this machine has"):
        read_columns(path)


@pytest.mark.parametrize("shape", [(2**47,), (2**20,), (-1,), (2**40, 2**40)])
def test_an_array_whose_header_lies_about_its_size_is_named(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = zeros_of(tmp_path / "train.npz", header_of(shape), 100)
    with pytest.raises(UserError, match=r"train\.npz: truncated, damaged or not of plain arrays"):
        read_columns(path)


def test_an_array_that_is_called_an_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(UserError, match=r"train\.npz: "):
        read_columns(path)


# Tensors.

TWO = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS: dict[str, tuple[dict[str, Any], int | None]] = {
    "a header of an exabyte": ({}, 2**60),
    "a header longer than the file": ({}, 2**20),
    "a shape of terabytes": ({"a": TWO | {"shape": [2**40], "data_offsets": [0, 2**42]}}, None),
    "a shape that is not that of the data": ({"a": TWO | {"shape": [2**20]}}, None),
    "a shape that overflows": ({"a": TWO | {"shape": [2**62, 8]}}, None),
    "a negative shape": ({"a": TWO | {"shape": [-2]}}, None),
    "two tensors in one place": ({"a": TWO, "b": TWO}, None),
    "a tensor behind the end": ({"a": TWO | {"data_offsets": [8, 16]}}, None),
}


@pytest.mark.parametrize("fault", HEADERS)
def test_a_file_of_tensors_whose_header_lies_is_named(fault: str, tmp_path: Path) -> None:
    header, length = HEADERS[fault]
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length or len(text)) + text + bytes(8))
    with pytest.raises(UserError, match=r"model\.safetensors is truncated or damaged"):
        Weights(tmp_path.name, tmp_path.parent).tensors()


# Memory and disks.


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unable(**_: Any) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr("clipnoise.cli.inventory.methods.callback", unable)
    assert main(["methods"]) == 1
    assert capsys.readouterr().err == (
        "clipnoise methods: there is not enough memory. Unable to allocate 8.00 GiB\n"
    )


BUDGET = ("--epsilon", "1", "--delta", "1e-5", "--sampling-rate", "0.1", "--steps", "10")
TABLES = ("--study", "quickstart.yaml", "--runs", "runs.parquet")
CURVES = ("--curves", "curves.parquet")
COMMANDS = {
    "a calibration": (50, ("calibrate", *BUDGET, "--out", "made")),
    "tables of runs": (50, ("collect", "quickstart.yaml", "--out", "made")),
    "a table": (50, ("table", *TABLES, "--panel", "comparison", "--out", "made")),
    "a figure": (1000, ("figure", *TABLES, *CURVES, "--item", "1", "--out", "made")),
    "data": (1000, ("data", "prepare", "digits", "--cache", "made")),
    "own data": (
        1000,
        ("data", "describe", "mine.csv", "--target", "y", "--split", "0.2", "--cache", "made"),
    ),
    "new files": (50, ("new", "study", "made")),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_on_a_full_disk_no_half_file_is_left_and_one_line_says_why(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLIPNOISE_PLUGINS")  # as a user has it
    write_study(tmp_path, quickstart())
    (tmp_path / "config.yaml").write_text("plugins: made\n")
    (tmp_path / "mine.csv").write_text("x,y\n" + "1.5,0\n2.5,1\n" * 500)
    before = set(tmp_path.rglob("*"))
    limit, words = COMMANDS[kind]
    with full_disk(limit):
        assert main(list(words)) in (1, 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith(f"clipnoise {words[0]}: ")
    assert "full" in last or "cannot be written" in last
    made = {path for path in set(tmp_path.rglob("*")) - before if path.is_file()}
    assert not made


def test_a_store_that_does_not_fit_on_the_disk_is_named_and_stops_no_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path, quickstart())
    words = ["mlflow-sync", "--study", "quickstart.yaml", "--results", "made", "--out", "said.json"]
    with full_disk(60_000):
        assert main(words) == 0
    assert "made/mlflow.db: " in capsys.readouterr().err
    assert "disk I/O error" in json.loads((tmp_path / "said.json").read_text())["error"]
    assert not (tmp_path / "made" / "mlflow.db").exists()


# Clocks.


class Leaping(datetime):
    """A clock that is set back by a day, or forward, each time it is read."""

    moment = datetime(2026, 1, 5, 12, tzinfo=UTC)
    leap = timedelta()

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        cls.moment += cls.leap
        return cls.moment


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_jumps_changes_no_duration(
    days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clipnoise.data.base import dataset_class
    from clipnoise.run.results import read_run, run_folder
    from clipnoise.run.spec import from_mapping
    from clipnoise.tracking import Membership
    from clipnoise.tracking.view import finished_view

    monkeypatch.setattr(Leaping, "leap", timedelta(days=days))
    monkeypatch.setattr("clipnoise.run.provenance.datetime", Leaping)
    wall = iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr("time.time", lambda: float(next(wall)))
    dataset_class("digits")().prepare(tmp_path / "cache")
    values = {"dataset": "digits", "model": "logistic", "method": {"id": "sgd", "learning_rate": 1}}
    training = {"expected_batch_size": 100, "steps": 3, "evaluations": 3}
    spec = {**values, "training": training, "seed": 1}
    words = ["train", "--spec", json.dumps(spec), "--results", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--cache", str(tmp_path / "cache")]) == 0
    folder = run_folder(tmp_path, from_mapping(spec))
    files = read_run(folder)
    assert files is not None
    assert 0 < files.summary["seconds"] < 600
    seconds = [float(row["seconds"]) for row in files.metrics]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] <= seconds[-1] < 600
    view = finished_view(folder, Membership())
    assert view.finished is not None
    assert view.finished - view.started == round(1000 * files.summary["seconds"])
    shutil.rmtree(tmp_path / "cache")
