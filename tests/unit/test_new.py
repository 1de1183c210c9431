"""`clipnoise new` writes files that work, with tests that pass, clean for ruff and mypy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clipnoise.cli import main

ROOT = Path(__file__).parents[2]
NAMES = {
    "study": "my-study",
    "method": "my-momentum",
    "model": "my-net",
    "dataset": "my-clouds",
}


def run(*words: str, folder: Path) -> str:
    """Run a module of Python where the new files are, with clipnoise on the path."""
    source = str(ROOT / "src")
    environment = {**os.environ, "PYTHONPATH": source, "MYPYPATH": source}
    environment["CLIPNOISE_PLUGINS"] = str(folder)
    words = (sys.executable, "-m", *words)
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with one new file of each kind."""
    folder = tmp_path_factory.mktemp("mine") / "plugins"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLIPNOISE_PLUGINS", str(folder))
        for kind, name in NAMES.items():
            assert main(["new", kind, name]) == 0
    return folder


@pytest.mark.long
def test_the_tests_of_new_files_pass(folder: Path) -> None:
    written = {path.name for path in folder.iterdir()}
    assert {"my-study.yaml", "my_net.py", "test_my_net.py", "conftest.py"} <= written
    shown = run("pytest", "-q", "-p", "no:cacheprovider", str(folder), folder=folder)
    assert "4 passed" in shown or shown.startswith("....")


@pytest.mark.long
def test_new_files_are_clean(folder: Path) -> None:
    config = ("--config", str(ROOT / "pyproject.toml"))
    run("ruff", "check", *config, str(folder), folder=folder)
    run("ruff", "format", "--check", *config, str(folder), folder=folder)
    files = [str(path) for path in folder.glob("*.py") if path.name != "conftest.py"]
    run("mypy", "--strict", *files, folder=folder)


CONTRACTS = {
    "contract/test_methods.py": "method",
    "privacy/test_sensitivity.py": "method",
    "contract/test_datasets.py": "dataset",
    "contract/test_models.py": "model",
}


@pytest.mark.long
def test_new_plug_ins_pass_the_contracts(folder: Path) -> None:
    files = [str(ROOT / "tests" / name) for name in CONTRACTS]
    names = " or ".join(NAMES[kind] for kind in set(CONTRACTS.values()))
    words = ("pytest", "-vv", "-p", "no:cacheprovider", "-n", "0", "-k", names, *files)
    shown = run(*words, folder=folder)
    for name, kind in CONTRACTS.items():
        assert re.search(rf"{name}::\S*{NAMES[kind]}\S* PASSED", shown), name


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "my_net.py").read_text()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLIPNOISE_PLUGINS", str(folder))
        assert main(["new", "method", "my-net"]) == 2
    assert "my_net.py: is there already" in capsys.readouterr().err
    assert (folder / "my_net.py").read_text() == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [("method", "dp-sgd"), ("model", "logistic"), ("dataset", "digits"), ("study", "quickstart")],
)
def test_a_name_that_is_taken_is_refused(
    kind: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLIPNOISE_PLUGINS", str(folder))
        patched.chdir(ROOT)
        assert main(["new", kind, name]) == 2
    assert f"NAME: there is a {kind} {name!r} already" in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("places", ["", "-"])
def test_without_a_folder_nothing_is_written(
    places: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIPNOISE_PLUGINS", places)
    assert main(["new", "model", "my-net"]) == 2
    assert "no folder of plug-ins is named: add a line" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["My-net", "../net", "my--net", "my_net", "m" * 300])
def test_a_name_that_no_path_can_hold_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "model", name]) == 2
    assert "lower-case letters, digits and single -" in capsys.readouterr().err
