"""Every table of docs/league-results.md follows from the published runs, and so do its claims."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "league-results.md").read_text(encoding="utf-8")
VERSION = re.findall(r"^Version (\d+) of", PAGE, re.MULTILINE)[0]
LATEST = ROOT / "docs" / "league" / f"v{VERSION}"
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
        "mean at ε = 3 (# against #)": [news.loc[one, 3] for one in ("stp-adam", "dp-sgd")],
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


@pytest.mark.parametrize("page", sorted(LATEST.parent.glob("*/index.html")))
def test_files_beside_a_published_page_are_there(page: Path) -> None:
    named = re.findall(r'<a href="(league[^"]*)"', page.read_text(encoding="utf-8"))
    assert len(named) == 2
    assert [name for name in named if not (page.parent / name).is_file()] == []
