"""The PDF agrees with the result files, even if these are few or unusual."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader
from reporting_data import STUDY, quickstart, run_row, write_study

from clipnoise.cli import main

ROOT = Path(__file__).parents[2]
TEMPLATE = str(ROOT / "reports" / "templates" / "report.typ")


def make(folder: Path, rows, study=STUDY, figures=(1, 2, 3, 5)) -> Path:
    path, runs, curves = map(str, write_study(folder, rows, study))
    for item in figures:
        words = ["--item", str(item), "--out", str(folder / "figures" / f"{item}.svg")]
        words += ["--study", path, "--runs", runs, "--curves", curves]
        assert main(["figure", *words]) == 0
    out = folder / "report.pdf"
    words = ["--study", path, "--runs", runs, "--curves", curves]
    words += ["--figures", str(folder / "figures")]
    assert main(["report", *words, "--template", TEMPLATE, "--out", str(out)]) == 0
    return out


def text(path: Path) -> str:
    """Return the text of a PDF with every gap one space."""
    pages = [page.extract_text() for page in PdfReader(path).pages]
    return re.sub(r"\s+", " ", " ".join(pages).replace("\u200b", ""))


def changed(rows, wanted, **changes):
    """Return the rows, some of them repeated with other outcomes."""
    kept = ("panel", "model", "method", "label", "budget", "seed")
    return [
        run_row(**{k: row[k] for k in kept if k in row}, **changes) if wanted(row) else row
        for row in rows
    ]


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("full"), quickstart())


@pytest.mark.long
def test_the_pdf_shows_exactly_the_numbers_of_the_tables(full):
    said = text(full)
    for panel in STUDY["panels"]:
        out = full.parent / "tables" / panel
        words = ["--study", str(full.parent / "quickstart.yaml"), "--panel", panel]
        words += ["--runs", str(full.parent / "runs.parquet"), "--out", str(out)]
        assert main(["table", *words]) == 0
        for line in csv.DictReader(io.StringIO(out.with_suffix(".csv").read_text())):
            cell = f"{100 * float(line['mean']):.2f} ± {100 * float(line['std']):.2f}"
            assert cell in said
            assert cell in out.with_suffix(".md").read_text()


def test_the_pdf_states_what_the_privacy_claim_rests_on(full):
    said = text(full)
    assert "differentially private under add-remove adjacency" in said
    assert "RDP accountant for Poisson sampling" in said
    assert "Covered: the model's parameters after every step" in said.replace("’", "'")
    assert "Not covered: losses and accuracies on private training examples" in said
    assert "is public" in said
    assert "0.9996" in said
    assert "7.9996" in said
    assert "7.955 × 10⁻⁴" in said.replace("10−4", "10⁻⁴")
    assert "12 runs (sgd) trained without protecting" in said
    assert "nominal" not in said


def test_page_one_gives_the_verdict_with_the_examples_behind_it(full):
    page = re.sub(r"\s+", " ", PdfReader(full).pages[0].extract_text())
    assert "better than all others" in page
    assert "over dp-sgd" in page
    assert "test examples 360" in page
    assert "reports/quickstart/audit.pdf" in page.replace("\u200b", "")


@pytest.mark.long
def test_a_delta_of_one_over_n_has_a_remark(full, tmp_path):
    assert "198 runs at δ = 1/n or above" in text(full)
    rows = [{**row, "delta": 1e-5} if row.get("delta") else row for row in quickstart()]
    assert "Remark on δ" not in text(make(tmp_path, rows, figures=()))


def test_an_item_without_a_title_says_what_it_shows(tmp_path):
    study = {**STUDY, "report": [{"kind": "curves", "panels": "comparison"}]}
    assert "Figure 1 Curves: comparison" in text(make(tmp_path, quickstart(), study, figures=()))


def test_a_hyper_parameter_without_a_value_follows_from_others(tmp_path):
    values = json.dumps({"id": "dp-adambc", "learning_rate": 0.5, "phi": None})
    rows = [run_row(method="dp-adambc", seed=seed, hyperparameters=values) for seed in (1, 2)]
    said = text(make(tmp_path, rows, figures=()))
    assert "phi as computed" in said
    assert "None" not in said.replace("None: every planned run completed", "")


def test_the_pdf_carries_title_captions_provenance_and_outcome(full):
    said = text(full)
    assert STUDY["title"] in said
    for item in STUDY["report"]:
        assert item["title"] in said
    assert "4f1c2d9a8e7b6c5d4f3e2a1b0c9d8e7f6a5b4c3d" in said
    assert "AMD EPYC 7763" in said
    assert "15 min" in said  # 210 runs of 4.25 s
    assert "210 planned runs: 210 completed." in said
    assert "every planned run completed" in said
    assert PdfReader(full).metadata.title == STUDY["title"]


@pytest.mark.long
def test_the_pdf_names_training_code_plug_ins_and_data_by_their_digests(tmp_path):
    """A commit need not contain what a run was trained with."""
    known = {"data": "digits", "data_digest": "0123456789ab", "plugins": "mine/own.py cafe"}
    rows = [{**row, **known, "fingerprint": "fedcba987654"} for row in quickstart()]
    said = text(make(tmp_path, rows, figures=()))
    for digest in ("fedcba987654", "mine/own.py cafe", "digits 0123456789ab"):
        assert digest in said
    other = [{**row, "fingerprint": "000000000000"} for row in rows[:3]]
    said = text(make(tmp_path, [*other, *rows[3:]], figures=()))
    assert "2 versions of the code; digest of all: " in said
    assert "Training code" not in text(make(tmp_path, quickstart(), figures=()))


def test_a_nominal_claim_is_shown_where_a_reader_looks(tmp_path):
    rows = quickstart()
    for row in rows:
        if row["method"] == "dp-pmlf":
            row["claim"] = "nominal"
    said = text(make(tmp_path, rows, figures=()))
    assert "Nominal ε, no guarantee." in said
    assert "ε is nominal in some runs" in said
    assert "† nominal ε" in said


def test_failed_runs_are_listed_with_seeds_and_reason(tmp_path):
    def lost(row):
        return row["method"] == "dp-adam" and row["budget"] == "eps=1" and row["seed"] in (2, 5)

    rows = changed(quickstart(), lost, status="diverged", reason="train loss is NaN at step 37")
    rows = changed(rows, lambda row: row["label"] == "neither", status="missing", reason="no file")
    said = text(make(tmp_path, rows, figures=()))
    assert "210 planned runs: 194 completed, 4 diverged, 12 missing." in said
    assert "dp-adam ε = 1 2, 5 diverged train loss is NaN at step 37" in said
    assert "neither ε = 1; ε = 8 1–6 missing no file" in said
    assert "4/6 runs" in said
    assert "0/6 runs" in said


@pytest.mark.long
@pytest.mark.parametrize("status", ["missing", "corrupt", "diverged"])
def test_a_report_without_a_completed_run_builds(tmp_path, status):
    rows = changed(quickstart(), lambda row: True, status=status, reason="because")
    said = text(make(tmp_path, rows))
    assert "0/6 runs" in said
    assert "0/132" in said


def test_a_report_of_an_empty_study_builds(tmp_path):
    said = text(make(tmp_path, []))
    assert "No run is planned." in said
    assert "No run has a result, so nothing is claimed." in said


def choice(values: dict[str, Any]) -> dict[str, Any]:
    """Return a choice between two configurations that validation cannot tell apart."""
    best = [{"hyperparameters": json.dumps(values), "score": score} for score in (0.801, 0.8)]
    return {"metric": "validation_accuracy", "best": best, "edges": ["clip_norm"], "seeds": 2}


def many_panels(status: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a study with the table of twelve panels, every cell tuned for itself."""
    methods = ("dp-sgd", "dp-adam", "dp-adambc", "adadps-rmsprop")
    rows, names = [], [f"panel-{number}" for number in range(12)]
    for number, panel in enumerate(names):
        for rank, method in enumerate(methods):
            for budget in ("eps=1", "eps=3"):
                tuned = {"learning_rate": round(0.1 * number + 0.01 * rank, 3), "clip_norm": 0.5}
                one = {
                    **{"panel": panel, "dataset": f"data-{number % 6}", "method": method},
                    **{"budget": budget, "model": f"model-{number // 6}", "status": status},
                    **{"configurations": 12, "tuning_runs": 24, "charge": "nothing"},
                    "hyperparameters": json.dumps({"id": method, "beta": 0.9, **tuned}),
                    "tuned": json.dumps(tuned) if status == "completed" else "",
                    "choice": choice(tuned) if status == "completed" else "",
                }
                rows += [run_row(**one, seed=seed, test_accuracy=0.8) for seed in (1, 2)]
    study = {
        **STUDY,
        "panels": dict.fromkeys(names, next(iter(STUDY["panels"].values()))),
        "report": [
            {"kind": "table", "panels": names[:6], "together": True},
            {"kind": "table", "panels": names[6:], "together": True},
        ],
    }
    return rows, study


