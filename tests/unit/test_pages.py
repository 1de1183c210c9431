"""Pages and recipes that are made from other files are what `make pages` writes."""

from __future__ import annotations

import filecmp
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clipnoise.cli import main

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "envs", "workflow", "reports/published")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files that are written and of those that they are made from."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_make_pages_changes_nothing(checkout: Path) -> None:
    # Where make runs the tests, this one would say so.
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    words = ["make", "-n", "pages"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    for line in done.stdout.splitlines():
        _, program, *words = shlex.split(line)  # the first sets PATH
        if program == "clipnoise":
            assert main(words) == 0
        else:
            assert program == "python"
            subprocess.run([sys.executable, *words], check=True)
    files = [path for folder in FOLDERS for path in (checkout / folder).rglob("*.*")]
    written = {path.relative_to(checkout) for path in files if path.is_file()}
    assert {Path("docs/methods.md"), Path("envs/environment.yaml")} <= written
    changed = [
        str(name)
        for name in sorted(written)
        if not (ROOT / name).is_file() or not filecmp.cmp(name, ROOT / name, shallow=False)
    ]
    assert not changed, "run `make pages`"
