"""What a Slurm cluster says, and what follows for Snakemake; its commands are scripts here."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.studies.cluster import Cluster, Partition, check_nodes, check_paths
from clipnoise.studies.config import Config, Resources
from clipnoise.studies.snakemake_changes import choose_status_command

ROOT = Path(__file__).parents[2]
SINFO = """\
short|up|2:00:00|64000|16|(null)
long*|up|7-00:00:00|64000+|16|gpu:a100:4(S:0-1),shard:8
long*|up|7-00:00:00|256000|64|(null)
old|drain|infinite|128000|8|gpu:2
"""


def install(folder: Path, **programs: str) -> None:
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands of a cluster without accounting."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nodes").write_text(SINFO)
    install(
        folder,
        sacct="echo Slurm accounting storage is disabled >&2; exit 1",
        sacctmgr="exit 1",
        scontrol="echo 'MinJobAge               = 300 sec'; echo 'SLURM_VERSION = 22.05.8'",
        sinfo=f"/bin/cat {folder / 'nodes'}",
    )
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def accounting(slurm: Path) -> None:
    install(slurm, sacct="exit 0", sacctmgr="echo 'physics|50'; echo 'physics|'")


def test_partitions_are_read_with_their_largest_node(slurm: Path) -> None:
    cluster = Cluster.here()
    assert cluster is not None
    assert (cluster.version, cluster.account, cluster.most_jobs) == ("22.05.8", None, None)
    assert cluster.partitions == (
        Partition("short", False, True, 120, 64000, 16, 0),
        Partition("long", True, True, 7 * 24 * 60, 256000, 64, 4),
        Partition("old", False, False, None, 128000, 8, 2),
    )


def test_runs_go_where_there_is_room_for_them(slurm: Path) -> None:
    cluster = Cluster.here()
    assert cluster is not None
    chosen = cluster.partition(Resources())
    assert chosen is not None
    assert chosen.name == "long"
    assert cluster.partition(Resources(memory_mb=300_000)) is None
    assert cluster.partitions[0].lacks(Resources(gpus=1, minutes=180, threads=32)) == [
        "minutes: 180, at most 120",
        "threads: 32, at most 16",
        "gpus: 1, at most 0",
    ]
    assert cluster.partitions[0].lacks(Resources(processes=5, threads=4)) == [
        "threads: 20, at most 16"
    ]


class Asked(dict[str, Any]):
    """Resources of a job, as Snakemake's executor reads them."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def submitted(resources: Resources) -> list[str]:
    """Return the words of sbatch that Snakemake's executor would submit a run with."""
    of_the_rule = {
        "mem_mb": resources.memory_mb,
        "cpus_per_task": resources.cpus,
        "gres": resources.gres("logistic"),
        **resources.several_nodes,
    }
    job = SimpleNamespace(threads=resources.cpus, resources=Asked(of_the_rule))
    names = ("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir")
    words: str = get_submit_command(job, dict.fromkeys(names, ""))
    return words.split()


def test_a_run_on_one_node_is_one_task_with_the_cpus_of_all_its_processes() -> None:
    words = submitted(Resources(processes=3, threads=2, memory_mb=5000))
    assert {"--ntasks=1", "--cpus-per-task=6"} < set(words)
    assert words[words.index("--mem") + 1] == "5000"
    assert not [word for word in words if word.startswith("--nodes")]


@pytest.mark.parametrize("of_a_node", [{"processes": 3}, {"gpus": 3}, {}])
def test_a_run_on_several_nodes_is_a_task_on_each_with_its_cpus(of_a_node: dict[str, int]) -> None:
    resources = Resources(nodes=2, threads=2, **of_a_node)  # type: ignore[arg-type]
    each = 3 if of_a_node else 1
    words = submitted(resources)
    assert {"--nodes=2", "--ntasks=2", f"--cpus-per-task={2 * each}"} < set(words)
    assert not [word for word in words if "per-gpu" in word]
    assert resources.together == 2 * each
    assert resources.gres("logistic") == ("gpu:3" if "gpus" in of_a_node else "")


