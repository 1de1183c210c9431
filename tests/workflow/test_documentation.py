"""Every command and every piece of code in the README and the documentation works."""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import forked_snakemake
import pytest
import torch
import yaml
from real_files import write_raw
from real_files.own import write_examples
from workflows import ROOT, environment

import clipnoise
from clipnoise.cli.program import program
from clipnoise.data.own import Own
from clipnoise.data.signature import Signature
from clipnoise.fields import parse
from clipnoise.models.base import model_class
from clipnoise.report.records import read_runs
from clipnoise.report.verdict import verdict_data
from clipnoise.studies.study import load_study

pytestmark = pytest.mark.workflow

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL, DAY = ROOT / "docs" / "tutorial.md", ROOT / "docs" / "day.md"
# They run until interrupted, and have tests of their own.
SERVERS = ("clipnoise mlflow-ui", "clipnoise mlflow-sync --follow", "mlflow ")
EVERY_PAPER = "snakemake --cores all reports/all.pdf"
PAPER = "snakemake --cores all reports/dp-adambc/report.pdf"
LONG = (
    "clipnoise audit contract",
    "clipnoise audit empirical",
    "clipnoise judge",
    "clipnoise partial-report",
    "clipnoise publish",
    "clipnoise reaccount",
    EVERY_PAPER,
)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    shown = [line.partition("  #")[0].strip() for line in lines]
    return list(dict.fromkeys(line for line in shown if line and not line.startswith("#")))


def run(words: list[str], folder: Path, plugins: Path | None = None) -> str:
    """Run a command as a user does, in a process that is forked where it would start slowly."""
    settings = {**environment(), "CLIPNOISE_WARM_OWNER": str(os.getpid())}
    settings.pop("CLIPNOISE_PLUGINS", None)  # as a user has it
    if plugins is not None:
        settings["CLIPNOISE_PLUGINS"] = str(plugins)
    if words[0] == "snakemake":
        done: Any = forked_snakemake.run(words[1:], folder, settings)
    else:
        done = subprocess.run(
            words, cwd=folder, env=settings, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a user has checked out, with the study of docs/studies.md and MNIST in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("Snakefile", "config.yaml", "Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("workflow", "profiles", "slurm", "docs", "envs", "examples", "reports"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "src").symlink_to(ROOT / "src")
    study = blocks(ROOT / "docs" / "studies.md", "yaml")[0]
    (folder / "workflow" / "studies" / "mine.yaml").write_text(study)
    (table,) = blocks(ROOT / "docs" / "reproduce.md", "csv")
    (folder / "reports" / "published" / "mine.csv").write_text(table)
    (study,) = blocks(TUTORIAL, "yaml")
    (folder / "workflow" / "studies" / "clinic.yaml").write_text(study)
    run([sys.executable, "-c", blocks(TUTORIAL, "python")[0]], folder)
    write_raw(folder / "data", "mnist")
    write_examples(folder)
    write_models(folder / "weights")
    return folder


def write_models(weights: Path) -> None:
    """Write the models that the documentation names, as their libraries do, but small."""
    import timm
    import transformers
    from safetensors.torch import save_file

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, intermediate_size=24, **sizes)
    transformers.BertModel(config).save_pretrained(weights / "my-bert")
    (weights / "timm" / "test_vit").mkdir(parents=True)
    tensors = timm.create_model("test_vit").state_dict()
    save_file(tensors, weights / "timm" / "test_vit" / "model.safetensors")


@pytest.mark.quick(page=[README])  # what a newcomer types first
@pytest.mark.parametrize("page", [one for one in PAGES if one != DAY], ids=lambda page: page.name)
def test_the_commands_of_a_page_work_in_their_order(page: Path, checkout: Path) -> None:
    """Snakemake and make say what they would do; what they do is tested on small studies.

    Papers are planned at the smallest scale: at their own, most of the time goes into their runs,
    which tests/unit/test_shipped_studies.py plans.
    """
    remove_own(checkout)
    for command in commands(page):
        if command.startswith(SERVERS):
            continue  # the browser tests open it
        words = harmless(command)
        if command in (EVERY_PAPER, PAPER):
            run([*words, "--config", "scale=smoke"], checkout)
        elif command.startswith(LONG):
            understand(words[1:])
        else:
            run(words, checkout)


def harmless(command: str) -> list[str]:
    """Return the words of a command, which says what it would do if it trained or installed."""
    words = shlex.split(command)
    if words[0] == "snakemake":
        words = [word for word in words if word not in ("--report", "report.html")]
        return [*words, "-n", *(() if "--cores" in words else ("--cores", "1"))]
    return ["make", "-n", *words[1:]] if words[0] == "make" else words


def understand(words: list[str]) -> None:
    """Read the words of a command as `clipnoise` does, and do nothing."""
    command: click.Command = program
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(click.Context(command), words)
        assert found is not None
        command = found
    command.make_context(name, words)


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        one
        for page in PAGES
        for one in commands(page)
        if one.startswith(LONG)
        # test_judge.py judges this file, and test_publication.py prints published runs again.
        and not one.startswith(("clipnoise judge", "clipnoise publish", "clipnoise partial-report"))
    ],
)
def test_a_long_command_of_a_page_works(command: str, checkout: Path) -> None:
    run(["clipnoise", "data", "prepare", "digits"], checkout)
    run(harmless(command), checkout)


