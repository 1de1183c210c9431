"""The doctor shows what is there and how to get what is missing; it never fails."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from clipnoise.cli import doctor, main
from clipnoise.data.base import Dataset
from clipnoise.plugins import plugins


@pytest.fixture(autouse=True)
def local_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_a_bare_machine_gets_advice_for_all_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {
        finding.name: finding
        for finding in doctor.examine(tmp_path / "results", tmp_path / "data", tmp_path / "weights")
    }
    for name in ("git", "slurm", "chromium", "mlflow store"):
        assert not found[name].present
    assert all(finding.advice for finding in found.values() if not finding.present)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "--  git               git not found" in shown
    assert "ok  torch" in shown
    assert not list(tmp_path.iterdir())


def test_only_what_the_configured_studies_need_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("studies: [dp-adambc/table1, quickstart]\n")
    for name in ("workflow", "reports"):
        (tmp_path / name).symlink_to(Path(__file__).parents[2] / name)
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [" ".join(line.split()[1:3]) for line in lines if " dataset " in line]
    assert found[-1] == "dataset digits"
    assert {name.partition("@")[0] for name in found} == {
        f"dataset {name}" for name in ("snli", "qnli", "cifar-10", "ogbn-arxiv", "digits")
    }
    weights = [line.split()[2] for line in lines if " weights " in line and "clipnoise" not in line]
    assert weights == ["bert-base"]
    assert not any("slurm" in line or "chromium" in line for line in lines)


def test_a_prepared_dataset_is_reported(tmp_path: Path) -> None:
    names = list(plugins("clipnoise.data", Dataset))
    (tmp_path / names[0]).mkdir()
    (tmp_path / names[0] / "manifest.json").write_text("{}")
    found = {finding.name: finding for finding in doctor.datasets(tmp_path)}
    assert found[f"dataset {names[0]}"].present
    assert sum(finding.present for finding in found.values()) == 1
    assert all(
        f"clipnoise data prepare {name}" in found[f"dataset {name}"].advice for name in names
    )


def test_the_runs_of_a_local_store_are_counted_and_its_version_compared(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("create table alembic_version (version_num text)")
        database.execute("insert into alembic_version values ('ffffffffffff')")
        database.execute("create table runs (id integer)")
        database.executemany("insert into runs values (?)", [(1,), (2,)])
        database.commit()
    other = doctor.store(tmp_path)
    assert not other.present
    assert "2 runs, is of another version of MLflow: ffffffffffff" in other.detail
    assert "Move it away" in other.advice
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("update alembic_version set version_num = ?", [doctor._schema_version()])
        database.commit()
    finding = doctor.store(tmp_path)
    assert finding.present
    assert finding.detail.endswith("2 runs")


def test_a_damaged_store_is_reported_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database")
    assert not doctor.store(tmp_path).present
    assert (tmp_path / "mlflow.db").read_text() == "not a database"


@pytest.mark.parametrize("place", ["127.0.0.1:1", "127.0.0.1:port", "nowhere.invalid"])
def test_an_unreachable_server_is_reported_without_its_password(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@{place}")
    finding = doctor.store(tmp_path)
    assert not finding.present
    assert "mlflow-sync" in finding.advice
    assert "secret" not in f"{finding}"


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SPACE_GB", float("inf"))
    finding = doctor.disk(tmp_path / "not" / "there" / "yet")
    assert not finding.present
    assert str(tmp_path) in finding.detail


def lacking(root: Path) -> dict[str, doctor.Check]:
    """Return what the doctor finds amiss for a start in a folder, by name."""
    checks = doctor.start(root, root / "results", root / "data")
    return {check.name: check for check in checks if not check.present}


def test_what_a_start_would_stumble_over_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("locale.getencoding", lambda: "UTF-8")
    before = os.umask(0o022)
    try:
        assert lacking(tmp_path) == {}
        (tmp_path / ".snakemake" / "locks").mkdir(parents=True)
        (tmp_path / ".snakemake" / "locks" / "0.output.lock").touch()
        (tmp_path / "results" / "runs").mkdir(parents=True)
        (tmp_path / "results").chmod(0o2775)
        monkeypatch.setenv("HOME", "/dev/null")
        monkeypatch.setattr("locale.getencoding", lambda: "ISO-8859-1")
        found = lacking(tmp_path)
    finally:
        os.umask(before)
    assert set(found) == {"home", "locale", "umask", "lock", "records"}
    assert all(check.advice for check in found.values())
    assert "/dev/null/.cache: cannot be written" in found["home"].detail
    assert "XDG_CACHE_HOME" in found["home"].advice
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "home" not in lacking(tmp_path)


def test_a_folder_that_cannot_be_made_is_found(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    assert "cannot be written" in lacking(tmp_path)["results"].detail
