"""The shape of the code: layers, docstrings, and what no file in the repository may contain."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "clipnoise"

LAYERS = [
    {path.stem for path in PACKAGE.glob("[a-z]*.py")},
    {"core"},
    {"privacy", "data", "models"},
    {"gradients"},
    {"methods"},
    {"run"},
    {"tracking"},
    {"studies"},
    {"audit"},
    {"report"},
    {"papers"},
    {"cli"},
]
# Files in which a mapping may hold anything, and why; everywhere else it has a type.
FREE_FORM = {
    "what comes from outside, before it is parsed": """
        audit/judge/wire.py cli/options.py core/schedule.py fields.py files.py kinds.py
        methods/base.py methods/catalogue.py models/pretrained.py plugins.py privacy/claim.py
        report/kinds/sweep.py tracking/view.py
    """,
    "what another library takes or gives": """
        audit/loops/adapters/watching.py gradients/dropout.py gradients/factored/block.py
        gradients/factored/recording.py gradients/held.py models/hub.py
        models/recomputed.py report/figures/canvas.py report/figures/heat_map.py
    """,
    "rows of tables, whose columns follow from what is reported": "report/charts.py",
    "studies, runs, papers and data": """
        data/base.py data/cache.py data/codebook.py data/describe.py data/described.py data/own.py
        data/own_arrays.py data/r_tables.py data/several.py data/tables.py papers/base.py
        papers/report.py run/checkpoint.py run/choice.py run/outcome.py run/progress.py
        run/registry.py run/replay.py run/results.py run/spec.py studies/collect.py
        studies/league.py studies/plan.py studies/schema.py studies/tuning.py
    """,
}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HEAVY = {"mlflow", "opacus", "sklearn", "timm", "torch", "torchvision", "transformers"}
IGNORED = {"results", "data", "weights"}
BINARY = {".npz", ".pdf", ".png", ".svg", ".lock"}


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def committed_files() -> Iterator[Path]:
    """Walk the repository, leaving out what is made by running it."""
    for folder, folders, files in os.walk(ROOT):
        here = Path(folder)
        folders[:] = [
            name
            for name in folders
            if not (name in IGNORED and here == ROOT)
            and name != "__pycache__"
            and (not name.startswith(".") or name == ".ci")
        ]
        files = [name for name in files if name != ".git"]  # a file in a worktree
        yield from (here / name for name in files if (here / name).suffix not in BINARY)


def imported_layers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Find every import of a part of the package: in functions and for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            if node.module == "clipnoise":
                modules = [f"clipnoise.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            if parts[0] == "clipnoise" and len(parts) > 1 and parts[1] in RANK:
                yield parts[1], node.lineno


def test_mappings_of_anything_stay_where_outside_data_enter() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\b(dict|Mapping)\[str, Any\]", path.read_text(encoding="utf-8"))
    }
    assert found == set(" ".join(FREE_FORM.values()).split())


def test_the_page_for_contributors_lists_every_folder_of_the_package_and_no_other() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| folder |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name.removeprefix("src/clipnoise/") for name in listed} >= rooms
    paths = [(ROOT / name, PACKAGE / name) for name in listed]
    assert all(any(path.is_dir() for path in pair) for pair in paths)


def test_every_folder_belongs_to_a_layer() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(RANK)


def test_layers_import_downward_only() -> None:
    upward = [
        f"{name_of(path)}:{line}: imports {other}"
        for path in MODULES.values()
        for other, line in imported_layers(tree_of(path))
        if RANK[other] > rank_of(path)
    ]
    assert not upward


def rank_of(path: Path) -> int:
    """Return the rank of a file's layer; the package itself may offer names from every layer."""
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return RANK.get(layer, len(LAYERS))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python_files("src/clipnoise")}


def at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Walk statements that run on import or for type checkers, but not those inside functions."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "handlers", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from at_import(getattr(statement, name, []))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules_imported_by(name: str) -> set[str]:
    """Return the modules of the package that a module imports outside of functions."""
    imported = set()
    for node in at_import(tree_of(MODULES[name]).body):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= (
                inner | {node.module}
            ) & MODULES.keys()  # a package runs before its modules
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names} & MODULES.keys()
    return imported - {name}


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {name: modules_imported_by(name) for name in MODULES}
    before = None
    while before != imports:  # leave only what imports, and is imported by, something that is left
        before = imports
        imported = set().union(*imports.values())
        kept = {name for name in imported if imports.get(name)}
        imports = {name: imports[name] & kept for name in kept}
    assert not imports


@pytest.mark.long
def test_no_two_classes_share_a_name() -> None:
    modules_by_class: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                modules_by_class.setdefault(node.name, set()).add(name)
    assert not {name: where for name, where in modules_by_class.items() if len(where) > 1}


def test_no_two_test_files_share_a_name() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


LOADED = """
import os, sys
def show():
    print(*{name.partition('.')[0] for name in sys.modules}, flush=True)
def show_after(run, *values):
    if os.fork():
        assert os.wait()[1] == 0
    else:
        run(*values)
        show()
        os._exit(0)
"""