def remove_own(checkout: Path) -> None:
    """Remove the data that pages describe, as no page has done so yet."""
    for name in ("patients", "mails", "sessions", "photos", "visits", "policies", "clinic"):
        shutil.rmtree(checkout / "data" / "raw" / name, ignore_errors=True)
    for table in (checkout / "data" / "raw" / "pets").glob("*.csv"):
        table.unlink()


def described(block: str) -> Own:
    (values,) = yaml.safe_load(block)["datasets"]
    return parse(Own, {name: value for name, value in values.items() if name != "id"})


OWN_DATA = [block for block in blocks(ROOT / "docs" / "own.md", "yaml") if "id: own" in block]


@pytest.mark.long
@pytest.mark.parametrize("block", OWN_DATA, ids=lambda block: described(block).name)
def test_own_data_are_described_as_the_page_says_planned_prepared_and_loaded(
    block: str, checkout: Path
) -> None:
    dataset = described(block)
    remove_own(checkout)
    calls = [command for command in commands(ROOT / "docs" / "own.md") if dataset.name in command]
    assert [run(shlex.split(call), checkout) for call in calls][-1] == block
    study = yaml.safe_load(blocks(ROOT / "docs" / "studies.md", "yaml")[0])
    model = {"features": "logistic", "image": "cnn-small", "table": "table"}.get(
        dataset.kind, "lstm"
    )
    panel = {**yaml.safe_load(block), "models": [model]}
    study["panels"]["comparison"] |= panel
    (checkout / "workflow" / "studies" / "own.yaml").write_text(yaml.safe_dump(study))
    planned = run(["snakemake", "-n", "-p", "--cores", "1", "reports/own/report.pdf"], checkout)
    assert f"data/{dataset.prepared}/manifest.json" in planned
    run(["clipnoise", "data", "prepare", *shlex.split(dataset.invocation)], checkout)
    assert len(dataset.load(checkout / "data").train) == dataset.sizes()["train"]


