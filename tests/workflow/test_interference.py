"""Interference: a second user, an edited study, clocks that differ, damaged files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked_snakemake
import pytest
import yaml
from workflows import ROOT, command, environment, planned, rows, snakemake

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.studies.plan import Plan

pytestmark = pytest.mark.workflow

TABLE = "results/studies/together/runs.csv"
STUDY: dict[str, Any] = {
    "title": "Shared",
    "defaults": {"training": {"expected_batch_size": 50, "steps": 4, "evaluations": 2}},
    "panels": {
        "main": {
            "datasets": ["digits"],
            "models": ["logistic"],
            "seeds": [1],
            "methods": [{"id": "sgd", "learning_rate": 0.5}],
        }
    },
    "report": [],
}


@dataclass
class Shared:
    """A folder in which a study was started, started again, edited, and started once more.

    The first Snakemake is halted from its first run on until the second one has ended.

    Attributes:
        refused: exit code and output of the person who came second.
        first: exit code of the one who came first.
        between: the table when the first had ended.
        again: the jobs that were planned then.
    """

    folder: Path
    refused: tuple[int, str] = (0, "")
    first: int = -1
    between: list[dict[str, str]] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)

    def summaries(self) -> dict[Path, int]:
        return {
            path: path.stat().st_mtime_ns for path in self.folder.glob("results/runs/**/summ*.json")
        }


def write_study(folder: Path, steps: int) -> None:
    values = {**STUDY, "defaults": {"training": {**STUDY["defaults"]["training"], "steps": steps}}}
    (folder / "together.yaml").write_text(yaml.safe_dump(values))


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 300
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    folder = tmp_path_factory.mktemp("shared")
    write_study(folder, steps=2000)
    (folder / "config.yaml").write_text("{studies: [together.yaml], tracking: 'off'}")
    found = Shared(folder)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command(folder, TABLE), env=environment(), **quiet)
    wait_for(folder, "results/runs/**/run.log")
    process.send_signal(signal.SIGSTOP)
    write_study(folder, steps=6)
    second = forked_snakemake.run(command(folder, TABLE)[1:], folder, environment())
    process.send_signal(signal.SIGCONT)
    found.refused = second.returncode, second.stdout + second.stderr
    found.first = process.wait(120)
    found.between = rows(folder / TABLE)
    found.again = planned(snakemake(folder, "-n", TABLE))
    before = found.summaries()
    snakemake(folder, TABLE)
    assert before.items() <= found.summaries().items()
    return found


@pytest.mark.long
def test_the_second_to_start_in_a_folder_gets_one_clear_message(shared: Shared) -> None:
    code, said = shared.refused
    assert code == 1
    assert said.count("Error:") == 1
    assert "Directory cannot be locked" in said
    assert str(shared.folder) in said
    assert "--unlock" in said
    assert "Traceback" not in said
    assert shared.first == 0


@pytest.mark.long
def test_a_study_edited_under_its_run_loses_nothing_and_mixes_nothing(shared: Shared) -> None:
    """The first ends what it began; the table knows the edited study, and says what it lacks."""
    assert [row["status"] for row in shared.between] == ["missing"]
    assert shared.again == {"train": 1, "collect": 1}
    (row,) = rows(shared.folder / TABLE)
    assert (row["status"], row["steps"] or "non-private") == ("completed", "non-private")
    assert len(shared.summaries()) == 2


def test_a_queued_job_whose_runs_are_no_longer_planned_says_so(tmp_path: Path) -> None:
    """On a cluster a job reads the study when it starts, maybe days later."""
    config = {"studies": [str(tmp_path / "together.yaml")]}
    write_study(tmp_path, steps=4)
    plan = Plan.from_values(config, tmp_path)
    (run,) = plan.study("together").runs
    write_study(tmp_path, steps=6)
    with pytest.raises(UserError, match=f"run {run.spec.hash}: .* has its study file changed?"):
        Plan.from_values(config, tmp_path).run(run.spec.hash)


@pytest.mark.long
def test_clocks_that_differ_by_hours_train_nothing_again(shared: Shared, tmp_path: Path) -> None:
    """What was made first, on a node whose clock is ahead, looks newer than what came of it."""
    folder = tmp_path / "copy"
    shutil.copytree(shared.folder, folder)
    now = time.time()
    for pattern, shift in (("data/**/*", 3600), ("results/runs/**/*", -3600)):
        for path in folder.glob(pattern):
            os.utime(path, (now + shift, now + shift))
    assert planned(snakemake(folder, "-n", TABLE)) == {}


@pytest.mark.long
def test_a_damaged_result_is_reported_and_made_again(
    shared: Shared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(shared.folder, folder)
    (row,) = rows(folder / TABLE)
    summary = folder / "results" / "runs" / row["folder"] / "summary.json"
    said = summary.read_text()
    damaged = said.replace('"test_accuracy": 0.', '"test_accuracy": 1.')
    assert damaged != said
    summary.write_text(damaged)
    words = ["collect", str(folder / "together.yaml"), "--results", str(folder / "results")]
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert f"{summary}: damaged result file" in capsys.readouterr().out
    (row,) = rows(tmp_path / "runs.csv")
    assert (row["status"], row["test_accuracy"]) == ("corrupt", "")
    (folder / TABLE).unlink()  # as Snakemake does where a job's exit code is 1
    assert planned(snakemake(folder, "-n", TABLE)) == {"train": 1, "collect": 1}


@pytest.mark.long
def test_after_a_clock_was_set_back_jobs_run_and_no_result_is_lost(
    shared: Shared, tmp_path: Path
) -> None:
    """Snakemake would fail a job whose inputs lie in the future, and delete what it has made."""
    folder = tmp_path / "copy"
    shutil.copytree(shared.folder, folder)
    (folder / TABLE).unlink()
    shutil.rmtree(folder / ".snakemake")  # so that times are all that is known
    later = time.time() + 86400
    files = [*folder.glob("data/**/manifest.json"), folder / "together.yaml"]
    for path in files:
        os.utime(path, (later, later))
    (row,) = rows(shared.folder / TABLE)
    summary = folder / "results" / "runs" / row["folder"] / "summary.json"
    before = summary.stat().st_ino
    said = snakemake(folder, TABLE)
    assert summary.stat().st_ino == before
    assert all(path.stat().st_mtime < later - 3600 for path in files)
    assert "manifest.json lay in the future" in said
    assert (folder / TABLE).read_bytes() == (shared.folder / TABLE).read_bytes()
    assert planned(snakemake(folder, "-n", TABLE)) == {}


@pytest.mark.long
def test_without_snakemakes_notes_a_finished_study_is_finished(
    shared: Shared, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(shared.folder, folder)
    shutil.rmtree(folder / ".snakemake")
    assert planned(snakemake(folder, "-n", TABLE)) == {}
    (folder / TABLE).unlink()
    assert planned(snakemake(folder, "-n", TABLE)) == {"collect": 1}


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && cd "$1" || exit 3
snakemake --cores 1 -n; echo "here: $?"
snakemake --cores 1 -n --snakefile "$1/Snakefile" --directory "$2"; echo "elsewhere: $?"
"""


@pytest.mark.long
def test_a_checkout_that_is_read_only_is_named_and_serves_folders_elsewhere(
    tmp_path: Path,
) -> None:
    """It is made read-only in a namespace of its own, because root may write everywhere."""
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("may not use unshare here")
    checkout, mine = tmp_path / "checkout", tmp_path / "mine"
    for name in ("profiles", "workflow", "reports"):
        shutil.copytree(ROOT / name, checkout / name)
    mine.mkdir()
    shutil.copy(ROOT / "Snakefile", checkout)
    for folder in (checkout, mine):
        shutil.copy(ROOT / "config.yaml", folder)
    words = ["unshare", "--mount", "bash", "-c", READ_ONLY, "bash", str(checkout), str(mine)]
    done = subprocess.run(
        words,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert "results: cannot be written (Read-only file system)" in done.stdout
    assert "here: 2\n" in done.stdout
    assert "elsewhere: 0\n" in done.stdout
    assert "Traceback" not in done.stdout
