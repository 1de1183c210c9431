"""Every table of docs/league-results.md follows from the published runs, and so do its claims."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from clipnoise.cli import main
from clipnoise.privacy.noise_strategies import cancelling, prefix_sum_rmse
from clipnoise.report.inference.sign_flips import best_p_values
from clipnoise.report.publication import read_published, run_rows
from clipnoise.report.records import read_runs
from clipnoise.report.statistics import ALPHA
from clipnoise.studies.audits import holm
from clipnoise.studies.columns import PUBLISHED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "league-results.md").read_text(encoding="utf-8")
LATEST = ROOT / "docs" / "league"
CHANGES = ("transfer", "half-rate", "twice-rate", "half-clip", "twice-clip")
NOISE = {
    "independent": "",
    "banded over": "-correlated",
    "banded-inverse": "-correlated-banded-inverse",
    "buffered": "-correlated-blt",
    "λ-correlated": "-correlated-lambda-cgd",
    "tree": "-correlated-tree",
}


@cache
def runs() -> pd.DataFrame:
    """Return the published runs, values in percent."""
    table = pd.read_parquet(LATEST / "league.parquet")
    return table.assign(value=100 * table["value"])


def tasks() -> list[str]:
    """Return the panels that are ranked."""
    panels = runs()["panel"].unique()
    return [panel for panel in panels if f"{panel}-transfer" in panels]


def means(panel: str) -> pd.DataFrame:
    """Return the mean over seeds of each label (rows) at each ε (columns)."""
    rows = runs()[(runs()["panel"] == panel) & runs()["epsilon"].notna()]
    return rows.pivot_table("value", "label", "epsilon", aggfunc="mean")


def near(shown: str, value: float) -> bool:
    """Return whether a number of the page is this value, rounded to one decimal."""
    return abs(float(shown.replace("−", "-")) - value) < 0.0501


def gains() -> dict[float, pd.DataFrame]:
    """Return by ε what each method (rows) has over DP-SGD on each task (columns)."""
    by_task = {task: means(task) for task in tasks()}
    return {
        epsilon: pd.DataFrame(
            {t: m[epsilon] - m.loc["dp-sgd", epsilon] for t, m in by_task.items()}
        )
        for epsilon in (1, 3, 8)
    }


def changes() -> pd.DataFrame:
    """Return what each method (rows) gains on average under each other choice (columns)."""
    pairs = ["label", "epsilon", "seed"]
    found = {}
    for kind in CHANGES:
        each = []
        for task in tasks():
            (other, chosen) = (
                runs()[runs()["panel"] == panel].dropna(subset="epsilon").set_index(pairs)["value"]
                for panel in (f"{task}-{kind}", task)
            )
            each.append((other - chosen).dropna().groupby("label").mean())
        found[kind] = pd.concat(each, axis=1).mean(axis=1, skipna=False)
    return pd.DataFrame(found)


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the page's table below a header row that begins so."""
    lines = PAGE.partition(f"\n| {heading}")[2].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def test_the_table_of_methods_has_every_private_method_and_its_gains() -> None:
    by_epsilon = gains()
    every = pd.concat(by_epsilon.values(), axis=1)
    shown = {row[0].rstrip(" †‡"): row[1:6] for row in rows_of("method")}
    assert shown.keys() == set(every.index)
    for label, cells in shown.items():
        values = [by_epsilon[epsilon].loc[label].mean() for epsilon in (1, 3, 8)]
        values += [every.loc[label].min(), every.loc[label].max()]
        assert all(map(near, cells, values)), (label, cells, values)


def test_the_table_of_methods_says_what_other_choices_change() -> None:
    known = changes()
    for row in rows_of("method"):
        label, cells = row[0].rstrip(" †‡"), row[6:11]
        for cell, kind in zip(cells, CHANGES, strict=True):
            value = known[kind].get(label, np.nan)
            assert cell == "–" if np.isnan(value) else near(cell, value), (label, kind, value)


@pytest.mark.parametrize("start", NOISE)
def test_the_table_of_noise_has_the_means_of_its_runs(start: str) -> None:
    shown = next(row for row in rows_of("noise") if row[0].startswith(start))
    panels = (f"{task}{NOISE[start]}" for task in ("digits", "adult"))
    values = np.concatenate([means(panel).loc["dp-adam"] for panel in panels])
    assert all(map(near, shown[1:7], values))


