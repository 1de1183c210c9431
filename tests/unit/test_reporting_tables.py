"""Tables: their content, and that every format carries the same numbers."""

from __future__ import annotations

import csv
import io
import re
import statistics

import pytest
from reporting_data import quickstart, run_row, write_table

from clipnoise.errors import UserError
from clipnoise.files import without_formulas
from clipnoise.report.export import latex, to_latex, to_markdown
from clipnoise.report.formats import budget, ranges, significant
from clipnoise.report.kinds.table import to_csv
from clipnoise.report.records import read_runs
from clipnoise.report.tables import build_table
from clipnoise.studies.columns import RUN_COLUMNS, table, to_parquet


@pytest.fixture
def tabulate(tmp_path):
    def build(rows, panel="comparison", **options):
        runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
        return build_table(runs, panel, **options)

    return build


def seeds(count=6, start=0.9, **changes):
    return [
        run_row(seed=i, test_accuracy=start + 0.001 * i, **changes) for i in range(1, count + 1)
    ]


def lost(rows, status, wanted):
    """Return the rows with those of some seeds replaced by runs of another status."""
    kept = ("panel", "model", "method", "label", "budget", "seed")
    return [
        run_row(**{k: row[k] for k in kept if k in row}, status=status)
        if row["seed"] in wanted
        else row
        for row in rows
    ]


def row_of(table, label):
    (row,) = [row for row in (*table.rows, *table.references) if row.label == label]
    return row


def cell(table, label, *place):
    return row_of(table, label).cells[place]


def leads(table, label, *place):
    return table.leads(row_of(table, label), place)


ONE, EIGHT = ("digits", "logistic", "eps=1"), ("digits", "logistic", "eps=8")


def test_csv_holds_mean_and_deviation_at_full_precision(tabulate):
    rows = quickstart()
    table = tabulate(rows)
    for line in csv.DictReader(io.StringIO(to_csv(table))):
        values = [
            row["test_accuracy"]
            for row in rows
            if row["panel"] == "comparison"
            and all(row[k] == line[k] for k in ("dataset", "model", "label", "budget"))
        ]
        assert float(line["mean"]) == pytest.approx(statistics.mean(values), rel=1e-14)
        assert float(line["std"]) == pytest.approx(statistics.stdev(values), rel=1e-12)
        assert (line["n"], line["planned"]) == ("6", "6")


def test_a_label_is_no_formula_of_a_spreadsheet_or_of_markdown(tabulate):
    label = '=HYPERLINK("http://x", "$1$")'
    table = tabulate(seeds(label=label))
    (line,) = csv.DictReader(io.StringIO(to_csv(table)))
    assert line["label"] == f"'{label}"
    assert float(line["mean"]) > 0
    assert "\\$1\\$" in to_markdown(table.block)
    assert without_formulas({"a": "-1.5e-3", "b": -2, "c": "+cmd", "d": "−"}) == {
        "a": "-1.5e-3",
        "b": -2,
        "c": "'+cmd",
        "d": "−",
    }


def test_all_formats_show_the_same_cells(tabulate):
    table = tabulate(quickstart())
    markdown, tex = to_markdown(table.block), to_latex(table.block)
    for line in csv.DictReader(io.StringIO(to_csv(table))):
        mean, deviation = 100 * float(line["mean"]), 100 * float(line["std"])
        assert f"{mean:.2f} ± {deviation:.2f}" in markdown
        assert rf"{mean:.2f} $\pm$ {deviation:.2f}" in tex


def test_bold_is_the_same_in_all_formats(tabulate):
    table = tabulate(quickstart())
    bold = [line for line in csv.DictReader(io.StringIO(to_csv(table))) if line["bold"] == "true"]
    assert bold
    assert to_markdown(table.block).count("**") == 2 * len(bold)
    assert to_latex(table.block).count(r"\textbf{") == len(bold)


