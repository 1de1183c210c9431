"""The script that compares the final metrics of two results folders."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "same_numbers.py"
RUN = {
    "study": "paper/table1",
    "panel": "images",
    "dataset": "mnist",
    "model": "cnn-5",
    "label": "dp-sgd",
    "budget": "eps=1",
    "seed": "0",
    "hash": "abc",
    "status": "completed",
    "test_accuracy": "0.9012345678901234",
    "train_loss": "0.5",
    "noise_multiplier": "1.25",
    "seconds": "3.5",
}


def main(*words: str | Path) -> int:
    code: int = runpy.run_path(str(SCRIPT))["main"]([str(word) for word in words])
    return code


def write(results: Path, *runs: dict[str, str], scale: str = "studies-smoke") -> Path:
    path = results / scale / "paper" / "table1" / "runs.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(runs[0]))
        writer.writeheader()
        writer.writerows(runs)
    return results


def test_hashes_times_and_the_old_name_of_a_panel_do_not_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = {("part" if name == "panel" else name): value for name, value in RUN.items()}
    before = write(tmp_path / "before", older, {**older, "seed": "1"})
    after = write(tmp_path / "after", {**RUN, "seed": "1"}, {**RUN, "hash": "def", "seconds": "9"})
    assert main(before, after) == 0
    text = capsys.readouterr().out
    assert "2 runs before, 2 after, 2 in both." in text
    assert "4 numbers compared, 0 problems." in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_accuracy": "0.9012345678901235"}, "test_accuracy: 0.9012345678901234 before"),
        ({"train_loss": ""}, "train_loss: 0.5 before, empty after"),
        ({"status": "diverged"}, "status: completed before, diverged after"),
        ({"seed": "1"}, "eps=1 / 0: only before"),
        ({"seed": "1"}, "eps=1 / 1: only after"),
        ({"validation_loss": "1"}, "validation_loss: no such column before, 1 after"),
    ],
)
def test_every_difference_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], message: str
) -> None:
    before = write(tmp_path / "before", RUN)
    assert main(before, write(tmp_path / "after", {**RUN, **change})) == 1
    assert message in capsys.readouterr().out


def test_more_columns_are_compared_on_request(tmp_path: Path) -> None:
    before = write(tmp_path / "before", RUN)
    after = write(tmp_path / "after", {**RUN, "noise_multiplier": "1.5"})
    assert main(before, after) == 0
    assert main(before, after, "--also", "noise_multiplier") == 1


def test_the_same_study_at_two_scales_is_two_studies(tmp_path: Path) -> None:
    before = write(tmp_path / "before", RUN)
    assert main(before, write(tmp_path / "after", RUN, scale="studies")) == 1


def test_what_cannot_be_compared_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write(tmp_path / "before", RUN)
    assert main(before, tmp_path / "nothing") == 2
    assert "no run in any" in capsys.readouterr().err
    assert main(before, write(tmp_path / "after", RUN, RUN)) == 2
    assert "two runs are studies-smoke / paper/table1 / images" in capsys.readouterr().err
