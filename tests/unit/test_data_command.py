"""`clipnoise data` prepares datasets and lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clipnoise.cli import main
from clipnoise.data.digits import Digits


def listing(cache: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["data", "list", "--cache", str(cache)]) == 0
    return capsys.readouterr().out


def states(shown: str) -> dict[str, str]:
    """Read what a listing says of each dataset, by id."""
    lines = [re.split(r"  +", line) for line in shown.splitlines() if not line.startswith(" ")]
    return {line[0]: line[1] for line in lines if len(line) > 1}


def test_a_dataset_is_absent_until_it_is_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert states(listing(tmp_path, capsys))["digits"] == "absent"
    assert main(["data", "prepare", "digits", "--cache", str(tmp_path)]) == 0
    assert len(Digits().load(tmp_path).test) == 360
    shown = listing(tmp_path, capsys)
    assert states(shown)["digits"] == "present"
    assert "train 1,300, validation 137, test 360" in shown
    assert Digits.licence in shown
    assert Digits.source in shown


def test_a_mistyped_dataset_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", "digit", "--cache", str(tmp_path)]) == 2
    assert "Did you mean 'digits'?" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_a_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["data", "prepare", "digits", "--cache", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
