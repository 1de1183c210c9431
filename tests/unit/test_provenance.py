"""Finding out where results come from does not disturb other processes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from clipnoise.run import provenance


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that holds the code, as far as the module can tell."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "code.py"))
    return tmp_path


def commit() -> str | None:
    return provenance.git_commit.__wrapped__()


def test_a_thousand_jobs_that_ask_for_the_commit_leave_the_index_alone(checkout: Path) -> None:
    """`git status` writes what it has learned of files into the index, under its lock."""
    index = checkout / ".git" / "index"
    (checkout / "code.py").touch()
    before = (index.read_bytes(), index.stat().st_mtime_ns)
    assert commit() is not None
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before
    git(checkout, "status")
    assert index.stat().st_mtime_ns != before[1]  # so the test would notice


def test_a_git_lock_held_by_another_process_does_not_matter(checkout: Path) -> None:
    (checkout / ".git" / "index.lock").touch()
    clean = commit()
    assert clean is not None
    assert len(clean) == 12
    (checkout / "code.py").write_text("2\n")
    assert commit() == f"{clean}+changes"


def test_outside_of_a_checkout_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "code.py"))
    assert commit() is None


def test_a_clock_that_is_set_back_makes_no_run_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    made = provenance.Provenance("cpu")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    time.sleep(0.01)
    assert 0.01 <= made.seconds < 60
