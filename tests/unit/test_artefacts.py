"""Every table and figure of the four papers is a target: a study or experiment has its name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from captions import COUNTS, NUMBERED, WITHOUT_RESULTS

from clipnoise.report.kinds.table import ResultsTable
from clipnoise.studies.fidelity import fidelity_files, read_fidelity
from clipnoise.studies.study import Study, load_study, published_tables

ROOT = Path(__file__).parents[2]
WORKFLOW, PUBLISHED = ROOT / "workflow", ROOT / "reports" / "published"
FIDELITY = {paper: read_fidelity(path) for paper, path in fidelity_files(PUBLISHED).items()}
NAMES = [f"{paper}/{name}" for paper, one in FIDELITY.items() for name in one.reports]
STUDIES = [name for name in NAMES if (WORKFLOW / "studies" / f"{name}.yaml").is_file()]


@cache
def load(name: str, scale: str) -> Study:
    rules = WORKFLOW / "scales" / f"{scale}.yaml"
    return load_study(WORKFLOW / "studies" / f"{name}.yaml", rules)


def test_the_list_has_every_caption_of_the_texts() -> None:
    assert {paper: len(names) for paper, names in NUMBERED.items()} == COUNTS
    assert NUMBERED.keys() == FIDELITY.keys()


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_table_and_figure_has_a_report(paper: str) -> None:
    reports = {key: FIDELITY[paper].reports_of(key) for key in FIDELITY[paper].artefacts}
    assert [name for name in NUMBERED[paper] if name not in reports] == []
    empty = [key for key in NUMBERED[paper] if not reports[key]]
    assert empty == [key for name, key in WITHOUT_RESULTS if name == paper]


@pytest.mark.parametrize("name", NAMES)
def test_every_report_has_exactly_one_source(name: str) -> None:
    folders = (WORKFLOW / "studies", WORKFLOW / "reproductions")
    sources = [path for folder in folders if (path := folder / f"{name}.yaml").is_file()]
    assert len(sources) == 1, f"reports/{name}.pdf has {len(sources)} sources"


@pytest.mark.parametrize("scale", ["small", "smoke"])
@pytest.mark.parametrize("name", STUDIES)
def test_every_part_of_an_artefact_has_runs_at_the_reduced_scales(name: str, scale: str) -> None:
    study = load(name, scale)
    assert study.scale.watermark or study.at == "paper"
    assert {run.panel for run in study.runs} == set(study.panels)


@pytest.mark.parametrize("name", STUDIES)
def test_a_table_has_one_configuration_in_each_place(name: str) -> None:
    """Panels that a table shows together may have runs in common, but no other ones beside them."""
    study = load(name, "small")
    for item in (one for one in study.report if isinstance(one, ResultsTable)):
        shown: dict[tuple[object, ...], str] = {}
        for run in (one for one in study.runs if one.panel in item.named):
            spec = run.spec
            place = (run.dataset, run.model, spec.method.id, run.label, spec.budget_label)
            assert shown.setdefault((*place, spec.seed), spec.hash) == spec.hash, place


def test_a_published_table_is_named_by_the_study_of_the_same_name() -> None:
    for name in STUDIES:
        table = PUBLISHED / f"{name}.csv"
        if table.is_file():
            study = load_study(WORKFLOW / "studies" / f"{name}.yaml")
            tables = published_tables(study, PUBLISHED).values()
            assert table in tables, f"{name}: its published numbers are not compared"