def test_bold_beside_a_mean_that_is_no_worse_and_not_bold_is_explained(tabulate):
    levels = {
        "dp-sgd": (0.90, 0.91, 0.92, 0.93, 0.94, 0.95),
        "dp-adam": (0.89, 0.90, 0.91, 0.92, 0.9301, 0.94),  # always a point below the best
        "dp-pmlf": (
            0.99,
            0.80,
            0.85,
            0.95,
            0.86,
            0.9,
        ),  # further below it on average, but not always
    }
    rows = [
        run_row(method=method, seed=seed, test_accuracy=value)
        for method, values in levels.items()
        for seed, value in enumerate(values)
    ]
    table = tabulate(rows)
    assert leads(table, "dp-pmlf", *ONE)
    assert not leads(table, "dp-adam", *ONE)
    notes = " ".join(table.notes)
    assert "dp-pmlf can be bold with no better a mean than dp-adam, which is not" in notes
    plain = tabulate([row for row in rows if row["method"] != "dp-pmlf"])
    assert "can be bold" not in " ".join(plain.notes)


def test_references_stand_apart_and_never_compete(tabulate):
    rows = [*seeds(start=0.5), *seeds(start=0.4, method="dp-adam")]
    rows += seeds(start=0.99, method="sgd", budget="non-private")
    table = tabulate(rows)
    assert [row.label for row in table.references] == ["sgd"]
    assert not leads(table, "sgd", "digits", "logistic", "non-private")
    assert leads(table, "dp-sgd", *ONE)
    assert "Non-private references have no ε and do not compete." in table.notes


def test_non_private_references_are_never_shown_below_an_epsilon(tabulate):
    table = tabulate([*seeds(), *seeds(budget="eps=8"), *seeds(method="sgd", budget="non-private")])
    private, reference = to_markdown(table.block).split("| non-private reference |")
    assert "sgd" not in private.replace("dp-sgd", "")
    assert "ε" not in reference.split("\n\n")[0]
    assert r"sgd & \multicolumn{2}{c}{" in to_latex(table.block)


def test_a_part_without_private_methods_is_an_ordinary_table(tabulate):
    rows = [*seeds(start=0.9, method="sgd", budget="non-private")]
    rows += seeds(start=0.5, method="adam", budget="non-private")
    table = tabulate(rows)
    assert [row.label for row in table.rows] == ["sgd", "adam"]
    assert not table.references
    assert leads(table, "sgd", "digits", "logistic", "non-private")


def test_a_nominal_epsilon_is_marked_and_does_not_compete(tabulate):
    rows = [*seeds(start=0.5), *seeds(start=0.4, method="dp-adam")]
    rows += seeds(start=0.99, method="dp-pmlf", claim="nominal")
    table = tabulate(rows)
    assert leads(table, "dp-sgd", *ONE)
    assert not leads(table, "dp-pmlf", *ONE)
    assert re.search(r"dp-pmlf \| [0-9. ±]+† \|", to_markdown(table.block))
    assert r"\textdagger{}" in to_latex(table.block)
    assert any("nominal ε" in note for note in table.notes)


def test_an_oracle_with_the_noise_of_a_budget_is_marked_and_does_not_compete(tabulate):
    rows = [*seeds(start=0.5), *seeds(start=0.4, method="dp-adam")]
    rows += seeds(start=0.99, method="dp-adam-noiseless", claim="non-private")
    table = tabulate(rows)
    assert leads(table, "dp-sgd", *ONE)
    assert not leads(table, "dp-adam-noiseless", *ONE)
    assert re.search(r"dp-adam-noiseless \| [0-9. ±]+§ \|", to_markdown(table.block))
    assert any("§ non-private" in note for note in table.notes)


