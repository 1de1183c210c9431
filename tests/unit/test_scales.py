"""A scale makes a study smaller, keeps every method, and marks everything that it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pypdf import PdfReader
from reporting_data import quickstart, write_table

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.methods.base import methods
from clipnoise.report.pdf import bundle, pages
from clipnoise.studies.columns import CURVE_COLUMNS, RUN_COLUMNS
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.plan import Plan
from clipnoise.studies.scale import Limits, Scale, read_scale
from clipnoise.studies.study import Study, load_study, memberships

ROOT = Path(__file__).parents[2]
SCALES = sorted((ROOT / "workflow" / "scales").glob("*.yaml"))
SMOKE = {
    "watermark": "not evidence",
    "epsilons": 2,
    "seeds": 1,
    "training": {"steps": 3, "expected_batch_size": 20, "evaluations": 1},
    "datasets": {"digits": {"id": "synthetic", "examples": 50}, "odd": {"public_examples": 9}},
    "methods": {"adam": {"learning_rate": 0.25}},
}
PANEL = {
    "datasets": ["digits", {"id": "digits", "split_seed": 3, "label": "odd"}],
    "models": ["logistic"],
    "epsilons": [1, 3, 8],
    "seeds": [1, 2],
    "training": {"expected_batch_size": 100, "epochs": 2},
    "methods": [
        {"id": "adam", "learning_rate": 0.5},
        {
            "id": "dp-sgd",
            "learning_rate": 1,
            "clip_norm": 1,
            "overrides": [{"dataset": "odd", "learning_rate": 7}],
        },
    ],
}


def load(folder: Path, *, scale: dict[str, Any] | None = None, **changes: Any) -> Study:
    path, rules = folder / "studies" / "paper" / "table1.yaml", folder / "scales" / "smoke.yaml"
    values = {
        "title": "One",
        "panels": {"one": PANEL},
        "report": [{"kind": "table", "panels": "one"}],
        **changes,
    }
    for file, content in ((path, values), (rules, scale or SMOKE)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
    return load_study(path, rules)


def test_a_scale_keeps_methods_and_fewer_budgets_and_seeds(tmp_path: Path) -> None:
    runs = load(tmp_path).runs
    assert {run.label for run in runs} == {"adam", "dp-sgd"}
    assert {run.spec.budget_label for run in runs} == {"non-private", "eps=1", "eps=8"}
    assert {run.spec.seed for run in runs} == {1}
    assert {run.spec.steps for run in runs} == {3}
    assert {run.spec.training.expected_batch_size for run in runs} == {20}


def test_a_stand_in_keeps_the_name_and_the_overrides_of_the_original(tmp_path: Path) -> None:
    found = {
        run.dataset: (run.spec.dataset, getattr(run.spec.method, "learning_rate", None))
        for run in load(tmp_path).runs
        if run.label == "dp-sgd"
    }
    assert found["digits"][0].id == "synthetic"
    assert found["digits"][0].sizes()["train"] == 50
    assert found["digits"][0].split_seed == 0
    assert found["digits"][1] == 1
    assert found["odd"][0].id == "digits"  # options alone are added to those of the study
    assert found["odd"][0].split_seed == 3
    assert found["odd"][0].sizes()["public"] == 9
    assert found["odd"][1] == 7


def test_a_stand_in_keeps_the_options_that_it_has_too() -> None:
    scale = Scale(datasets={"digits": PanelEntry({"id": "synthetic", "examples": 50})})
    asked = {"id": "digits-users", "label": "digits", "users": 9, "public_examples": 4}
    assert scale.dataset(PanelEntry(asked)).given == {
        "id": "synthetic",
        "examples": 50,
        "public_examples": 4,
    }


def test_a_scale_adds_options_to_a_method(tmp_path: Path) -> None:
    rates = {run.spec.method for run in load(tmp_path).runs if run.label == "adam"}
    assert {getattr(one, "learning_rate", None) for one in rates} == {0.25}


def test_rules_of_a_study_take_precedence_over_those_of_the_scale(tmp_path: Path) -> None:
    own = {"smoke": {"training": {"steps": 5}, "seeds": 2}, "small": {"seeds": 1}}
    runs = load(tmp_path, scales=own).runs
    assert {run.spec.steps for run in runs} == {5}
    assert {run.spec.seed for run in runs} == {1, 2}
    assert {run.spec.training.expected_batch_size for run in runs} == {20}


def test_a_study_without_scales_is_the_same_at_each(tmp_path: Path) -> None:
    study = load(tmp_path, scales="none")
    plain = load_study(study.path)
    assert [run.spec.hash for run in study.runs] == [run.spec.hash for run in plain.runs]
    assert study.scale.watermark == ""
    assert study.experiment == "paper/table1"


def test_runs_and_experiments_of_two_scales_never_meet(tmp_path: Path) -> None:
    study = load(tmp_path)
    plain = load_study(study.path)
    assert not {run.spec.hash for run in study.runs} & {run.spec.hash for run in plain.runs}
    assert {one.study for one in memberships([study]).values()} == {"paper/table1 (smoke)"}
    assert {one.study for one in memberships([plain]).values()} == {"paper/table1"}


def test_a_wrong_scale_names_file_key_and_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'seeds'") as error:
        load(tmp_path, scale={"seed": 1})
    assert "smoke.yaml" in str(error.value)


def test_kept_budgets_are_evenly_spaced_and_include_both_ends() -> None:
    assert Scale(epsilons=3).kept_epsilons((1, 2, 3, 4, 5)) == (1, 3, 5)
    assert Scale(epsilons=1).kept_epsilons((1, 2)) == (1,)
    assert Scale().kept_epsilons((1, 2)) == (1, 2)


def test_limits_only_ever_make_training_shorter() -> None:
    scale = Scale(training=Limits(expected_batch_size=50, evaluations=9))
    assert scale.batches({"expected_batch_size": 8, "steps": 1}) == {
        "expected_batch_size": 8,
        "steps": 1,
        "evaluations": 9,
    }


@pytest.mark.parametrize("path", SCALES, ids=lambda path: path.stem)
def test_the_shipped_scales_are_marked_and_drop_no_method(path: Path) -> None:
    assert read_scale(path).watermark
    league = ROOT / "workflow" / "studies" / "digits-league.yaml"
    assert {run.spec.method.id for run in load_study(league, path).runs} == set(methods())


def test_each_scale_has_separate_tables_and_reports(tmp_path: Path) -> None:
    study = load(tmp_path)
    values = {"studies": [str(study.path)]}
    plan = Plan.from_values({**values, "scale": "smoke"}, tmp_path / "studies")
    assert plan.collected == "results/studies-smoke"
    assert plan.files(study.name)["scale"] == [str(tmp_path / "scales" / "smoke.yaml")]
    assert plan.reports() == ["reports/paper/table1.pdf"]
    paper = Plan.from_values(values, tmp_path / "studies")
    assert paper.collected == "results/studies"
    assert paper.files(study.name)["scale"] == []


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that shows results, built at a scale with a watermark."""
    folder = tmp_path_factory.mktemp("marked")
    panels = dict.fromkeys(("comparison", "ablation", "filters"), PANEL)
    report = [{"kind": "table", "panels": "comparison"}, {"kind": "ablation", "panels": "ablation"}]
    study = load(folder, panels=panels, report=report)
    runs = write_table(folder / "runs.parquet", RUN_COLUMNS, quickstart())
    curves = write_table(folder / "curves.parquet", CURVE_COLUMNS, [])
    common = ["--study", str(study.path), "--scale", str(folder / "scales" / "smoke.yaml")]
    common += ["--runs", str(runs)]
    images, table = folder / "figures", folder / "tables" / "comparison"
    assert main(["table", *common, "--panel", "comparison", "--out", str(table)]) == 0
    drawn = ["--item", "1", "--curves", str(curves), "--out", str(images / "1.svg")]
    assert main(["figure", *common, *drawn]) == 0
    template = ROOT / "reports" / "templates" / "report.typ"
    typeset = ["--curves", str(curves), "--figures", str(images), "--template", str(template)]
    typeset += ["--out", str(folder / "table1.pdf")]
    assert main(["report", *common, *typeset]) == 0
    return folder


