"""A light library: few packages are always installed; an import that lacks one names its extra."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from clipnoise.cli import main
from clipnoise.errors import IMPORTED_AS, UserError, explained, or_exit

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PART_OF = {
    "alembic": "mlflow",
    "pydantic-core": "pydantic",
    "urllib3": "requests",
    "yaml": "pyyaml",
}

# Training in a loop of one's own, every accountant, and the lists of the command line.
PROGRAM = """
import torch
import clipnoise
from clipnoise.cli import main
inputs = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
training = clipnoise.private(
    torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none"),
    (inputs, (inputs[:, 0] > 0).long()), method="dp-adambc", learning_rate=0.1, clip_norm=1,
    epsilon=3, delta=1e-5, expected_batch_size=20, steps=2,
)
assert list(training) == [1, 2]
assert training.spent <= 3
training.save("half.safetensors")
account = "account --noise-multiplier 2 --sampling-rate 0.1 --steps 10 --delta 1e-5".split()
for words in (["--help"], ["methods"], ["models"], ["data", "list"], ["weights", "list"], account):
    assert main(words) == 0, words
"""
WITHOUT = """
import sys
others = {others}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in others:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


OF_A_JUDGED_LOOP = {"jax", "jax-privacy"}  # which imports them before its adapter does


def package_of(module: str) -> str:
    """Return the package with which a module is installed."""
    name = canonicalize_name(IMPORTED_AS.get(module, module))
    return PART_OF.get(name, name)


def names(wanted: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in wanted}


def installed_with(packages: set[str]) -> set[str]:
    """Return these packages and what they need, however indirectly, on this machine."""
    found: set[str] = set()
    waiting = list(packages)
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        try:
            lines = [Requirement(line) for line in requires(package) or []]
        except PackageNotFoundError:  # needed on another platform only
            continue
        waiting += [
            canonicalize_name(line.name)
            for line in lines
            if line.marker is None or line.marker.evaluate({"extra": ""})
        ]
    return found


def imports() -> Iterator[tuple[str, str]]:
    """Yield each import of another package, with where it is."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for module in modules:
                top = module.partition(".")[0]
                if top != "clipnoise" and top not in sys.stdlib_module_names:
                    yield top, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_the_library_itself_needs_few_packages() -> None:
    assert len(PROJECT["dependencies"]) <= 12


@pytest.mark.long
def test_every_import_is_of_a_package_that_is_asked_for() -> None:
    extras = PROJECT["optional-dependencies"]
    used = {name for extra in extras if extra != "dev" for name in names(extras[extra])}
    asked = names(PROJECT["dependencies"]) | used | OF_A_JUDGED_LOOP
    assert not [place for module, place in imports() if package_of(module) not in asked]


@pytest.mark.long
def test_training_in_a_loop_of_ones_own_needs_no_extra(tmp_path: Path) -> None:
    core = installed_with(names(PROJECT["dependencies"]))
    carried = packages_distributions().items()
    others = {name for name, by in carried if not core & set(map(canonicalize_name, by))}
    code = WITHOUT.format(others=others - {"clipnoise"}) + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "dp-adambc" in done.stdout


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("sklearn", "scikit-learn", "bench or audit"),
        ("pandas", "pandas", "bench or report"),
        ("google.protobuf", "protobuf", "text"),
        ("timm", "timm", "vision"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(module: str, package: str, extra: str) -> None:
    first = extra.partition(" ")[0]
    expected = (
        f"{package} is not installed. It comes with the extra {extra}: "
        f"pip install 'clipnoise[{first}]'"
    )
    with pytest.raises(UserError, match=re.escape(f"here: {expected}")), explained("here"):
        raise ModuleNotFoundError(name=module)


def test_a_command_that_lacks_an_extra_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["data", "prepare", "digits", "--cache", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clipnoise data: scikit-learn is not installed.")
    assert line.endswith("pip install 'clipnoise[bench]'")


def test_a_step_before_the_first_job_that_lacks_an_extra_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(SystemExit) as ended:
        or_exit(lambda: __import__("typst"))
    assert ended.value.code == 2
    assert "clipnoise[report]" in capsys.readouterr().err


def test_a_module_of_no_extra_that_is_missing_stays_a_fault() -> None:
    with pytest.raises(ModuleNotFoundError):
        or_exit(lambda: __import__("no_such_module"))
