"""Judge the training loops of DP libraries, each in an environment of its own, into a page.

    python benchmarks/libraries/judge_libraries.py --only opacus pyvacy

Makes a fresh virtual environment for each library of libraries.yaml, installs its pinned versions
above the packages of the suite, and puts `clipnoise judge --loop` to each of its rows. Writes
benchmarks/results/libraries.json, where the rows of libraries that were not judged stay as they
are, and docs/libraries.md from it. With --page alone, only the page is written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "libraries.json"
PAGE = ROOT / "docs" / "libraries.md"
COMMAND = "import sys; from clipnoise.cli import main; sys.exit(main())"
TOLD = ("accounting", "apart", "sensitivity")  # the checks whose numbers a row shows
NOT_JUDGED = {"verdict": "not judged", "said": ""}
NOT_ASKED_HEAD = ["| package | version | why |", "|---|---|---|"]
INTRODUCTION = """\
# DP libraries under the judge

Training loops of libraries, judged as [your own would be](test-your-code.md). Each loop is the
documented example of its library, reduced to 512 handwritten digits and a network of 1,210
parameters: clip norm 1, noise multiplier 1, 64 examples expected in a step, 24 steps, δ 1e-5 where
the row says nothing else. The claim is the library's own: the parameters that it was given, and the
ε that it reports. A row that is not refuted is no proof that its claim holds.

`make libraries` prints this page: it installs the pinned versions of
`benchmarks/libraries/libraries.yaml`, each library into an environment of its own. One row is
judged, where its library is installed, by

```text
VARIANT=ghost clipnoise judge --loop benchmarks/libraries/with_opacus.py --level full
```"""
VERSIONS = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
)


def main(words: Sequence[str] | None = None) -> int:
    """Judge and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="LIBRARY", help="libraries to judge")
    parser.add_argument("--level", choices=["quick", "full"], default="full")
    parser.add_argument("--page", action="store_true", help="write the page and judge nothing")
    arguments = parser.parse_args(words)
    described = yaml.safe_load((HERE / "libraries.yaml").read_text())
    libraries = described["judged"]
    unknown = {*(arguments.only or ())} - {*libraries}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}: one of {', '.join(libraries)}")
    if not arguments.page:
        for name in arguments.only or libraries:
            with tempfile.TemporaryDirectory() as folder:
                judge(name, libraries[name], Path(folder), arguments.level)
    PAGE.write_text(page(described, json.loads(RESULTS.read_text())))
    print(PAGE)
    return 0


def judge(name: str, library: dict[str, Any], folder: Path, level: str) -> None:
    """Judge each row of a library, and add what was found to the results file."""
    python = environment(folder / "environment", library["requires"])
    packages = [each.partition("==")[0] for each in library["requires"]] + ["torch", "numpy"]
    listed = subprocess.run(
        [python, "-c", VERSIONS, *packages], check=True, capture_output=True, text=True
    )
    rows = {}
    for variant in library["rows"]:
        rows[variant] = judged(python, library["loop"], variant, folder, level)
        print(f"{name} {variant}: {rows[variant]['verdict']}", flush=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results[name] = {"versions": json.loads(listed.stdout), "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def environment(folder: Path, requires: list[str]) -> Path:
    """Make an environment with some packages, above those of this one; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    where = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # A line of a .pth file comes after the environment's own packages.
    Path(where, "suite.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requires], check=True)
    return python


def judged(python: Path, loop: str, variant: str, folder: Path, level: str) -> dict[str, Any]:
    """Return what a judgement of a loop found, or why there is none."""
    out = folder / variant
    environ = {
        **os.environ, "VARIANT": variant, "PYTHONPATH": str(ROOT / "src"),
        "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [python, "-c", COMMAND, "judge", "--loop", HERE / loop, "--level", level]
    done = subprocess.run(
        [*command, "--out", out], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        return {"verdict": "failed", "said": said.replace(str(ROOT) + os.sep, "")}
    return summary(json.loads((out / "judgement.json").read_text()))


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return of a judgement what the page needs."""
    every = [*found["checks"], *found["skipped"]]
    return {
        "verdict": found["verdict"],
        "claim": found["claim"],
        "examples": found["examples"],
        "level": found["level"],
        "runs": found["runs"],
        "remarks": found["remarks"],
        "checks": {each["name"]: {"holds": each["holds"], "said": each["said"]} for each in every},
    }


def page(described: dict[str, Any], results: dict[str, Any]) -> str:
    """Return the page, printed from libraries.yaml and the results file."""
    parts = [INTRODUCTION]
    for name, library in described["judged"].items():
        if name in results:
            parts.append(section(name, library, results[name]))
    lines = [
        f"| {package} | {version} | {why} |" for package, version, why in described["not_asked"]
    ]
    parts.append("\n".join(["## What could not be asked", "", *NOT_ASKED_HEAD, *lines]))
    return "\n\n".join(parts) + "\n"


def section(name: str, library: dict[str, Any], results: dict[str, Any]) -> str:
    """Return what was found of one library."""
    versions = ", ".join(f"{package} {version}" for package, version in results["versions"].items())
    lines = [
        f"## {name}",
        "",
        f"{versions}. Licence: {library['licence']}. "
        f"Loop: `benchmarks/libraries/{library['loop']}`.",
        "",
        "| `VARIANT` | what was asked | verdict | what was found |",
        "|---|---|---|---|",
    ]
    for variant, asked in library["rows"].items():
        row = results["rows"].get(variant, NOT_JUDGED)
        lines.append(f"| `{variant}` | {asked} | {row['verdict']} | {said(row)} |")
    assumed = library.get("assumes", {})
    lines += [f"\n`{variant}`: {words.strip()}" for variant, words in assumed.items()]
    lines += [f"\n{words.strip()}" for words in library.get("findings", [])]
    return "\n".join(lines)


def said(row: dict[str, Any]) -> str:
    """Return what refuted a row, or else the numbers that the checks measured."""
    if "said" in row:
        return str(row["said"])
    checks = row["checks"]
    refuted = [name for name, check in checks.items() if check["holds"] is False]
    told = refuted or [name for name in TOLD if checks[name]["holds"]]
    words = [f"{name}: {checks[name]['said']}" for name in told]
    skipped = [name for name, check in checks.items() if check["holds"] is None]
    if skipped:
        words.append(f"not checked: {', '.join(skipped)}")
    return "; ".join(words)


if __name__ == "__main__":
    sys.exit(main())