def test_several_nodes_are_refused_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    several = Config(resources=Resources(nodes=2))
    check_nodes(True, Config())
    check_nodes(False, several)
    with pytest.raises(UserError, match=r"config\.yaml: resources: nodes: 2: .*--profile slurm"):
        check_nodes(True, several)
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # Snakemake within a job
    check_nodes(True, several)
    with pytest.raises(ValueError, match="nodes: runs that share a GPU are on one node"):
        Resources(nodes=2, gpus=1, gpu_share={"logistic": 2})


def test_without_accounting_squeue_is_asked_and_the_user_told(slurm: Path) -> None:
    settings = SimpleNamespace(status_command="sacct")
    said = choose_status_command(settings)
    assert settings.status_command == "squeue"
    assert said == "Slurm: sacct does not answer, so squeue is asked how jobs end."


def test_with_accounting_and_without_slurm_nothing_changes(slurm: Path) -> None:
    for settings in (None, SimpleNamespace(status_command="squeue"), SimpleNamespace()):
        assert choose_status_command(settings) is None
    accounting(slurm)
    settings = SimpleNamespace(status_command="sacct")
    assert choose_status_command(settings) is None
    assert settings.status_command == "sacct"


def test_where_nothing_could_tell_how_jobs_end_no_job_is_submitted(slurm: Path) -> None:
    settings = SimpleNamespace(status_command="sacct")
    install(slurm, scontrol="echo 'MinJobAge = 60 sec'")
    with pytest.raises(UserError, match=r"60 s after their end \(MinJobAge.*at least 240"):
        choose_status_command(settings)
    install(slurm, scontrol="exit 1")
    with pytest.raises(UserError, match="neither sacct nor scontrol answers"):
        choose_status_command(settings)


@pytest.mark.parametrize("value", ["it's", 'a "b"', "$HOME/x", "`touch x`", "a\\b"])
def test_a_path_that_jobs_on_a_cluster_would_read_otherwise_is_refused(value: str) -> None:
    slurm = SimpleNamespace(status_command="squeue")
    check_paths(None, Config(results=value))
    check_paths(slurm, Config(results="é x; touch ran & y *~", studies=("my studies/a.yaml",)))
    for key in ("results", "reports", "cache", "weights"):
        said = rf"^config\.yaml: {key}: {re.escape(value)}: .* another path"
        with pytest.raises(UserError, match=said):
            check_paths(slurm, Config(**{key: value}))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^config\.yaml: studies: "):
        check_paths(slurm, Config(studies=("quickstart", f"{value}.yaml")))


def test_the_doctor_fits_the_profile_and_leaves_the_rest_of_it(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "slurm" / "config.yaml"
    profile.parent.mkdir()
    before = (ROOT / "slurm" / "config.yaml").read_text()
    profile.write_text(before)
    accounting(slurm)
    assert main(["doctor", "--slurm"]) == 0
    said = capsys.readouterr().out
    assert "ok  accounting        sacct answers" in said
    assert "partition long, account physics, 50 jobs" in said
    assert "nodes of 16 CPUs, 64,000 MB, 0 GPUs" in said
    old, new = yaml.safe_load(before), yaml.safe_load(profile.read_text())
    assert new.pop("jobs") == 50
    assert new["default-resources"].pop("slurm_partition") == "long"
    assert new["default-resources"].pop("slurm_account") == "physics"
    del old["jobs"], old["default-resources"]["slurm_partition"]
    assert new == old
    comments = [line for line in before.splitlines() if line.lstrip().startswith("#")]
    assert all(line in profile.read_text().splitlines() for line in comments)
    again = profile.read_text()
    assert main(["doctor", "--slurm"]) == 0
    assert profile.read_text() == again


def test_the_doctor_says_what_a_cluster_lacks_and_writes_nothing(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("resources: {memory_mb: 300000}\n")
    install(slurm, scontrol="echo 'MinJobAge = 60 sec'")
    assert main(["doctor", "--slurm"]) == 0
    said = capsys.readouterr().out
    assert "--  accounting        none, and jobs are remembered for 60 s (MinJobAge)" in said
    assert "memory_mb: 300000, at most 256000" in said
    assert "--  profile           slurm/config.yaml: no partition has room for a run" in said
    assert not (tmp_path / "slurm").exists()
    install(slurm, scontrol="exit 1")
    assert main(["doctor", "--slurm"]) == 0
    assert "scontrol does not answer" in capsys.readouterr().out
