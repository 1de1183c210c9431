"""What a paper leaves open: the file of each paper, its pages, and every artefact as a target."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pypdf import PdfReader
from reporting_data import STUDY, quickstart, write_study

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.papers.base import experiments
from clipnoise.report.pdf import bundle
from clipnoise.studies.fidelity import fidelity_files, open_settings, read_fidelity
from clipnoise.studies.study import load_study, names_below, published_tables

ROOT = Path(__file__).parents[2]
PUBLISHED, WORKFLOW = ROOT / "reports" / "published", ROOT / "workflow"
STUDIES = WORKFLOW / "studies"
FILES = fidelity_files(PUBLISHED)

EXAMPLE = {
    "title": "A paper",
    "source": "A. Author, 2020.",
    "code": "example.org",
    "artefacts": {
        "table1": {"title": "One", "numbers": "compared"},
        "fig1": {"title": "Two", "numbers": "drawn", "reports": ["fig1", "fig1-left"]},
    },
    "settings": {
        "rate": {"setting": "η", "text": "not given", "here": "0.1", "why": "tuned"},
        "length": {
            **{"setting": "Epochs", "text": "20", "code": "30", "here": "20", "why": "the text"},
            "reports": ["fig1-left"],
        },
    },
}


def write(folder: Path, values: object = EXAMPLE) -> Path:
    path = folder / "some-paper" / "fidelity.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values, allow_unicode=True, sort_keys=False))
    return path


def test_a_report_shows_the_settings_that_concern_it(tmp_path: Path) -> None:
    write(tmp_path)
    shown = {
        name: [row["setting"] for row in open_settings(f"some-paper/{name}", tmp_path)]
        for name in ("table1", "fig1", "fig1-left")
    }
    assert shown == {"table1": ["η"], "fig1": ["η"], "fig1-left": ["η", "Epochs"]}
    assert open_settings("quickstart", tmp_path) == open_settings("other/table1", tmp_path) == []


def test_code_that_says_nothing_is_told_from_code_that_was_not_released(tmp_path: Path) -> None:
    write(tmp_path)
    (row,) = open_settings("some-paper/table1", tmp_path)
    assert row["code"] == "silent"
    write(tmp_path, {name: value for name, value in EXAMPLE.items() if name != "code"})
    (row,) = open_settings("some-paper/table1", tmp_path)
    assert row["code"] == "not released"


def test_a_mistake_is_refused_with_file_key_and_nearest_name(tmp_path: Path) -> None:
    wrong = {**EXAMPLE, "settings": {"a": {**EXAMPLE["settings"]["length"], "reports": ["fig2"]}}}
    path = write(tmp_path, wrong)
    with pytest.raises(UserError, match=r"fidelity.yaml: settings\.a\.reports: .*'fig2'.*'fig1'"):
        read_fidelity(path)
    write(tmp_path, {**EXAMPLE, "artefacts": {"a": {"title": "One", "numbers": "comparde"}}})
    with pytest.raises(UserError, match=r"artefacts\.a\.numbers: .*'compared'"):
        read_fidelity(path)
    write(tmp_path, {**EXAMPLE, "artefacts": {"a": {"title": "One", "numbers": "not compared"}}})
    with pytest.raises(UserError, match=r"artefacts\.a: .*`note`"):
        read_fidelity(path)
    write(tmp_path, {**EXAMPLE, "setings": {}})
    with pytest.raises(UserError, match=r"setings: unknown key. Did you mean 'settings'"):
        read_fidelity(path)


@pytest.mark.parametrize("paper", FILES)
def test_the_file_of_a_paper_names_every_report_of_it_and_no_other(paper: str) -> None:
    known = {*names_below(STUDIES, f"{paper}/*.yaml"), *experiments()}
    reports = {name.removeprefix(f"{paper}/") for name in known if name.startswith(f"{paper}/")}
    assert set(read_fidelity(FILES[paper]).reports) == reports


def shows_published_numbers(name: str) -> bool:
    study = STUDIES / f"{name}.yaml"
    if study.is_file():
        return bool(published_tables(load_study(study), PUBLISHED))
    return len((PUBLISHED / f"{name}.csv").read_text().splitlines()) > 1


def makes_claims(name: str) -> bool:
    study = STUDIES / f"{name}.yaml"
    return bool(load_study(study).claims if study.is_file() else experiments()[name].claims)


@pytest.mark.parametrize("paper", FILES)
def test_what_a_file_says_of_published_numbers_is_so(paper: str) -> None:
    fidelity = read_fidelity(FILES[paper])
    for key, artefact in fidelity.artefacts.items():
        reports = [f"{paper}/{name}" for name in fidelity.reports_of(key)]
        if artefact.numbers == "compared":
            assert any(map(shows_published_numbers, reports)), key
        if artefact.numbers == "claim":
            assert any(map(makes_claims, reports)), key


def test_a_report_ends_with_the_settings_and_shows_the_verdicts(tmp_path: Path) -> None:
    published = tmp_path / "published"
    write(published)
    claim = {"text": "Momentum helps.", "source": "section 9", "method": "DP-PMLF"}
    claims = [{**claim, "than": ["neither", "without low-pass filter"], "panels": ["ablation"]}]
    method = {"id": "dp-pmlf", "learning_rate": 1, "clip_norm": 1, "filter_a": [], "filter_b": [1]}
    labels = ("DP-PMLF", "neither", "without low-pass filter")
    panel = {
        "datasets": ["digits"],
        "models": ["cnn-small"],
        "methods": [{**method, "label": label} for label in labels],
        "epsilons": [1],
        "seeds": [1],
        "training": {"expected_batch_size": 100, "steps": 200},
    }
    study = {**STUDY, "claims": claims, "panels": {**STUDY["panels"], "ablation": panel}}
    folder = tmp_path / "studies" / "some-paper"
    folder.mkdir(parents=True)
    path, runs, curves = write_study(folder, quickstart(), study)
    out = tmp_path / "table1.pdf"
    words = ["report", "--study", path.rename(path.with_name("table1.yaml")), "--runs", runs]
    words += ["--curves", curves, "--figures", tmp_path, "--published", published, "--out", out]
    assert main([str(word) for word in words]) == 0
    pages = [page.extract_text() for page in PdfReader(out).pages]
    said = " ".join(" ".join(pages).split())
    assert "Momentum helps. (section 9) Test accuracy (%): above 0." in said
    assert "ablation, digits, cnn-small, ε = 1: DP-PMLF − without low-pass filter" in said
    assert said.rindex("What the paper leaves open, and what we took") > said.rindex("Provenance")
    assert "η not given silent 0.1 tuned" in said
    chapter = bundle(
        {"some-paper/table1": out},
        {"some-paper/table1": "One"},
        ROOT / "reports" / "templates" / "bundle.typ",
        published,
        "not evidence",
    )
    (tmp_path / "bundle.pdf").write_bytes(chapter)
    first, *_, last = (p.extract_text() for p in PdfReader(tmp_path / "bundle.pdf").pages)
    assert EXAMPLE["title"] in first
    said = " ".join(last.split())
    assert "What the paper leaves open, and what we took" in said
    assert "η not given silent 0.1 tuned Epochs 20 30 20 the text" in said
    assert "not evidence" in said
