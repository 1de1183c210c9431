"""Claims of a paper: what they may say, which runs they mean, and when they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from reporting_data import run_row, write_csv
from scipy import stats

from clipnoise.errors import UserError
from clipnoise.report.claims import claims_data
from clipnoise.report.records import read_curves, read_runs
from clipnoise.report.statistics import paired_interval
from clipnoise.studies.collect import CURVE_COLUMNS, RUN_COLUMNS
from clipnoise.studies.study import Study, load_study

PANEL = {
    "datasets": ["digits"],
    "models": ["logistic"],
    "epsilons": [1, 8],
    "seeds": [1, 2, 3, 4, 5],
    "methods": [
        {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
        {"id": "dp-adam", "learning_rate": 1, "clip_norm": 1},
        {"id": "dp-adam", "label": "slow", "learning_rate": 0.1, "clip_norm": 1},
    ],
    "training": {"expected_batch_size": 100, "steps": 5},
}
CLAIM = {"text": "Better.", "source": "section 1", "method": "slow", "than": ["dp-sgd"]}


def study(folder: Path, *claims: dict[str, Any], **panels: Any) -> Study:
    values = {
        "title": "Mine",
        "panels": {"comparison": PANEL, **panels},
        "report": [{"kind": "table", "panel": "comparison"}],
        "claims": [{**CLAIM, **claim} for claim in claims],
    }
    path = folder / "studies" / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(values, allow_unicode=True))
    return load_study(path)


def rows(values: dict[tuple[str, str], list[float | None]], **changes: Any) -> list[dict[str, Any]]:
    """Return runs by label and budget; None is a run that diverged."""
    return [
        run_row(
            label=label,
            budget=budget,
            seed=seed,
            **({"status": "diverged"} if value is None else {"test_accuracy": value}),
            **changes,
        )
        for (label, budget), found in values.items()
        for seed, value in enumerate(found, 1)
    ]


def verdicts(
    folder: Path,
    one: Study,
    runs: list[dict[str, Any]],
    curves: list[dict[str, Any]] | None = None,
    watermark: str = "",
) -> list[dict[str, Any]]:
    tables = (
        read_runs(write_csv(folder / "runs.csv", RUN_COLUMNS, runs)),
        read_curves(write_csv(folder / "curves.csv", CURVE_COLUMNS, curves or [])),
    )
    return claims_data(one.claims, *tables, watermark)


BASE = [0.80, 0.81, 0.79, 0.80, 0.82]


def shifted(by: float, spread: float = 0.001) -> list[float | None]:
    signs = (1, -1, 0, 1, -1)
    return [value + by + spread * sign for value, sign in zip(BASE, signs, strict=True)]


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    differences = dict(enumerate([0.02, 0.03, 0.01, 0.04]))
    found = paired_interval(differences)
    expected = stats.ttest_1samp(list(differences.values()), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(0.025)
    assert np.isnan(paired_interval({1: 0.02}).low)


@pytest.mark.parametrize(
    ("gain", "at_least", "verdict"),
    [
        (0.03, 0.0, "holds"),
        (0.03, 0.02, "holds"),
        (0.03, 0.03, "cannot be told"),
        (0.03, 0.05, "does not hold"),
        (-0.03, 0.0, "does not hold"),
    ],
)
def test_a_claim_holds_if_the_whole_interval_is_above_the_bound(
    tmp_path: Path, gain: float, at_least: float, verdict: str
) -> None:
    one = study(tmp_path, {"at_least": at_least})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(gain)})
    (found,) = verdicts(tmp_path, one, runs)
    assert found["verdict"] == verdict
    assert found["found"][0]["difference"].startswith(f"{100 * gain:.2f} [".replace("-", "−"))


def test_for_a_loss_lower_is_better(tmp_path: Path) -> None:
    one = study(tmp_path, {"metric": "test_loss"})
    runs = [
        {**run_row(label=label, seed=seed), "test_loss": loss + 0.01 * seed}
        for label, loss in (("dp-sgd", 0.5), ("slow", 0.3))
        for seed in (1, 2, 3)
    ]
    assert verdicts(tmp_path, one, runs)[0]["verdict"] == "holds"


def test_a_panel_without_accuracy_is_compared_by_its_loss(tmp_path: Path) -> None:
    one = study(tmp_path, {}, images=PANEL)
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(0.05)})
    runs += [
        {**run_row(panel="images", label=label, seed=seed, test_loss=loss), "test_accuracy": ""}
        for label, loss in (("dp-sgd", 0.5), ("slow", 0.3))
        for seed in (1, 2, 3)
    ]
    (found,) = verdicts(tmp_path, one, runs)
    assert [each["verdict"] for each in found["found"]] == ["holds", "holds"]
    assert [each["difference"][:6] for each in found["found"]] == ["5.00 [", "0.2000"]
    assert found["bounds"] == "Test accuracy (%) or Test loss: above 0"


def test_methods_can_be_claimed_to_be_alike(tmp_path: Path) -> None:
    one = study(tmp_path, {"at_least": -0.003, "at_most": 0.003})
    for gain, verdict in ((0.0, "holds"), (0.003, "cannot be told"), (0.01, "does not hold")):
        runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(gain)})
        assert verdicts(tmp_path, one, runs)[0]["verdict"] == verdict


def test_each_place_must_hold_and_a_mean_may_hide_one_that_does_not(tmp_path: Path) -> None:
    one = study(tmp_path, {}, {"over": "mean"}, {"epsilons": [8]})
    runs = rows(
        {
            **{("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(-0.01)},
            **{("dp-sgd", "eps=8"): list(BASE), ("slow", "eps=8"): shifted(0.05)},
        }
    )
    each, mean, only = verdicts(tmp_path, one, runs)
    assert [found["verdict"] for found in each["found"]] == ["does not hold", "holds"]
    assert each["verdict"] == "does not hold"
    assert mean["verdict"] == only["verdict"] == "holds"
    assert mean["found"][0]["difference"].startswith("2.00 [")
    assert len(only["found"]) == 1


def test_of_several_competitors_the_one_that_decides_is_named(tmp_path: Path) -> None:
    one = study(tmp_path, {"than": ["dp-sgd", "dp-adam"]})
    values = {"slow": shifted(0.05), "dp-sgd": list(BASE), "dp-adam": shifted(0.02)}
    runs = rows({(label, "eps=1"): found for label, found in values.items()})
    (found,) = verdicts(tmp_path, one, runs)
    assert found["found"][0]["sides"] == "slow − dp-adam"
    assert found["verdict"] == "holds"


def test_a_run_that_diverged_leaves_a_claim_open(tmp_path: Path) -> None:
    one = study(tmp_path, {})
    for broken in ("dp-sgd", "slow"):
        values = {"dp-sgd": list(BASE), "slow": shifted(0.05)}
        values[broken] = [*values[broken][:4], None]
        runs = rows({(label, "eps=1"): found for label, found in values.items()})
        (found,) = verdicts(tmp_path, one, runs)
        assert found["verdict"] == "cannot be told"
        assert found["found"][0]["difference"] == "4/5 runs"


def test_one_seed_or_no_run_leaves_a_claim_open(tmp_path: Path) -> None:
    one = study(tmp_path, {})
    alone = rows({("dp-sgd", "eps=1"): [0.8], ("slow", "eps=1"): [0.9]})
    assert verdicts(tmp_path, one, alone)[0]["verdict"] == "cannot be told"
    (found,) = verdicts(tmp_path, one, rows({("dp-adam", "eps=1"): [0.8]}))
    assert (found["verdict"], found["found"][0]["difference"]) == ("cannot be told", "no such run")


def test_under_a_watermark_there_is_no_verdict(tmp_path: Path) -> None:
    runs = rows(
        {
            **{("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(-0.01)},
            **{("dp-sgd", "eps=8"): list(BASE), ("slow", "eps=8"): shifted(0.05)},
        }
    )
    (found,) = verdicts(tmp_path, study(tmp_path, {}), runs, watermark="smoke")
    assert {found["verdict"], *(one["verdict"] for one in found["found"])} == {"not evidence"}
    assert found["votes"] == ""
    (found,) = verdicts(tmp_path, study(tmp_path, {}), runs)
    assert found["votes"] == "does not hold in 1; holds in 1"


def test_the_largest_fall_of_a_curve_is_compared(tmp_path: Path) -> None:
    one = study(tmp_path, {"metric": "largest_drop"}, {"metric": "mean_test_accuracy"})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): list(BASE)})
    course = {"dp-sgd": [0.1, 0.7, 0.4, 0.8], "slow": [0.1, 0.6, 0.55, 0.8]}
    curves = [
        {
            **{name: run.get(name, "") for name in CURVE_COLUMNS[:10]},
            **{"step": step, "test_accuracy": accuracy + 0.001 * run["seed"] * (step % 2)},
        }
        for run in runs
        for step, accuracy in enumerate(course[str(run["label"])])
    ]
    drop, mean = verdicts(tmp_path, one, runs, curves)
    assert drop["verdict"] == "holds"
    assert drop["found"][0]["difference"].startswith("25.00 [")
    assert mean["found"][0]["difference"].startswith("1.25")


def test_a_method_without_competitors_is_held_against_a_bound(tmp_path: Path) -> None:
    one = study(tmp_path, {"than": [], "at_most": 0.85}, {"than": [], "at_least": 0.85})
    runs = rows({("slow", "eps=1"): list(BASE)})
    assert [found["verdict"] for found in verdicts(tmp_path, one, runs)] == [
        "holds",
        "does not hold",
    ]


def test_a_competitor_may_be_in_another_panel_or_without_privacy(tmp_path: Path) -> None:
    other = {**PANEL, "methods": [{"id": "sgd", "learning_rate": 1}]}
    claim = {"panels": ["comparison"], "than": ["sgd"], "than_panel": "other"}
    one = study(tmp_path, claim, other=other)
    runs = rows({("slow", "eps=1"): shifted(0.02)}) + rows(
        {("sgd", "non-private"): list(BASE)}, panel="other", method="sgd"
    )
    assert verdicts(tmp_path, one, runs)[0]["verdict"] == "holds"


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"method": "slwo"}, r"claims\.0\.method: unknown method 'slwo'\. Did you mean 'slow'"),
        ({"than": ["dp-sdg"]}, r"claims\.0\.than: unknown method 'dp-sdg'\. Did you mean 'dp-sgd'"),
        ({"panels": ["comparsion"]}, r"claims\.0: unknown panel .* Did you mean 'comparison'"),
        ({"datasets": ["digit"]}, r"claims\.0\.datasets: .* Did you mean 'digits'"),
        ({"models": ["logistics"]}, r"claims\.0\.models: .* Did you mean 'logistic'"),
        ({"epsilons": [3]}, r"claims\.0\.epsilons: unknown epsilon '3'. Allowed: 1, 8"),
        ({"metric": "acuracy"}, r"claims\.0\.metric"),
        ({"at_last": 1}, r"claims\.0\.at_last: unknown key. Did you mean 'at_least'"),
        ({"than": []}, r"claims\.0: a claim without `than` needs a bound"),
    ],
)
def test_a_mistake_is_refused_when_the_study_is_read(
    tmp_path: Path, claim: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        study(tmp_path, claim)


def test_an_id_that_two_methods_share_is_refused(tmp_path: Path) -> None:
    methods = [{**PANEL["methods"][1], "label": label} for label in ("one", "two")]
    with pytest.raises(UserError, match=r"several methods of panel 'comparison' .*: one, two"):
        study(
            tmp_path,
            {"method": "dp-adam", "than": ["one"]},
            comparison={**PANEL, "methods": methods},
        )
