"""What a lab asks for before it adopts the suite is there, and agrees with the package."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

from clipnoise.studies.study import studies_of_papers

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_licence_of_file_package_and_citation_is_one() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "Copyright 2026 The clipnoise authors" in (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == CITATION["license"] == "Apache-2.0"


def test_the_version_is_one() -> None:
    assert PROJECT["version"] == CITATION["version"] == metadata("clipnoise")["Version"]


def test_the_citation_names_the_paper_of_every_study_of_a_paper() -> None:
    papers = {Path(name).parent for name in studies_of_papers(ROOT / "workflow" / "studies")}
    assert len(CITATION["references"]) == len(papers) == 4
    for reference in CITATION["references"]:
        assert reference["authors"]
        assert reference["title"]


def test_the_changelog_has_an_entry_for_what_is_not_released() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", PROJECT["version"])


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_folders_files_and_targets_that_a_page_names_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    named = re.findall(r"`((?:src|tests|workflow|docs|envs)/[^` ]+)`", text)
    linked = re.findall(r"\]\(((?!http)[^)#]+)", text)
    assert [place for place in (*named, *linked) if not (ROOT / place).exists()] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)\b", text)) <= targets


def test_forms_and_hooks_are_valid_yaml_and_call_what_exists() -> None:
    files = (ROOT / ".github").rglob("*.yaml")
    steps = [
        step.get("run", "")
        for file in files
        for job in yaml.safe_load(file.read_text())["jobs"].values()
        for step in job["steps"]
    ]
    assert ".ci/run" in steps
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make lint"]
