"""The kinds of tables and figures: what each of them has to keep, and how a user adds one."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
import pytest
from annotated_types import Ge, Gt, Lt
from reporting_data import curve_rows, draw_figure, item_data, run_row, write_study, write_table
from test_reporting_moments import diagnostics

from clipnoise.cli.keys import ITEMS, OF_RUNS, SECTIONS, key_table, type_words
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.report.items import FigureItem, TableItem
from clipnoise.report.pdf import plain
from clipnoise.report.records import read_curves, read_runs
from clipnoise.studies.columns import CURVE_COLUMNS, RUN_COLUMNS
from clipnoise.studies.items import ReportItem, item_kinds
from clipnoise.studies.study import load_study

DOCS = Path(__file__).parents[2] / "docs"
GIVEN = {"over": "beta", "against": {"part": "first"}}  # options that some kinds require
PANELS = ("comparison", "other")  # of the same runs
FORMS: list[tuple[str, dict[str, Any]]] = [  # figures that options make of a kind
    ("curves", {"along": "epsilon"}),
    *(("moments", {"show": show}) for show in ("estimates", "corrections", "noise-bias")),
    ("sweep", {"over": ("beta", "history")}),
    ("sweep", {"over": "beta", "rho": True}),
    *((kind, {"panels": PANELS}) for kind in ("ablation", "confusion-matrix", "moments")),
]
OTHERS = {"against": ("other",)}
DIAGNOSED = diagnostics()
DIAGNOSED["histograms"] |= {
    name: {"low": -7, "high": -3, "log10": True, "counts": {f"{moment}_private": [1, 2, 1]}}
    for name, moment in (("root", "v"), ("rescaled", "update"))
}
PREDICTED = {
    "classes": [],
    "column": "sex",
    "groups": {"f": [[3, 1], [0, 2]], "m": [[1, 1], [1, 4]]},
}
METHODS = {
    "sgd": ({"confusion": PREDICTED}, "non-private"),
    "dp-sgd": ({"hyperparameters": json.dumps({"filter_a": [-0.9], "filter_b": [0.1]})}, "eps=1"),
    "dp-pmlf": ({"hyperparameters": json.dumps({"beta": 0.5, "history": 3})}, "eps=1"),
    "dp-adambc": ({"diagnostics": DIAGNOSED}, "eps=1"),
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [
        run_row(
            panel=panel,
            dataset=dataset,
            method=method,
            budget=budget,
            seed=seed,
            test_accuracy=0.7 + 0.05 * rank + 0.01 * seed,
            **more,
        )
        for panel in PANELS
        for dataset in ("set-0", "set-1")
        for rank, (method, (more, budget)) in enumerate(METHODS.items())
        for seed in (1, 2)
    ]


@pytest.fixture(scope="module")
def tables(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[pd.DataFrame, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("tables")
    curves = [{**row, "epsilon_spent": row["step"] / 100} for row in curve_rows(rows)]
    return (
        read_runs(write_table(folder / "runs.parquet", RUN_COLUMNS, rows)),
        read_curves(write_table(folder / "curves.parquet", CURVE_COLUMNS, curves)),
    )


def made_of(kind: str, runs: pd.DataFrame, curves: pd.DataFrame, **given: Any) -> Any:
    every = dataclasses.fields(item_kinds()[kind])
    required = {field.name for field in every if field.default is dataclasses.MISSING}
    options = {name: value for name, value in GIVEN.items() if name in required}
    others = OTHERS if "against" in options else {}
    return item_data(kind, runs, curves, others=others, **{**options, **given})


@pytest.mark.parametrize("kind", item_kinds())
def test_a_kind_is_one_class_in_a_file_of_its_own(kind: str) -> None:
    found = item_kinds()[kind]
    assert sum(one.__module__ == found.__module__ for one in item_kinds().values()) == 1
    assert issubclass(found, FigureItem) != issubclass(found, TableItem)
    assert not inspect.isabstract(found)


@pytest.mark.quick(options=[{}])
@pytest.mark.parametrize(
    ("kind", "options"),
    [*((name, {}) for name, one in item_kinds().items() if issubclass(one, FigureItem)), *FORMS],
    ids=str,
)
def test_a_figure_is_drawn_and_says_where_no_run_has_completed(
    kind: str, options: dict[str, Any], tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    runs, curves = tables
    drawn = draw_figure(made_of(kind, runs, curves, **options))
    assert drawn.startswith(b"<?xml")
    assert b"no completed run" not in drawn
    missing = runs.assign(status="missing", test_accuracy=float("nan"))
    assert b"no completed run" in draw_figure(made_of(kind, missing, curves, **options))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((name, {}) for name, one in item_kinds().items() if issubclass(one, TableItem)),
        *(("metrics", {"by": by}) for by in ("class", "group")),
        *((kind, {"panels": PANELS}) for kind in ("metrics", "moments-table")),
    ],
    ids=str,
)
def test_a_table_is_printed_in_the_report_and_as_files(
    kind: str, options: dict[str, Any], tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    data = made_of(kind, *tables, **options)
    (block,) = data.item.blocks(data)
    assert json.loads(json.dumps(block, default=plain))["kind"] == block.kind
    files = data.item.files(dataclasses.replace(data, watermark="not evidence"))
    assert files.keys() == {".csv", ".md", ".tex"}
    assert all("not evidence" in text for text in files.values())
    assert data.item.file
    empty = made_of(kind, tables[0][:0], tables[1][:0], **options)
    assert list(empty.item.blocks(empty))


@pytest.mark.parametrize(
    ("kind", "options"),
    [("table", {}), ("metrics", {}), ("metrics", {"by": "class"}), ("moments-table", {})],
    ids=str,
)
def test_two_configurations_in_one_place_are_refused(
    kind: str, options: dict[str, Any], tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    """Panels that are shown together may have methods of one label that differ otherwise."""
    runs, curves = tables
    mixed = runs.assign(hash=[f"{row}" for row in range(len(runs))])
    data = made_of(kind, mixed, curves, panels=PANELS, **options)
    with pytest.raises(UserError, match="label"):
        list(data.item.blocks(data))


def test_reading_a_study_loads_no_library_that_computes_or_draws() -> None:
    code = """
