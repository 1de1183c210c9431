"""A sample of all papers' artefacts, from nothing to PDFs, by the study files themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from captions import NUMBERED
from pypdf import PdfReader
from workflows import ROOT, planned, rows, run_planned, snakemake

from clipnoise.methods.base import method_class
from clipnoise.studies.fidelity import fidelity_files, read_fidelity
from clipnoise.studies.plan import Plan
from clipnoise.studies.study import Study

pytestmark = pytest.mark.workflow

LEAGUE, REPRODUCTION = "digits-league", "design-principles/quadratic"
ARTEFACTS = (
    "adadps/fig2",
    "adadps/fig6",
    "adadps/table1",
    "design-principles/fig4-6",
    "dp-adambc/fig1",
    "dp-adambc/fig4",
    "dp-adambc/fig8",
    "dp-pmlf/fig6",
    "dp-pmlf/table4",
)
SMALLER = {"epsilons": 1, "seeds": 1, "configurations": 2, "tuning_seeds": 1}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the workflow with a smaller smoke scale and a league of one per family."""
    folder = tmp_path_factory.mktemp("slice")
    for part in ("workflow", "reports/templates", "reports/published", "envs", "profiles"):
        shutil.copytree(ROOT / part, folder / part)
    for file in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / file, folder)
    smoke = folder / "workflow/scales/smoke.yaml"
    scale = yaml.safe_load(smoke.read_text())
    scale["training"]["steps"] = 2
    scale["models"]["bert-base"] = {"id": "lstm", "width": 16}  # what loads it takes seconds
    smoke.write_text(yaml.safe_dump(scale | SMALLER))
    league = folder / f"workflow/studies/{LEAGUE}.yaml"
    study = yaml.safe_load(league.read_text())
    del study["scales"]
    whole = ["one-release", "one-release-of-products"]  # a batch is the dataset, at every scale
    for name in whole:
        del study["panels"][name]
    study["report"] = [item for item in study["report"] if item.get("panels") != whole]
    for panel in study["panels"].values():
        ids = [one if isinstance(one, str) else one["id"] for one in panel["methods"]]
        families = {
            method_class(name).family(): one
            for name, one in zip(ids, panel["methods"], strict=True)
        }
        panel["methods"] = list(families.values())
    league.write_text(yaml.safe_dump(study))
    return folder


def covered(study: Study) -> set[tuple[str, str]]:
    """Return what a study exercises: families of methods, kinds of data, kinds of display."""
    specs = [run.spec for run in study.runs]
    found = {("family", spec.method.family()) for spec in specs}
    for spec in specs:
        found.add(("data", f"{spec.dataset.signature.kind}, {spec.dataset.signature.task_name}"))
    found |= {("display", item.kind) for item in study.report}
    found |= {("display", "published numbers") for item in study.report if item.published}
    return found | ({("tuning", "by runs")} if study.searches else set())


def test_the_slice_has_every_family_of_methods_and_data_and_every_kind_of_artefact(
    checkout: Path,
) -> None:
    config = yaml.safe_load((checkout / "config.yaml").read_text()) | {"scale": "smoke"}
    plan = Plan.from_values(config, checkout / "workflow/studies")
    every = set().union(*(covered(plan.study(name)) for name in (*plan.paper_studies, LEAGUE)))
    slice_ = set().union(*(covered(plan.study(name)) for name in (*ARTEFACTS, LEAGUE)))
    assert slice_ == every
    assert len(every) >= 25


@pytest.mark.long
def test_snakemake_finds_a_target_for_every_table_and_figure(checkout: Path) -> None:
    files = fidelity_files(checkout / "reports/published")
    targets = {
        f"reports/{paper}/{report}.pdf"
        for paper, names in NUMBERED.items()
        for name in names
        for report in read_fidelity(files[paper]).reports_of(name)
    }
    jobs = planned(snakemake(checkout, "-n", *sorted(targets), "--config", "scale=smoke"))
    assert jobs["artefact"] + jobs["reproduction_report"] == len(targets)


@pytest.mark.long
def test_the_slice_builds_reports_that_carry_a_watermark(checkout: Path) -> None:
    reports = [f"reports/{name}.pdf" for name in (*ARTEFACTS, REPRODUCTION)]
    reports.append(f"reports/{LEAGUE}/report.pdf")
    own = ("--snakefile", str(checkout / "Snakefile"))
    run_planned(checkout, *reports, *own, "--config", "scale=smoke")
    for report in reports:
        for page in PdfReader(checkout / report).pages:
            assert "smoke run: not evidence" in page.extract_text()
    for name in (*ARTEFACTS, LEAGUE):
        found = rows(checkout / f"results/studies-smoke/{name}/runs.csv")
        assert {row["status"] for row in found} <= {"completed", "diverged"}
    assert not list(checkout.glob("results/studies/*"))