def test_epsilon_under_another_adjacency_is_marked_and_does_not_compete(tabulate):
    rows = [*seeds(start=0.5), *seeds(start=0.4, method="dp-adam")]
    rows += seeds(start=0.99, method="jme-adam", adjacency="replace")
    table = tabulate(rows)
    assert not leads(table, "jme-adam", *ONE)
    assert cell(table, "jme-adam", *ONE).mark == "‡"
    assert any("replace adjacency" in note for note in table.notes)


def test_where_all_epsilons_hold_under_one_other_adjacency_they_compete_with_each_other(tabulate):
    rows = [*seeds(start=0.5, adjacency="zero-out")]
    rows += seeds(start=0.4, method="dp-adam", adjacency="zero-out")
    table = tabulate(rows)
    assert leads(table, "dp-sgd", *ONE)
    assert cell(table, "dp-sgd", *ONE).mark == "‡"
    assert any("zero-out adjacency: not comparable" in note for note in table.notes)
    mixed = tabulate([*rows, *seeds(start=0.45, method="jme-adam", adjacency="replace")])
    assert not any(mixed.leads(row, place) for row, place, _ in mixed.cells())


def test_diverged_runs_show_as_n_of_the_planned_and_cannot_be_bold(tabulate):
    survivors = lost(seeds(start=0.99, method="dp-adam"), "diverged", {2, 5})
    table = tabulate([*seeds(start=0.5), *seeds(start=0.4, method="stp-adam"), *survivors])
    assert leads(table, "dp-sgd", *ONE)
    assert re.search(r"\| dp-adam \| 99\.\d\d ± 0\.\d\d \(4/6\) \|", to_markdown(table.block))
    assert any("2 runs diverged" in note for note in table.notes)


def test_a_column_with_missing_runs_has_no_bold_and_says_so(tabulate):
    rows = [*seeds(start=0.9), *lost(seeds(start=0.4, method="dp-adam"), "missing", {6})]
    rows += [*seeds(start=0.9, budget="eps=8"), *seeds(method="dp-adam", budget="eps=8", start=0.4)]
    table = tabulate(rows)
    assert not leads(table, "dp-sgd", *ONE)
    assert leads(table, "dp-sgd", *EIGHT)
    assert any("missing runs have no bold yet" in note for note in table.notes)


def test_without_any_completed_run_every_cell_is_a_dash_with_its_count(tabulate):
    table = tabulate(lost(quickstart(), "missing", set(range(10))))
    body = [line for line in to_markdown(table.block).splitlines() if line.startswith("| dp-")]
    assert body
    assert all(line.count("– (0/6)") == 4 for line in body)
    assert "**" not in to_markdown(table.block)


def test_a_part_without_runs_still_gives_every_format(tabulate):
    table = tabulate([])
    assert to_csv(table).count("\n") == 1
    assert "No run is planned for this panel." in to_markdown(table.block)
    assert r"\begin{table}" in to_latex(table.block)


def test_one_seed_gives_no_deviation_and_no_bold(tabulate):
    table = tabulate([*seeds(1), *seeds(1, method="dp-adam")])
    assert "±" not in cell(table, "dp-sgd", *ONE).text
    assert not leads(table, "dp-sgd", *ONE)
    (line, _) = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert line["std"] == ""


def test_loss_is_shown_and_the_lowest_is_bold_where_no_run_has_an_accuracy(tabulate):
    rows = [
        run_row(seed=i, method=method, test_accuracy="", test_loss=level + 0.01 * i)
        for method, level in (("dp-sgd", 0.9), ("dp-adam", 0.2))
        for i in range(6)
    ]
    table = tabulate(rows)
    assert leads(table, "dp-adam", *ONE)
    assert not leads(table, "dp-sgd", *ONE)
    assert "Test loss" in table.notes[0]


def test_two_configurations_under_one_label_are_refused(tabulate):
    with pytest.raises(UserError, match="share the label 'dp-sgd'"):
        tabulate([*seeds(), *seeds()])


