"""A prepared dataset is made again once the user's files or code behind it have changed."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
import pytest

from clipnoise.cli import main
from clipnoise.data.base import dataset_class
from clipnoise.data.cache import MANIFEST
from clipnoise.data.own import Own
from clipnoise.fields import parse
from clipnoise.run.fingerprint import prepared_from

SIZES = {"training_file": 20, "test_file": 20, "validation_examples": 4}
OWN = parse(Own, {"name": "mine", "inputs": ["x"], "target": "y", **SIZES})
OWN_WORDS = shlex.split(OWN.invocation)


def write(cache: Path, part: str, first: float, age: float = 0.0) -> Path:
    path = cache / "raw" / "mine" / f"{part}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{x},{number % 2}" for number, x in enumerate([first, *np.linspace(0, 1, 19)])]
    path.write_text("\n".join(["x,y", *rows]) + "\n")
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime + age))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        write(tmp_path, part, 0.5)
    return tmp_path


def test_raw_files_count_as_they_were_prepared_until_they_are_written_again(cache: Path) -> None:
    before = prepared_from(OWN, cache)
    OWN.prepare(cache)
    assert prepared_from(OWN, cache) == before
    write(cache, "train", 0.5, age=60)
    assert prepared_from(OWN, cache) == before
    write(cache, "train", 0.6, age=60)
    changed = prepared_from(OWN, cache)
    assert changed != before
    OWN.prepare(cache)
    assert prepared_from(OWN, cache) == changed


def test_raw_files_that_were_taken_away_do_not_make_it_prepared_again(cache: Path) -> None:
    OWN.prepare(cache)
    before = prepared_from(OWN, cache)
    for path in (cache / "raw" / "mine").iterdir():
        path.unlink()
    assert prepared_from(OWN, cache) == before


def test_the_code_of_a_dataset_counts_and_that_of_the_suite_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepared_from(dataset_class("digits")(), tmp_path) == ""
    found = []
    for rows in (200, 300):
        folder = tmp_path / str(rows)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("CLIPNOISE_PLUGINS", str(folder / "plugins"))
        assert main(["new", "dataset", "my-clouds"]) == 0
        file = folder / "plugins" / "my_clouds.py"
        file.write_text(f"{file.read_text()}\nROWS = {rows}\n")
        found.append(prepared_from(dataset_class("my-clouds")(), tmp_path))
    assert len(set(found)) == 2
    assert "" not in found


def test_a_job_refuses_other_files_than_were_planned(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "prepare", *OWN_WORDS, "--cache", str(cache)]
    assert main([*words, "--sources", "0" * 12]) == 2
    assert "have changed since this step was planned" in capsys.readouterr().err
    assert main([*words, "--sources", prepared_from(OWN, cache)]) == 0


def test_verify_names_a_raw_file_that_has_changed(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OWN.prepare(cache)
    words = ["data", "verify", *OWN_WORDS, "--cache", str(cache)]
    assert main(words) == 0
    assert "train.csv: sha256" in capsys.readouterr().out
    path = write(cache, "train", 0.6)
    assert main(words) == 2
    assert f"{path}: has changed since it was prepared" in capsys.readouterr().err
    assert (cache / OWN.prepared / MANIFEST).is_file()
