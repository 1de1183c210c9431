"""Change the code in small ways, one at a time, and see which changes the tests notice.

    make mutants PIECE=core

mutmut makes the mutants of a piece in a copy of the repository, and runs on each the tests that
reach its function, until one fails. `mutants.yaml` says which files and tests make up a piece, and
which survivors are equivalent. Every call ends with the page of all pieces.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import importlib.metadata
import json
import os
import random
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import libcst as cst
import yaml
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name
from scipy.stats import binomtest

ROOT = Path(__file__).parents[1]
READ_BY_TESTS = ("benchmarks", "config.yaml", "docs", "envs", "examples", "reports", "workflow")
COPIED = ("src", "tests", "pyproject.toml", *READ_BY_TESTS)
NOTICED = {1, 2, 3, 24, 36, 152, 255, -9, -11, -24}  # a test failed, crashed, or took too long
# mutmut's fork server runs tests in no order, and lets the clock decide what takes too long, which
# on a busy machine are mutants that no test notices.
FASTEST_FIRST = """\
import json, os, pathlib, pytest, resource

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    found = pathlib.Path("mutmut-stats.json")
    seconds = json.loads(found.read_text())["duration_by_test"] if found.exists() else {}
    items.sort(key=lambda item: seconds.get(item.nodeid, 0))
    if "__mutmut_" in os.environ.get("MUTANT_UNDER_TEST", ""):
        resource.setrlimit(resource.RLIMIT_CPU, (120, 121))
"""
PAGE = """\
# Mutants