def test_the_numbers_of_the_verdict_are_those_of_the_runs() -> None:
    news, public, reuters = map(means, ("newsgroups", "newsgroups-public", "reuters-r8"))
    plain = runs()[(runs()["panel"] == "newsgroups") & runs()["epsilon"].isna()]
    said = {
        "# against # for DP-SGD and # without": [
            *(news.loc[label, 8] for label in ("stp-adam", "dp-sgd")),
            plain.groupby("label")["value"].mean().max(),
        ],
        "highest mean at ε = 3 (# against #)": [news.loc[one, 3] for one in ("stp-adam", "dp-sgd")],
        "and at ε = 1 (# against #)": [news.loc[one, 1] for one in ("stp-adam", "dp-sgd")],
        "# against # for DP-SGD at ε = 1, # against # at ε = 3, and # against # at ε = 8": [
            reuters.loc[one, epsilon] for epsilon in (1, 3, 8) for one in ("stp-adam", "dp-sgd")
        ],
        "DP-SGD: # against # at ε = 1": [public.loc[one, 1] for one in ("adadps-adam", "dp-sgd")],
        "`adadps-adam`), # against # at ε = 8": [
            public.loc[one, 8] for one in ("adadps-adagrad", "dp-sgd")
        ],
    }
    for sentence, values in said.items():
        found = re.search(re.escape(sentence).replace(r"\#", r"(\d+\.\d)%"), PAGE)
        assert found, sentence
        assert all(map(near, found.groups(), values)), sentence


def test_every_reported_run_is_counted_and_none_diverged() -> None:
    reported = len(runs().drop_duplicates("hash"))
    assert f"- {reported:,} reported runs" in PAGE
    assert set(runs()["status"]) == {"completed"}, "the page says that no run diverged"


def test_the_description_is_that_of_the_published_file() -> None:
    described = json.loads((LATEST / "croissant.json").read_text())
    (file,) = described["distribution"]
    content = (LATEST / file["contentUrl"]).read_bytes()
    assert file["sha256"] == hashlib.sha256(content).hexdigest()
    assert [field["name"] for field in described["recordSet"][0]["field"]] == list(PUBLISHED)


def test_the_published_file_is_read_as_the_runs_that_it_was_made_from() -> None:
    rows = read_published(LATEST / "league.parquet")
    pd.testing.assert_frame_equal(run_rows(read_runs(LATEST / "league.parquet")), rows)


@pytest.mark.long
def test_the_page_printed_from_the_published_file_has_the_table_of_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = re.findall(r"^clipnoise (publish .*)$", PAGE, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command), "--out", str(tmp_path)]) == 0
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    lines = re.findall(r"<tr><th>([^<]+)</th>((?:<td>[^<]*</td>)+)</tr>", html)
    printed = {name: re.findall("<td>([^<]*)", cells) for name, cells in lines}
    shown = {row[0]: row[1:-1] for row in rows_of("method")}  # without the time
    assert {name: printed[name] for name in shown} == shown


def ranked(task: str, epsilon: float) -> pd.DataFrame:
    """Return the results of each method (rows) that is ranked, by seed."""
    rows = runs()[(runs()["panel"] == task) & (runs()["epsilon"] == epsilon)]
    return rows[rows["claim"] == "guarantee"].pivot(index="label", columns="seed", values="value")


@cache
def can_be_best(task: str, epsilon: float) -> dict[str, float]:
    """Return the methods that can be the best, with their p-values; all others are excluded."""
    here = ranked(task, epsilon)
    p_values = best_p_values(here.to_numpy())
    return {label: p for label, p in zip(here.index, p_values, strict=True) if p > ALPHA}


@cache
def settings() -> list[tuple[str, float]]:
    """Return all ranked tasks at all budgets."""
    return [(task, epsilon) for task in tasks() for epsilon in (1, 3, 8)]


def test_no_setting_has_a_sole_best_method_and_some_exclude_dp_sgd() -> None:
    assert len(settings()) == 21
    assert "In none of the 21 settings is one method shown to be better" in PAGE
    assert all(len(can_be_best(*at)) > 1 for at in settings())
    (said,) = re.findall(r"In (\d+) of them DP-SGD is shown not to be the best", PAGE)
    assert sum("dp-sgd" not in can_be_best(*at) for at in settings()) == int(said)