@pytest.mark.long
@pytest.mark.parametrize("status", ["completed", "missing"])
def test_the_report_of_a_table_with_many_panels_has_four_pages_at_most(tmp_path, status):
    rows, study = many_panels(status)
    path = make(tmp_path, rows, study, figures=())
    assert len(PdfReader(path).pages) <= 4
    said = text(path)
    for number in range(12):
        assert f"panel-{number}" in said
    if status == "completed":
        for number in range(1, 12):
            assert f"learning_rate* {0.1 * number + 0.02:.6g}" in said


def test_a_long_list_of_methods_is_printed_once(tmp_path):
    panels = ("first", "second", "third")
    methods = [f"method-{number}" for number in range(10)]
    rows = [
        run_row(panel=panel, dataset=f"data-{panel}", method=method)
        for panel in panels
        for method in methods[: 9 if panel == "third" else 10]
    ]
    study = {**STUDY, "panels": dict.fromkeys(panels, STUDY["panels"]["comparison"]), "report": []}
    said = text(make(tmp_path, rows, study, figures=()))
    assert said.count("as in first") == 1
    assert said.count("method-0; method-1;") == 2


@pytest.mark.long
def test_a_figure_that_was_not_drawn_is_named(tmp_path):
    assert "This figure was not drawn." in text(make(tmp_path, quickstart(), figures=()))


