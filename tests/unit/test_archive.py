"""A study leaves in one file, from which its runs are repeated elsewhere."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_verify import STUDY, project, trained

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.studies.archive import MANIFEST, unpack

__all__ = ["project", "trained"]

METHOD = '''
from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import PrivateMethod
from clipnoise.privacy.queries import ClippedMean


@dataclass(frozen=True, kw_only=True)
class Mine(PrivateMethod):
    """θ ← θ − ηg̃. Source: Abadi et al. 2016, Algorithm 1."""

    id = "mine"
    query = ClippedMean()

    def update(self, released, state, public):
        (g,) = released
        return -self.learning_rate * g
'''


def write(name: str = "mine.zip") -> Path:
    assert main(["archive", "mine.yaml", "--out", name]) == 0
    return Path(name)


@pytest.mark.long
def test_an_archive_holds_what_is_needed_to_read_and_to_repeat(trained: Path) -> None:
    with zipfile.ZipFile(write()) as file:
        names = set(file.namelist())
        config = yaml.safe_load(file.read("config.yaml"))
        text = file.read("README.md").decode()
    runs = {f"{trained.as_posix()}/{name}" for name in ("spec.yaml", "summary.json", "metrics.csv")}
    assert {"workflow/studies/mine.yaml", "config.yaml", "README.md", MANIFEST, *runs} <= names
    assert any(name.startswith("results/calibration/") for name in names)
    assert config["studies"] == ["mine"]
    assert "clipnoise verify mine.zip" in text


def test_an_archive_says_that_it_holds_the_seeds_of_noise(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(write()) as file:
        assert "It holds the seeds of runs with seeded noise." in file.read("README.md").decode()
    assert "mine.zip: It holds the seeds of runs with seeded" in capsys.readouterr().err


def test_an_archive_says_what_it_lacks_and_has_no_report_of_other_runs(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collected = ["collect", "mine.yaml", "--results", "results", "--out"]
    assert main([*collected, "results/studies/mine"]) == 0
    Path("reports/mine").mkdir(parents=True)
    Path("reports/mine/report.pdf").write_bytes(b"of these runs")

    def reports() -> list[str]:
        with zipfile.ZipFile(write()) as file:
            assert "1 of its 2 runs have no result yet." in file.read("README.md").decode()
            return [name for name in file.namelist() if "report" in name or "runs.parquet" in name]

    assert reports() == ["reports/mine/report.pdf", "results/mine/runs.parquet"]
    capsys.readouterr()
    study = yaml.safe_load(Path("mine.yaml").read_text())
    study["panels"]["one"]["seeds"] = [1, 3]
    Path("mine.yaml").write_text(yaml.safe_dump(study))
    assert reports() == []
    said = capsys.readouterr().err
    assert "mine.zip: 1 of its 2 runs have no result yet." in said
    assert "mine.zip: Tables and reports are left out: they are of other runs" in said


def test_the_same_files_make_the_same_archive(trained: Path) -> None:
    first = write().read_bytes()
    for path in Path().rglob("*.json"):
        path.touch()
    assert write().read_bytes() == first


def test_runs_are_repeated_from_an_archive_alone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = write().resolve()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "data").rename(elsewhere / "data")
    monkeypatch.chdir(elsewhere)
    assert main(["verify", str(path)]) == 0
    assert "1 of 1 runs repeated bit for bit, of 1" in capsys.readouterr().out
    assert sorted(p.name for p in elsewhere.iterdir()) == ["data"]


def test_an_archive_is_called_a_zip_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archive", "mine.yaml", "--out", "mine.tar"]) == 2
    assert "--out: mine.tar: an archive is a zip file" in capsys.readouterr().err


def test_a_study_without_results_is_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(yaml.safe_dump({"studies": ["mine.yaml"]}))
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY))
    assert main(["archive", "mine.yaml"]) == 2
    assert "no run has a result yet" in capsys.readouterr().err


def changed(path: Path, **members: bytes | None) -> Path:
    """Write an archive again with other contents; None leaves a member out."""
    with zipfile.ZipFile(path) as file:
        found: dict[str, bytes | None] = {name: file.read(name) for name in file.namelist()}
    found |= members
    with zipfile.ZipFile(path, "w") as file:
        for name, data in found.items():
            if data is not None:
                file.writestr(name, data)
    return path


@pytest.mark.parametrize(
    "members",
    [{"config.yaml": b"title: other"}, {"README.md": None}, {"more.txt": b"x"}],
    ids=["changed", "removed", "added"],
)
def test_an_archive_that_was_changed_is_refused(members: Any, trained: Path) -> None:
    with pytest.raises(UserError, match="a file in it has been changed, added or removed"):
        unpack(changed(write(), **members), Path("out"))


def test_an_archive_writes_nothing_outside_its_folder(trained: Path, tmp_path: Path) -> None:
    path = write()
    with zipfile.ZipFile(path) as file:
        manifest = json.loads(file.read(MANIFEST))
    manifest["sha256"]["../escaped"] = hashlib.sha256(b"x").hexdigest()
    members = {"../escaped": b"x", MANIFEST: json.dumps(manifest).encode()}
    with pytest.raises(UserError, match="leads out of"):
        unpack(changed(path, **members), tmp_path / "out")
    assert not (tmp_path / "escaped").exists()


def test_an_archive_with_a_damaged_byte_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", bytes(range(256)) * 20)
    sound = path.read_bytes()
    for place in range(0, len(sound), 3):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0xFF]) + sound[place + 1 :])
        with pytest.raises(UserError, match=r"x\.zip: no archive of a study, or damaged"):
            unpack(path, tmp_path / "out")


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip file"])
def test_what_is_no_archive_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"x\.zip: no archive of a study, or damaged"):
        unpack(path, tmp_path / "out")


@pytest.mark.long
def test_plug_ins_are_part_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLIPNOISE_PLUGINS", raising=False)
    (tmp_path / "my plug-ins").mkdir()
    (tmp_path / "my plug-ins" / "mine.py").write_text(METHOD)
    study = yaml.safe_load(yaml.safe_dump(STUDY))
    study["panels"]["one"]["methods"] = [{"id": "mine", "learning_rate": 0.1, "clip_norm": 1}]
    study["panels"]["one"]["seeds"] = [1]
    config = {"studies": ["mine.yaml"], "device": "cpu", "plugins": "my plug-ins"}
    Path("config.yaml").write_text(yaml.safe_dump(config))
    Path("mine.yaml").write_text(yaml.safe_dump(study))
    from clipnoise.plugins import use_places
    from clipnoise.run.spec import to_mapping
    from clipnoise.studies.study import load_study

    use_places("my plug-ins", tmp_path)
    spec = load_study(Path("mine.yaml")).runs[0].spec
    assert spec.budget is not None
    assert main(["data", "prepare", "synthetic"]) == 0
    calibration = f"results/calibration/{spec.budget.key}.json"
    assert main(["calibrate", *spec.budget.options().split(), "--out", calibration]) == 0
    words = ["--spec", json.dumps(to_mapping(spec)), "--calibration", calibration]
    assert main(["train", *words, "--device", "cpu"]) == 0
    path = write()
    with zipfile.ZipFile(path) as file:
        assert "plugins/my plug-ins/mine.py" in file.namelist()
    (tmp_path / "my plug-ins" / "mine.py").write_text("raise SystemExit")
    capsys.readouterr()
    assert main(["verify", str(path)]) == 0
    assert "1 of 1 runs repeated bit for bit" in capsys.readouterr().out