def loaded_by(code: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after running code."""
    return loads(f"{code}\nshow()")[0]


def loads(code: str) -> list[set[str]]:
    """Return what is loaded wherever code that a fresh interpreter runs calls `show`."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED + code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


IMPORT_ALL = """
import importlib, pkgutil
for root in {packages}:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        importlib.import_module(module.name)
"""


@pytest.mark.long
def test_studies_and_reports_never_load_torch_or_mlflow() -> None:
    code = IMPORT_ALL.format(packages=["clipnoise.studies", "clipnoise.report", "clipnoise.papers"])
    assert not loaded_by(code) & {"torch", "mlflow", "opacus"}


def test_listing_the_plug_ins_loads_nothing_heavy() -> None:
    code = IMPORT_ALL.format(packages=["clipnoise.methods", "clipnoise.data", "clipnoise.models"])
    assert not loaded_by(code) & HEAVY


@pytest.mark.long
def test_planning_the_papers_loads_no_library_that_computes_or_draws() -> None:
    code = f"""
from pathlib import Path
from clipnoise.papers.base import experiments, fingerprint
for name in experiments():
    fingerprint(name, Path({str(ROOT)!r}) / f"workflow/reproductions/{{name}}.yaml")
"""
    assert not loaded_by(code) & {"torch", "scipy", "pandas", "matplotlib", "seaborn"}


def test_listing_the_commands_loads_nothing_heavy() -> None:
    assert not loaded_by("from clipnoise.cli import main; main(['--all'])") & HEAVY


def test_a_job_that_asks_a_warm_process_loads_little() -> None:
    slow = {"typing", "pathlib", "json", "logging", "re", "subprocess"}
    assert not loaded_by("import clipnoise.cli") & slow


BUILD = """
import clipnoise.run.train
from pathlib import Path
from clipnoise.data.signature import Signature
from clipnoise.models.base import model_class
shapes = [
    Signature("image", (1, 28, 28), 10),
    Signature("image", (1, 28, 28), 784, "reconstruction"),
    Signature("tokens", (12,), 2, vocabulary=50),
]
def build(*names):
    for name in names:
        kind = model_class(name)
        small = kind(pretrained=False, layers=1) if hasattr(kind, "pretrained") else kind()
        small.build(next(shape for shape in shapes if kind.takes(shape)), Path("weights"))
"""
SMALL = ("logistic", "cnn-small", "cnn-5", "cnn-5-averaged", "autoencoder", "lstm")


@pytest.mark.long
def test_a_run_loads_only_the_libraries_that_its_model_is_built_with() -> None:
    libraries = {"timm", "transformers", "torchvision"}
    sets = (SMALL, ("vit", "resnet-18"), ("tiny-bert",))
    calls = "\n".join(f"show_after(build, *{names})" for names in sets)
    small, images, texts = loads(f"{BUILD}\n{calls}")
    assert not small & (libraries | {"mlflow", "sklearn"})
    assert "timm" in images
    assert "transformers" not in images
    assert "transformers" in texts
    assert "timm" not in texts


def test_every_package_docstring_says_what_belongs_in_it() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        text = ast.get_docstring(tree_of(path)) or ""
        assert "Belongs here:" in text, path
        assert "Does not:" in text, path


def test_what_is_public_has_a_docstring() -> None:
    missing = [
        f"{name_of(path)}: {getattr(node, 'name', 'the module')}"
        for path in python_files("src")
        for tree in [tree_of(path)]
        for node in [tree, *tree.body]
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and not getattr(node, "name", "").startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not missing


FORBIDDEN = {
    "the address of a package index": r"pypi\.(org|python)|pythonhosted\.",
    "a note of unfinished work": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a path on one person's machine": r"(?<![\w.\"'}])/(work|home|root|Users)/\w",
}


GENERATED = re.compile(r"\W*(auto)?generated by|\W*made by `|\W*this file was autogenerated", re.I)
LOOKED_UP = (
    "envs/requirements.lock",
    "benchmarks/results/",
    "docs/methods.md",
    "docs/datasets.md",
)


def test_no_generated_file_in_git_is_longer_than_anyone_reads() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    too_long = []
    for name in listed.stdout.split("\0"):
        if not name or name.startswith(LOOKED_UP) or not (ROOT / name).is_file():
            continue
        lines = (ROOT / name).read_text(errors="replace").splitlines()
        generated = name.endswith((".json", ".svg")) or any(map(GENERATED.match, lines[:5]))
        if generated and len(lines) > 300:
            too_long.append(f"{name}: {len(lines)} lines")
    assert not too_long


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{name_of(path)}:{number}"
        for path in [*committed_files(), *(ROOT / "envs").glob("*.lock")]
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


@pytest.mark.parametrize("rule", ["prepare", "calibrate", "select"])
def test_what_runs_wait_for_is_done_before_any_run(rule: str) -> None:
    """A ready job that waits also costs Snakemake's scheduler time in every round."""
    texts = [path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk")]
    (block,) = [part for text in texts for part in text.split("\n\n\n") if f"rule {rule}:" in part]
    assert "priority: 1000" in block


@pytest.mark.long
def test_text_is_utf_8_whatever_the_locale() -> None:
    """Python reads and writes text in the encoding of the locale unless it is told otherwise."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = tree_of(path)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            words = {word.arg for word in call.keywords}
            name = call.func.attr if isinstance(call.func, ast.Attribute) else None
            text = name in ("read_text", "write_text") or "newline" in words
            assert not text or "encoding" in words, f"{path}:{call.lineno}"