@pytest.mark.long
def test_the_tutorial_leads_from_a_csv_file_to_the_verdict_that_it_shows(checkout: Path) -> None:
    remove_own(checkout)
    describe, check, train, *_ = map(shlex.split, commands(TUTORIAL))
    study = yaml.safe_load(blocks(TUTORIAL, "yaml")[0])
    (dataset,) = study["panels"]["comparison"]["datasets"]
    assert dataset.pop("label") == "clinic"
    assert yaml.safe_load(run(describe, checkout)) == {"datasets": [dataset]}
    assert run(check, checkout) == blocks(TUTORIAL, "text")[1]
    run([*train[:2], "1", *train[3:]], checkout)
    runs = read_runs(checkout / "results" / "studies" / "clinic" / "runs.parquet")
    verdict = verdict_data(runs, "")
    page = TUTORIAL.read_text()
    assert f"> {verdict.summary}\n" in page
    table = (checkout / "reports" / "clinic" / "tables" / "comparison.md").read_text()
    shown, made = (re.findall(r"\*?\d+\.\d\d ± \d\.\d\d\*?", text) for text in (page, table))
    assert len(made) == 3
    for one, other in zip(shown, made, strict=True):  # another processor may round differently
        assert float(one.strip("*").split()[0]) == pytest.approx(
            float(other.strip("*").split()[0]), abs=1.0
        )
    (row,) = verdict.table.rows
    said = dict(zip(verdict.table.heads, row, strict=True))
    assert said["verdict"] == "no difference found among 3"
    assert (checkout / "reports" / "clinic" / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.long
def test_a_working_day_goes_as_its_page_says(checkout: Path) -> None:
    run([sys.executable, "-c", blocks(DAY, "python")[0]], checkout)
    (text,) = blocks(DAY, "yaml")
    (checkout / "workflow" / "studies" / "day.yaml").write_text(text)
    *describe, check, train, predict, archive, verify = map(shlex.split, commands(DAY))
    for words, panel in zip(describe, yaml.safe_load(text)["panels"].values(), strict=True):
        (dataset,) = panel["datasets"]
        dataset.pop("label")
        assert yaml.safe_load(run(words, checkout)) == {"datasets": [dataset]}
    shown, _, repeated = blocks(DAY, "text")
    assert run(check, checkout) == shown
    run([*train[:2], "1", *train[3:]], checkout)
    page = DAY.read_text()
    runs = read_runs(checkout / "results" / "studies" / "day" / "runs.parquet")
    assert f"> {verdict_data(runs, '').summary}\n" in page
    for panel in ("biopsies", "sentences"):
        table = (checkout / "reports" / "day" / "tables" / f"{panel}.md").read_text()
        for label, mean in re.findall(r"^\| ([^|]+) \| \**(\d[\d.]+) ± ", table, re.MULTILINE):
            (printed,) = re.findall(rf"^\| {label}[^|]* \| \**(\d[\d.]+) ± ", page, re.MULTILINE)
            assert float(mean) == pytest.approx(float(printed), rel=0.02)  # another processor
    card = (checkout / predict[2] / "README.md").read_text()
    assert all(line in card for line in re.findall("^> (Trained .*)", page, re.MULTILINE))
    rows = list(csv.DictReader(run(predict, checkout).splitlines()))
    assert sum(int(row["predicted"]) == number for number, row in enumerate(rows)) >= 3
    assert run(archive, checkout) == "day.zip\n"
    assert run(verify, checkout).endswith(repeated)


def test_named_models_are_described_as_the_page_says_and_built(checkout: Path) -> None:
    shown = [yaml.safe_load(block) for block in blocks(ROOT / "docs" / "own.md", "yaml")]
    models = [model for block in shown for model in block.get("models", []) if "sha256" in model]
    assert {model["id"] for model in models} == {"huggingface", "timm"}
    for model in models:
        name = model["name"] if model["id"] == "huggingface" else f"timm/{model['name']}"
        printed = run(["clipnoise", "weights", "describe", name], checkout)
        (described_here,) = yaml.safe_load(printed)["models"]
        model.pop("label", None)
        assert model | {"sha256": described_here["sha256"]} == described_here
        options = {key: value for key, value in described_here.items() if key != "id"}
        text = Signature("tokens", (6,), 2, vocabulary=50)
        signature = text if model["id"] == "huggingface" else Signature("image", (3, 32, 32), 10)
        parse(model_class(model["id"]), options).build(signature, checkout / "weights")


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "python"):
        if "import clipnoise\n" in block:
            run([sys.executable, "-c", block], tmp_path)


@pytest.mark.long
def test_the_programs_of_the_page_on_own_loops_run_one_after_the_other(tmp_path: Path) -> None:
    page = ROOT / "docs" / "own-loop.md"
    program = "\n".join(blocks(page, "python"))
    told = run([sys.executable, "-W", "ignore", "-c", program], tmp_path)
    assert "claim: guarantee\n" in told
    assert "unknown setting 'epsilom'. Did you mean 'epsilon'?" in told
    theirs, ours = (float(line) for line in re.findall(r"^(?:epsilon: )?(2\.\d+)$", told, re.M))
    assert theirs == pytest.approx(ours, abs=0.02)  # both end just below the target


