"""Screen, then confirm: which methods pass, how that is recorded, and that seeds are not shared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipnoise.data.base import dataset_class
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.files import read_yaml
from clipnoise.methods.base import example, method_class, track
from clipnoise.models.encoders import ENCODERS
from clipnoise.report.inference.sign_flips import units_needed
from clipnoise.report.statistics import ALPHA
from clipnoise.studies.entry import PanelEntry
from clipnoise.studies.file import Panel, StudyFile
from clipnoise.studies.league import confirmation, enter
from clipnoise.studies.panels import expand_panels
from clipnoise.studies.screening import (
    Screening,
    confirmed,
    passing,
    screened_panels,
    with_methods,
)
from clipnoise.studies.study import load_study, names_below, shared_file, studies_of_papers
from clipnoise.studies.tracks import PRETRAINED, planned_track

STUDIES = Path(__file__).parents[2] / "workflow" / "studies"
LITE = "league/lite"
TASKS = [name for name in names_below(STUDIES, "league/*.yaml") if name != LITE]
PANELS = {name: {*parse(StudyFile, read_yaml(STUDIES / f"{name}.yaml")).panels} for name in TASKS}
SCREENED = [name for name in TASKS if "screen" in PANELS[name]]
PAGE = (STUDIES.parents[1] / "docs" / "league.md").read_text(encoding="utf-8")
COSTS = (
    "| task | runs | core seconds for a run | core minutes | of these around the runs "
    "| minutes that it took |"
)
TRIALS = {"ranges": {"learning_rate": [0.1, 10]}, "trials": 2}
SHARED: dict[str, Any] = {
    "datasets": ["digits"],
    "models": ["logistic"],
    "epsilons": [1],
    "training": {"expected_batch_size": 100, "steps": 5},
    "hyperparameters": {"dp-sgd, disk, dp-sat, dp-lssgd": {"clip_norm": 1, "tune": TRIALS}},
}
PER_LAYER = {"id": "dp-sgd", "label": "per layer", "clip_rule": {"per": "layer"}}
BASES: dict[str, Any] = {
    "all": SHARED,
    "screen": {
        "base": "all",
        "seeds": [1, 2],
        "tuning": {"seeds": [11]},
        "methods": ["dp-sgd", "disk", "dp-sat", "dp-lssgd", PER_LAYER],
    },
    "confirm": {
        "base": "all",
        "seeds": [21, 22],
        "tuning": {"seeds": [31, 32], "searches": 2},
        "screened_by": {"panel": "screen", "methods": 3},
        "methods": ["dp-sgd"],
    },
}
TEXT = """title: A task  # kept
panels:
  screen: {base: screen}