def test_corrected_for_settings_seven_methods_or_more_can_be_the_best() -> None:
    left = {}
    for at in settings():
        here = ranked(*at)
        p_values = len(settings()) * best_p_values(here.to_numpy())
        left[at] = set(here.index[p_values > ALPHA])
    assert min(map(len, left.values())) == 7
    without = {at for at, labels in left.items() if "dp-sgd" not in labels}
    assert without == {("adult", 3), ("newsgroups", 8), ("reuters-r8", 1)}


@pytest.mark.parametrize(
    ("task", "epsilon", "best", "others", "dp_sgd"),
    [
        ("adult", 3, "dp-schedule-free", 2, False),
        ("adult", 8, "dp-schedule-free", 3, False),
        ("newsgroups", 1, "stp-adam", 16, False),
        ("newsgroups", 3, "stp-adam", {"dp-adam-quantile"}, False),
        ("newsgroups", 8, "stp-adam", {"dp-adam-quantile"}, False),
        ("reuters-r8", 1, "stp-adam", 11, False),
        ("reuters-r8", 3, "stp-adam", 3, False),
        ("reuters-r8", 8, "stp-adam", 4, True),
        ("mnist-5k", 1, "disk", 16, False),
        ("mnist-5k", 3, "dp-sgd-quantile", 17, True),
        (
            *("mnist-5k", 8, "dp-schedule-free-adamw"),
            {"dp-rmsprop", "dp-sgd-quantile", "dp-schedule-free"},
            False,
        ),
        ("digits", 1, "dp-schedule-free", 29, True),
        ("digits", 3, "disk", 27, True),
        ("digits", 8, "dp-adagrad", 14, False),
        ("rand-health", 8, "dp-adam-quantile", 21, True),
    ],
)
def test_what_cannot_be_told_from_the_highest_mean_is_what_the_page_says(
    task: str, epsilon: float, best: str, others: int | set[str], dp_sgd: bool
) -> None:
    here = can_be_best(task, epsilon)
    assert ranked(task, epsilon).mean(axis=1).idxmax() == best
    rest = here.keys() - {best}
    assert (len(rest) if isinstance(others, int) else rest) == others
    assert ("dp-sgd" in here) == dp_sgd


def test_the_methods_for_users_are_told_apart_in_one_setting() -> None:
    apart = [
        (task, epsilon)
        for task in ("digits-users", "rand-health-users")
        for epsilon in (1, 3, 8)
        if len(can_be_best(task, epsilon)) == 1
    ]
    assert apart == [("rand-health-users", 8)]
    assert "cannot be told apart in five of six settings" in PAGE


def test_published_values_have_a_sole_best_method_as_often_as_the_page_says() -> None:
    alone = [can_be_best(f"{task}-published", epsilon) for task, epsilon in settings()]
    sole = Counter(next(iter(one)) for one in alone if len(one) == 1)
    assert sole == {"innerouter": 11, "dp-adambc": 2}
    assert "is the best in 11 of 21 settings and `dp-adambc` in 2" in PAGE


def test_frequencies_are_not_told_from_public_examples_on_newsgroups() -> None:
    assert can_be_best("newsgroups-public", 8).keys() == {"adadps-adagrad", "adadps-side"}


def by_t(differences: np.ndarray) -> float:
    return float(stats.ttest_1samp(differences, 0).pvalue)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # equal results have no t
def test_paired_t_tests_called_a_method_the_best_in_three_settings() -> None:
    sole = 0
    for at in settings():
        here = ranked(*at)
        best = here.loc[here.mean(axis=1).idxmax()]
        others = here.drop(index=best.name)
        sole += max(holm([by_t((best - row).to_numpy()) for _, row in others.iterrows()])) < ALPHA
    assert sole == 3
    assert "in three of the 21 settings they called a method the best" in PAGE


def test_no_test_by_ranks_can_tell_a_method_from_all_others_with_ten_seeds() -> None:
    for task in tasks():
        here = ranked(task, 8)
        assert here.shape == (36, 10)
    least = stats.wilcoxon(np.arange(1.0, 11.0)).pvalue  # every seed has the same sign
    assert f"35 · 2⁻⁹ = {35 * least:.3f}" in PAGE
    assert 35 * least > 0.05


