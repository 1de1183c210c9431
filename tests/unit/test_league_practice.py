"""The page of practice says what to start with, and no more than the published files show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from league_data import cells_below, confirmed, published

from clipnoise.data.base import Dataset, dataset_class
from clipnoise.report.league import LeagueFindings, by_track, read_league
from clipnoise.report.league_page import league_page
from clipnoise.report.league_practice import KINDS, PracticeRow, kind_of, practice_page
from clipnoise.studies.tracks import PRETRAINED, PRIVATE
from clipnoise.studies.tuning import Tune

BETTER = {"disk": 0.84, "dp-lion": 0.65, "dp-sgd": 0.7}
SMALL = "with fewer than 10,000 training examples"
LARGE = "Tables with 10,000 training examples or more"
SHORT = "By data and budget"
START = ["DP-SGD with a tuned learning rate, which nothing here is shown to beat"]


def data(**tasks: str) -> Mapping[str, Dataset]:
    return {task: dataset_class(name)() for task, name in tasks.items()}


def findings(folder: Path, **tasks: list[dict[str, Any]]) -> LeagueFindings:
    return LeagueFindings(read_league(published(folder, **tasks)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("german-credit", 0),
        ("newsgroups", 1),
        ("reuters-r8", 1),
        ("digits", 2),
        ("mnist-5k-efficientnet-lite0", 3),
        ("newsgroups-minilm", 3),
    ],
)
def test_a_dataset_is_of_one_kind(name: str, kind: int) -> None:
    assert kind_of(dataset_class(name)()) == KINDS[kind]


def test_the_page_says_who_beats_dp_sgd_and_who_is_worse(tmp_path: Path) -> None:
    found = findings(tmp_path, digits=confirmed(BETTER))
    page = practice_page([found], data(digits="digits"))
    (row,) = cells_below(page, f"Images {SMALL}")
    assert row[:5] == [
        *("3", "1", "disk (1 of 1), shown to beat DP-SGD"),
        *("disk", "dp-lion (1 of 1)"),
    ]
    assert row[5].endswith("(disk on digits)")
    assert row[7] == "0 of 72"
    assert f"1 has a confirmed task: images {SMALL}." in page
    size = SMALL.removeprefix("with ")
    assert cells_below(page, SHORT) == [
        ["images", size, "3", "disk (1 of 1), shown to beat DP-SGD"]
    ]
    assert page.count("no confirmed task is published") == 7


def test_where_nothing_is_told_one_starts_with_dp_sgd(tmp_path: Path) -> None:
    level = dict.fromkeys(("dp-sgd", "disk"), 0.7)
    page = practice_page([findings(tmp_path, adult=confirmed(level))], data(adult="adult"))
    (row,) = cells_below(page, LARGE)
    assert row[2:5] == [*START, "each of 2", "none"]
    assert [cells[3:] for cells in cells_below(page, SHORT)] == [START]


def test_without_a_confirmed_task_nothing_is_said_of_any_kind(tmp_path: Path) -> None:
    page = practice_page([findings(tmp_path)], {})
    assert "Of 8 combinations of kind and size of data, none has a confirmed task." in page
    assert page.count("no confirmed task is published") == 8


def test_where_each_kind_and_size_has_a_task_none_is_named(tmp_path: Path) -> None:
    named = {
        **{"german": "german-credit", "adult": "adult", "reuters": "reuters-r8"},
        **{"news": "newsgroups", "digits": "digits", "fashion": "fashion-mnist"},
        **{"mnist": "mnist-5k-efficientnet-lite0", "glove": "newsgroups-glove"},
    }
    runs = confirmed({"dp-sgd": 0.7, "disk": 0.7}, searches=6, examples=100)
    page = practice_page([findings(tmp_path, **dict.fromkeys(named, runs))], data(**named))
    assert "Each of the 8 combinations of kind and size of data has a confirmed task." in page
    assert "no confirmed task is published" not in page


NO_SINGLE = "no single method: each that all settings confirmed is excluded in one or more"


def test_over_two_tasks_a_method_must_be_confirmed_and_left_in_both(tmp_path: Path) -> None:
    one = confirmed({**BETTER, "fiber": 0.84})
    other = confirmed({"disk": 0.84, "dp-lion": 0.92, "dp-sgd": 0.7}, seed=1)
    found = findings(tmp_path, compas=one, credit=other)
    page = practice_page([found], data(compas="compas", credit="german-credit"))
    (row,) = cells_below(page, f"Tables {SMALL}")
    assert row[1:5] == [
        *("2", NO_SINGLE),
        *("none", "dp-lion (1 of 2)"),
    ]
    assert cells_below(page, SHORT)[0][3] == NO_SINGLE
    assert "From 2 tasks: compas (n = 3,941) and credit (n = 705)." in page


def test_what_beats_dp_sgd_is_what_the_page_of_the_track_says(tmp_path: Path) -> None:
    """A gain that one setting shows would be too small over all settings of both tracks."""
    one = confirmed({"dp-sgd": 0.7, "disk": 0.715})
    many = confirmed({"dp-sgd": 0.7, "disk": 0.7}, epsilons=(1, 2, 3, 4, 5, 6, 7, 8))
    files = {
        task: [run | {"dataset": name} for run in runs]
        for task, name, runs in (("adult", "adult", one), ("glove", "newsgroups-glove", many))
    }
    tasks = read_league(published(tmp_path, **files))
    assert (LeagueFindings(tasks).gains["all_low"] < 0).all()
    found = by_track(tasks)
    both = data(adult="adult", glove="newsgroups-glove")
    page = practice_page([found[PRIVATE], found[PRETRAINED]], both)
    assert cells_below(page, LARGE)[0][2] == "disk (1 of 1), shown to beat DP-SGD"
    shown = "better than DP-SGD, by simultaneous intervals: disk on adult at ε = 3"
    assert shown in league_page(found[PRIVATE], {})
    features = cells_below(
        page, "Features from a frozen encoder with 10,000 training examples or more"
    )
    assert [row[2:3] for row in features] == [START] * 8
    short = cells_below(page, SHORT)
    assert [cells[2] for cells in short] == ["3", "1, 2, 3, 4, 5, 6, 7, 8"]  # the same advice


def test_what_only_can_be_the_best_is_held_against_a_range_that_ended_for_dp_sgd() -> None:
    found, places = LeagueFindings({}), [("adult", 3.0), ("letter", 3.0)]
    best = [(*at, name, 0.7, name != "dp-sgd") for at in places for name in ("disk", "dp-sgd")]
    names = ["task", "epsilon", "method"]
    vars(found)["best"] = pd.DataFrame(best, columns=[*names, "mean", "can_be_best"])
    vars(found)["gains"] = pd.DataFrame(columns=[*names, "all_low", "all_high"])
    ends = [(*places[1], "dp-sgd", "upper")]
    vars(found)["at_an_end"] = pd.DataFrame(ends, columns=[*names, "end"])
    row = PracticeRow(found, 3.0, ("adult", "letter"))
    assert row.start == (
        "disk (+0.00), which can be the best in all settings; "
        "in 1 of 2 settings a wider range of learning rates might help DP-SGD"
    )


def test_the_spread_of_dp_sgd_is_that_of_its_searches(tmp_path: Path) -> None:
    found = findings(tmp_path, adult=confirmed({"dp-sgd": 0.7, "disk": 0.7}, spread=0.05))
    means = 100 * found.settings["adult", 3.0].by_search[0]
    (row,) = cells_below(practice_page([found], data(adult="adult")), LARGE)
    ends = f"{means.min():.1f} to {means.max():.1f}"
    assert row[6] == f"adult {ends}, deviation {np.std(means, ddof=1):.1f}"


def test_a_gain_over_a_baseline_at_the_end_of_its_range_is_said_with_this(tmp_path: Path) -> None:
    tune = Tune(ranges={"learning_rate": (0.1, 10.0)}, trials=10, seeds=(1,))
    runs = [one | {"hyperparameters": '{"learning_rate": 8}'} for one in confirmed(BETTER)]
    spaces = {"digits": {"dp-sgd": tune, "disk": tune}}
    found = LeagueFindings(read_league(published(tmp_path, digits=runs)), spaces=spaces)
    page = practice_page([found], data(digits="digits"))
    (row,) = cells_below(page, f"Images {SMALL}")
    assert row[2].endswith(
        "shown to beat DP-SGD; a wider range of learning rates might help DP-SGD"
    )
    (chosen,) = cells_below(page, f"Images {SMALL}: what searches chose")
    assert chosen[5] == "1 of 1"


def test_a_learning_rate_transfers_where_it_is_within_a_factor_of_three(tmp_path: Path) -> None:
    """The median of searches is 2, 1 and 10 in three settings, of which one alone has disk."""
    means = {"dp-sgd": 0.7, "dp-adam": 0.7}
    one, other = confirmed(means, epsilons=(1.0, 3.0)), confirmed({**means, "disk": 0.7})
    for runs, rates in ((one, {1.0: 2, 3.0: 1}), (other, {3.0: 10})):
        for run in runs:
            rate = rates[run["epsilon"]] * (1 if run["search"] % 3 else 100)
            falling = rate if run["search"] % 2 else {"kind": "linear", "peak": rate, "final": 0}
            chosen = {"learning_rate": falling, "clip_norm": 0.5}
            run["hyperparameters"] = json.dumps(chosen)
    found = findings(tmp_path, adult=one, digits=other)
    page = practice_page([found], data(adult="adult", digits="digits"))
    rows = cells_below(page, "Did one value suit all settings?")
    assert rows == [
        ["tables, texts and images", name, "3", "2 (1 to 10)", "2 of 3", "0.5 (0.5 to 0.5)"]
        for name in ("dp-sgd", "dp-adam")
    ]
    assert "ranges from 1 to 10 on tables, texts and images." in page
    assert (
        "dp-sgd and dp-adam can be the best in 3 of 3 settings, the most of the 2 methods" in page
    )


def test_the_method_that_is_excluded_least_is_named_with_dp_sgd(tmp_path: Path) -> None:
    found = findings(tmp_path, adult=confirmed(BETTER), digits=confirmed(BETTER, seed=1))
    page = practice_page([found], data(adult="adult", digits="digits"))
    assert (
        "On tables, texts and images, disk can be the best in 2 of 2 settings, the most of the 3 "
        "methods that all of them confirm; DP-SGD can be the best in 0."
    ) in page


def test_of_one_task_nothing_is_said_of_values_that_transfer(tmp_path: Path) -> None:
    page = practice_page([findings(tmp_path, adult=confirmed(BETTER))], data(adult="adult"))
    assert "Values that transferred" not in page
    assert "Tune the learning rate" not in page
    assert "the most of the" not in page


def test_what_searches_chose_is_a_median_with_its_range(tmp_path: Path) -> None:
    runs = confirmed({"dp-sgd": 0.7, "dp2-rmsprop": 0.7}, searches=7)
    for one in runs:
        peak = 2.0 ** int(one["search"])
        rate = peak if peak > 4 else {"kind": "linear", "peak": peak, "final": 0.0}
        values = {"id": one["label"], "learning_rate": rate, "clip_norm": 0.5}
        if one["label"] == "dp2-rmsprop":
            values = {"id": one["label"], "learning_rates": [3, 0.1], "clip_norms": [1, 3]}
        one["hyperparameters"] = json.dumps(values)
    page = practice_page([findings(tmp_path, adult=runs)], data(adult="adult"))
    assert cells_below(page, f"{LARGE}: what searches chose") == [
        ["dp-sgd", "3", "7", "16 (2 to 130)", "2 of 7", "0 of 1", "0.5 (0.5 to 0.5)"],
        ["dp2-rmsprop", "3", "7", "–", "–", "0 of 1", "–"],
    ]


def test_where_only_some_tasks_confirm_what_beats_dp_sgd_one_starts_with_dp_sgd() -> None:
    """It can beat DP-SGD on one task without a test that excludes DP-SGD there."""
    found = LeagueFindings({})
    places = [("adult", "dp-adam", 0.8), ("adult", "dp-sgd", 0.7), ("adult", "disk", 0.9)]
    places += [("fair", "dp-adam", 0.8), ("fair", "dp-sgd", 0.7)]
    best = pd.DataFrame(places, columns=["task", "method", "mean"])
    gain = {"task": "adult", "method": "disk", "gain": 0.2, "all_low": 0.1, "all_high": 0.3}
    vars(found).update(
        best=best.assign(epsilon=3.0, can_be_best=True),
        gains=pd.DataFrame([gain]).assign(epsilon=3.0),
    )
    row = PracticeRow(found, 3.0, ("adult", "fair"))
    beaten = "which no test excludes; intervals show it to be beaten by disk (1 of 2)"
    assert row.start == f"DP-SGD with a tuned learning rate, {beaten}"
    best["can_be_best"] = best["method"] != "dp-sgd"
    vars(found).update(best=best.assign(epsilon=3.0))
    row = PracticeRow(found, 3.0, ("adult", "fair"))
    assert row.start == "dp-adam (+10.00), which can be the best in all settings"
    best.loc[best["method"] == "dp-adam", "mean"] = 0.6
    vars(found).update(best=best.assign(epsilon=3.0))
    row = PracticeRow(found, 3.0, ("adult", "fair"))
    assert row.start == "no method: dp-adam can be the best, but has a lower mean than DP-SGD"