def test_wide_tables_are_split_into_grids_without_losing_a_column(tabulate):
    rows = [
        run_row(seed=i, dataset=dataset, budget=f"eps={epsilon}")
        for dataset in ("a", "b", "c")
        for epsilon in (1, 2, 4, 8)
        for i in (1, 2)
    ]
    table = tabulate(rows)
    groups = [grid.groups for grid in table.grids()]
    columns = [(g.title[0], text) for grid in groups for g in grid for text in g.headings]
    assert columns == [(d, f"ε = {e}") for d in "abc" for e in (1, 2, 4, 8)]
    assert all(sum(len(g.headings) for g in grid) <= 6 for grid in groups)


def test_markdown_rows_have_as_many_cells_as_their_heading(tabulate):
    rows = [*quickstart(), *seeds(method="dp-sgd", label="a | b * c", model="cnn-small")]
    text = to_markdown(tabulate(rows, title="a_b | c").block)
    counts = [
        {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        for block in text.split("\n\n")
        if block.startswith("|")
    ]
    assert counts == [{6}, {4}]
    assert r"a \| b \* c" in text


def test_latex_rows_fill_their_columns(tabulate):
    tex = to_latex(tabulate(quickstart()).block)
    body = tex[tex.index(r"\toprule") : tex.index(r"\bottomrule")]
    for line in body.splitlines():
        if line.endswith(r"\\"):
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert line.count("&") + 1 + sum(spans) - len(spans) == 5


def test_latex_escapes_what_latex_would_read(tabulate):
    assert latex("a_b 5% x&y #1 $2 {z} ~ ^ \\") == (
        r"a\_b 5\% x\&y \#1 \$2 \{z\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    tex = to_latex(tabulate(seeds(label="50%_of & #1"), title="100% $x$").block)
    assert r"50\%\_of \& \#1" in tex
    assert r"\caption{100\% \$x\$}" in tex
    assert not set(tex) - set(map(chr, range(128)))


def test_tables_that_read_back_wrong_are_refused_with_file_and_column(tmp_path):
    short = write_table(tmp_path / "short.parquet", ["study"], [])
    with pytest.raises(UserError, match=r"short\.parquet: no column 'panel'"):
        read_runs(short)
    with pytest.raises(UserError, match=r"gone\.parquet: no such file"):
        read_runs(tmp_path / "gone.parquet")
    bad = write_table(tmp_path / "bad.parquet", RUN_COLUMNS, [run_row(status="dreamt")])
    with pytest.raises(UserError, match=r"'dreamt'\. Allowed: completed"):
        read_runs(bad)
    text = tmp_path / "text.parquet"
    kinds = {**RUN_COLUMNS, "seconds": RUN_COLUMNS["status"]}
    text.write_bytes(to_parquet(table(kinds, [run_row(seconds="fast")])))
    with pytest.raises(UserError, match=r"text\.parquet: .*fast"):
        read_runs(text)
    text.write_text("study,panel\n")
    with pytest.raises(UserError, match=r"text\.parquet: .*not a Parquet table"):
        read_runs(text)


def test_labels_that_look_like_gaps_or_numbers_stay_labels(tmp_path):
    rows = [run_row(label=label, hash="000123456789") for label in ("NA", "nan", "None", "1e5")]
    runs = read_runs(write_table(tmp_path / "runs.parquet", RUN_COLUMNS, rows))
    assert list(runs["label"]) == ["NA", "nan", "None", "1e5"]
    assert set(runs["hash"]) == {"000123456789"}


def test_numbers_read_as_people_write_them():
    assert significant(1 / 1257) == "7.955 × 10⁻⁴"
    assert significant(0.99964, 5) == "0.99964"
    assert significant(12565.0, 4) == "12560"
    assert significant(float("nan")) == "–"
    assert budget("eps=1") == "ε = 1"
    assert budget("sigma=0.5") == "σ = 0.5"
    assert budget("non-private") == "non-private"
    assert ranges([5, 1, 2, 3, 8, 9]) == "1–3, 5, 8, 9"
