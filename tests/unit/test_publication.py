"""Published results hold every planned run, and are described so that other programs read them."""

from __future__ import annotations

import math
from pathlib import Path

import mlcroissant
import pandas as pd
import pytest
import yaml
from pypdf import PdfReader
from reporting_data import quickstart, run_row, write_study

from clipnoise.cli import main
from clipnoise.report import publication
from clipnoise.report.page import build_page, settings
from clipnoise.report.records import read_runs
from clipnoise.studies.columns import PUBLISHED, table, to_csv
from clipnoise.studies.study import load_study


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a published study, one run of which diverged and one is missing."""
    folder = tmp_path_factory.mktemp("published")
    lost = [
        run_row(method="dp-adam", budget="eps=1", seed=8, status="diverged"),
        run_row(method="dp-adam", budget="eps=1", seed=9, status="missing"),
    ]
    study, runs, _ = write_study(folder, [*quickstart(), *lost])
    out = folder / "out"
    words = ["publish", "--study", str(study), "--runs", str(runs), "--out", str(out)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["clipnoise", *words])
        assert main() == 0
    return out


def test_every_planned_run_has_a_row_with_its_value_or_none(published: Path) -> None:
    table = pd.read_csv(published / "quickstart.csv")
    assert list(table.columns) == list(PUBLISHED)
    assert len(table) == len(quickstart()) + 2
    by_status = table.groupby("status")["value"]
    assert by_status.count()["diverged"] == by_status.count()["missing"] == 0
    assert by_status.count()["completed"] == len(quickstart())
    expected = [row["test_accuracy"] for row in quickstart()]
    assert table["value"].dropna().tolist() == expected


def test_of_several_models_of_a_panel_the_page_says_which(published: Path) -> None:
    study = load_study(published.parent / "quickstart.yaml")
    runs = read_runs(published.parent / "runs.parquet")
    rows = settings(study, runs)
    title = study.titles.get("comparison", "comparison")
    assert {f"{title}, logistic", f"{title}, cnn-small"} <= set(rows["Task"])
    assert study.titles.get("ablation", "ablation") in set(rows["Task"])  # it has one model
    assert not rows.duplicated(["Task", "Method", "ε"]).any()


def test_an_oracle_is_called_non_private_as_in_the_tables(tmp_path: Path) -> None:
    rows = [run_row(method="dp-adam-noiseless", claim="non-private", seed=seed) for seed in (1, 2)]
    study, runs, _ = write_study(tmp_path, rows)
    (row,) = settings(load_study(study), read_runs(runs)).to_dict("records")
    assert (row["ε"], row["Claim"]) == ("1", "non-private")


def test_losses_keep_the_digits_that_tell_them_apart(tmp_path: Path) -> None:
    rows = [
        run_row(method=method, seed=seed, test_accuracy=math.nan, test_loss=loss + 0.0001 * place)
        for method, loss, places in (("dp-sgd", 0.0231, (1, 2, 3)), ("dp-adam", 0.0242, (3, 2, 1)))
        for seed, place in enumerate(places, 1)
    ]
    study, runs, _ = write_study(tmp_path, rows)
    found = settings(load_study(study), read_runs(runs)).set_index("Method")
    assert found["Test loss"].to_dict() == {"dp-sgd": 0.0233, "dp-adam": 0.0244}
    assert found["±"].tolist() == [0.0001, 0.0001]
    assert found.loc["dp-adam", "Δ DP-SGD"] == -0.0011
    template = Path(__file__).parents[2] / "reports" / "templates" / "page.html"
    page = build_page(load_study(study), read_runs(runs), template, {})
    assert "Difference to DP-SGD: test loss" in page
    assert page.count("value.toFixed(4)") == 5


def test_csv_and_parquet_hold_the_same(published: Path) -> None:
    rows = pd.read_csv(published / "quickstart.csv", keep_default_na=False, dtype=str)
    same = pd.read_parquet(published / "quickstart.parquet")
    again = table(PUBLISHED, same.to_dict("records"))
    assert to_csv(again) == (published / "quickstart.csv").read_text()
    assert len(rows) == len(same)


@pytest.mark.long
def test_a_page_is_printed_again_from_the_parquet_file_with_all_but_times(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = str(published.parent / "quickstart.yaml")
    file = str(published / "quickstart.parquet")
    words = ["publish", "--study", study, "--runs", file, "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["clipnoise", *words])
    assert main() == 0
    names = ("quickstart.csv", "quickstart.parquet", "croissant.json")
    for name in names:
        assert (tmp_path / name).read_bytes() == (published / name).read_bytes()
    plan = load_study(Path(study))
    first = settings(plan, read_runs(published.parent / "runs.parquet"))
    again = settings(plan, read_runs(Path(file)))
    assert "Made from published runs" in (tmp_path / "index.html").read_text(encoding="utf-8")
    lost = ["Time", "ε with tuning"]
    assert again["Time"].isna().all()
    pd.testing.assert_frame_equal(again.drop(columns=lost), first.drop(columns=lost))


@pytest.mark.long
def test_a_report_is_printed_again_from_the_parquet_file(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, out = str(published.parent / "quickstart.yaml"), tmp_path / "report.pdf"
    words = ["partial-report", study, "--runs", str(published / "quickstart.parquet")]
    monkeypatch.setattr("sys.argv", ["clipnoise", *words, "--out", str(out)])
    assert main() == 0
    text = " ".join(" ".join(page.extract_text() for page in PdfReader(out).pages).split())
    assert "Made from published runs" in text
    assert "dp-adam" in text


@pytest.mark.parametrize("command", ["publish", "partial-report"])
def test_runs_of_another_study_are_refused(
    command: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text((published.parent / "quickstart.yaml").read_text())
    file, named = str(published / "quickstart.parquet"), ["--study"] * (command == "publish")
    out = str(tmp_path / "out")
    assert main([command, *named, str(other), "--runs", file, "--out", out]) == 2
    said = capsys.readouterr().err
    assert "quickstart.parquet: holds runs of study 'quickstart', not of 'other'." in said
    assert not (tmp_path / "out").exists()


def test_a_reader_of_the_description_finds_the_same_rows(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(published)  # the description names the file beside it
    dataset = mlcroissant.Dataset(jsonld="croissant.json")
    records = list(dataset.records(record_set="runs"))
    table = pd.read_csv("quickstart.csv")
    assert [record["runs/value"] for record in records][:50] == table["value"].tolist()[:50]
    assert len(records) == len(table)
    assert not dataset.metadata.ctx.issues.errors


@pytest.mark.parametrize("licence", ["", "https://creativecommons.org/licenses/by/4.0/"])
def test_results_have_the_licence_that_their_study_gives_them_and_no_other(
    licence: str, published: Path, tmp_path: Path
) -> None:
    content = yaml.safe_load((published.parent / "quickstart.yaml").read_text())
    study = tmp_path / "quickstart.yaml"
    study.write_text(yaml.safe_dump(content | ({"licence": licence} if licence else {})))
    described = publication.croissant(load_study(study), "quickstart", b"")
    assert described.get("license", "") == licence


def test_a_method_has_one_row_for_each_option_of_a_task(tmp_path: Path) -> None:
    """Two rows that read alike would be two answers to one question."""
    options = {"tuned": {"suffix": "", "title": "tuned"}, "half": {"title": "half the rate"}}
    panel = {"title": "Digits", "datasets": ["digits"], "models": ["logistic"]}
    content = {
        "title": "Two options",
        "defaults": {"seeds": [1, 2], "methods": ["dp-sgd", "dp-adam"], "epsilons": [1]},
        "panels": {"digits": {**panel, "axes": {"part": options}}},
        "report": [],
    }
    rows = [
        run_row(panel=name, method=method, budget="eps=1", seed=seed)
        for name in ("digits", "digits-half")
        for method in ("dp-sgd", "dp-adam")
        for seed in (1, 2)
    ]
    study, runs, _ = write_study(tmp_path, rows, content)
    shown = settings(load_study(study), read_runs(runs))
    assert set(shown["Task"]) == {"Digits, tuned", "Digits, half the rate"}
    assert not shown.duplicated(["Task", "Method", "ε"]).any()


def test_epsilon_with_tuning_is_shown_with_its_claim_and_only_where_every_run_has_one(
    tmp_path: Path,
) -> None:
    rows = [
        run_row(method=method, seed=seed, epsilon_with_tuning=cost, charge=charge)
        for method, charge, costs in (
            ("dp-sgd", "drawn", (2.001, 2.001)),
            ("dp-adam", "selection", (3.0, 3.0)),
            ("dp-sgdm", "drawn", (2.0, math.nan)),  # a trial of a search diverged
        )
        for seed, cost in enumerate(costs)
    ]
    study, runs, _ = write_study(tmp_path, rows)
    found = settings(load_study(study), read_runs(runs)).set_index("Method")
    assert found["ε with tuning"].dropna().to_dict() == {"dp-sgd": 2.01, "dp-adam": 3.0}
    assert found["Claim with tuning"].dropna().to_dict() == {
        "dp-sgd": "guarantee",
        "dp-adam": "nominal",
    }
