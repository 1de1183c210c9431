"""A method's entry in the league: what it trains, and where it then stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from league_data import confirmed, published
from reporting_data import write_table
from scipy import stats

from clipnoise.data.digits import Digits
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.methods.base import example, method_class, track
from clipnoise.report.judgement import standing, standing_rows
from clipnoise.report.publication import read_run_rows, run_rows
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import PUBLISHED, RUN_COLUMNS
from clipnoise.studies.file import SharedFile, StudyFile
from clipnoise.studies.grid import PanelGrid
from clipnoise.studies.league import LeagueEntry, confirmation, enter, require_data
from clipnoise.studies.panels import expand_panels
from clipnoise.studies.study import Study, load_study

STUDIES = Path(__file__).parents[2] / "workflow" / "studies"
OPTIONS = {"learning_rate": 1.0, "clip_norm": 1.0}


@pytest.fixture(scope="module")
def lite() -> Study:
    return confirmation(load_study(STUDIES / "league" / "lite.yaml"))


def entered(league: Study, name: str, **tune: Any) -> LeagueEntry:
    method = example(method_class(name))
    return enter(league, name, track(method), vars(method), {}, tune)


def hashes(entry: LeagueEntry, method: str, panel: str) -> set[str]:
    """Return the hashes of all that a method trains in a panel."""
    file = parse(StudyFile, entry.study)
    return planned(panel, expand_panels(file, SharedFile(), Path("entry.yaml")), method)


def planned(name: str, grids: tuple[PanelGrid, ...], method: str) -> set[str]:
    (grid,) = (one for one in grids if one.name == name)
    tuned = [spec for search in grid.searches.values() for spec in search.runs]
    specs = [*(run.spec for run in grid.runs), *tuned]
    return {spec.hash for spec in specs if spec.method.id == method}


@pytest.mark.long
def test_a_method_of_the_league_enters_with_the_runs_that_the_league_has_of_it(
    lite: Study,
) -> None:
    entry = entered(lite, "dp-adam")
    assert (entry.name, entry.baseline, entry.space) == ("dp-adam-league-lite", "dp-sgd", "dp-adam")
    assert list(entry.study["panels"]) == ["confirm"]
    for name in ("dp-adam", "dp-sgd"):
        found = hashes(entry, name, "confirm")
        assert found == planned("confirm", lite.grids, name)
        assert len(found) == 2 * 6 * (2 + 10)  # budgets × searches × (seeds + trials)


def test_a_search_space_may_be_given_and_is_that_of_the_baseline_otherwise(lite: Study) -> None:
    ranges = {"learning_rate": [0.001, 0.1]}
    assert entered(lite, "dp-adam", ranges=ranges).tune == {"ranges": ranges}
    method = {**OPTIONS, "betas": (0.9, 0.99)}
    unknown = enter(lite, "mine", "no public data", method, {"clip_norm": 2, "betas": 0}, {})
    assert unknown.space == "dp-sgd"
    rates = [[0.3, 1000], {"kind": "linear", "peak": [0.3, 1000]}]
    assert unknown.tune["ranges"] == {"learning_rate": rates, "clip_norm": [0.3, 3]}
    _, own = unknown.study["defaults"]["methods"]
    assert own == {"id": "mine", "betas": 0, "tune": unknown.tune}  # a tuned value is not fixed
    fewer = enter(lite, "mine", "no public data", method, {}, {"ranges": ranges})
    _, own = fewer.study["defaults"]["methods"]  # what is not tuned is as it was judged
    assert own == {"id": "mine", "clip_norm": 1.0, "betas": [0.9, 0.99], "tune": fewer.tune}


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ({"range": {}}, "--tune: unknown key 'range'. Did you mean 'ranges'?"),
        ({"ranges": {"learning_rates": [1, 2]}}, "Did you mean 'learning_rate'?"),
        ({"ranges": {"learning_rate": [2, 1]}}, "--tune: ranges.learning_rate: give a smallest"),
        ({"ranges": {"learning_rate": 2}}, "--tune.ranges.learning_rate"),
    ],
)
def test_a_wrong_search_space_is_a_mistake(tune: dict[str, Any], said: str, lite: Study) -> None:
    with pytest.raises(UserError) as error:
        enter(lite, "mine", "no public data", OPTIONS, {}, tune)
    assert said in str(error.value)


def test_a_method_without_the_tuned_hyperparameters_needs_a_search_space(lite: Study) -> None:
    with pytest.raises(UserError, match="has nothing that this method has"):
        enter(lite, "mine", "no public data", {"gamma": 1}, {}, {})


def test_missing_data_are_named_with_the_command_that_fetches_them(
    lite: Study, tmp_path: Path
) -> None:
    said = r"adult: not fetched yet. Run: snakemake --cores 1 fetch_all .*league/adult"
    with pytest.raises(UserError, match=said):
        require_data(load_study(STUDIES / "league" / "adult.yaml"), tmp_path)
    require_data(lite, tmp_path)
    assert Digits().files == ()  # the digits come with a package


# Accuracy of each method by seed; the seeds differ alike for all, so that pairs tell more.
LEVELS = {"dp-sgd": 0.80, "mine": 0.84, "close": 0.841, "far": 0.90, "worst": 0.70, "other-ε": 0.95}
WOBBLE = {
    **{1: (0.0, 0.0), 2: (0.02, 0.002), 3: (-0.01, -0.002), 4: (0.01, 0.003)},
    **{5: (-0.02, -0.004), 6: (0.015, 0.001), 7: (-0.015, -0.001), 8: (0.0, 0.001)},
}


def runs_of(tmp_path: Path, *methods: str, **changes: Any) -> pd.DataFrame:
    rows = [
        {
            **{"study": "s", "panel": "digits", "dataset": "digits", "model": "logistic"},
            **{"method": name, "label": name, "budget": "eps=1", "epsilon": 1.0},
            **{"seed": seed, "search": seed},
            **{"status": "completed", "claim": "guarantee", "adjacency": "add-remove"},
            "test_accuracy": LEVELS[name] + shared + (own if name == "close" else 0),
            **{"cpu": "c", "cpu_seconds": 3.0 if name == "mine" else 2.0, "training_seconds": 4},
            **changes,
        }
        for name in methods
        for seed, (shared, own) in WOBBLE.items()
    ]
    return read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))


def test_a_method_is_ranked_with_the_ranks_that_sign_flips_do_not_exclude(tmp_path: Path) -> None:
    league = run_rows(runs_of(tmp_path, "dp-sgd", "close", "far", "worst"))
    nominal = run_rows(runs_of(tmp_path, "other-ε", claim="nominal"))
    league = pd.concat([league, nominal])
    found = standing(runs_of(tmp_path, "dp-sgd", "mine"), league, "mine", "dp-sgd")
    (at,) = found["settings"]
    assert at["rank"] == {"rank": 3, "low": 2, "high": 3, "of": 5}
    assert at["over"] == pytest.approx([0.04, np.nan, np.nan], nan_ok=True)
    assert (at["mean"], at["time"], found["time"]) == (pytest.approx(0.84), 1.5, 1.5)
    assert found["held_up"]
    assert at["not_ranked"] == ["other-ε"]
    heads, (row,) = standing_rows({**found, "baseline": "dp-sgd"})
    assert dict(zip(heads, row, strict=True))["rank"] == "3 of 5 [2, 3]"


def test_published_results_rank_like_those_of_this_folder(tmp_path: Path) -> None:
    league = run_rows(runs_of(tmp_path, "dp-sgd", "close", "far"))
    write_table(tmp_path / "league.parquet", PUBLISHED, league.to_dict("records"))
    mine = runs_of(tmp_path, "dp-sgd", "mine")
    found = [
        standing(mine, rows, "mine", "dp-sgd")
        for rows in (league, read_run_rows(tmp_path / "league.parquet"))
    ]
    assert found[0] == found[1]
    (tmp_path / "league.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"not a Parquet table .* `clipnoise publish` write"):
        read_run_rows(tmp_path / "league.parquet")


def test_the_seeds_of_a_search_count_as_one_pair(tmp_path: Path) -> None:
    mine = runs_of(tmp_path, "dp-sgd", "mine", panel="confirm")
    mine = mine[mine["seed"] <= 3].copy()
    mine["search"] = mine["seed"].map({1: 1, 2: 1, 3: 2})
    mine.loc[mine["method"] == "mine", "test_accuracy"] += mine["seed"].map(
        {1: 0.1, 2: 0.0, 3: 0.0}
    )
    (at,) = standing(mine, run_rows(mine).head(0), "mine", "dp-sgd")["settings"]
    low, high = stats.ttest_1samp([0.09, 0.04], 0).confidence_interval(0.95)
    assert at["over"] == pytest.approx([0.065, low, high])
    assert (at["task"], at["runs"]) == ("digits", 3)


def test_the_published_runs_of_a_task_rank_a_method_that_was_trained_on_it(tmp_path: Path) -> None:
    level = {"dp-sgd": 0.7, "disk": 0.8, "worse": 0.5}
    rows = confirmed(level, searches=4, spread=0.0)
    against = read_run_rows(published(tmp_path, digits=rows) / "digits.parquet")
    mine = confirmed({"dp-sgd": 0.7, "mine": 0.75}, searches=4, spread=0.0)
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, map(of_a_run, mine)))
    (at,) = standing(runs, against, "mine", "dp-sgd")["settings"]
    assert at["rank"] is not None
    assert (at["rank"]["rank"], at["rank"]["of"]) == (2, 4)


def of_a_run(values: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in values.items() if name in RUN_COLUMNS}


@pytest.mark.long
def test_a_task_of_the_league_is_entered_as_it_is_confirmed() -> None:
    for name, searches in (("digits", 12), ("digits-correlated", 12)):
        task = confirmation(load_study(STUDIES / "league" / f"{name}.yaml"))
        entry = entered(task, "dp-adam")
        assert entry.name == f"dp-adam-league-{name}"
        assert entry.study["panels"]["confirm"]["tuning"]["searches"] == searches
        for method in ("dp-adam", "dp-sgd"):
            found = hashes(entry, method, "confirm")
            assert found == planned("confirm", task.grids, method)


def test_a_method_that_diverged_has_no_rank_and_says_so(tmp_path: Path) -> None:
    mine = runs_of(tmp_path, "dp-sgd", "mine")
    mine.loc[(mine["method"] == "mine") & (mine["seed"] == 2), "status"] = "diverged"
    found = standing(mine, run_rows(mine).head(0), "mine", "dp-sgd")
    (at,) = found["settings"]
    assert (at["rank"], at["runs"], at["planned"]) == (None, 7, 8)
    assert at["not_ranked"] == ["mine"]
    _, (row,) = standing_rows({**found, "baseline": "dp-sgd"})
    assert "(1 of 8 runs failed)" in row[3]


def test_an_entry_chooses_by_what_its_league_is_ranked_by(lite: Study, tmp_path: Path) -> None:
    ranked = {"metrics": ("auc",), "rank_by": "auc"}
    grids = tuple(replace(grid, panel=replace(grid.panel, **ranked)) for grid in lite.grids)
    entry = entered(replace(lite, grids=grids), "dp-adam")
    path = tmp_path / "entry.yaml"
    path.write_text(yaml.safe_dump(entry.study))
    mine = load_study(path)
    assert {search.metric for search in mine.searches.values()} == {"validation_auc"}
    assert mine.ranked_by == "auc"