def test_the_loop_of_the_readme_trains() -> None:
    (loop,) = blocks(README, "python")
    model = torch.nn.Linear(8, 2)
    before = model.weight.detach().clone()
    given = {
        "clipnoise": clipnoise,
        "model": model,
        "loss": torch.nn.CrossEntropyLoss(reduction="none"),
        "data": (torch.randn(1000, 8), torch.randint(2, (1000,))),
    }
    exec(loop, given)
    assert not torch.equal(model.weight, before)


def test_the_page_on_own_loops_shows_the_times_that_were_measured() -> None:
    measured = (ROOT / "benchmarks" / "results" / "own-loop.md").read_text()
    table = "\n".join(line for line in measured.splitlines() if line.startswith("|"))
    assert table in (ROOT / "docs" / "own-loop.md").read_text()


@pytest.mark.long
def test_the_complete_method_of_the_documentation_is_one_short_file_that_passes_every_contract(
    tmp_path: Path,
) -> None:
    page = ROOT / "docs" / "own.md"
    (block,) = [text for text in blocks(page, "python") if "class DPLion" in text]
    assert len(block.splitlines()) < 40
    (tmp_path / "dp_lion.py").write_text(block)
    tests = ["tests/contract/test_methods.py", "tests/privacy/test_sensitivity.py"]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-k",
        "my-dp-lion",
        *tests,
    ]
    assert " passed" in run(words, ROOT, plugins=tmp_path)
    assert "my-dp-lion" in run(["clipnoise", "methods"], tmp_path, plugins=tmp_path)


def test_the_spec_of_the_documentation_is_the_one_that_is_run() -> None:
    shown = blocks(ROOT / "docs" / "studies.md", "yaml")[-1]
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "docs" / "run.yaml").read_text())


def test_every_number_of_the_published_table_meets_a_run_of_the_study(
    checkout: Path, tmp_path: Path
) -> None:
    (item,) = re.findall(r"`(\{kind: table, .*\})`", (ROOT / "docs" / "reproduce.md").read_text())
    study = yaml.safe_load((checkout / "workflow" / "studies" / "mine.yaml").read_text())
    study["report"].append(yaml.safe_load(item))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(study))
    words = ["--study", str(tmp_path / "mine.yaml"), "--out", "mine.csv"]
    run(["clipnoise", "collect", *words[1:2], "--out", "collected"], checkout)
    run(["clipnoise", "compare", *words, "--runs", "collected/runs.parquet"], checkout)
    with (checkout / "mine.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [line["planned"] for line in lines] == ["3"] * 4
    assert [bool(line["published"]) for line in lines] == [True] * 3 + [False]


def test_the_scale_the_axes_and_the_tuning_of_the_documentation_fit_its_study(
    tmp_path: Path,
) -> None:
    shown = [yaml.safe_load(block) for block in blocks(ROOT / "docs" / "studies.md", "yaml")]
    study, *rest = shown
    scales, axes, tuned = (
        next(block for block in rest if list(block) == [key])
        for key in ("scales", "axes", "methods")
    )
    path = tmp_path / "studies" / "mine.yaml"
    path.parent.mkdir()
    comparison = study["panels"]["comparison"]

    study["panels"] = {"comparison": comparison | axes}
    path.write_text(yaml.safe_dump(study | {"report": []}))
    assert len(load_study(path).runs) == 2 * 2 * 2 * 3

    study["panels"] = {"comparison": comparison | tuned}
    path.write_text(yaml.safe_dump(study | scales))
    smoke = load_study(path, ROOT / "workflow" / "scales" / "smoke.yaml")
    assert {run.spec.steps for run in smoke.runs} == {20}
    assert len(load_study(path).searches) == 2
    assert all(len(search.runs) == 4 * 3 for search in load_study(path).searches.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)", linked.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
            assert anchor in slugs, target


@pytest.mark.parametrize("page", ["guarantees.md", "operations.md"])
def test_the_tests_and_sources_that_back_what_a_page_says_exist(page: str) -> None:
    named = re.findall(r"`((?:src|tests)/[^`]+)`", (ROOT / "docs" / page).read_text())
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []
