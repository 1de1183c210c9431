"""The workflow as a user runs it: from a config to the expected jobs, files and rows."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import forked_snakemake
import psutil
import pytest
import yaml
from workflows import ROOT, command, environment, planned, rows, run_planned, snakemake

pytestmark = pytest.mark.workflow

CASES = Path(__file__).parent / "cases"


def start_case(name: str, folder: Path) -> dict[str, object]:
    shutil.copytree(CASES / name, folder, dirs_exist_ok=True)
    expected: dict[str, object] = yaml.safe_load((folder / "expected.yaml").read_text())
    return expected


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart in miniature, run once from nothing."""
    folder = tmp_path_factory.mktemp("miniature")
    expected = start_case("miniature", folder)
    assert planned(snakemake(folder, "-n")) == expected["jobs"]
    snakemake(folder)
    return folder


def check_outputs(folder: Path) -> None:
    expected = yaml.safe_load((folder / "expected.yaml").read_text())
    for pattern, count in expected["files"].items():
        assert len(list(folder.glob(pattern))) == count, pattern
    for file, counts in expected["rows"].items():
        found = rows(folder / file)
        assert len(found) == counts.pop("total"), file
        for column, values in counts.items():
            assert Counter(row[column] for row in found) == values, column


def test_every_expected_file_and_row_is_there(miniature: Path) -> None:
    check_outputs(miniature)


def test_nothing_half_written_is_left(miniature: Path) -> None:
    leftovers = [p for p in (miniature / "results").rglob(".*") if p.is_file()]
    assert leftovers == []


def test_a_second_run_has_nothing_to_do(miniature: Path) -> None:
    assert planned(snakemake(miniature, "-n")) == {}


SEARCH = {
    "title": "A search",
    "defaults": {"datasets": ["digits"], "models": ["logistic"], "seeds": [1]},
    "panels": {
        "tuned": {
            "epsilons": [1],
            "training": {"expected_batch_size": 50, "steps": 2},
            "methods": [
                {"id": "dp-sgd", "clip_norm": 1, "learning_rate": 1},
                {
                    "id": "dp-adam",
                    "clip_norm": 1,
                    "tune": {"grid": {"learning_rate": [0.1, 1]}, "seeds": [101]},
                },
            ],
        }
    },
    "report": [{"kind": "table", "panels": "tuned"}],
}


def test_the_job_groups_that_the_slurm_profile_offers_hold_runs_with_a_search(
    tmp_path: Path,
) -> None:
    """Runs that wait for a choice cannot be in one group with those that it is made from."""
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(SEARCH))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"studies": ["search.yaml"]}))
    profile = (ROOT / "slurm/config.yaml").read_text()
    offered = yaml.safe_load(re.findall(r"^# (group-components: .*)$", profile, re.MULTILINE)[0])
    said = snakemake(tmp_path, "-n", "--group-components", *offered["group-components"])
    assert planned(said)["train"] == 4
    assert {name.split("=")[0] for name in offered["group-components"]} == {"train", "chosen"}


@pytest.mark.long
def test_a_target_announces_its_own_runs_and_that_it_records_none(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(SEARCH))
    config = {"studies": ["search.yaml", "quickstart"], "tracking": "sync"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    said = snakemake(tmp_path, "reports/search/tables/tuned.csv")
    assert "search: 4 of 4 runs to train" in said
    assert "quickstart: " not in said
    assert "do not record their runs in MLflow" in said
    assert not (tmp_path / "results" / "mlflow.db").exists()
    assert len(rows(tmp_path / "reports/search/tables/tuned.csv")) == 2


@pytest.mark.long
def test_a_job_that_is_repeated_leaves_finished_runs_as_they_are(miniature: Path) -> None:
    """So a cluster job of several runs that failed repeats only what is missing."""
    summaries = sorted((miniature / "results/runs").rglob("summary.json"))
    before = [summary.read_bytes() for summary in summaries]
    summaries[0].unlink()
    snakemake(miniature, "--forcerun", "train", "--until", "train")
    logs = [(summary.parent / "run.log").read_text() for summary in summaries]
    assert ["finished before" in log for log in logs] == [False, *[True] * (len(logs) - 1)]
    assert [summary.read_bytes() for summary in summaries][1:] == before[1:]


def test_what_snakemake_notes_of_an_output_is_small(miniature: Path) -> None:
    """Each run has three outputs, and a league has tens of thousands of runs."""
    noted = (miniature / ".snakemake" / "metadata").rglob("*")
    records = [path for path in noted if path.is_file()]
    assert len(records) > 10
    assert max(path.stat().st_size for path in records) < 20_000


@pytest.mark.long
def test_deleting_the_report_rebuilds_the_report_only(miniature: Path) -> None:
    (miniature / "reports/miniature/report.pdf").unlink()
    assert "train" not in planned(snakemake(miniature, "-n"))
    snakemake(miniature, "reports/miniature/report.pdf")


def test_a_later_audit_rebuilds_the_tables(miniature: Path) -> None:
    file = miniature / "results/audit/empirical/dp-sgd.json"
    file.parent.mkdir(parents=True)
    bounds = {"bound": {"epsilon": 0.5}, "final_bound": {"epsilon": 0.4}}
    found = {"p_value": 0.5, **bounds, "claimed_epsilon": 1.5}
    file.write_text(json.dumps(found))
    again = planned(snakemake(miniature, "-n"))
    shutil.rmtree(miniature / "results/audit")
    assert again.keys() >= {"collect", "table", "report"}
    assert "train" not in again


def test_mlflow_shows_the_numbers_of_the_result_files(miniature: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{miniature / 'results' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("miniature")
    assert experiment is not None
    runs = {run.data.tags["hash"]: run for run in client.search_runs([experiment.experiment_id])}
    files = {row["hash"]: row for row in rows(miniature / "results/studies/miniature/runs.csv")}
    assert runs.keys() == files.keys()
    for identity, run in runs.items():
        shown = run.data.metrics["final/test_accuracy"]
        assert shown == pytest.approx(float(files[identity]["test_accuracy"]))
    experiment = client.get_experiment_by_name("miniature (means over seeds)")
    assert experiment is not None
    tables = sorted((miniature / "reports/miniature/tables").glob("*.csv"))
    lines = [line for table in tables for line in rows(table)]
    panels = {line["panel"] for line in lines}
    means = client.search_runs([experiment.experiment_id])
    means = [run for run in means if run.data.tags["panel"] in panels]
    numbers = sorted(run.data.metrics["mean/test_accuracy"] for run in means)
    assert numbers == sorted(float(line["mean"]) for line in lines)
    assert {run.data.tags["report"] for run in means} == {"reports/miniature/report.pdf"}


CLASS = '    id = "dp-sgd"\n'


@pytest.mark.long
@pytest.mark.parametrize(
    ("edit", "again"),
    [
        (
            ("methods/privatize_then_adapt/dp_sgd.py", CLASS, f"{CLASS}    changed: int = 1\n"),
            {"dp-sgd"},
        ),
        (("methods/privatize_then_adapt/dp_sgd.py", '"""DP-SGD', '"""About DP-SGD'), set()),
        (("report/__init__.py", "Reports:", "The reports:"), set()),
    ],
    ids=["the method's class", "its docstring", "a report module"],
)
def test_editing_code_reruns_exactly_the_runs_it_can_change(
    miniature: Path, tmp_path: Path, edit: tuple[str, str, str], again: set[str]
) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    file = source / "clipnoise" / edit[0]
    assert edit[1] in file.read_text()
    file.write_text(file.read_text().replace(edit[1], edit[2]))
    output = snakemake(miniature, "-n", "-p", "--quiet", "progress", source=source)
    trained = re.findall(r'"method":{"id":"([a-z-]+)"', output)
    assert set(trained) == again


@pytest.mark.long
def test_diagnostics_end_in_a_report_that_claims_no_privacy(tmp_path: Path) -> None:
    start_case("diagnostics", tmp_path)
    run_planned(tmp_path)
    check_outputs(tmp_path)


@pytest.mark.long
def test_a_diverged_run_is_a_result_and_stops_no_other_run(tmp_path: Path) -> None:
    start_case("diverged", tmp_path)
    run_planned(tmp_path)
    check_outputs(tmp_path)
    (bad,) = [
        row
        for row in rows(tmp_path / "results/studies/diverged/runs.csv")
        if row["status"] == "diverged"
    ]
    assert "after step" in bad["reason"]


@pytest.mark.long
def test_a_tuned_study_at_a_smaller_scale_reads_its_choice_and_is_marked(tmp_path: Path) -> None:
    expected = start_case("scaled", tmp_path)
    assert planned(snakemake(tmp_path, "-n")) == expected["jobs"]
    run_planned(tmp_path)
    check_outputs(tmp_path)
    (file,) = tmp_path.glob("results/tuning/*.json")
    chosen = json.loads(file.read_text())["choice"]["learning_rate"]
    for row in rows(tmp_path / "results/studies-smoke/mine/table1/runs.csv"):
        assert json.loads(row["tuned"]) == {"learning_rate": chosen}
        assert float(row["learning_rate"]) == chosen
        assert float(row["epsilon_with_tuning"]) > float(row["epsilon_achieved"])
    assert "smoke run: not evidence" in (tmp_path / "reports/mine/table1/figures/1.svg").read_text()
    # At the paper's scale nothing of this counts: every run is planned again.
    assert planned(snakemake(tmp_path, "-n", "--config", "scale=paper"))["train"] == 2 * (3 + 6)


@pytest.mark.long
def test_killing_a_job_loses_that_job_only(tmp_path: Path) -> None:
    start_case("miniature", tmp_path)
    study = tmp_path / "studies/miniature.yaml"
    values = yaml.safe_load(study.read_text())
    values["defaults"]["training"]["steps"] = 60
    values["panels"] = {"comparison": values["panels"]["comparison"] | {"epsilons": [8]}}
    values["report"] = values["report"][:1]
    study.write_text(yaml.safe_dump(values))
    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("tracking: sync", "tracking: 'off'"))
    process = subprocess.Popen(
        command(tmp_path),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("results/runs/**/summary.json"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("results/runs/**/summary.json")}
    snakemake(tmp_path, "--unlock")
    snakemake(tmp_path, "--rerun-incomplete")
    again = [path for path, moment in done.items() if path.stat().st_mtime_ns != moment]
    assert len(again) <= 2  # those whose jobs had not ended when they were killed
    assert len(done) > len(again)
    assert {row["status"] for row in rows(tmp_path / "results/studies/miniature/runs.csv")} == {
        "completed"
    }
    assert [p for p in (tmp_path / "results/runs").rglob(".*.json*") if p.is_file()] == []


STOPPED_WHILE_IT_CHOOSES = """
import os, signal, sys
from snakemake.scheduling import greedy, milp
from snakemake.cli import main
for module in (greedy, milp):
    def select_jobs(self, *given, choose=module.Scheduler.select_jobs, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return choose(self, *given, **options)
    module.Scheduler.select_jobs = select_jobs
main(sys.argv[1:])
"""


@pytest.mark.long
def test_a_stop_while_jobs_are_chosen_ends_the_workflow(tmp_path: Path) -> None:
    start_case("miniature", tmp_path)
    words = [sys.executable, "-c", STOPPED_WHILE_IT_CHOOSES, *command(tmp_path)[1:]]
    options = {"capture_output": True, "text": True, "check": False, "timeout": 200}
    done = subprocess.run([*words, "--config", "tracking=off"], env=environment(), **options)
    assert done.returncode == 1
    assert len(list(tmp_path.glob("results/runs/**/summary.json"))) < 2


def close_terminal(workflow: subprocess.Popen[bytes]) -> None:
    workflow.send_signal(signal.SIGHUP)


def press_ctrl_c(workflow: subprocess.Popen[bytes]) -> None:
    os.killpg(workflow.pid, signal.SIGINT)  # a terminal sends it to Snakemake and its jobs


@pytest.mark.long
@pytest.mark.parametrize(
    ("stop", "passed_on"), [(close_terminal, "SIGTERM"), (press_ctrl_c, "SIGINT")]
)
def test_a_stop_saves_what_is_trained_and_leaves_no_process_and_no_lock(
    stop: Callable[[subprocess.Popen[bytes]], None], passed_on: str, tmp_path: Path
) -> None:
    panel = {"methods": [{"id": "sgd", "learning_rate": 0.1}]}
    panel |= {"training": {"expected_batch_size": 50, "steps": 10**6, "evaluations": 1}}
    study = {**SEARCH, "panels": {"tuned": panel}}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(study))
    config = {"studies": ["long.yaml"], "tracking": "off"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    workflow = subprocess.Popen(
        command(tmp_path),
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: [  # ignored under nohup and in the background
            signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)
        ],
        **quiet,
    )

    def wait(done: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def said() -> str:
        return "".join(log.read_text() for log in tmp_path.glob("results/runs/**/run.log"))

    def jobs() -> list[psutil.Process]:
        """Those of this folder, also after Snakemake has left them."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd() == str(tmp_path) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    wait(lambda: "step 0/" in said() or workflow.poll() is not None)
    stop(workflow)
    assert workflow.wait(timeout=120) != 0
    wait(lambda: not jobs())
    assert f"stopped by {passed_on}, checkpoint after step" in said()
    assert list(tmp_path.glob("results/runs/**/checkpoint.safetensors"))
    assert not list(tmp_path.glob(".snakemake/locks/*"))


@pytest.mark.long
def test_a_wrong_study_is_one_clear_error(tmp_path: Path) -> None:
    start_case("miniature", tmp_path)
    study = tmp_path / "studies/miniature.yaml"
    study.write_text(study.read_text().replace("clip_norm", "clip_nrm"))
    done = subprocess.run(
        command(tmp_path, "-n"), env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (message,) = said(done.stderr)
    assert message.startswith("clipnoise: studies/miniature.yaml: panels.")
    assert "Did you mean 'clip_norm'?" in message
    assert not (tmp_path / "results").exists()


def said(errors: str) -> list[str]:
    """Return the lines of an error output, without what Snakemake says of its profiles."""
    return [line for line in errors.splitlines() if not line.startswith("Using ")]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("reports/quickstrat/report.pdf", "unknown study 'quickstrat'. Did you mean 'quickstart'?"),
        ("reports/dp-pmlf/tabel1.pdf", "unknown study 'dp-pmlf/tabel1'. Did you mean 'dp-pmlf/tab"),
        ("reports/quickstrat/tables/main.csv", "unknown study 'quickstrat'. Did you mean 'quicks"),
    ],
)
@pytest.mark.parametrize("dry", ["-n", "--nolock"])
def test_a_mistyped_target_is_one_clear_error(
    tmp_path: Path, target: str, message: str, dry: str
) -> None:
    start_case("miniature", tmp_path)
    done = forked_snakemake.run(command(tmp_path, dry, target)[1:], tmp_path, environment())
    assert done.returncode == 2
    (line,) = said(done.stderr)
    assert line.startswith(f"clipnoise: studies: {message}")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "studies: [quickstart]\nstudies: [quickstart]",
            "not valid YAML: studies: given twice, in",
        ),
        ("studies: [quickstart", "not valid YAML: line 1, column 21: expected ',' or ']'"),
        ("studies: []", "studies: give at least one."),
        ("results: config.yaml/results", "results: config.yaml/results: cannot be written (Not a"),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(
    tmp_path: Path, config: str, message: str
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    done = forked_snakemake.run(command(tmp_path, "-n")[1:], tmp_path, environment())
    assert done.returncode == 2
    (line,) = said(done.stderr)
    assert line.startswith(f"clipnoise: config.yaml: {message}")


@pytest.mark.long
def test_the_slurm_profile_is_accepted(tmp_path: Path) -> None:
    start_case("miniature", tmp_path)
    shutil.copytree(ROOT / "slurm", tmp_path / "slurm")
    output = snakemake(tmp_path, "-n", "--profile", "slurm")
    assert planned(output)["train"] == 14


@pytest.mark.long
def test_the_browsable_report_carries_captions_and_labels(miniature: Path) -> None:
    snakemake(miniature, "--report", "report.html")
    page = (miniature / "report.html").read_text()
    assert "sample standard deviation over seeds" in page
    assert "drawn from its result files alone" in page
    assert "accuracy-vs-epsilon" in page