@pytest.mark.long
def test_the_watermark_is_on_every_page(marked: Path) -> None:
    found = [page.extract_text() for page in PdfReader(marked / "table1.pdf").pages]
    assert len(found) > 1
    assert all(page.count("not evidence") > 1 for page in found)  # across it, and in its header
    assert all(page.rstrip().endswith("not evidence") for page in found)  # over the figures


def test_the_watermark_is_in_every_row_figure_and_table(marked: Path) -> None:
    head, *rows = (marked / "tables" / "comparison.csv").read_text().splitlines()
    assert head.endswith(",warning")
    assert rows
    assert all(row.endswith(",not evidence") for row in rows)
    for ending in ("md", "tex"):
        assert "not evidence" in (marked / "tables" / f"comparison.{ending}").read_text()
    assert "not evidence" in (marked / "figures" / "1.svg").read_text()


def test_a_bundle_keeps_every_page_and_lists_every_artefact(marked: Path) -> None:
    names = {"paper/one": marked / "table1.pdf", "paper/two": marked / "table1.pdf"}
    template = ROOT / "reports" / "templates" / "bundle.typ"
    out = marked / "report.pdf"
    titles = {"paper/one": "First", "paper/two": "Second"}
    out.write_bytes(bundle(names, titles, template, watermark="not evidence"))
    assert pages(marked / "table1.pdf") == len(PdfReader(marked / "table1.pdf").pages)
    found = PdfReader(out).pages
    assert len(found) == 1 + 2 * pages(marked / "table1.pdf")
    assert all("not evidence" in page.extract_text() for page in found)
    contents = found[0].extract_text()
    assert "paper/one: First" in contents
    assert "paper/two: Second" in contents


