"""The environment: one lock, the recipes made from it, and the Makefile that installs it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
ENVS = ROOT / "envs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ENVS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(lock: str) -> dict[str, set[str]]:
    """Return the versions that a lock names, by package; several where they depend on Python."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==([^\s;\\]+)", lock, re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def wanted() -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    named = [*PROJECT["project"]["dependencies"], *(r for extra in extras for r in extra)]
    return [requirement for requirement in named if not requirement.startswith("clipnoise[")]


def test_the_conda_file_names_every_pin_and_hash_of_the_lock() -> None:
    lock = (ENVS / "requirements.lock").read_text()
    lines = yaml.safe_load((ENVS / "environment.yaml").read_text())["dependencies"][-1]["pip"]
    assert pins("\n".join(lines)) == pins(lock)
    hashes = re.compile(r"--hash=(\S+)")
    assert hashes.findall("\n".join(lines)) == hashes.findall(lock)


def test_images_and_actions_are_named_by_what_they_hold() -> None:
    """A tag can stand for something else tomorrow."""
    image = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
    container = re.findall(r"^FROM (\S+)", (ENVS / "Containerfile").read_text(), re.MULTILINE)
    development = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["image"]
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())["jobs"].values()
    images = [*container, development, *(job["container"] for job in jobs)]
    assert len(images) == 3
    assert all(image.fullmatch(name) for name in images), images
    actions = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions), actions


def test_a_changed_lock_makes_other_recipes(generate: ModuleType, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    folder = tmp_path / "envs"
    folder.mkdir()
    lock = (ENVS / "requirements.lock").read_text()
    (folder / "requirements.lock").write_text(lock.replace("torch==", "torch==9", 1))
    for name, text in generate.recipes(folder).items():
        assert (ENVS / name).read_text() != text


@pytest.mark.parametrize("requirement", wanted())
def test_the_lock_satisfies_the_project(requirement: str) -> None:
    want = Requirement(requirement)
    versions = pins((ENVS / "requirements.lock").read_text()).get(canonicalize_name(want.name))
    assert versions, f"{want.name} is not locked: run make lock"
    assert all(want.specifier.contains(version, prereleases=True) for version in versions)


@pytest.mark.parametrize("name", ["requirements.lock", "installer.lock"])
def test_every_locked_package_has_a_hash(name: str) -> None:
    text = (ENVS / name).read_text()
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert blocks
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_locked_installer_carries_the_build_backend() -> None:
    (version,) = pins((ENVS / "installer.lock").read_text())["uv"]
    (backend,) = PROJECT["build-system"]["requires"]
    assert Requirement(backend).specifier.contains(version)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder, with a space in its name, that holds what the Makefile reads to install."""
    folder = tmp_path / "my checkout"
    (folder / "envs").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "envs/requirements.lock", "envs/installer.lock"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell, though these tests may themselves be started by make."""
    theirs = ("MAKE", "ARGS")
    settings = {name: text for name, text in os.environ.items() if not name.startswith(theirs)}
    return subprocess.run(
        ["make", *words], cwd=folder, env=settings, capture_output=True, text=True, timeout=60
    )


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_make_alone_prints_every_target(checkout: Path) -> None:
    targets = re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    done = make(checkout)
    assert done.returncode == 0
    assert {"quickstart", "test", "mlflow"} <= set(targets)
    assert all(re.search(rf"^  make {target} +\S", done.stdout, re.MULTILINE) for target in targets)


def test_an_old_python_is_refused_in_words(checkout: Path) -> None:
    old = script(checkout / "old", 'test "$1" = --version && echo Python 3.9.1; exit 1')
    done = make(checkout, "environment", f"PYTHON={old}")
    assert done.returncode != 0
    assert "Python 3.9.1 is too old: Python 3.11 or newer" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_missing_python_is_named(checkout: Path) -> None:
    done = make(checkout, "environment", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "no-such-python: not found" in done.stderr


def test_a_failed_installation_is_not_taken_for_a_finished_one(checkout: Path) -> None:
    interpreter = script(
        checkout / "python",
        'test "$1" = -c && exit 0\n'
        "mkdir -p .venv/bin; echo made >>made\n"
        "printf '#!/bin/sh\\nexit 1\\n' >.venv/bin/python; chmod +x .venv/bin/python",
    )
    for attempt in (1, 2):
        assert make(checkout, "environment", f"PYTHON={interpreter}").returncode != 0
        assert not (checkout / ".venv/.ready").exists()
        assert (checkout / "made").read_text().count("made") == attempt


def test_mlflow_opens_the_runs_of_a_folder_on_a_port(checkout: Path) -> None:
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/.ready").touch()
    script(checkout / ".venv/bin/clipnoise", 'printf "<%s>" "$@"')
    done = make(checkout, "mlflow", "RESULTS=my results", "PORT=5001")
    assert done.stdout == "<mlflow-ui><--results><my results><--port><5001>"


def test_ci_runs_what_a_newcomer_types_and_requires_every_optional_tool(tmp_path: Path) -> None:
    run = tmp_path / ".ci" / "run"
    run.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "run", run)
    tools = tmp_path / "tools"
    tools.mkdir()
    required = ("BROWSER", "SLURM", "POSTGRES")
    values = " ".join(f"$CLIPNOISE_REQUIRE_{name}" for name in required)
    script(tools / "make", f'echo "$1 {values}" >>calls; test "$1" != lint')
    harmless = "git python3 chromium chromedriver pdftoppm slurmctld slurmd sbatch munged apt-get"
    for name in harmless.split():
        script(tools / name, "exit 0")
    script(tools / "id", "echo 0")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run([run], env=environment, capture_output=True, text=True, timeout=60)
    calls = (tmp_path / "calls").read_text().splitlines()
    targets = ("environment", "audit-dependencies", "lint", "test")
    assert calls == [f"{target} 1 1 1" for target in targets]
    assert done.returncode == 1  # after a failed lint the tests still run, but the whole fails


def test_every_proprietary_package_of_the_lock_is_named() -> None:
    lock = (ROOT / "envs" / "requirements.lock").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    locked = set(re.findall(r"^(nvidia-[a-z0-9-]+)==", lock, re.MULTILINE))
    assert locked == set(re.findall(r"`(nvidia-[a-z0-9-]+)`", page))


def test_nothing_in_the_container_runs_as_root() -> None:
    recipe = (ROOT / "envs" / "Containerfile").read_text(encoding="utf-8").splitlines()
    assert recipe.index("USER 1000") > max(
        number for number, line in enumerate(recipe) if line.startswith(("RUN", "COPY", "WORKDIR"))
    )