Small changes of the code, one at a time, such as `<=` for `<`, 1 for 0, − for +, or an argument \
left out: how many do the tests notice? [mutmut](https://mutmut.readthedocs.io) {version} makes \
them, and runs on each the tests that reach its function until one fails. A mutant that takes two \
minutes of a core is noticed, too; one that no test reaches has survived.

Equivalent are mutants that do what the code does, or change no more than the words of a message. \
The score is the share noticed of all others. Where only a random sample was tested, the exact 95% \
interval for all mutants of the piece follows, and survivors are listed as they were then: tests \
may have been written for them since. Where those tests were counted, no interval follows: the \
score then says too little about other mutants.

Left out are annotations, docstrings, what a class or module holds outside its functions, and what \
follows `raise`: tests ask for the error, and need not ask for each of its words. Decorators are \
kept; the functions below them are mutated.

| piece | mutants | tested | noticed | equivalent | survived | score | minutes of a core |
|---|---:|---:|---:|---:|---:|---:|---:|
{rows}

`make mutants PIECE=core` measures a piece and makes this page; `ARGS="--sample 200"` tests so \
many, drawn with `--seed 1`, and `ARGS=--again` only what an earlier call left. \
`benchmarks/mutants.yaml` says which files and tests a piece has, and why a mutant is equivalent.

{lists}
"""


def main() -> int:
    """Measure a piece, and write mutants.md and mutants.json."""
    pieces = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("piece", choices=pieces)
    parser.add_argument("--again", action="store_true", help="Run what an earlier call left.")
    parser.add_argument("--sample", type=int, help="How many of the mutants, drawn at random.")
    parser.add_argument("--seed", type=int, default=1, help="Of the sample.")
    parser.add_argument("--processes", type=int, default=1, help="Mutants at a time.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    piece, folder = pieces[given.piece], ROOT / ".mutants" / given.piece
    tests = [*piece["tests"], *(f"--deselect={one}" for one in piece.get("without", ()))]
    prepare(folder, piece["files"], tests, again=given.again)
    of = drawn(folder, piece["files"], given.sample, given.seed)
    known = dict(outcomes(folder))
    equivalent = {
        (one["function"], one["code"], one["mutant"]): one["why"]
        for one in piece.get("equivalent", ())
    }
    chosen = [
        name
        for name in of
        if (code := known.get(name)) not in NOTICED
        and (code is None or described(folder, name) not in equivalent)
    ]
    command = ["mutmut", "run", f"--max-children={given.processes}", *chosen]
    if chosen:  # of none, mutmut would test all
        subprocess.run(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {"again": given.again} | counted(folder, of, equivalent)
    given.output.mkdir(parents=True, exist_ok=True)
    data = given.output / "mutants.json"
    every = json.loads(data.read_text()) if data.exists() else {}
    before = (every.get(given.piece) or {"seconds": None})["seconds"] if given.again else 0
    found["seconds"] = None if before is None else before + round(used.ru_utime + used.ru_stime)
    every = {name: found if name == given.piece else every.get(name) for name in pieces}
    data.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n")
    (given.output / "mutants.md").write_text(page(every))
    print(page(every))
    return 0


def prepare(folder: Path, files: list[str], tests: list[str], *, again: bool) -> None:
    """Copy the repository into a folder, and tell mutmut what to do there."""
    if not again:
        shutil.rmtree(folder, ignore_errors=True)
    for name in COPIED if not again else ("tests",):
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=leave, dirs_exist_ok=True)
        else:
            shutil.copy2(ROOT / name, folder / name)
    for path in folder.glob("src/**/*.py") if not again else ():
        if any(fnmatch(str(path.relative_to(folder)), name) for name in files):
            path.write_text(cst.parse_module(path.read_text()).visit(Undecorated()).code)
    (folder / "fastest_first.py").write_text(FASTEST_FIRST)
    config = configparser.ConfigParser(interpolation=None)
    config["mutmut"] = {
        "source_paths": "src",
        "only_mutate": "\n".join(["", *files]),
        "do_not_mutate_patterns": r"^\s*raise\b",
        "also_copy": "\n".join(["", "fastest_first.py", *READ_BY_TESTS]),
        "pytest_add_cli_args": "\n-m\nnot long\n-p\nno:cacheprovider\n-p\nfastest_first",
        "pytest_add_cli_args_test_selection": "\n".join(["", *tests]),
        "process_isolation": "forkserver",  # else caches would be full of what the code returned
        "timeout_multiplier": "4",
        "timeout_constant": "300",  # for what waits and does not compute
    }
    with (folder / "setup.cfg").open("w") as file:
        config.write(file)


class Undecorated(cst.CSTTransformer):
    """Writes `@property def x` as `def plain_x` and `x = property(plain_x)`.

    mutmut leaves decorated functions alone, but for class methods and static ones.
    """

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.FlattenSentinel[cst.BaseStatement]:
        """Give the function a name of its own, and its name to what the decorators make of it."""
        decorators = [one.decorator for one in updated_node.decorators]
        names = {one.value for one in decorators if isinstance(one, cst.Name)}
        if not decorators or names & {"classmethod", "staticmethod", "abstractmethod", "overload"}:
            return updated_node
        plain = cst.Name(f"plain_{updated_node.name.value}")
        value: cst.BaseExpression = plain
        for decorator in reversed(decorators):
            value = cst.Call(decorator, [cst.Arg(value)])
        assigned = cst.Assign([cst.AssignTarget(updated_node.name)], value)
        return cst.FlattenSentinel(
            [
                updated_node.with_changes(name=plain, decorators=()),
                cst.SimpleStatementLine([assigned]),
            ]
        )


def drawn(folder: Path, files: list[str], sample: int | None, seed: int) -> list[str]:
    """Return the names of the mutants that mutmut will make, or of some of them."""
    names = []
    with contextlib.chdir(folder):  # where mutmut looks for its configuration
        for path in sorted(Path("src").glob("**/*.py")):
            if any(fnmatch(str(path), name) for name in files):
                made = mutate_file_contents(str(path), path.read_text()).mutant_names
                names += [get_mutant_name(path, name) for name in made]
    return names if sample is None else random.Random(seed).sample(names, sample)


def outcomes(folder: Path) -> Iterator[tuple[str, int | None]]:
    """Yield each mutant with the exit code of its tests; None before they have run."""
    for path in sorted(folder.glob("mutants/src/**/*.meta")):
        yield from json.loads(path.read_text())["exit_code_by_key"].items()


def counted(
    folder: Path, of: list[str], equivalent: dict[tuple[str, str, str], str]
) -> dict[str, Any]:
    """Count mutants, and describe those that no test noticed.

    Args:
        folder: where mutmut has run.
        of: the names of those that were to be tested.
        equivalent: why those are that are.
    """
    made = dict(outcomes(folder))
    untested = sum(made[name] is None for name in of)
    if untested:  # mutmut forgets outcomes where what it was told to run has changed
        raise SystemExit(f"{untested} of {len(of)} mutants were not tested: leave out --again.")
    left = [described(folder, name) for name in of if made[name] not in NOTICED]
    return {
        "made": len(made),
        "mutants": len(of),
        "survived": [one for one in left if one not in equivalent],
        "equivalent": [(*one, equivalent[one]) for one in left if one in equivalent],
    }


def described(folder: Path, name: str) -> tuple[str, str, str]:
    """Return a mutant's function, and the lines of the code and of the mutant that differ."""
    module, _, function = name.partition(".x")
    function = re.sub(r"__mutmut_\d+$", "", function)[1:].replace("ǁ", ".")
    shown = subprocess.run(
        ["mutmut", "show", name], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    sides = (
        " ".join(line[1:].strip() for line in shown if re.match(rf"{sign}(?!{sign}{sign} )", line))
        for sign in (r"-", r"\+")
    )
    place = f"{module.removeprefix('clipnoise.')}.{function.replace('plain_', '')}"
    return (place, *sides)  # type: ignore[return-value]


def page(every: dict[str, dict[str, Any] | None]) -> str:
    """Return the page of all pieces; None stands for what was found of one not yet measured."""
    lines = []
    lists: dict[str, list[str]] = {"survived": [], "equivalent": []}
    for name, one in every.items():
        if one is None:
            lines.append(f"| {name} | not measured yet |  |  |  |  |  |  |")
            continue
        same, survived = len(one["equivalent"]), len(one["survived"])
        noticed = one["mutants"] - same - survived
        score = f"{noticed / (noticed + survived):.1%}"
        if one["mutants"] < one["made"] and not one["again"]:
            low, high = binomtest(noticed, noticed + survived).proportion_ci()
            score += f" ({low:.1%} to {high:.1%})"
        cells = (name, one["made"], one["mutants"], noticed, same, survived, score)
        minutes = "—" if one["seconds"] is None else f"{one['seconds'] / 60:.0f}"
        lines.append(f"| {' | '.join(map(str, cells))} | {minutes} |")
        for kind in lists:
            for function, code, mutant, *why in one[kind]:
                reason = f": {why[0]}" if why else ""
                lists[kind].append(f"- {function}: `{code}` as `{mutant or 'nothing'}`{reason}")
    titles = {"survived": "Survived", "equivalent": "Equivalent"}
    parts = [f"## {titles[kind]}\n\n" + "\n".join(found) for kind, found in lists.items() if found]
    version = importlib.metadata.version("mutmut")
    return PAGE.format(version=version, rows="\n".join(lines), lists="\n\n".join(parts))


if __name__ == "__main__":
    raise SystemExit(main())