import sys
from pathlib import Path
from clipnoise.studies.study import load_study
load_study(Path("workflow/studies/league/lite.yaml"))
print(*{"numpy", "scipy", "pandas", "matplotlib", "seaborn", "altair", "torch"} & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=DOCS.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("section", [*SECTIONS, ITEMS])
def test_the_documentation_lists_every_key_with_its_type_and_default(section: str) -> None:
    said = "run: clipnoise report-items --markdown docs/study-keys.md"
    assert key_table(section) in (DOCS / "study-keys.md").read_text(), said
    for kind in SECTIONS.get(section, ()):
        for field in dataclasses.fields(kind):
            listed = f"`{field.name}`" in key_table(section)
            assert listed != ((kind, field.name) in OF_RUNS)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[int, Gt(0)] | None, "integer > 0"),
        (Annotated[float, Ge(0), Lt(1)], "number ≥ 0 and < 1"),
        (tuple[Annotated[float, Gt(0)], ...], "numbers > 0"),
        (Literal["each", "best"], "`each`, `best`"),
        (Literal["a"] | tuple[Literal["a"], ...], "one or more of `a`"),
        (dict[str, int], "mapping"),
    ],
)
def test_types_are_printed_as_what_a_reader_writes(kind: Any, words: str) -> None:
    assert type_words(kind) == words


