"""Files appear complete or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.files import load_yaml, read_yaml, write_atomically, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text() == "old"


def test_a_folder_that_cannot_be_written_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["schema", "--out", str(tmp_path / "file" / "below")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"clipnoise schema: {tmp_path}/file/below/")
    assert line.endswith(": cannot be written (Not a directory).")


def test_json_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [float("nan"), float("inf"), 1.5], "b": None})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [None, None, 1.5], "b": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: {c: 1, c: 2}", "b.c: given twice, in lines 2 and 2"),
        ("a: 1\nb: 2\na: 1", "a: given twice, in lines 1 and 3"),
        ("a:\n  - {b: 1}\n  - {b: 1,\n     b: 1}", "a.1.b: given twice, in lines 3 and 4"),
        ("a: [1, 2", "line 1, column 9: expected ',' or ']', but got '<stream end>'"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
    ],
)
def test_wrong_yaml_is_refused_in_one_line_that_says_where(
    text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_yaml(path)
    assert str(error.value) == f"{path}: not valid YAML: {said}."


def test_what_yaml_merges_or_refers_to_is_not_given_twice() -> None:
    text = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: [*b, *b, {<<: *b}]\n1: d\n1.0: e"
    both = {"x": 2}
    assert load_yaml(text) == {"a": {"x": 1}, "b": both, "c": [both] * 3, 1: "e"}
    assert load_yaml("") is None
