"""Claims of a paper: what they may say, which runs they mean, and when they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from reporting_data import run_row, write_table
from scipy import stats

from clipnoise.errors import UserError
from clipnoise.report.claims import CHANCE, ClaimRow, claims_data, in_print
from clipnoise.report.published import printed_runs
from clipnoise.report.records import read_curves, read_runs
from clipnoise.report.statistics import chance_above, resolved
from clipnoise.studies.columns import CURVE_COLUMNS, IDENTITY, RUN_COLUMNS
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
        "report": [{"kind": "table", "panels": "comparison"}],
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
) -> list[ClaimRow]:
    tables = (
        read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, runs)),
        read_curves(write_table(folder / "curves.parquet", CURVE_COLUMNS, curves or [])),
    )
    printed = printed_runs(tables[0], one.report, beside(one, folder))
    return claims_data(one.claims, *tables, printed, watermark)


def beside(one: Study, folder: Path) -> dict[int, Path]:
    """Return the published table that each item of a study shows, if there is one."""
    table = folder / "published" / "mine.csv"
    return dict.fromkeys(range(len(one.report)), table) if table.is_file() else {}


def publish(folder: Path, *cells: tuple[str, str, float, float | None]) -> None:
    """Write a published table: label, budget, mean and deviation of each cell, in percent."""
    lines = ["dataset,model,method,variant,budget,metric,mean,std,n,unit,source"]
    for label, budget, mean, deviation in cells:
        std = "" if deviation is None else f"{deviation:g}"
        place = f"digits,logistic,dp-sgd,{label},{budget}"  # the method that `rows` has
        lines.append(f"{place},test_accuracy,{mean:g},{std},5,%,Table 1")
    (folder / "published").mkdir(exist_ok=True)
    (folder / "published" / "mine.csv").write_text("\n".join(lines))


BASE = [0.80, 0.81, 0.79, 0.80, 0.82]


def shifted(by: float, spread: float = 0.001) -> list[float | None]:
    signs = (1, -1, 0, 1, -1)
    return [value + by + spread * sign for value, sign in zip(BASE, signs, strict=True)]


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
    one = study(tmp_path, {"between": [at_least, None]})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(gain)})
    (found,) = verdicts(tmp_path, one, runs)
    assert found.verdict == verdict
    assert found.found[0].difference.startswith(f"{100 * gain:.2f} [".replace("-", "−"))


def test_for_a_loss_lower_is_better(tmp_path: Path) -> None:
    one = study(tmp_path, {"metric": "test_loss"})
    runs = [
        {**run_row(label=label, seed=seed), "test_loss": loss * (1 + 0.01 * seed)}
        for label, loss in (("dp-sgd", 0.5), ("slow", 0.3))
        for seed in (1, 2, 3)
    ]
    assert verdicts(tmp_path, one, runs)[0].verdict == "holds"


def test_a_panel_without_accuracy_is_compared_by_its_loss(tmp_path: Path) -> None:
    one = study(tmp_path, {}, images=PANEL)
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(0.05)})
    runs += [
        {
            **run_row(panel="images", label=label, seed=seed, test_loss=loss * (1.1 - seed / 20)),
            "test_accuracy": "",
        }
        for label, loss in (("dp-sgd", 0.5), ("slow", 0.3))
        for seed in (1, 2, 3)
    ]
    (found,) = verdicts(tmp_path, one, runs)
    assert [each.verdict for each in found.found] == ["holds", "holds"]
    assert [each.difference[:6] for each in found.found] == ["5.00 [", "0.2000"]
    assert found.bounds == "Test accuracy (%) or Test loss: above 0"


def test_methods_can_be_claimed_to_be_alike(tmp_path: Path) -> None:
    one = study(tmp_path, {"between": [-0.003, 0.003]})
    for gain, verdict in ((0.0, "holds"), (0.003, "cannot be told"), (0.01, "does not hold")):
        runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(gain)})
        assert verdicts(tmp_path, one, runs)[0].verdict == verdict


def test_each_place_must_hold_and_a_mean_may_hide_one_that_does_not(tmp_path: Path) -> None:
    one = study(tmp_path, {}, {"over": "mean"}, {"epsilons": [8]})
    runs = rows(
        {
            **{("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(-0.01)},
            **{("dp-sgd", "eps=8"): list(BASE), ("slow", "eps=8"): shifted(0.05)},
        }
    )
    each, mean, only = verdicts(tmp_path, one, runs)
    assert [found.verdict for found in each.found] == ["does not hold", "holds"]
    assert each.verdict == "does not hold"
    assert mean.verdict == only.verdict == "holds"
    assert mean.found[0].difference.startswith("2.00 [")
    assert len(only.found) == 1


def test_of_several_competitors_the_one_that_decides_is_named(tmp_path: Path) -> None:
    one = study(tmp_path, {"than": ["dp-sgd", "dp-adam"]})
    values = {"slow": shifted(0.05), "dp-sgd": list(BASE), "dp-adam": shifted(0.02, 0.002)}
    runs = rows({(label, "eps=1"): found for label, found in values.items()})
    (found,) = verdicts(tmp_path, one, runs)
    assert found.found[0].sides == "slow − dp-adam"
    assert found.verdict == "holds"


def test_a_run_that_diverged_leaves_a_claim_open(tmp_path: Path) -> None:
    one = study(tmp_path, {})
    for broken in ("dp-sgd", "slow"):
        values = {"dp-sgd": list(BASE), "slow": shifted(0.05)}
        values[broken] = [*values[broken][:4], None]
        runs = rows({(label, "eps=1"): found for label, found in values.items()})
        (found,) = verdicts(tmp_path, one, runs)
        assert found.verdict == "cannot be told"
        assert found.found[0].difference == "4/5 runs"


def test_a_competitor_that_is_absent_leaves_a_claim_to_the_others(tmp_path: Path) -> None:
    one = study(tmp_path, {"than": ["dp-sgd", "dp-adam"]})
    runs = rows({("slow", "eps=1"): shifted(0.05), ("dp-sgd", "eps=1"): list(BASE)})
    (found,) = verdicts(tmp_path, one, runs)
    assert [each.sides for each in found.found] == ["slow − dp-sgd"]
    assert found.verdict == "holds"


def test_a_mean_over_one_place_is_what_was_found_there(tmp_path: Path) -> None:
    runs = rows({("slow", "eps=1"): shifted(0.05), ("dp-sgd", "eps=1"): list(BASE)})
    each, mean = (
        verdicts(tmp_path, study(tmp_path, {"over": over}), runs)[0] for over in ("each", "mean")
    )
    assert mean.found[0].difference == each.found[0].difference
    assert mean.found[0].place == "mean of 1 place"
    broken = rows({("slow", "eps=1"): [*shifted(0.05)[:4], None], ("dp-sgd", "eps=1"): list(BASE)})
    (lost,) = verdicts(tmp_path, study(tmp_path, {"over": "mean"}), broken)
    assert lost.verdict == "cannot be told"


def test_one_seed_or_no_run_leaves_a_claim_open(tmp_path: Path) -> None:
    one = study(tmp_path, {})
    alone = rows({("dp-sgd", "eps=1"): [0.8], ("slow", "eps=1"): [0.9]})
    assert verdicts(tmp_path, one, alone)[0].verdict == "cannot be told"
    (found,) = verdicts(tmp_path, one, rows({("dp-adam", "eps=1"): [0.8]}))
    assert (found.verdict, found.found[0].difference) == ("cannot be told", "no such run")


def test_under_a_watermark_there_is_no_verdict(tmp_path: Path) -> None:
    runs = rows(
        {
            **{("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(-0.01)},
            **{("dp-sgd", "eps=8"): list(BASE), ("slow", "eps=8"): shifted(0.05)},
        }
    )
    (found,) = verdicts(tmp_path, study(tmp_path, {}), runs, watermark="smoke")
    assert {found.verdict, *(one.verdict for one in found.found)} == {"not evidence"}
    assert found.votes == ""
    (found,) = verdicts(tmp_path, study(tmp_path, {}), runs)
    assert found.votes == "does not hold in 1; holds in 1"


def test_the_largest_fall_of_a_curve_is_compared(tmp_path: Path) -> None:
    one = study(tmp_path, {"metric": "largest_drop"}, {"metric": "mean_test_accuracy"})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): list(BASE)})

    def drift(run: dict[str, Any]) -> float:
        return 0.001 * (run["seed"] - 3) * (1 if run["label"] == "slow" else 2)

    course = {"dp-sgd": [0.1, 0.7, 0.4, 0.8], "slow": [0.1, 0.6, 0.55, 0.8]}
    curves = [
        {
            **{name: run.get(name, "") for name in IDENTITY},
            **{"step": step, "test_accuracy": accuracy + drift(run) * (step % 2)},
        }
        for run in runs
        for step, accuracy in enumerate(course[str(run["label"])])
    ]
    drop, mean = verdicts(tmp_path, one, runs, curves)
    assert drop.verdict == "holds"
    assert drop.found[0].difference.startswith("25.00 [")
    assert mean.found[0].difference.startswith("1.25")


def test_a_method_without_competitors_is_held_against_a_bound(tmp_path: Path) -> None:
    one = study(
        tmp_path, {"than": [], "between": [None, 0.85]}, {"than": [], "between": [0.85, None]}
    )
    runs = rows({("slow", "eps=1"): list(BASE)})
    assert [found.verdict for found in verdicts(tmp_path, one, runs)] == [
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
    assert verdicts(tmp_path, one, runs)[0].verdict == "holds"


def test_a_method_may_be_compared_with_itself_on_another_dataset(tmp_path: Path) -> None:
    both = {**PANEL, "datasets": ["digits", {"id": "digits", "label": "pale"}], "epsilons": [1]}
    claim = {"than": ["slow"], "datasets": ["digits"], "than_dataset": "pale"}
    one = study(tmp_path, claim, {**claim, "between": [0.1, None]}, comparison=both)
    runs = rows({("slow", "eps=1"): shifted(0.02)}) + rows(
        {("slow", "eps=1"): list(BASE)}, dataset="pale"
    )
    held, missed = verdicts(tmp_path, one, runs)
    assert (held.verdict, missed.verdict) == ("holds", "does not hold")
    assert [found.sides for found in held.found] == ["slow − slow on pale"]


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
        ({"betwen": 1}, r"claims\.0\.betwen: unknown key. Did you mean 'between'"),
        ({"at_least": 1}, r"claims\.0\.at_least: it is gone; write between: \[LOW, null\]"),
        ({"at_most": 1}, r"claims\.0\.at_most: it is gone; write between: \[null, HIGH\]"),
        ({"than": []}, r"claims\.0: a claim without `than` needs a bound"),
        ({"datasets": ["digits"], "than_dataset": "digit"}, r"0\.than_dataset: .* mean 'digits'"),
        ({"than_dataset": "digits"}, r"claims\.0: `than_dataset` needs `datasets`"),
        ({"than": [], "against": "best", "about": 1}, r"`against` need `than`"),
        ({"between": [None, None]}, r"claims\.0: `between` needs at least one end"),
        ({"about": 0.1, "between": [0.1, None]}, "give at most one of `between` and `about`"),
        ({"about": [0, None]}, r"claims\.0: `about` 0 needs `within`"),
        ({"within": 0.1}, r"claims\.0: `within` needs `about`"),
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


# ---- The best competitor


def test_the_best_competitor_of_each_place_is_subtracted_before_the_mean(tmp_path: Path) -> None:
    """dp-sgd is best at ε = 1, dp-adam at ε = 8: neither alone is 2 points below on average."""
    claim = {"than": ["dp-sgd", "dp-adam"], "over": "mean", "about": 0.02, "within": 0.005}
    one = study(tmp_path, {**claim, "against": "best"}, claim)
    values = {
        **{("dp-sgd", "eps=1"): list(BASE), ("dp-adam", "eps=1"): shifted(-0.03, 0.002)},
        **{("dp-sgd", "eps=8"): shifted(-0.05, 0.003), ("dp-adam", "eps=8"): list(BASE)},
        **{("slow", "eps=1"): shifted(0.02), ("slow", "eps=8"): shifted(0.02)},
    }
    best, each = verdicts(tmp_path, one, rows(values))
    assert best.verdict == "holds"
    assert best.found[0].difference.startswith("2.00 [")
    assert each.verdict == "does not hold"


def test_the_best_competitor_is_chosen_by_mean_and_paired_by_seed(tmp_path: Path) -> None:
    one = study(tmp_path, {"than": ["dp-sgd", "dp-adam"], "against": "best", "about": 0.02})
    wide = [value + 0.004 * sign for value, sign in zip(BASE, (5, -5, 5, -5, 1), strict=True)]
    runs = rows(
        {("dp-sgd", "eps=1"): wide, ("dp-adam", "eps=1"): BASE, ("slow", "eps=1"): shifted(0.02)}
    )
    (found,) = verdicts(tmp_path, one, runs)
    assert found.found[0].sides == "slow − dp-sgd"
    differences = [a - b for a, b in zip(shifted(0.02), wide, strict=True)]
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert found.found[0].difference == (
        f"{100 * np.mean(differences):.2f} [{100 * interval.low:.2f}, {100 * interval.high:.2f}]"
    ).replace("-", "−")


def test_for_a_loss_the_best_competitor_has_the_lowest(tmp_path: Path) -> None:
    claim = {"than": ["dp-sgd", "dp-adam"], "against": "best", "metric": "test_loss"}
    runs = [
        {**run_row(label=label, seed=seed), "test_loss": loss + 0.001 * seed}
        for label, loss in (("dp-sgd", 0.5), ("dp-adam", 0.4), ("slow", 0.3))
        for seed in (1, 2, 3)
    ]
    (found,) = verdicts(tmp_path, study(tmp_path, claim), runs)
    assert found.found[0].sides == "slow − dp-adam"


def test_without_all_competitors_the_best_is_unknown(tmp_path: Path) -> None:
    one = study(tmp_path, {"than": ["dp-sgd", "dp-adam"], "against": "best"})
    values = {
        **{("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(0.05)},
        ("dp-adam", "eps=1"): [*BASE[:4], None],
    }
    (found,) = verdicts(tmp_path, one, rows(values))
    assert found.verdict == "cannot be told"
    assert found.found[0].difference == "4/5 runs"


# ---- In print


def test_about_x_has_a_margin_that_follows_from_spread_and_seeds(tmp_path: Path) -> None:
    one = study(tmp_path, {"about": 0.1, "epsilons": [1]}, {"about": [0.1, None], "epsilons": [1]})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(0.1)})
    publish(tmp_path, ("dp-sgd", "eps=1", 80, 0.6), ("slow", "eps=1", 90, 0.8))
    both, above = verdicts(tmp_path, one, runs)
    # The deviation of a difference is √(0.6² + 0.8²) = 1 point; both ends share what may be missed.
    margin = 100 * resolved(0.01, 5, 1 - (1 - CHANCE) / 2)
    low, high = 10 - margin, 10 + margin
    assert both.bounds == f"Test accuracy (%): between {low:.2f} and {high:.2f} (about 10.00)"
    low = 10 - 100 * resolved(0.01, 5, CHANCE)
    assert above.bounds == f"Test accuracy (%): at least {low:.2f} (about 10.00 or more)"
    assert both.print == above.print == "10.00; 5 seeds resolve it."


def test_a_margin_is_at_most_half_of_what_is_claimed_or_what_the_claim_says(tmp_path: Path) -> None:
    one = study(tmp_path, {"about": [0.04, 0.1]}, {"about": 0, "within": 0.01})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(0.05)})
    bounds = ["between 2.00 and 15.00 (about 4.00 to 10.00)", "between −1.00 and 1.00 (about 0.00)"]
    for deviation in (None, 50):
        publish(tmp_path, ("dp-sgd", "eps=1", 80, 50), ("slow", "eps=1", 80, deviation))
        found = verdicts(tmp_path, one, runs)
        assert [each.bounds.partition(": ")[2] for each in found] == bounds


def test_a_claim_says_how_many_seeds_it_takes(tmp_path: Path) -> None:
    one = study(tmp_path, {})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(0.05)})
    publish(tmp_path, ("dp-sgd", "eps=1", 80, 0.6), ("slow", "eps=1", 81, 0.8))
    (found,) = verdicts(tmp_path, one, runs)
    needed = found.needed
    assert chance_above(0.01, 0.01, needed) >= CHANCE > chance_above(0.01, 0.01, needed - 1)
    assert found.print == f"1.00; not resolvable with 5 seeds (it takes {needed})."
    publish(tmp_path, ("dp-sgd", "eps=1", 80, 5), ("slow", "eps=1", 80.01, 5))
    (found,) = verdicts(tmp_path, one, runs)
    assert found.print == "0.01; not resolvable with 5 seeds (it takes more than 10,000)."
    publish(tmp_path, ("dp-sgd", "eps=1", 80, None), ("slow", "eps=1", 81, 0.8))
    (found,) = verdicts(tmp_path, one, runs)
    assert "how many seeds resolve it is unknown" in found.print


def test_a_claim_that_its_own_paper_contradicts_says_so(tmp_path: Path) -> None:
    one = study(tmp_path, {"contradicted": "Table 1 has 79 against 80."})
    runs = rows({("dp-sgd", "eps=1"): list(BASE), ("slow", "eps=1"): shifted(0.05)})
    publish(tmp_path, ("dp-sgd", "eps=1", 80, 0.6), ("slow", "eps=1", 79, 0.8))
    (found,) = verdicts(tmp_path, one, runs)
    assert found.print == "−1.00; contradicts the claim. Table 1 has 79 against 80."
    assert found.verdict == "holds"  # by the runs
    publish(tmp_path, ("dp-sgd", "eps=1", 80, 0.6), ("slow", "eps=1", 80, 0.8))
    (found,) = verdicts(tmp_path, study(tmp_path, {}), runs)
    assert found.print == "0.00; exactly on a bound of the claim."


def test_what_is_not_printed_is_left_out_of_places_and_not_of_a_mean(tmp_path: Path) -> None:
    one = study(tmp_path, {}, {"over": "mean"})
    values = {(label, at): BASE for label in ("dp-sgd", "slow") for at in ("eps=1", "eps=8")}
    publish(tmp_path, ("dp-sgd", "eps=1", 80, 1), ("slow", "eps=1", 90, 1))
    each, mean = verdicts(tmp_path, one, rows(values))
    assert each.print == "10.00 (1 comparison not printed); 5 seeds resolve it."
    assert mean.print == "nothing."


def test_the_deviation_of_a_mean_over_places_is_that_of_independent_places(tmp_path: Path) -> None:
    one = study(tmp_path, {"over": "mean"})
    values = {(label, at): BASE for label in ("dp-sgd", "slow") for at in ("eps=1", "eps=8")}
    publish(
        tmp_path,
        *(("dp-sgd", at, 80, 0.3) for at in ("eps=1", "eps=8")),
        *(("slow", at, 90, 0.4) for at in ("eps=1", "eps=8")),
    )
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows(values)))
    printed = printed_runs(runs, one.report, beside(one, tmp_path))
    (found,) = in_print(one.claims[0], printed).found
    assert found.spread == pytest.approx(0.005 / np.sqrt(2))


def test_the_number_of_an_unnamed_best_baseline_is_that_of_the_best(tmp_path: Path) -> None:
    claim = {"than": ["dp-sgd", "dp-adam"], "epsilons": [1]}
    one = study(tmp_path, {**claim, "against": "best"}, claim)
    runs = rows({(label, "eps=1"): BASE for label in ("dp-sgd", "dp-adam", "slow")})
    publish(tmp_path, ("best baseline", "eps=1", 80, 1), ("slow", "eps=1", 90, 1))
    best, each = verdicts(tmp_path, one, runs)
    assert best.print == "10.00; 5 seeds resolve it."
    assert each.print == "nothing."