def test_the_guide_shows_the_whole_file_of_a_kind() -> None:
    file = inspect.getfile(item_kinds()["ablation"])
    assert Path(file).read_text() in (DOCS.parent / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "tabel"}, r"kind: 'tabel'. Did you mean 'table'\?"),
        ({"panels": "one"}, "give its 'kind'"),
        ({"kind": "table", "cost": True}, r"cost: unknown key. Did you mean 'costs'\?"),
        ({"kind": "table", "over": "beta"}, "over: unknown key"),
        ({"kind": "sweep"}, "over: required, but not given"),
        ({"kind": "changes", "against": {}}, "against: "),
        ({"kind": "table", "side_by_side": True}, "`side_by_side` needs `published`"),
        ({"kind": "published"}, "kind: published is gone; write kind: table, published: NAME"),
        ({"each": [{"kind": "table"}]}, "each: it is gone; write its items one after the other"),
        ({"kind": "table", "panel": "a"}, "panel: it is gone; write panels: NAME"),
        ({"kind": "noise-bias"}, "kind: noise-bias is gone; write kind: moments, show: noise-bias"),
        ({"kind": "curves", "along": "epsilon", "metric": ["test_loss"]}, "metric: give one along"),
    ],
)
def test_a_mistake_in_an_entry_names_the_key_and_what_is_allowed(
    entry: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        parse(ReportItem, entry)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"kind": "sweep", "over": "betta"}, r"report.0.over: .*'betta'. Did you mean 'beta'\?"),
        ({"kind": "sweep", "over": "beta", "rho": True}, None),
        ({"kind": "sweep", "over": ["beta", "norm"]}, r"report.0.over: .*'norm'"),
        (
            {"kind": "sweep", "over": "clip_norm", "rho": True, "panels": "other"},
            "report.0.over: `rho` needs one of beta, history",
        ),
    ],
)
def test_what_a_kind_needs_of_a_study_is_checked_when_the_study_is_read(
    item: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    grid = {"datasets": ["digits"], "models": ["logistic"], "seeds": [1], "epsilons": [1]}
    panels = {
        name: {**grid, "methods": [{"id": method, "learning_rate": 1, "clip_norm": 1}]}
        for name, method in (("main", "dp-pmlf"), ("other", "dp-sgd"))
    }
    study = {"title": "Sweeps", "panels": panels, "report": [{"panels": "main", **item}]}
    path, _, _ = write_study(tmp_path, [], study)
    if message is None:
        assert load_study(path).report
    else:
        with pytest.raises(UserError, match=message):
            load_study(path)


OWN = '''
"""How many runs there are."""

from dataclasses import dataclass
from typing import Literal

from clipnoise.report.blocks import ListBlock
from clipnoise.report.items import ItemData, TableItem


@dataclass(frozen=True, kw_only=True)
class RunCount(TableItem):
    """How many runs there are.

    Attributes:
        unit: what one is called.
    """

    kind: Literal["run-count"] = "run-count"
    unit: str = "run"

    def block(self, data: ItemData) -> ListBlock:
        return ListBlock(
            title=data.title,
            heads=["what", "number"],
            align="lr",
            rows=[[self.unit, str(len(data.runs))]],
        )
'''


@pytest.mark.long
def test_a_users_kind_is_one_file_from_the_study_to_the_table(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "run_count.py").write_text(OWN)
    report = [{"kind": "run-count", "unit": "job"}]
    panel = {"datasets": ["digits"], "models": ["logistic"], "seeds": [1], "methods": ["sgd"]}
    study = {"title": "Own", "panels": {"comparison": panel}, "report": report}
    path, table, _ = write_study(tmp_path, [run_row(seed=1), run_row(seed=2)], study)
    code = "import sys; from clipnoise.cli import main; sys.exit(main(sys.argv[1:]))"
    words = f"table --study {path} --runs {table} --out {tmp_path}/made"
    command = [sys.executable, "-c", code, *words.split(), "--panel", "comparison.run-count"]
    done = subprocess.run(
        command,
        env={**os.environ, "CLIPNOISE_PLUGINS": str(tmp_path / "own")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made.csv").read_text() == "what,number\njob,2\n"
    assert "| job | 2 |" in (tmp_path / "made.md").read_text()
    assert r"job & 2 \\" in (tmp_path / "made.tex").read_text()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("curves", {}, "Mean with a band of ± one sample standard deviation over {} seeds."),
        ("ablation", {}, "Mean ± sample standard deviation over {} seeds; ticks: seeds."),
        ("sweep", {"over": "learning_rate"}, "Mean ± sample standard deviation over {} seeds."),
        ("sweep", {"over": ("learning_rate", "clip_norm")}, ""),
        ("trade-off", {}, ""),
    ],
    ids=str,
)
def test_a_caption_says_what_bars_bands_and_ticks_are(
    kind: str, options: dict[str, Any], said: str, tables: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    runs, curves = tables
    data = made_of(kind, runs, curves, **options)
    (block,) = data.item.blocks(data)
    assert block.caption == said.format(runs["seed"].nunique())
    alone = made_of(kind, runs[runs["seed"] == 1], curves, **options)
    assert "seeds" not in next(iter(alone.item.blocks(alone))).caption
