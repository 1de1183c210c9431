"""Every table and figure of the four papers is a target: a study or experiment has its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipnoise.studies.study import load_study

WORKFLOW = Path(__file__).parents[2] / "workflow"

# By paper; numbers of tables or figures that one target shows together are joined.
ARTEFACTS = {
    "dp-adambc": [
        *("table1", "table2", "tables3-5", "convergence"),
        *("fig1", "fig2", "fig2-left", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9"),
        "fig10",
    ],
    # Table 5 is the tuned hyper-parameters: those that these studies run with.
    "adadps": [
        *("table1", "table2", "table3", "table4", "table6", "table7", "table8", "table9"),
        *("table10", "fig1", "fig2", "fig3", "fig4", "fig5", "fig6"),
    ],
    "design-principles": ["fig2", "fig3", "fig3-header", "fig4-6", "quadratic"],
    "dp-pmlf": [
        *("table1", "table2", "table3", "table4"),
        *("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7"),
    ],
}
NAMES = [f"{paper}/{name}" for paper, names in ARTEFACTS.items() for name in names]


def sources(name: str) -> list[Path]:
    folders = (WORKFLOW / "studies", WORKFLOW / "reproductions")
    return [path for folder in folders if (path := folder / f"{name}.yaml").is_file()]


@pytest.mark.parametrize("name", NAMES)
def test_every_artefact_has_exactly_one_source(name: str) -> None:
    assert len(sources(name)) == 1, f"reports/{name}.pdf has {len(sources(name))} sources"


@pytest.mark.parametrize("scale", ["small", "smoke"])
@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_an_artefact_has_runs_at_the_reduced_scales(name: str, scale: str) -> None:
    for path in sources(name):
        if path.is_relative_to(WORKFLOW / "studies"):
            study = load_study(path, WORKFLOW / "scales" / f"{scale}.yaml")
            assert study.scale.watermark
            assert {run.panel for run in study.runs} == set(study.panels)


def test_a_published_table_appears_in_the_report_of_the_study_of_the_same_name() -> None:
    from clipnoise.studies.study import comparisons

    published = WORKFLOW.parent / "reports" / "published"
    for path in sorted(published.glob("*/*.csv")):
        name = path.relative_to(published).with_suffix("").as_posix()
        for source in sources(name):
            if source.is_relative_to(WORKFLOW / "studies"):
                tables = set(comparisons(load_study(source), published).values())
                assert path in tables, f"{name}: its published numbers are not compared"