def test_what_cannot_be_told_from_the_best_on_reuters_collapsed_in_a_seed() -> None:
    assert (means("reuters-r8").idxmax() == "stp-adam").all()
    for epsilon in (3, 8):
        others = can_be_best("reuters-r8", epsilon).keys() - {"stp-adam"}
        assert (ranked("reuters-r8", epsilon).loc[list(others)].min(axis=1) < 79).all()
    results = ranked("reuters-r8", 8).loc["dp-sgd"]
    assert results.min() == pytest.approx(65.5, abs=0.05)
    assert results.drop(results.idxmin()).mean() == pytest.approx(86.6, abs=0.05)


@pytest.mark.parametrize(
    ("task", "method", "epsilon"),
    [
        ("newsgroups", "stp-adam", 8),
        ("reuters-r8", "stp-adam", 3),
        ("mnist-5k", "dp-schedule-free-adamw", 8),
        ("adult", "dp-schedule-free", 8),
    ],
)
def test_whichever_five_seeds_choose_the_other_five_agree(
    task: str, method: str, epsilon: float
) -> None:
    here = ranked(task, epsilon)
    for five in itertools.combinations(here.columns, 5):
        assert here[list(five)].mean(axis=1).idxmax() == method
        rest = here.drop(columns=list(five)).mean(axis=1)
        assert rest[method] > rest["dp-sgd"]


@pytest.mark.parametrize(
    ("groups", "steps", "change"), [(10, 200, -0.1), (14, 40, -0.2), (64, 300, 0.2)]
)
def test_another_lambda_would_change_the_error_as_the_page_says(
    groups: int, steps: int, change: float
) -> None:
    """Digits, MNIST and Adult, in whose panels λ is 0.9; the page compares it with 0.8."""
    other, used = (prefix_sum_rmse(cancelling(steps, one), groups) for one in (0.8, 0.9))
    assert other / used - 1 == pytest.approx(change, abs=0.02)


def test_noises_differ_on_mnist_as_the_page_says() -> None:
    level = means("mnist-5k-correlated").loc["dp-adam"]
    gains = [
        level - means(f"mnist-5k-correlated-{kind}").loc["dp-adam"]
        for kind in ("banded-inverse", "blt")
    ]
    assert [round(gain[1], 1) for gain in gains] == [6.0, 5.5]
    assert [round(-gain[8], 1) for gain in gains] == [1.5, 1.4]
    for kind, at in itertools.product(("", "-banded-inverse", "-blt"), ("digits", "adult")):
        gap = means(f"{at}-correlated") - means(f"{at}-correlated{kind}")
        assert gap.loc["dp-adam"].abs().max() < 0.5


def test_adjacency_is_that_of_the_track() -> None:
    private = runs()[runs()["claim"] == "guarantee"]
    track = private["panel"].str.extract("(correlated|users)")[0].fillna("")
    known = {"correlated": "zero-out", "users": "add-remove-user", "": "add-remove"}
    assert (private["adjacency"] == track.map(known)).all()


def test_the_two_names_of_one_algorithm_have_the_same_results() -> None:
    both = runs()[runs()["panel"].isin(tasks())].set_index(["panel", "epsilon", "seed"])
    first, second = (
        both.loc[both["label"] == name, "value"] for name in ("lp-dpsgd", "dp-pmlf-wo-pm")
    )
    pd.testing.assert_series_equal(first, second)


def test_equal_methods_differ_as_often_as_the_page_says() -> None:
    """Choose the best of 36 equal methods, then test it on the seeds that chose it."""
    rng = np.random.default_rng(1)
    worse = above = 0
    for results in rng.normal(size=(2000, 36, 10)):
        best = results.mean(axis=1).argmax()
        over = results[best] - results
        spread = over.std(axis=1, ddof=1) / np.sqrt(10)
        with np.errstate(invalid="ignore"):
            t = over.mean(axis=1) / spread
        worse += np.nanmax(t) > stats.t.isf(0.05 / 35 / 2, 9)
        above += t[0] > stats.t.isf(0.025, 9)
    (said,) = re.findall(r"would do so in (\d+)% of settings.* exclude zero in (\d+)%", PAGE)
    assert [100 * worse / 2000, 100 * above / 2000] == pytest.approx(list(map(int, said)), abs=3)
