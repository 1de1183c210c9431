"""Simulate leagues whose truth is known: the size of the league's tests, and their power.

    python benchmarks/league_inference.py                  # four minutes of a core
    python benchmarks/league_inference.py --settings 100   # a rough picture

It writes `benchmarks/results/league_inference.json` and `docs/league/size-and-power.png`. A league
has 18 tasks at three budgets, twelve searches and two seeds of each. Its methods are uneven, and
runs collapse (`League` in `clipnoise.report.inference.simulation` says how), except in the lines
marked "methods equally noisy", where results are normal with one variance, and "no run collapses".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clipnoise.report.figures import canvas
from clipnoise.report.inference.simulation import (
    FLIPS,
    FLIPS_TOGETHER,
    POPULATION,
    T_TESTS,
    TOGETHER,
    League,
    mixed_model_rate,
    rates,
)

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "benchmarks" / "results" / "league_inference.json"
FIGURE = ROOT / "docs" / "league" / "size-and-power.png"
METHODS = (5, 9, 13)
LEADS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)  # points
ALIKE = {"noisier": 1.0, "collapse": 0.0}
UNEQUAL = {"collapse": 0.0, "first_collapses": 0.05}
TEST_ERROR = 0.005
DRAWS = 499  # of each test
# What a line of the figure is called: its test, and how its leagues differ from the others.
Lines = dict[str, tuple[str, dict[str, float]]]
UNEVEN: Lines = {test: (test, {}) for test in (FLIPS, FLIPS_TOGETHER, POPULATION)}
SIZES: Lines = {
    f"{T_TESTS}, alike": (T_TESTS, ALIKE),
    f"{FLIPS}, alike": (FLIPS, ALIKE),
    **UNEVEN,
}
POWERS: Lines = {**UNEVEN, f"{FLIPS}, none collapse": (FLIPS, {"collapse": 0.0})}
SETTINGS = League().tasks * League().budgets
LOOKS = {  # the test in plain words, colour, line and marker
    f"{T_TESTS}, alike": (f"{T_TESTS},\nmethods equally noisy", "0.6", ":", "x"),
    f"{FLIPS}, alike": ("sign flips, one setting,\nmethods equally noisy", "0.6", "--", "s"),
    FLIPS: ("sign flips, one setting", "black", "-", "o"),
    FLIPS_TOGETHER: (f"sign flips, all {SETTINGS} settings together", "black", "--", "o"),
    POPULATION: ("for all examples there could be,\none setting", "0.35", "-", "^"),
    f"{FLIPS}, none collapse": ("sign flips, one setting,\nno run collapses", "0.6", "-.", "D"),
}


def league(test: str, methods: int, *, whole: bool, **changes: float) -> League:
    """Return the league for a test: a setting, or all of them."""
    error = TEST_ERROR if test == POPULATION else 0.0
    shape: dict[str, Any] = {} if whole else {"tasks": 1, "budgets": 1}
    return League(methods=methods, test_error=error, **shape, **changes)


def measure(settings: int, leagues: int) -> dict[str, Any]:
    """Return size and power by test.

    Args:
        settings: drawn for each number of a test of one setting.
        leagues: drawn for the size of a test of all settings.
    """
    size: dict[str, Any] = {}
    for name, (test, changes) in SIZES.items():
        whole = test in TOGETHER
        trials = leagues if whole else settings
        made = [
            rates(league(test, m, whole=whole, **changes), test, trials, draws=DRAWS)
            for m in METHODS
        ]
        size[name] = {"wrong": [one.wrong for one in made], "error": made[0].error}
        print(name, size[name], flush=True)
    unequal = rates(league(FLIPS, METHODS[-1], whole=False, **UNEQUAL), FLIPS, settings).wrong
    print("one method collapses in 5% of runs, the others never", unequal, flush=True)
    power: dict[str, list[float]] = {}
    for name, (test, changes) in POWERS.items():
        whole = test in TOGETHER
        trials = max(2, settings // 100) if whole else settings // 4
        leagues_led = [
            league(test, METHODS[-1], whole=whole, lead=at / 100, **changes) for at in LEADS
        ]
        power[name] = [rates(led, test, trials, draws=DRAWS).found for led in leagues_led]
        print(name, [round(found, 3) for found in power[name]], flush=True)
    return {
        "methods": METHODS,
        "leads": LEADS,
        "settings": settings,
        "leagues": leagues,
        "size": size,
        "unequal": unequal,
        "power": power,
        "over_tasks": over_tasks(settings),
    }


def over_tasks(leagues: int) -> dict[str, Any]:
    """Return size and power, at a lead of a point, of intervals over tasks that hold together.

    There are six methods. For the size, each of them gains on some tasks and loses on others.

    Args:
        leagues: drawn for each number.
    """
    shape: dict[str, Any] = {"methods": 6, "budgets": 3}
    wrong, found = {}, {}
    for tasks in (6, 18):
        equal = League(tasks=tasks, interaction=0.01, **shape)
        wrong[str(tasks)] = mixed_model_rate(equal, leagues).wrong
        led = League(tasks=tasks, lead=0.01, **shape)
        found[str(tasks)] = mixed_model_rate(led, leagues).found
    print("over tasks", wrong, found, flush=True)
    return {"wrong": wrong, "found": found}


def draw(found: dict[str, Any]) -> Figure:
    """Draw size against the number of methods, and power against the lead."""
    figure, ((left, right),) = canvas.sheet(1, 2, height=3.4)
    for name, one in found["size"].items():
        line(left, name, found["methods"], [100 * wrong for wrong in one["wrong"]])
    left.axhline(5, color="0.8", linewidth=1, zorder=0)
    left.set(xlabel="methods", ylabel="wrong (%)", title="Equal methods: one is excluded")
    left.set_xticks(found["methods"])
    left.set_ylim(0)
    for name, powers in found["power"].items():
        line(right, name, found["leads"], [100 * power for power in powers])
    right.set(
        xlabel="lead of the best method (points)",
        ylabel="excluded (%)",
        title=f"{found['methods'][-1]} methods: DP-SGD is excluded",
        ylim=(0, 102),
    )
    named = {str(one.get_label()): one for one in [*left.lines, *right.lines]}
    labels = [label for label, *_ in LOOKS.values()]
    lines = [named[label] for label in labels]
    figure.legend(lines, labels, loc="outside lower center", ncols=3, columnspacing=1.2)
    return figure


def line(ax: Axes, name: str, x: list[float], y: list[float]) -> None:
    """Draw the numbers of one test."""
    label, colour, dashes, marker = LOOKS[name]
    ax.plot(x, y, color=colour, linestyle=dashes, marker=marker, label=label, clip_on=False)


def main() -> None:
    """Simulate, and write the numbers and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=400, help="for each number of one setting")
    parser.add_argument("--leagues", type=int, default=40, help="for each size over all settings")
    parser.add_argument("--draw", action="store_true", help="only draw the numbers that are there")
    given = parser.parse_args()
    if not given.draw:
        found = measure(given.settings, given.leagues)
        NUMBERS.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    with canvas.look():
        draw(json.loads(NUMBERS.read_text())).savefig(FIGURE, dpi=150)


if __name__ == "__main__":
    main()