report: []
"""


def written(folder: Path, text: str = TEXT, **confirm: Any) -> Path:
    path = folder / "studies" / "league" / "task.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    bases = {**BASES, "confirm": {**BASES["confirm"], **confirm}}
    path.with_name("shared.yaml").write_text(yaml.safe_dump({"bases": bases}))
    return path


def every_panel(task: str) -> dict[str, Panel]:
    path = STUDIES / "league" / f"{task}.yaml"
    file = parse(StudyFile, read_yaml(path), file=str(path))
    return {one.name: one.panel for one in expand_panels(file, shared_file(path), path)}


def examples(panel: Panel) -> int:
    """Return how many examples a panel trains on."""
    (named,) = panel.datasets
    options = {key: value for key, value in named.given.items() if key != "id"}
    return parse(dataset_class(named.id), options).sizes()["train"]


def scores(**values: tuple[float, ...]) -> list[Screening]:
    """Return runs at ε = 1, 3, …, one seed each."""
    return [
        Screening(label=label, epsilon=2 * number + 1.0, score=score)
        for label, each in values.items()
        for number, score in enumerate(each)
    ]


def test_methods_pass_by_their_mean_rank_over_budgets_and_not_by_their_mean_score() -> None:
    runs = scores(a=(0.5, 0.99, 0.5), b=(0.6, 0.8, 0.4), c=(0.61, 0.7, 0.6), d=(0.1, 0.2, 0.3))
    # ranks: a 3, 1, 2; b 2, 2, 3; c 1, 3, 1; d last. The mean score of a is the highest.
    assert passing(runs) == ["c", "a", "b", "d"]


def test_equal_methods_keep_the_order_of_the_panel_and_share_ranks() -> None:
    runs = scores(c=(0.5, 0.4), a=(0.4, 0.5), worse=(0.1, 0.1))
    assert passing(runs) == ["c", "a", "worse"]
    # b is between two that are equal at the first budget: their ranks are 1.5 and 1.5
    assert passing(scores(a=(0.5, 0.1), b=(0.5, 0.3), c=(0.2, 0.2))) == ["b", "a", "c"]


def test_a_method_that_is_another_one_in_every_run_does_not_pass_beside_it() -> None:
    runs = scores(a=(0.5, 0.6), same=(0.5, 0.6), b=(0.5, 0.7), again=(0.5, 0.6))
    assert passing(runs) == ["b", "a"]


def test_seeds_are_averaged_before_methods_are_ranked() -> None:
    runs = [Screening(label="a", epsilon=1, score=score) for score in (0.9, 0.1)]
    runs += [Screening(label="b", epsilon=1, score=score) for score in (0.6, 0.6)]
    assert passing(runs) == ["b", "a"]


def test_a_screen_that_lacks_a_method_at_a_budget_chooses_nothing() -> None:
    with pytest.raises(ValueError, match="missing at one of the budgets"):
        passing(scores(a=(0.5, 0.6), b=(0.5,)))


def test_the_best_of_the_screen_fill_up_what_takes_part_in_any_case(tmp_path: Path) -> None:
    screen, confirm = screened_panels(written(tmp_path), "confirm")
    ranked = ["disk", "dp-sgd", "per layer", "dp-sat"]
    found = confirmed(screen.panel, confirm.panel, ranked)
    assert [one.written for one in found] == ["dp-sgd", "disk", PER_LAYER]


def test_references_without_privacy_take_no_place(tmp_path: Path) -> None:
    path = written(tmp_path, methods=[{"id": "sgd", "learning_rate": 1}, "dp-sgd"])
    screen, confirm = screened_panels(path, "confirm")
    found = confirmed(screen.panel, confirm.panel, ["dp-sat", "disk", "dp-lssgd"])
    best = [one.written for one in found]
    assert best == [{"id": "sgd", "learning_rate": 1}, "dp-sgd", "dp-sat", "disk"]


def test_what_passes_is_recorded_in_one_line_of_the_study(tmp_path: Path) -> None:
    path = written(tmp_path)
    once = with_methods(TEXT, "confirm", [*map(PanelEntry.of, ["dp-sgd", PER_LAYER])])
    assert once.replace(once.splitlines()[3] + "\n", "") == TEXT
    path.write_text(once)
    study = load_study(path)
    assert list(study.panels) == ["screen", "confirm"]
    labels = {run.label for run in study.runs if run.panel == "confirm"}
    assert labels == {"dp-sgd", "per layer"}
    again = with_methods(once, "confirm", [*map(PanelEntry.of, ["dp-sgd", "disk"])])
    assert len(again.splitlines()) == len(once.splitlines())
    # what takes part in any case is that of the base, also when the file has a list already
    assert screened_panels(path, "confirm")[1].panel.methods == (PanelEntry.of("dp-sgd"),)


def test_what_passes_is_recorded_beside_the_other_values_of_a_panel() -> None:
    once = with_methods(TEXT, "confirm", [PanelEntry.of("dp-sgd")])
    other = once.replace("{base: confirm, ", "{base: [confirm, all], epsilons: [3], ")
    assert other != once
    again = with_methods(other, "confirm", [*map(PanelEntry.of, ["disk", PER_LAYER])])
    panel = yaml.safe_load(again)["panels"]["confirm"]
    kept = {"base": ["confirm", "all"], "epsilons": [3]}
    assert panel == {**kept, "methods": ["disk", PER_LAYER]}


def test_a_study_that_is_written_otherwise_is_not_changed() -> None:
    longer = (
        "title: t\npanels:\n  screen: {base: screen}\n  confirm:\n    base: confirm\nreport: []\n"
    )
    for text in (longer, "panels: {screen: {base: screen}}\ntitle: t\nreport: []\n"):
        with pytest.raises(ValueError, match="panels: give each panel a line"):
            with_methods(text, "confirm", [PanelEntry.of("dp-sgd")])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [2, 21]}, "2 are seeds of both panels"),
        ({"tuning": {"seeds": [1, 31], "searches": 2}}, "1 are seeds of both panels"),
        ({"seeds": [11, 21]}, "11 are seeds of both panels"),
        ({"screened_by": {"panel": "scren", "methods": 3}}, "Did you mean 'screen'"),
        ({"screened_by": {"panel": "confirm", "methods": 3}}, "unknown panel 'confirm'"),
    ],
)
def test_a_confirmation_shares_no_seed_with_its_screen(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = written(tmp_path, with_methods(TEXT, "confirm", [PanelEntry.of("dp-sgd")]), **changes)
    with pytest.raises(UserError, match=said):
        load_study(path).runs  # noqa: B018


def test_a_base_without_a_rule_or_without_a_screen_screens_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="screened_by: name a panel of this study"):
        screened_panels(written(tmp_path, screened_by=None), "confirm")
    other = written(tmp_path, screened_by={"panel": "other", "methods": 3})
    with pytest.raises(UserError, match="has no panel 'other' by which methods are chosen"):
        screened_panels(other, "confirm")


def test_the_tasks_of_the_league_are_no_artefacts_of_a_paper() -> None:
    assert TASKS
    assert not {*TASKS} & {*studies_of_papers(STUDIES)}


@pytest.mark.parametrize("name", SCREENED)
def test_the_confirmation_of_a_task_can_follow_its_screen(name: str) -> None:
    screen, confirm = screened_panels(STUDIES / f"{name}.yaml", "confirm")
    labels = [one.label for one in screen.panel.methods]
    found = confirmed(screen.panel, confirm.panel, labels)
    assert len(found) == 2 + 12  # and the two references without privacy
    assert confirm.panel.datasets == screen.panel.datasets
    assert confirm.panel.training == {**screen.panel.training, "correctness": True}
    assert len(confirm.panel.seeds) == 2 * confirm.panel.tuning["searches"] == 24


@pytest.mark.parametrize("name", [name for name in TASKS if name not in SCREENED])
def test_a_task_without_a_screen_is_confirmed_as_it_is(name: str) -> None:
    path = STUDIES / f"{name}.yaml"
    with pytest.raises(UserError, match=r"no panel 'screen' .* there is nothing to confirm"):
        screened_panels(path, "confirm")
    study = load_study(path)
    assert confirmation(study) is study
    into = planned_track(study.panels.values())
    every = [one for panel in study.panels.values() for one in panel.methods]
    labels = [one.label for one in every]
    assert len({*labels}) == len(labels)  # a method is confirmed once
    assert into.baseline in labels
    assert sum(not example(method_class(one.id)).private for one in every) == 2
    digits = screened_panels(STUDIES / "league" / "digits.yaml", "confirm")[1].panel
    for panel in study.panels.values():
        assert (panel.seeds, panel.tuning) == (digits.seeds, digits.tuning)
        assert panel.training["correctness"]


def test_a_judged_method_enters_the_tracks_that_take_it() -> None:
    def entered(task: str, method: str) -> list[tuple[str, str]]:
        league = load_study(STUDIES / "league" / f"{task}.yaml")
        made = example(method_class(method))
        entry = enter(league, method, track(made), vars(made), {}, {})
        return [(name, entry.baseline) for name in entry.study["panels"]]

    noise = ("", "-banded-inverse", "-lambda-cgd", "-blt", "-tree")
    assert entered("digits-correlated", "dp-adam") == [(f"confirm{one}", "dp-sgd") for one in noise]
    assert entered("digits-public", "dp-r-pub") == [("confirm", "dp-sgd")]
    assert entered("newsgroups-public", "adadps-side") == [("confirm", "dp-sgd")]
    assert entered("digits-public", "dp-adam") == [("confirm", "dp-sgd")]
    assert entered("digits-users", "dp-fedadam") == [("confirm", "dp-fedavg")]
    for task, method in (("digits-users", "dp-adam"), ("digits-correlated", "dp-r-pub")):
        with pytest.raises(UserError, match="is not a task of the track"):
            entered(task, method)


@pytest.mark.long
def test_the_lite_league_is_part_of_the_confirmation_of_digits_and_can_exclude_nothing(
    tmp_path: Path,
) -> None:
    _, confirm = screened_panels(STUDIES / "league" / "digits.yaml", "confirm")
    task = tmp_path / "digits.yaml"
    for name in ("digits", "shared"):
        text = (STUDIES / "league" / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(text)
    task.write_text(with_methods(task.read_text(), "confirm", confirm.panel.methods))
    lite, whole = load_study(STUDIES / f"{LITE}.yaml"), load_study(task)
    assert {*lite.specs} < {*whole.specs}
    searches = lite.panels["confirm"].tuning["searches"]
    budgets = {run.spec.privacy.epsilon for run in lite.runs if run.spec.privacy is not None}
    assert searches < units_needed(ALPHA / len(budgets))


def rows(head: str) -> dict[str, list[str]]:
    """Return the cells of a table of the page, by the first one of each row."""
    lines = PAGE.split(f"{head}\n")[1].split("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first.strip("` *†"): others for first, *others in cells}


def test_the_page_says_what_each_task_trains_and_costs() -> None:
    found = rows("| task | data | model | n | B | T | ε |")
    assert sorted(f"league/{name}" for name in found) == sorted(TASKS)
    assert {*rows(COSTS)} == {*found}
    for name, (_, _, *numbers) in found.items():
        first, *_ = every_panel(name).values()
        size, batch = examples(first), first.training["expected_batch_size"]
        budgets = ", ".join(f"{epsilon:g}" for epsilon in first.epsilons or ())
        assert numbers == [f"{size:,}", f"{batch:,}", str(first.training["steps"]), budgets]


def test_the_page_adds_up_what_all_tasks_cost() -> None:
    below = PAGE.split(COSTS)[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in below]
    runs = sum(int(one[1].replace(",", "")) for one in cells)
    hours = sum(int(one[3]) for one in cells) / 60
    said = (
        f"All {len(cells)} tasks have {runs:,} runs, and by these estimates take {hours:.0f} core"
    )
    assert said in PAGE


@pytest.mark.parametrize("name", [name for name in TASKS if "references" in PANELS[name]])
def test_references_on_features_release_all_examples_once_on_the_confirmed_seeds(name: str) -> None:
    panels = every_panel(name.removeprefix("league/"))
    _, confirm = screened_panels(STUDIES / f"{name}.yaml", "confirm")
    for panel in (panels["references"], panels.get("least-squares", panels["references"])):
        assert panel.training["steps"] == 1
        assert panel.training["expected_batch_size"] == examples(panel)
        assert panel.training["correctness"] == confirm.panel.training["correctness"]
        assert panel.privacy["sampler"] == "full"
        assert panel.seeds == confirm.panel.seeds


def test_the_page_says_what_each_encoder_saw() -> None:
    found = rows("| encoder | features | pretrained on | tasks |")
    assert {title: cells[:2] for title, cells in found.items()} == {
        one.title: [f"{one.width:,}", one.pretrained_on] for one in ENCODERS.values()
    }
    tasks = {name for *_, named in found.values() for name in re.findall("`(.*?)`", named)}
    assert {f"league/{name}" for name in tasks} == {
        name for name in SCREENED if planned_track(every_panel(name[7:]).values()) == PRETRAINED
    }


def test_the_page_shows_the_file_of_a_task_as_it_is() -> None:
    shown = PAGE.split("```yaml\n")[1].split("```")[0]
    screen = [line for line in shown.splitlines() if not line.startswith("  confirm:")]
    text = (STUDIES / "league" / "digits.yaml").read_text()
    file = [line for line in text.splitlines() if not line.startswith("  confirm:")]
    assert file == screen