def test_a_run_shared_by_two_parts_is_counted_once(tmp_path):
    rows = [run_row(seed=i) for i in (1, 2)] + [run_row(seed=i, panel="ablation") for i in (1, 2)]
    said = text(make(tmp_path, rows, figures=()))
    assert "2 planned runs: 2 completed." in said
    assert "all runs 8 s" in said


def test_hyper_parameters_that_depend_on_the_place_say_where_they_hold(tmp_path):
    rows = [
        run_row(
            seed=1, budget=budget, hyperparameters=f'{{"id": "dp-sgd", "learning_rate": {rate}}}'
        )
        for budget, rate in (("eps=1", 0.5), ("eps=8", 2.0))
    ]
    said = text(make(tmp_path, rows, figures=()))
    assert "comparison (ε = 1): learning_rate 0.5" in said
    assert "comparison (ε = 8): learning_rate 2" in said


def test_line_ends_in_a_description_are_only_those_of_the_file(tmp_path):
    study = {**STUDY, "description": "One sentence\ngoes on.\n\nA paragraph.\n"}
    lines = PdfReader(make(tmp_path, quickstart(), study, figures=())).pages[0].extract_text()
    assert "One sentence goes on.\n" in lines
    assert "goes on. A paragraph." not in lines


def test_text_of_a_study_is_never_markup(tmp_path):
    odd = '#panic("x") *bold* _it_ $x^2$ `raw` @ref <tag> \\ "quoted" [b] // c'
    study = {**STUDY, "title": odd, "description": odd}
    study["report"] = [{"kind": "table", "panels": "comparison", "title": odd, "caption": odd}]
    said = text(make(tmp_path, [run_row(seed=i, label=odd) for i in (1, 2)], study, figures=()))
    assert said.count('#panic("x") *bold* _it_ $x^2$ `raw` @ref <tag>') >= 4


@pytest.mark.long
def test_the_same_input_gives_the_same_pdf(full, tmp_path):
    assert make(tmp_path, quickstart()).read_bytes() == full.read_bytes()


def test_tags_for_screen_readers_are_there_and_compressed(full):
    catalogue = PdfReader(full).root_object
    assert catalogue["/StructTreeRoot"]["/K"], "headings and cells are tagged"
    assert b"/StructElem" not in full.read_bytes(), "tags stand in compressed objects"


@pytest.mark.long
def test_commands_refuse_what_is_not_there_by_name(tmp_path, capsys):
    path, runs, curves = map(str, write_study(tmp_path, quickstart()))
    out = str(tmp_path / "x")
    assert main(["table", "--study", path, "--panel", "ablaton", "--runs", runs, "--out", out]) == 2
    assert "Did you mean 'ablation'?" in capsys.readouterr().err
    words = ["--study", path, "--runs", runs, "--curves", curves, "--out", out]
    assert main(["figure", *words, "--item", "0"]) == 2
    assert "item 0 is not a figure. Allowed: 1, 2, 3, 5." in capsys.readouterr().err
    words = ["--study", path, "--runs", runs, "--curves", curves, "--figures", out, "--out", out]
    assert main(["report", *words, "--template", "gone.typ"]) == 2
    assert "gone.typ: no such template." in capsys.readouterr().err
    broken = tmp_path / "broken.typ"
    broken.write_text("#let x = (")
    assert main(["report", *words, "--template", str(broken)]) == 2
    assert "broken.typ: " in capsys.readouterr().err
    assert not Path(out).exists()


@pytest.mark.long
def test_reports_need_neither_torch_nor_mlflow(tmp_path):
    path, runs, curves = map(str, write_study(tmp_path, [run_row(seed=i) for i in (1, 2)]))
    common = ["--study", path, "--runs", runs]
    figures, pdf = str(tmp_path), str(tmp_path / "r.pdf")
    commands = [
        ["table", *common, "--panel", "comparison", "--out", str(tmp_path / "t")],
        ["figure", *common, "--curves", curves, "--item", "2", "--out", str(tmp_path / "2.svg")],
        ["report", *common, "--curves", curves, "--figures", figures, "--out", pdf],
    ]
    code = (
        "import sys; from clipnoise.cli import main\n"
        f"assert [main(words) for words in {commands!r}] == [0, 0, 0]\n"
        "assert not {'torch', 'mlflow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
