"""Statistics across tasks match closed forms, and figures name what they cannot show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from reporting_data import draw_figure, drawn, item_data, run_row, write_table
from scipy import stats

from clipnoise.report.baseline import change_intervals, changes
from clipnoise.report.formats import ACCURACY
from clipnoise.report.records import read_runs
from clipnoise.report.statistics import (
    bootstrap,
    interquartile_interval,
    interquartile_mean,
    profile,
)
from clipnoise.report.tables import build_table
from clipnoise.studies.columns import RUN_COLUMNS

KINDS = ("interquartile-means", "performance-profiles")


@pytest.mark.parametrize("n", [1, 3, 4, 8, 21])
def test_the_interquartile_mean_is_the_mean_trimmed_by_a_quarter(n: int) -> None:
    values = np.random.default_rng(n).normal(size=(3, n))
    expected = stats.trim_mean(values, 0.25, axis=-1)
    np.testing.assert_allclose(interquartile_mean(values), expected)


def test_a_diverged_run_is_the_lowest_and_too_many_leave_no_mean() -> None:
    assert interquartile_mean(np.array([-np.inf, 1.0, 2.0, 9.0])) == 1.5
    assert interquartile_mean(np.array([-np.inf, -np.inf, 2.0, 9.0])) == -np.inf


def test_the_bootstrap_draws_seeds_within_each_task() -> None:
    """Tasks far apart but without spread within: drawing tasks would give a wide interval."""
    tasks = [np.full(5, 0.0), np.full(5, 100.0)]
    low, high = bootstrap(tasks, lambda scores: scores.mean(axis=-1), resamples=200)
    assert low == high == 50.0


def test_the_bootstrap_of_a_profile_has_an_interval_at_each_threshold() -> None:
    tasks = [np.array([0.0, 1.0, 1.0, 1.0])]
    low, high = bootstrap(tasks, profile(np.array([0.0, 1.0, 2.0])))
    assert (low[0], high[0], low[2], high[2]) == (1.0, 1.0, 0.0, 0.0)
    assert low[1] < 0.75 < high[1]


def test_the_bootstrap_of_a_mean_has_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap([values], lambda scores: scores.mean(axis=-1), resamples=1000)
    error = values.std() / np.sqrt(len(values))
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert low < values.mean() < high


def test_the_interval_of_the_interquartile_mean_is_that_of_all_runs_and_repeats() -> None:
    tasks = [np.random.default_rng(seed).normal(seed, size=40) for seed in (1, 2)]
    found = interquartile_interval(tasks)
    assert found.mean == pytest.approx(stats.trim_mean(np.concatenate(tasks), 0.25))
    assert (found.low, found.high) == bootstrap(tasks, interquartile_mean)
    assert found.low < found.mean < found.high


def test_a_profile_is_one_minus_the_distribution_function() -> None:
    share = profile(np.array([0.0, 1.0, 2.5, 9.0]))
    np.testing.assert_array_equal(share(np.array([1.0, 2.0, 3.0, -np.inf])), [0.75, 0.75, 0.25, 0])


def league(folder: Path, datasets: int = 2, **changes: Any) -> pd.DataFrame:
    source = np.random.default_rng(0)
    rows = [
        run_row(
            method=method,
            dataset=f"set-{number}",
            budget=budget,
            seed=seed,
            test_accuracy=level + 0.01 * source.normal(),
            **changes,
        )
        for number in range(datasets)
        for method, level in (("dp-sgd", 0.8), ("dp-adam", 0.7))
        for budget in ("eps=1", "eps=8")
        for seed in range(5)
    ]
    rows += [
        run_row(method="sgd", dataset=f"set-{number}", budget="non-private", test_accuracy=0.9)
        for number in range(datasets)
    ]
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_across_tasks_is_drawn_and_repeats(kind: Any, tmp_path: Path) -> None:
    runs = league(tmp_path)
    first = draw_figure(item_data(kind, runs))
    assert first.startswith(b"<?xml")
    assert first == draw_figure(item_data(kind, runs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_survives_diverged_and_missing_runs(kind: Any, tmp_path: Path) -> None:
    runs = league(tmp_path)
    runs.loc[runs["method"] == "dp-adam", ["status", "test_accuracy"]] = ["diverged", np.nan]
    runs.loc[runs["dataset"] == "set-1", ["status", "test_accuracy"]] = ["missing", np.nan]
    assert draw_figure(item_data(kind, runs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_without_runs_on_a_task_is_marked(kind: Any, tmp_path: Path) -> None:
    runs = league(tmp_path, datasets=3)
    assert "/3 tasks" not in draw_figure(item_data(kind, runs)).decode()
    runs = runs[(runs["method"] != "dp-adam") | (runs["dataset"] != "set-1")]
    assert draw_figure(item_data(kind, runs)).decode().count("2/3 tasks") == 2  # one for each ε


def test_an_interval_without_an_end_is_an_arrow_to_the_edge(tmp_path: Path) -> None:
    """A quarter of the runs diverged: in many resamples there is no mean."""
    levels = {"dp-sgd": [0.7, 0.71, 0.72, 0.73], "dp-adam": [None, 0.71, 0.72, 0.73]}
    runs = accuracies(tmp_path, levels)
    (ax,) = drawn("interquartile-means", runs).axes
    (arrow,) = [one for one in ax.texts if one.get_text() == "" and hasattr(one, "arrow_patch")]
    assert arrow.xy[0] == 0.0


def accuracies(
    folder: Path, levels: Mapping[str, Sequence[float | None]], panel: str = "comparison"
) -> Any:
    """Return runs on two datasets at ε = 1; the levels of a method are those of its seeds."""
    rows = [
        run_row(
            panel=panel,
            method=method,
            dataset=dataset,
            budget="non-private" if method == "sgd" else "eps=1",
            seed=seed,
            **{"status": "diverged"} if level is None else {"test_accuracy": level},
        )
        for dataset in ("set-0", "set-1")
        for method, values in levels.items()
        for seed, level in enumerate(values)
    ]
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def test_profiles_over_several_tasks_are_relative_to_the_baseline_of_each(tmp_path: Path) -> None:
    runs = league(tmp_path, datasets=2)
    kind = "performance-profiles"
    assert "over dp-sgd" in draw_figure(item_data(kind, runs)).decode()
    one = runs[runs["dataset"] == "set-0"]
    assert "over dp-sgd" not in draw_figure(item_data(kind, one)).decode()
    without = runs[(runs["method"] != "dp-sgd") | (runs["dataset"] != "set-1")]
    assert "over dp-sgd" not in draw_figure(item_data(kind, without)).decode()


CROWD = [f"method-{number}" for number in range(12)]


def crowd(folder: Path) -> pd.DataFrame:
    """Return runs of DP-SGD, of one method far below, and of twelve in rising order."""
    levels = {"dp-sgd": 0.7, "last": 0.2} | {
        name: 0.6 + 0.02 * rank for rank, name in enumerate(CROWD)
    }
    rows = [
        run_row(
            method=method,
            dataset=f"set-{number}",
            seed=seed,
            test_accuracy=level,
        )
        for method, level in levels.items()
        for number in range(2)
        for seed in (1, 2)
    ]
    return read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows))


def test_among_many_methods_the_baseline_and_the_best_are_named(tmp_path: Path) -> None:
    image = draw_figure(item_data("performance-profiles", crowd(tmp_path)))
    named = {name for name in ["dp-sgd", *CROWD] if f"<!-- {name} -->" in image.decode()}
    assert named == {"dp-sgd", *CROWD[-3:]}
    assert "<!-- 10 others -->" in image.decode()


def test_every_method_of_a_crowd_is_drawn(tmp_path: Path) -> None:
    """Those without a name stand behind as thin lines; leaving them out would hide results."""
    runs = crowd(tmp_path)
    image = draw_figure(item_data("performance-profiles", runs))
    assert image.decode().lower().count("stroke: #bbbbbb") == 10 + 1  # and one in the legend


def test_changes_are_paired_by_setting_and_seed(tmp_path: Path) -> None:
    before = accuracies(tmp_path, {"dp-sgd": [0.6, 0.8, 0.1], "dp-adam": [0.5, 0.5, 0.5]})
    after = accuracies(tmp_path, {"dp-sgd": [0.5, 0.9], "dp-adam": [0.4, 0.5]}, panel="other")
    found = changes(after, before, ACCURACY)
    place = ("set-0", "logistic", "eps=1")
    assert found["dp-sgd", "dp-sgd"][place] == pytest.approx(0)
    assert found["dp-adam", "dp-adam"][place] == pytest.approx(-0.05)


def test_a_figure_of_changes_is_drawn(tmp_path: Path) -> None:
    before = accuracies(tmp_path, {"dp-sgd": [0.6, 0.8], "dp-adam": [0.5, 0.5]})
    after = accuracies(tmp_path, {"dp-sgd": [0.5, 0.9], "dp-adam": [0.4, 0.5]}, panel="other")
    runs = pd.concat([before, after])
    others = {"against": ("comparison",)}
    data = item_data("changes", runs, panels=("other",), others=others, against={"part": "first"})
    assert draw_figure(data).startswith(b"<?xml")


def test_costs_stand_beside_every_method_with_its_audit(tmp_path: Path) -> None:
    found = "not refuted: attacks show ε 0.90 of 1.00"
    runs = league(tmp_path, datasets=1, passes_per_step=2, audit=found)
    table = build_table(runs, "comparison", costs=True)
    (block,) = table.costs
    assert block.groups[-1].headings == ["audit"]
    assert any("all audited methods of the study together" in note for note in table.notes)
    first, *_, last = ((row.label, *(cell.text for cell in row.cells)) for row in block.rows)
    assert first == ("dp-sgd", "3", "1.00", "412", "2", found)
    assert last[0] == "sgd"
    assert last[-1] == "no claim"


def test_a_mean_change_has_the_t_interval_of_its_means_over_tasks_by_seed(tmp_path: Path) -> None:
    def runs(panel: str, levels: dict[str, list[float]]) -> pd.DataFrame:
        rows = [
            run_row(panel=panel, dataset=name, method="dp-sgd", seed=seed, test_accuracy=value)
            for name, values in levels.items()
            for seed, value in enumerate(values)
        ]
        return read_runs(write_table(tmp_path / f"{panel}.parquet", RUN_COLUMNS, rows))

    before = runs("before", {"a": [0.5, 0.5, 0.5], "b": [0.5, 0.5, 0.5]})
    after = runs("after", {"a": [0.6, 0.5, 0.7], "b": [0.6, 0.6, 0.6]})
    found = change_intervals(after, before, ACCURACY)["dp-sgd", "dp-sgd"]
    means = [0.1, 0.05, 0.15]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(means), scale=stats.sem(means))
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, low, high))
    unpaired = runs("unpaired", {"a": [0.6, 0.5, 0.7], "b": [0.6, 0.6]})
    assert not change_intervals(unpaired, before, ACCURACY)  # its tasks have other seeds
    diverged = after.assign(status="diverged", test_accuracy=np.nan)
    assert not change_intervals(diverged, before, ACCURACY)


def test_a_figure_of_changes_says_against_what_and_that_more_is_better(tmp_path: Path) -> None:
    before = accuracies(tmp_path, {"dp-sgd": [0.6, 0.8]})
    after = accuracies(tmp_path, {"dp-sgd": [0.5, 0.9]}, panel="other")
    figure = drawn(
        "changes",
        pd.concat([before, after]),
        panels=("other",),
        others={"against": ("comparison",)},
        against={"accountant": "rdp"},
    )
    (ax,) = figure.axes
    words = "Better than with accountant rdp: test accuracy (points)"
    assert ax.get_xlabel().startswith(words)
