"""The soak sees what is lost, wrong or left over, and a study under its faults is whole."""

from __future__ import annotations

import importlib
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
RUN = "results/runs/digits/logistic/sgd/non-private/seed=1/0123456789ab"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("soak")


@pytest.fixture
def one(soak: Any, tmp_path: Path) -> Any:
    """A soak of a study with one result, which is as the undisturbed one."""
    given = Namespace(inside=tmp_path / "1.json", output=tmp_path, seeds=[1], minutes=1)
    made = soak.Soak(Namespace(**vars(given), every=1, only=[]))
    made.left_over = lambda: iter(())
    made.said.touch()
    columns = "study,panel,dataset,model,label,budget,seed,status,test_accuracy,seconds\n"
    for folder in (made.folder, tmp_path / "undisturbed"):
        table = folder / "results" / "studies" / "soak" / "runs.csv"
        table.parent.mkdir(parents=True)
        table.write_text(
            f"{columns}soak,main,digits,logistic,sgd,,1,completed,0.5,{len(folder.name)}"
        )
        (folder / RUN).mkdir(parents=True)
        (folder / RUN / "metrics.csv").write_text(f"step,seconds\n1,{len(folder.name)}\n")
        (folder / RUN / "summary.json").write_text("{}")
    return made


def test_numbers_that_are_the_same_make_no_problem(one: Any, tmp_path: Path) -> None:
    one.compare(tmp_path / "undisturbed")
    assert (one.problems, one.counts["numbers"], one.counts["results"]) == ([], 1, 1)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("results/studies/soak/runs.csv", "0.5", "0.50"),
        ("results/studies/soak/runs.csv", "completed", "missing"),
        (f"{RUN}/metrics.csv", "\n1,", "\n2,"),
    ],
)
def test_a_number_that_differs_is_wrong(
    file: str, old: str, new: str, one: Any, tmp_path: Path
) -> None:
    path = one.folder / file
    path.write_text(path.read_text().replace(old, new))
    one.compare(tmp_path / "undisturbed")
    assert one.counts["wrong"] == 1


def test_a_result_that_is_gone_or_made_again_is_lost_unless_a_fault_meant_to(one: Any) -> None:
    summary = one.folder / RUN / "summary.json"
    one.look()
    assert one.problems == []
    summary.unlink()
    one.look()
    assert one.counts["lost"] == 1
    summary.write_text("{}")
    one.look()
    one.excused.add(summary)
    summary.rename(summary.with_name("other"))
    one.look()
    assert one.counts["lost"] == 1


def test_the_page_counts_faults_and_shows_problems(soak: Any, tmp_path: Path) -> None:
    rows = [(1, 1, "disk full", 3.0, 2.0), (1, 2, "disk full", 9.0, 4.0)]
    rows += [(1, 2, "SIGTERM to a run", 12.0, None)]
    faults = pd.DataFrame(rows, columns=list(soak.COLUMNS))
    counts = {"rounds": 2, "results": 7, "numbers": 126, "lost": 0, "wrong": 1}
    found = {"seed": 1, "minutes": 1.0, "calls": 3, "faults": rows, "problems": ["it differs"]}
    soak.write_page(faults, [{**found, **counts}], tmp_path)
    page = (tmp_path / "soak.md").read_text()
    assert "| 1 | 1.0 | 2 | 3 | 3 | 7 | 126 | 0 | 1 | 0 |" in page
    assert "| disk full | 2 | 2 | 3.0 | 4.0 |" in page
    assert "| SIGTERM to a run | 1 | 0 |" in page
    assert "- it differs" in page
    assert "<svg" in (tmp_path / "soak.svg").read_text()


@pytest.mark.workflow
@pytest.mark.long
def test_a_study_under_faults_loses_nothing(soak: Any, tmp_path: Path) -> None:
    if not soak.may_use_namespaces():
        pytest.skip("may not use unshare here")
    words = ["--minutes", "0.5", "--seeds", "7", "--every", "3", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "soak.py"), *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert pd.read_csv(tmp_path / "soak.csv")["recovered"].notna().any()
