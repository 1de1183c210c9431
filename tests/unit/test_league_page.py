"""The page of the league says what the published files show, and what they do not."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pypdf
import pytest
from every_method import METHODS
from league_data import cells_below, confirmed, published, row
from PIL import Image

from clipnoise.cli import main
from clipnoise.cli.league import FOLDER, findings_of, tasks_of, titles
from clipnoise.errors import UserError
from clipnoise.privacy.accountants.selection import composed_epsilon
from clipnoise.report.blocks import ListBlock
from clipnoise.report.figures.league import figures
from clipnoise.report.inference.over_tasks import MixedModel
from clipnoise.report.league import LeagueFindings, MethodOverTasks, by_track, read_league
from clipnoise.report.league_page import (
    TOO_FEW,
    UNDER_WAY,
    _by_themselves,
    _on_average,
    answer,
    league_page,
    league_pdf,
    pictures,
)
from clipnoise.report.league_papers import CLAIMS as PAPERS
from clipnoise.report.pdf import typeset
from clipnoise.run.correctness import packed
from clipnoise.studies.league import search_of
from clipnoise.studies.study import load_study
from clipnoise.studies.tracks import CORRELATED, PRETRAINED, PRIVATE, PUBLIC, USERS, Track
from clipnoise.studies.tuning import Tune

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "workflow" / "studies" / "league"
TEMPLATE = ROOT / "reports" / "templates" / "league.typ"
BETTER = {"disk": 0.84, "dp-lion": 0.65, "dp-sgd": 0.7}
CLAIMS = "What papers claim, and what was seen here"
AGAIN = f"run: clipnoise league --page {FOLDER}"
PLANNED = {"adult": "Adult", "compas": "COMPAS", "digits": "digits"}


def found(folder: Path, **tasks: list[dict[str, Any]]) -> LeagueFindings:
    return LeagueFindings(read_league(published(folder, **tasks)))


def test_the_page_has_a_table_for_each_screen_with_the_best_method_first(tmp_path: Path) -> None:
    once: dict[str, Any] = {"panel": "screen", "search": None}
    runs = [
        row(**once, test_accuracy=0.5),
        row("disk", **once, test_accuracy=0.75),
        row("disk", **once, seed=2, status="diverged", test_accuracy=None),
        row("sgd", **once, claim="non-private", epsilon=None, test_accuracy=0.9),
    ]
    page = league_page(found(tmp_path, adult=runs), PLANNED)
    table = cells_below(page, "adult, screen (logistic)")
    assert [cells[:3] for cells in table] == [
        ["dp-sgd", "50.00", "0"],
        ["disk", "37.50", "1"],
        ["sgd", "90.00", "0"],
    ]
    assert "Only the screen of adult is published." in page
    assert "No task is confirmed, so nothing is tested" in page
    alone = league_page(found(tmp_path, adult=runs), {"adult": "Adult"})
    assert "What is found while tasks are missing is interim" in alone  # until it is confirmed


def test_without_files_the_page_names_all_tasks_as_missing(tmp_path: Path) -> None:
    page = league_page(found(tmp_path), PLANNED)
    assert "Of 3 tasks of this track, none is published." in page
    assert "Missing: adult, compas and digits." in page
    assert "What is found while tasks are missing is interim" in page
    assert [cells[2] for cells in cells_below(page, "Tasks")] == ["not published"] * 3


def test_the_page_says_who_can_be_the_best(tmp_path: Path) -> None:
    page = league_page(found(tmp_path, adult=confirmed(BETTER)), PLANNED)
    table = cells_below(page, "adult, ε = 3: confirmed")
    assert [(cells[0], cells[-1]) for cells in table] == [
        ("disk", "yes"),
        ("dp-sgd", "no"),
        ("dp-lion", "no"),
    ]
    first, base, last = table
    assert float(first[1]) - float(base[1]) == pytest.approx(float(first[2]), abs=0.011)
    assert [cells[5:8] for cells in table] == [
        ["2", "0", "0 of 24"],
        ["1", "1", "0 of 24"],
        ["0", "2", "0 of 24"],
    ]
    assert [cells[:5] for cells in cells_below(page, "Each method, in all settings")] == [
        ["disk", "1", "1", "1", "0"],
        ["dp-lion", "1", "0", "0", "1"],
        ["dp-sgd", "1", "0", "0", "0"],
    ]
    assert cells_below(page, "Who can be the best") == [["adult", "3", "disk", "dp-sgd, dp-lion"]]
    assert "left as the best in 1: disk on adult at ε = 3." in page
    assert f"by simultaneous intervals: disk on adult at ε = 3, {first[2]} " in page
    assert f"Shown to be worse: dp-lion on adult at ε = 3, {last[2]} " in page
    assert "With fewer than 3 data sets there is no interval over tasks: ε = 3." in page
    assert "Missing: compas and digits." in page


def test_a_gain_alone_has_a_narrower_interval_than_together_with_others(tmp_path: Path) -> None:
    page = league_page(found(tmp_path, adult=confirmed(BETTER)), PLANNED)
    for cells in cells_below(page, "adult, ε = 3: confirmed"):
        if cells[0] != "dp-sgd":
            alone, together = (
                [float(one.replace("−", "-")) for one in re.findall(r"[−\d.]+", cell)]
                for cell in cells[3:5]
            )
            assert together[0] < alone[0] < float(cells[2].replace("−", "-")) < alone[1]
            assert alone[1] < together[1]


def test_a_collapsed_run_is_counted_and_compared(tmp_path: Path) -> None:
    runs = confirmed({"dp-sgd": 0.8, "disk": 0.8})
    runs[0] |= {"status": "diverged", "correct": None, "test_accuracy": None}
    half = np.arange(500) % 2 > 0
    runs[1] |= {"correct": packed(half), "test_accuracy": 0.5}
    findings = found(tmp_path, adult=runs)
    page = league_page(findings, PLANNED)
    assert "Of 48 confirmed runs 2 collapsed." in page
    counts = {cells[0]: cells[5] for cells in cells_below(page, "Each method, in all settings")}
    assert counts == {"dp-sgd": "2 of 24", "disk": "0 of 24"}
    accuracy = findings.settings["adult", 3.0].accuracy[0]
    assert (accuracy[0, 0], accuracy[0, 1]) == (0, 0.5)


def test_a_task_on_which_most_runs_collapsed_is_named_and_counts_for_no_method(
    tmp_path: Path,
) -> None:
    level = {"dp-sgd": 0.5, "disk": 0.5}
    findings = found(tmp_path, adult=confirmed(BETTER), compas=confirmed(level, seed=1))
    page = league_page(findings, PLANNED)
    collapsed = findings.hard["compas"]
    assert 24 < collapsed <= 48
    said = f"{collapsed} of them on compas, where more than half of all runs did."
    assert said in page
    counts = {cells[0]: cells[5] for cells in cells_below(page, "Each method, in all settings")}
    assert counts == {"dp-sgd": "0 of 24", "disk": "0 of 24", "dp-lion": "0 of 24"}


def test_too_few_searches_are_said_to_exclude_nothing(tmp_path: Path) -> None:
    runs = confirmed(BETTER, epsilons=(3.0, 8.0), searches=6)
    page = league_page(found(tmp_path, adult=runs), PLANNED)
    assert {cells[-1] for cells in cells_below(page, "adult, ε = 8: confirmed")} == {"yes"}
    said = "over 2 settings exclude nothing with fewer than 7 searches. adult (ε = 3 and 8) have"
    assert said in page


def test_over_tasks_only_methods_that_all_of_them_confirmed_are_judged(tmp_path: Path) -> None:
    runs = {
        task: confirmed({**BETTER, extra: 0.8}, seed=seed)
        for seed, (task, extra) in enumerate(
            zip(PLANNED, ("dp-sat", "dp-sat", "fiber"), strict=True)
        )
    }
    findings = found(tmp_path, **runs)
    page = league_page(findings, PLANNED)
    table = cells_below(page, "Over tasks, ε = 3")
    assert [cells[0] for cells in table] == ["disk", "dp-lion"]
    assert float(table[0][1]) == pytest.approx(14, abs=2)
    assert "because not all of these tasks confirmed them: dp-sat and fiber." in page
    assert "No share is taken of adult, compas and digits" in page  # there is no ceiling
    low, high = re.findall(r"[−\d.]+", table[0][2])
    assert 0 < float(low) < float(table[0][1]) < float(high)
    assert "With fewer than 6 data sets no test over tasks can exclude a method: ε = 3." in page


def test_what_papers_claim_is_counted_where_both_methods_are_confirmed(tmp_path: Path) -> None:
    level = {"dp-sgd": 0.7, "dp-adam": 0.7, "stp-adam": 0.85, "ime-adam": 0.85}
    runs = {"adult": confirmed(level), "compas": confirmed({**level, "dp-adam": 0.95}, seed=1)}
    page = league_page(found(tmp_path, **runs), PLANNED)
    counts = {cells[2]: tuple(map(int, cells[3:6])) for cells in cells_below(page, CLAIMS)}
    assert counts == {  # and nothing of methods that no task confirms
        "stp-adam over dp-adam": (2, 1, 1),
        "dp-adam over ime-adam": (2, 1, 1),
    }
    gain = cells_below(page, CLAIMS)[0][6]
    assert float(gain.split(":")[1].split()[0]) == pytest.approx(2.5, abs=2)
    assert "Too little is published to judge a claim" in page
    assert "no ε has more than 2 confirmed data sets, and 6 are needed" in page


def test_claims_are_of_two_methods_of_this_suite_and_each_stands_once() -> None:
    pairs = [(claim.better, claim.worse) for claim in PAPERS]
    assert {label.split()[0] for pair in pairs for label in pair} <= {*METHODS}
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)


def test_a_claim_that_leaves_out_pictures_is_counted_on_other_tasks_alone(tmp_path: Path) -> None:
    level = {"dp-sgd": 0.7, "dp-adam": 0.7, "dp-adambc": 0.9}
    pictures = confirmed(level)
    table = [{**one, "dataset": "adult"} for one in confirmed(level, seed=1)]
    page = league_page(found(tmp_path, digits=pictures, adult=table), PLANNED)
    (cells, *_) = cells_below(page, CLAIMS)
    assert cells[2:6] == ["dp-adambc over dp-adam", "1", "1", "0"]


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> LeagueFindings:
    runs = {f"task{n}": confirmed(BETTER, seed=n, searches=8, examples=200) for n in range(6)}
    return found(tmp_path_factory.mktemp("six"), **runs)


def test_six_tasks_can_exclude_methods_over_tasks(six: LeagueFindings) -> None:
    p_values = {one.method: one.p_value for one in six.over_tasks}
    assert p_values == {"disk": 1, "dp-lion": 2**-5}  # all six tasks agree


def test_validation_examples_choose_the_ceiling_and_who_reaches_it_closes_the_gap(
    tmp_path: Path,
) -> None:
    runs = confirmed({"dp-sgd": 0.6, "disk": 0.9, "sgd": 0.95, "adam": 0.9})
    for one in runs:
        if one["label"] == "sgd":
            one["validation_accuracy"] = 0.5
    bits = [one["correct"] for one in runs if one["label"] == "disk"]
    same = iter(zip(bits, (one for one in runs if one["label"] == "adam"), strict=True))
    accuracies = {one["correct"]: one["test_accuracy"] for one in runs}
    for correct, one in same:
        one |= {"correct": correct, "test_accuracy": accuracies[correct]}
    findings = found(tmp_path, adult=runs)
    (disk,) = findings.over_tasks
    assert disk.gaps == ("adult",)
    assert disk.closed is not None
    assert disk.closed.mean == pytest.approx(1)
    names = [
        cells[0] for cells in cells_below(league_page(findings, PLANNED), "adult, ε = 3: confirmed")
    ]
    assert names == ["disk", "dp-sgd", "sgd (non-private)", "adam (non-private)"]


def test_a_task_without_a_gap_has_no_share(tmp_path: Path) -> None:
    level = dict.fromkeys(("dp-sgd", "disk", "sgd", "adam"), 0.8)
    findings = found(tmp_path, adult=confirmed(level, spread=0.0))
    assert [one.closed for one in findings.over_tasks] == [None]


def test_a_method_without_a_search_is_paired_with_the_others_by_its_seeds(tmp_path: Path) -> None:
    runs = read_league(published(tmp_path, adult=confirmed({"disk": 0.8, "other": 0.7})))["adult"]
    without = runs.assign(search=runs["search"].where(runs["label"] != "other"))
    (whole,), (one,) = (
        LeagueFindings({"adult": each}).settings.values() for each in (runs, without)
    )
    assert whole.methods == one.methods == ("disk", "other")
    assert np.array_equal(whole.right, one.right)


def test_a_task_that_lacks_a_confirmed_run_has_no_page(tmp_path: Path) -> None:
    runs = read_league(published(tmp_path, adult=confirmed({"disk": 0.8, "other": 0.7})))["adult"]
    with pytest.raises(UserError, match="every method needs one of each"):
        league_page(LeagueFindings({"adult": runs.drop(index=3)}), PLANNED)
    two = pd.concat([runs, runs.assign(panel="again")])
    with pytest.raises(UserError, match="adult: several panels confirm a method: confirm, again"):
        league_page(LeagueFindings({"adult": two}), PLANNED)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"claim": "nominal"}, "adult: disk: ε is no guarantee, so that it cannot be compared"),
        (
            {"adjacency": "zero-out"},
            r"adult: .* several adjacencies: zero-out \(disk\), add-remove \(dp-sgd\)",
        ),
    ],
)
def test_what_is_confirmed_has_a_guarantee_under_one_adjacency(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    runs = confirmed({"disk": 0.8, "dp-sgd": 0.7})
    changed_runs = [one | changed if one["label"] == "disk" else one for one in runs]
    tasks = read_league(published(tmp_path, adult=changed_runs))
    with pytest.raises(UserError, match=said):
        league_page(LeagueFindings(tasks), PLANNED)


def test_guarantees_of_published_tasks_hold_under_the_adjacency_of_their_track() -> None:
    under = {CORRELATED: {"zero-out"}, USERS: {"add-remove-user"}}
    for track, found in by_track(read_league(ROOT / FOLDER)).items():
        for runs in found.confirmed.values():
            private = runs[runs["epsilon"].notna()]
            assert {*private["claim"]} == {"guarantee"}
            assert {*private["adjacency"]} == under.get(track, {"add-remove"})


def test_references_in_a_panel_of_their_own_are_compared_with_the_confirmed(tmp_path: Path) -> None:
    runs = confirmed({"dp-sgd": 0.7, "dp-prototypes": 0.9})
    for one in runs:
        if one["label"] == "dp-prototypes":
            one |= {"panel": "references", "search": None}
    page = league_page(found(tmp_path, adult=runs), PLANNED)
    assert cells_below(page, "Who can be the best") == [["adult", "3", "dp-prototypes", "dp-sgd"]]
    assert not found(tmp_path, adult=runs[len(runs) // 2 :]).settings  # nothing is confirmed yet


def of(dataset: str = "digits", *labels: str, **changes: str) -> list[dict[str, Any]]:
    """Return a task whose first method is better than the other one by 20 points."""
    first, last = labels or ("disk", "dp-sgd")
    return [
        {**one, "dataset": dataset, "method": one["label"].split()[0], **changes}
        for one in confirmed({first: 0.9, last: 0.7})
    ]


@pytest.mark.parametrize(
    ("track", "runs", "base"),
    [
        (PRIVATE, of(sampler="poisson"), "DP-SGD"),
        (PRETRAINED, of("reuters-r8-glove", sampler="full"), "DP-SGD"),
        (PUBLIC, of("digits", "adadps-rmsprop", "dp-sgd"), "DP-SGD"),
        (
            CORRELATED,
            of("digits", "dp-sgd tree", "dp-sgd banded", sampler="cyclic"),
            "DP-SGD with banded noise",
        ),
        (USERS, of("digits-users", "dp-fedadam", "dp-fedavg"), "DP-FedAvg"),
    ],
)
def test_a_task_is_on_the_page_of_its_track_with_gains_over_its_baseline(
    track: Track, runs: list[dict[str, Any]], base: str, tmp_path: Path
) -> None:
    found = by_track(read_league(published(tmp_path, task=runs)))
    assert [one for one, each in found.items() if each.tasks] == [track]
    page = league_page(found[track], {"task": "A task"})
    assert page.startswith(f"# {track.title}\n")
    better, worse = cells_below(page, "task, ε = 3: confirmed")
    assert float(better[2]) == pytest.approx(20, abs=3)
    assert worse[2] == "–"
    assert better[8] != "–"  # its time over that of the baseline
    assert f"Shown to be better than {base}, by simultaneous intervals: {better[0]}" in page
    assert f"![Gain over {base} (points), " in page
    assert f"The gain over {base} is in points" in page
    assert base == "DP-SGD" or not re.search("DP-SGD(?! with banded)", page.split("## A task")[1])
    assert "Over tasks" not in page  # one task says no more than its own table
    assert ("adadps-rmsprop over dp-sgd" in page) == (track == PUBLIC)


def test_a_track_of_two_tasks_is_not_under_way_for_ever(tmp_path: Path) -> None:
    findings = found(tmp_path, adult=confirmed(BETTER), digits=confirmed(BETTER))
    assert answer(findings, PLANNED) == UNDER_WAY
    assert answer(findings, {"adult": "", "digits": ""}) == TOO_FEW


@pytest.mark.long
def test_the_same_files_give_the_same_page_and_pdf(tmp_path: Path) -> None:
    level = {**BETTER, "sgd": 0.9, "adam": 0.88}
    tasks = {task: confirmed(level, seed=n) for n, task in enumerate(("adult", "digits"))}
    made = [found(tmp_path, **tasks) for _ in range(2)]
    first, second = (league_page(one, PLANNED) for one in made)
    assert first == second
    pdf, again = (league_pdf(one, PLANNED, TEMPLATE) for one in made)
    assert pdf == again
    text = "".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages)
    said = " ".join(text.split())
    assert f"In short {answer(made[0], PLANNED)}" in said
    assert "Of 3 tasks of this track, 2 are published: adult and digits." in said
    assert "Closed share of the privacy gap" in said
    assert "was not drawn" not in said


def test_a_table_of_few_rows_that_is_taller_than_a_page_goes_on_on_the_next_one() -> None:
    rows = [[f"row {number}", "can be the best " * 20] for number in range(27)]
    table = ListBlock(title="Tall", caption="", heads=["name", "text"], align="ll", rows=rows)
    pdf = typeset({"title": "Tall", "name": "tall", "parts": [table]}, TEMPLATE, {})
    pages = [page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages]
    assert "row 0" in pages[0]
    assert "row 26" in pages[-1]
    assert len(pages) > 1


def test_the_tasks_are_those_that_have_a_study() -> None:
    planned = tasks_of(TASKS)
    assert titles(planned[PRIVATE])["reuters-r8"] == "Reuters R8"
    assert not {"shared", "lite"} & {name for each in planned.values() for name in each}
    assert "reuters-r8-minilm" in planned[PRETRAINED]
    for track in (PUBLIC, CORRELATED, USERS):
        assert planned[track]
        assert all(name.endswith(f"-{track.id}") for name in planned[track])


def test_what_is_no_task_of_the_league_is_named_apart(tmp_path: Path) -> None:
    page = league_page(found(tmp_path, lite=confirmed({"dp-sgd": 0.7, "disk": 0.8})), PLANNED)
    assert "Of 3 tasks of this track, none is published." in page
    assert "Published, but no task of the league: lite." in page


def described(png: bytes) -> str:
    """Return what a figure says to those who cannot see it."""
    return str(Image.open(io.BytesIO(png)).info["Description"])


def test_a_figure_says_in_words_what_it_shows_and_so_does_its_link(tmp_path: Path) -> None:
    findings = found(tmp_path, adult=confirmed(BETTER))
    ((name, png),) = pictures(findings).items()
    (alt,) = re.findall(rf"!\[(.*?)\]\({name}\)", league_page(findings, PLANNED))
    assert alt == described(png)
    gain = r"\d+\.\d\d"
    said = rf"Gain over DP-SGD \(points\), .*: at ε = 3 from disk {gain} to dp-lion −{gain}"
    assert re.fullmatch(said, alt)


def test_figures_and_tables_over_tasks_need_three(six: LeagueFindings) -> None:
    for tasks in (1, 2, 3):
        names = [*(["over-tasks.svg"] * (tasks > 2)), *(f"task{n}.svg" for n in range(tasks))]
        some = LeagueFindings(dict([*six.tasks.items()][:tasks]))
        assert [one.block.image for one in figures(some)] == names
        page = league_page(some, dict.fromkeys(some.tasks, ""))
        assert ("### Over tasks, ε = 3" in page) == (tasks > 2)


def test_six_confirmed_tasks_are_enough_for_an_answer(six: LeagueFindings) -> None:
    planned = dict.fromkeys(six.tasks, "")
    five = LeagueFindings(dict([*six.tasks.items()][:5]))
    assert answer(five, planned) == UNDER_WAY
    said = answer(six, planned)
    assert said.count(". ") == 2  # three sentences
    assert said.startswith(
        "On 6 tasks, with 3 methods confirmed on each, tests show DP-SGD not to be the best "
    )
    assert "Intervals, which assume more, show DP-SGD to be beaten in 6." in said
    assert "in 6 of 6 settings (a task at one ε), and in 6 a single method is left as the" in said
    (gain,) = (six.together(one) for one in six.over_tasks if one.method == "disk")
    ends = [f"{100 * one:.1f}" for one in (gain.mean, gain.low, gain.high)]
    shown = f"at ε = 3 for disk ({ends[0]} points, {ends[1]} to {ends[2]})."
    assert said.endswith(
        "On average over tasks, simultaneous 95% intervals (nominal) show a gain over DP-SGD "
        f"{shown}"
    )
    assert _on_average(six) in league_page(six, planned).split("## Over tasks")[1]


def test_a_page_on_which_nothing_is_told_apart_says_so_once(tmp_path: Path) -> None:
    findings = found(tmp_path, adult=confirmed({"disk": 0.7, "dp-sgd": 0.7}))
    page = league_page(findings, {"adult": "Adult"})
    assert "In none of them is a method shown not to be the best." in page
    assert "left as the best" not in page
    assert "Of 48 confirmed runs none collapsed." in page


def test_the_table_of_tasks_has_epsilon_with_the_search_where_batches_are_poisson(
    tmp_path: Path,
) -> None:
    """Eleven runs at σ, q and T are one of 11T steps."""
    runs = confirmed(BETTER, epsilons=(1.0, 3.0))
    for one in runs:
        one["noise_multiplier"], one["delta"] = 6.0 / one["epsilon"], 1e-5
    tasks = read_league(published(tmp_path, digits=runs, adult=confirmed(BETTER)))
    findings = LeagueFindings(tasks, searches={"digits": (0.1, 2200)})
    once = [composed_epsilon([(6.0 / e, 0.1, 200)] * 11, delta=1e-5) for e in (1, 3)]
    cells = {cells[0]: cells for cells in cells_below(league_page(findings, PLANNED), "Tasks")}
    assert cells["adult"][4] == cells["compas"][4] == "–"
    shown = [float(one) for one in cells["digits"][4].split(", ")]
    assert shown == pytest.approx(once, abs=0.1)
    assert all(one >= least for one, least in zip(shown, once, strict=True))  # never below


@pytest.mark.parametrize(
    ("task", "rate", "steps"),
    [
        ("digits", 130 / 1300, 11 * 200),
        ("newsgroups-public", 250 / 10_043, 11 * 100),
        ("digits-users", 60 / 600, 11 * 100),
    ],
)
def test_a_search_draws_as_its_eleven_runs_do(task: str, rate: float, steps: int) -> None:
    assert search_of(load_study(TASKS / f"{task}.yaml")) == (pytest.approx(rate), steps)


def test_what_a_search_draws_is_not_said_of_other_batches_than_poisson() -> None:
    assert search_of(load_study(TASKS / "digits-correlated.yaml")) is None


SPACE = Tune(ranges={"learning_rate": (0.1, 10.0)}, trials=10, seeds=(1,))


def at_rates(means: dict[str, float], rates: dict[str, list[float]], seed: int) -> list[Any]:
    """Return confirmed runs whose searches chose these learning rates in turns."""
    runs = confirmed(means, seed=seed)
    for one in runs:
        chosen = rates[one["label"]]
        rate = chosen[(one["search"] - 1) % len(chosen)]
        one["hyperparameters"] = json.dumps({"learning_rate": rate})
    return runs


def test_the_page_says_where_half_of_the_searches_end_at_one_end_of_their_range(
    tmp_path: Path,
) -> None:
    rates = {"disk": [0.1, 9.0, 1.0], "dp-lion": [1.0], "dp-sgd": [1.0, 9.0]}
    tasks = {f"task{n}": at_rates(BETTER, rates, seed=n) for n in range(6)}
    spaces = dict.fromkeys(tasks, dict.fromkeys(BETTER, SPACE))
    findings = LeagueFindings(read_league(published(tmp_path, **tasks)), spaces=spaces)
    table = cells_below(league_page(findings, PLANNED), "Each method, in all settings")
    assert {cells[0]: cells[6] for cells in table} == {"disk": "0", "dp-lion": "0", "dp-sgd": "6"}
    assert "Of the methods shown to be worse" not in league_page(findings, PLANNED)
    said = "task5 (ε = 3), at least half of the searches of DP-SGD chose a learning rate in an ou"
    assert said in league_page(findings, PLANNED)
    said = "In 6 of those 6 settings a wider range of learning rates might help DP-SGD."
    assert answer(findings, dict.fromkeys(tasks, "")).endswith(f" {said}")
    unknown = LeagueFindings(findings.tasks)
    assert said not in answer(unknown, dict.fromkeys(tasks, ""))


def test_the_page_says_of_what_is_worse_where_its_range_ended_too_early(tmp_path: Path) -> None:
    rates = {"disk": [0.1, 9.0, 1.0], "dp-lion": [9.0], "dp-sgd": [1.0]}
    worse = {"disk": 0.7, "dp-lion": 0.5, "dp-sgd": 0.7}
    tasks = {f"task{n}": at_rates(worse, rates, seed=n) for n in range(2)}
    spaces = dict.fromkeys(tasks, dict.fromkeys(worse, SPACE))
    findings = LeagueFindings(read_league(published(tmp_path, **tasks)), spaces=spaces)
    said = "so a wider range might help them, too: dp-lion on task0 (ε = 3) and task1 (ε = 3)."
    assert said in league_page(findings, PLANNED)


def test_the_answer_says_how_many_methods_a_screen_tried(six: LeagueFindings) -> None:
    """Screens are not spoken of where there are none."""
    screen = [row(label, panel="screen", search=None, seed=99) for label in ("fiber", *BETTER)]
    files = {task: [*runs.to_dict("records"), *screen] for task, runs in six.tasks.items()}
    screened = LeagueFindings({task: pd.DataFrame(rows) for task, rows in files.items()})
    planned = dict.fromkeys(six.tasks, "")
    assert answer(screened, planned).startswith(
        "On 6 tasks, with 4 methods and variants screened and 3 confirmed on each, tests show DP"
    )
    chosen = "A method that passed only some screens", "the settings of tasks whose screen it"
    for found, said in ((screened, True), (six, False)):
        page = league_page(found, planned)
        assert [each in page for each in chosen] == [said, said]


def test_references_are_counted_apart_from_the_methods_that_are_confirmed(
    six: LeagueFindings,
) -> None:
    files = {}
    for task, runs in six.tasks.items():
        one = runs[runs["label"] == "disk"].assign(label="dp-prototypes", panel="references")
        files[task] = pd.concat([runs, one.assign(search=np.nan)])
    said = answer(LeagueFindings(files), dict.fromkeys(six.tasks, ""))
    assert said.startswith("On 6 tasks, with 3 methods confirmed and 1 reference compared on ")


def test_tasks_of_one_data_set_are_one_task_with_their_mean(tmp_path: Path) -> None:
    """Features of a data set by two encoders, among five other tasks."""
    of = {0: "newsgroups-glove", 1: "newsgroups-minilm", 2: "reuters-r8-glove"}
    tasks = {
        f"task{n}": [one | {"dataset": of[n]} for one in confirmed(BETTER, seed=n)] for n in of
    }
    findings = found(tmp_path, **tasks)
    gains = findings.gains[findings.gains["method"] == "disk"].set_index("task")["gain"]
    one = next(one for one in findings.over_tasks if one.method == "disk")
    assert one.gain.gains.tolist() == [gains[["task0", "task1"]].mean(), gains["task2"]]
    assert "### Over tasks" not in league_page(findings, dict.fromkeys(tasks, ""))
    five = {f"other{n}": confirmed(BETTER, seed=n) for n in range(3, 6)}
    assert not found(tmp_path, **tasks, **five).p_values  # of five data sets
    six = found(tmp_path, **tasks, **five, last=confirmed(BETTER, seed=6))
    assert six.p_values[3.0]["dp-sgd"] == 2 / 64
    page = league_page(six, dict.fromkeys(six.tasks, ""))
    assert "Of one data set, and so one task: task0 and task1." in page
    assert cells_below(page, "Over tasks, ε = 3")[-1][::6] == ["dp-sgd", "0.0312"]


def test_a_method_that_equals_the_baseline_on_a_task_gains_nothing_there(tmp_path: Path) -> None:
    tasks = {f"task{n}": confirmed(BETTER, seed=n) for n in range(2)}
    same = {one["seed"]: one for one in tasks["task0"] if one["label"] == "dp-sgd"}
    kept = ("correct", "test_accuracy")
    for one in tasks["task0"]:
        if one["label"] == "disk":
            one |= {name: same[one["seed"]][name] for name in kept}
    model = next(one for one in found(tmp_path, **tasks).over_tasks if one.method == "disk").gain
    assert (model.tasks, model.gains[0]) == (2, 0)


def test_an_answer_without_a_better_method_says_so(tmp_path: Path) -> None:
    worse = {"disk": 0.65, "dp-lion": 0.6, "dp-sgd": 0.7}
    tasks = {f"task{n}": confirmed(worse, seed=n, searches=8, examples=200) for n in range(6)}
    said = answer(found(tmp_path, **tasks), dict.fromkeys(tasks, ""))
    assert (
        "On average over tasks, no simultaneous 95% interval (nominal) shows a gain over DP-SGD."
        in said
    )


def test_gains_that_are_positive_only_alone_are_said_to_be_few_of_many() -> None:
    gains = {"disk": [0.04, 0, 0.03, 0.01, 0.035, 0.005], "dp-lion": [0.01, 0, -0.01, 0, 0, 0]}
    models = {name: MixedModel(np.array(each), np.full(6, 1e-4)) for name, each in gains.items()}
    findings = LeagueFindings({})
    vars(findings)["over_tasks"] = [
        MethodOverTasks(3.0, name, model, None, None, ()) for name, model in models.items()
    ]
    ends = [f"{100 * one:.1f}" for one in vars(models["disk"].mean).values()]
    assert _on_average(findings).startswith("On average over tasks, no simultaneous 95% inter")
    assert [*_by_themselves(findings)] == [
        "The pointwise 95% interval of a gain lies above 0 "
        f"at ε = 3 for disk ({ends[0]} points, {ends[1]} to {ends[2]}); by chance alone, 0.1 of "
        "these 2 intervals would be expected to."
    ]


@pytest.mark.long
def test_the_readme_has_the_answer_of_the_published_files() -> None:
    planned = tasks_of(TASKS)
    said = answer(findings_of(ROOT / FOLDER, planned)[PRIVATE], titles(planned[PRIVATE]))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = re.sub(r"!?\[(.*?)\]\(.*?\)", r"\1", readme)
    assert said in words, f"README.md: copy the answer from {FOLDER}/index.md"
    assert f"]({FOLDER}/over-tasks.png)" in readme


@pytest.mark.long
def test_the_pages_in_the_documentation_are_those_that_are_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other processors may round the last digits differently."""
    monkeypatch.chdir(ROOT)
    assert main(["league", "--page", str(tmp_path)]) == 0
    kept, made_now = (
        {str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.suffix != ".parquet"}
        for folder in (FOLDER, tmp_path)
    )
    assert kept == made_now, AGAIN
    for name in kept:
        made, known = ((folder / name).read_bytes() for folder in (tmp_path, FOLDER))
        read = described if name.endswith(".png") else bytes.decode
        assert_alike(read(made), read(known))


def assert_alike(made: str, known: str) -> None:
    number = r"\d+\.\d+"
    texts = [re.sub(number, "#", text) for text in (made, known)]
    assert texts[0] == texts[1], AGAIN
    digits = ([float(one) for one in re.findall(number, text)] for text in (made, known))
    assert next(digits) == pytest.approx(
        next(digits), rel=0.01, abs=0.11
    )  # of what has one decimal
