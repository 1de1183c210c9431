"""Files appear complete or not at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from clipnoise.cli import main
from clipnoise.errors import UserError, printable
from clipnoise.files import (
    MOST_BYTES,
    load_yaml,
    read_json,
    read_yaml,
    write_atomically,
    write_json,
)


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: " + "[" * 100_000, "it is nested too deeply"),
        ("a: " + "{b: " * 100_000, "it is nested too deeply"),
        ("- " * 100_000, "it is nested too deeply"),
        ("title: 2024-13-01", "line 1, column 8: '2024-13-01': month must be in 1..12"),
        ("a: 1\ntitle: 2024-01-01T25:00:00Z", "line 2, column 8: '2024-01-01T25:00:00Z': hour"),
        ("steps: " + "9" * 5000, "99… has more than 64 bits"),
        ("steps: -9223372036854775808", "-9223372036854775808' has more than 64 bits"),
        ('title: "a\\x1b]0;b"', r"line 1, column 8: the character '\x1b' is not allowed"),
        ('title: "a\\rb"', r"the character '\r' is not allowed"),
        ('"a\\0": 1', r"the character '\x00' is not allowed"),
        ("title: a\u202eb", r"the character '\u202e' is not allowed"),
    ],
    ids=lambda value: value[:20],
)
def test_what_no_study_could_mean_is_refused_in_one_line(
    text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_yaml(path)
    assert said in str(error.value)
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_text_may_have_lines_tabs_and_any_script(tmp_path: Path) -> None:
    values = {"title": "Größe ≤ 5, 中文", "description": "one\n\n\ttwo", "steps": 2**62}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    assert read_yaml(path) == values


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_who_may_read_a_file_follows_from_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "new" / "file", "x")
        write_atomically(tmp_path / "new" / "file", "y")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "file").stat().st_mode) == 0o666 & ~mask
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "endless", "large", "deep", "not UTF-8", "long integer"])
def test_json_that_nobody_wrote_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "large":
            with path.open("wb") as stream:
                stream.truncate(MOST_BYTES + 1)
        case "deep":
            path.write_text("[" * 100_000)
        case "not UTF-8":
            path.write_bytes(b'"\xff"')
        case "long integer":
            path.write_text("9" * 10_000)
    with pytest.raises((OSError, ValueError)):
        read_json(path)


def test_messages_hold_nothing_that_acts_on_a_terminal() -> None:
    assert printable("a\x1b[2Jb\x9bc\rd\u202ee") == r"a\x1b[2Jb\x9bc\rd\u202ee"
    assert printable("ε\tof\n中文") == "ε\tof\n中文"
