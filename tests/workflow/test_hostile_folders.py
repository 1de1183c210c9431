"""Folders whose names mean something to a shell: every command gets its paths as they are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import forked_snakemake
import pytest
import yaml
from workflows import ROOT, environment

from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.studies.config import Config

pytestmark = pytest.mark.workflow

# For a shell these are several words, variables, commands, quotes and patterns.
HOSTILE = "é x; touch ran; $HOME `touch ran` & 'q' \"d\" \\n #*~!%j[1]=,@:"
FOLDERS = {
    "results": f"results {HOSTILE}",
    "reports": f"reports {HOSTILE}",
    "cache": f"data {HOSTILE}",
    "weights": f"weights {HOSTILE}",
}
OWN = f"own {HOSTILE}"
STUDY = {
    "title": "Hostile",
    "defaults": {
        "datasets": ["digits"],
        "models": ["logistic"],
        "seeds": [1],
        "training": {"expected_batch_size": 50, "steps": 2, "evaluations": 1},
    },
    "panels": {
        "main": {
            "epsilons": [1],
            "methods": [
                {
                    "id": "dp-sgd",
                    "clip_norm": 1,
                    "tune": {"grid": {"learning_rate": [0.5, 1]}, "seeds": [1001]},
                }
            ],
        }
    },
    "report": [
        {"kind": "table", "panels": "main"},
        {"kind": "accuracy-vs-epsilon", "panels": "main"},
        {"kind": "table", "panels": "main", "published": "tiny.csv"},
    ],
}
PUBLISHED = """dataset,model,method,budget,metric,mean,std,n,unit,source
digits,logistic,dp-sgd,eps=1,test_accuracy,50.0,1.0,5,%,A made-up table
"""
# Stands in for the real command: it writes down what it was given.
RECORDER = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["RECORD"], "x") as file:
    json.dump(sys.argv[1:], file)
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one study in a hostile folder, one of a paper, and one reproduction."""
    folder = tmp_path_factory.mktemp("hostile") / f"checkout {HOSTILE}"
    ours = shutil.ignore_patterns("studies")
    for part in ("workflow", "reports", "envs", "profiles"):
        shutil.copytree(ROOT / part, folder / part, ignore=ours)
    shutil.copy(ROOT / "Snakefile", folder)
    for place in ("workflow/studies/adadps", OWN):
        (folder / place).mkdir(parents=True)
        (folder / place / "tiny.yaml").write_text(yaml.safe_dump(STUDY))
    (folder / "tiny.csv").write_text(PUBLISHED)
    config = {"studies": [f"{OWN}/tiny.yaml"], "scale": "smoke", "device": "cpu"}
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **FOLDERS}, allow_unicode=True))
    return folder


def snakemake(folder: Path, *words: str) -> str:
    options = ["--cores", "1", "--nocolor", *words]
    done = forked_snakemake.run(options, folder, environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def targets(folder: Path) -> list[str]:
    """Return targets whose jobs are of every rule."""
    reports, cache = FOLDERS["reports"], FOLDERS["cache"]
    names = ["all.pdf", "audit/report.pdf", "adadps/report.pdf", "adadps/fig3.pdf"]
    names += ["reaccounting/report.pdf", "tiny/partial.pdf", "tiny/report.pdf", "adadps/tiny.pdf"]
    names += ["tiny/audit.pdf", "tiny/index.html"]
    return ["all", f"{cache}/raw/imdb/fetched", *(f"{reports}/{name}" for name in names)]


def planned_commands(folder: Path) -> dict[str, str]:
    """Return a shell command of each kind that a dry run plans, by what is alike in its kind."""
    said = snakemake(folder, "--dry-run", "--printshellcmds", *targets(folder))
    assert str(folder.parent) not in said  # a checkout that is moved must not make all again
    found = re.findall(r"^Shell command: (.*clipnoise .*)$", said, re.MULTILINE)
    return {" ".join(re.findall(r"clipnoise [a-z-]+|/logs/[a-z_]+", one)): one for one in found}


def written_commands(folder: Path) -> set[str]:
    """Return the commands that rules run."""
    texts = [path.read_text() for path in folder.glob("workflow/rules/*.smk")]
    return {name for text in texts for name in re.findall(r'"[^"#]*(clipnoise [a-z-]+)', text)}


def received(command: str, folder: Path, recorder: Path) -> list[str]:
    """Return what `clipnoise` gets from a command, run by a shell as Snakemake runs it."""
    record = recorder.with_suffix(".json")
    record.unlink(missing_ok=True)
    path = f"{recorder.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; {command}"],
        cwd=folder,
        env={**os.environ, "PATH": path, "RECORD": str(record)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return list(json.loads(record.read_text()))


@pytest.mark.long
def test_the_command_of_every_rule_gets_each_path_as_one_word(
    checkout: Path, tmp_path: Path
) -> None:
    recorder = tmp_path / "clipnoise"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    planned = planned_commands(checkout)
    assert {" ".join(kind.split()[:2]) for kind in planned} == written_commands(checkout)
    for command in planned.values():
        (log,) = re.findall(r">>? (.*) 2>&1$", command)
        words = ["bash", "-c", f"printf '%s\\n' {log}"]
        (path,) = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        for word in received(command, checkout, recorder):
            assert word.count(HOSTILE) == word.count("é"), f"{command}: {word!r}"
        assert (checkout / path).is_file(), command
    assert not list(checkout.glob("ran*"))


@pytest.mark.parametrize("key", FOLDERS)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a{b}", "'{'"),
        ("a\nb", "line break"),
        ("what?", "'?'"),
        ("", "empty"),
        ("--results", "'-'"),
        (" x", "space"),
    ],
)
def test_a_folder_that_the_workflow_cannot_carry_is_refused(key: str, name: str, why: str) -> None:
    with pytest.raises(UserError, match=f"^config.yaml: {key}: .*{re.escape(why)}.*got "):
        parse(Config, {key: name}, file="config.yaml")


def test_a_study_at_a_path_that_the_workflow_cannot_carry_is_refused() -> None:
    with pytest.raises(UserError, match=r"^config.yaml: studies.1: .*'{'.*got 'my{own}.yaml'"):
        parse(Config, {"studies": ["quickstart", "my{own}.yaml"]}, file="config.yaml")


def test_a_folder_may_be_written_in_several_ways() -> None:
    for name in ("a/b", "./a/b", "a//b", "a/b/", "a/./b", "c/../a/b"):
        assert parse(Config, {"results": name}).results == "a/b"


@pytest.mark.long
def test_a_study_runs_from_nothing_to_its_report(checkout: Path) -> None:
    snakemake(checkout)
    assert (checkout / FOLDERS["reports"] / "tiny" / "report.pdf").is_file()
    assert len(list((checkout / FOLDERS["results"]).glob("runs/**/summary.json"))) == 3
    assert (checkout / FOLDERS["cache"] / "digits" / "manifest.json").is_file()
    assert (checkout / FOLDERS["results"] / "mlflow.db").is_file()
    known = {"workflow", "reports", "envs", "profiles", "Snakefile", "config.yaml", "tiny.csv"}
    places = {path.name for path in checkout.iterdir()} - {".snakemake"}
    assert places - known <= {*FOLDERS.values(), OWN}
    assert list(checkout.parent.iterdir()) == [checkout]