def test_a_bundle_of_something_else_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("no PDF")
    with pytest.raises(UserError, match=r"a\.pdf: not a PDF"):
        pages(tmp_path / "a.pdf")


@pytest.mark.parametrize(
    ("settings", "folder"),
    [({"paper/fig": {"steps": 3}}, "reproductions-smoke"), ({}, "reproductions")],
)
def test_reproductions_that_keep_their_size_are_the_same_at_every_scale(
    tmp_path: Path, settings: dict[str, Any], folder: str
) -> None:
    load(tmp_path, scale={**SMOKE, "reproductions": settings})
    write_reproduction(tmp_path)
    config = {"studies": ["paper/table1"], "scale": "smoke", "results": "here"}
    plan = Plan.from_values(config, tmp_path / "studies")
    assert plan.reproduced == f"here/{folder}"
    assert (plan.reproduction_scale is not None) == bool(settings)


def test_a_scale_with_an_unknown_reproduction_lists_the_valid_ones(tmp_path: Path) -> None:
    load(tmp_path, scale={**SMOKE, "reproductions": {"paper/figg": {"steps": 3}}})
    write_reproduction(tmp_path)
    config = {"studies": ["paper/table1"], "scale": "smoke"}
    with pytest.raises(UserError, match=r"smoke\.yaml: .*'paper/figg'.*Allowed: paper/fig\."):
        Plan.from_values(config, tmp_path / "studies")


def write_reproduction(folder: Path) -> None:
    """Write settings for the reproduction paper/fig."""
    path = folder / "reproductions" / "paper" / "fig.yaml"
    path.parent.mkdir(parents=True)
    path.touch()
