"""Files are data, names stay in their folders, servers answer this machine alone, and secrets stay
where they are."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from clipnoise.cli import main
from clipnoise.data.base import dataset_class
from clipnoise.data.own import Own
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.files import inside, load_yaml, read_yaml
from clipnoise.run.provenance import Provenance
from clipnoise.run.spec import from_mapping
from clipnoise.studies.study import find_study, load_study, published_tables
from clipnoise.tracking import StoreError

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for name in ("src", "benchmarks", "envs") for path in (ROOT / name).rglob("*.py")
)

# Files are data.


def test_reading_a_file_never_runs_code_from_it() -> None:
    """Ruff refuses pickle and unsafe YAML; torch and numpy read no code unless they are told to."""
    told = re.compile(r"allow_pickle=True|weights_only=False|\.extractall\(|unpack_archive\(")
    assert [path for path in SOURCES if told.search(path.read_text())] == []


def test_the_workflow_does_not_parse_yaml_itself() -> None:
    for path in [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]:
        assert not re.search(r"\byaml\.|\bpickle|\b(eval|exec)\(", path.read_text()), path


def test_a_yaml_file_that_names_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text(f"!!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    with pytest.raises(UserError, match="not valid YAML"):
        read_yaml(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "a:\n\t- 1", "- a\nb: 1", "'x", "!!x 1"])
def test_the_fast_reader_of_yaml_has_the_messages_of_the_other(text: str) -> None:
    with pytest.raises(yaml.YAMLError) as slow:
        yaml.safe_load(text)
    with pytest.raises(yaml.YAMLError) as fast:
        load_yaml(text)
    assert str(fast.value) == str(slow.value)


# Names stay in their folders.

STUDY: dict[str, Any] = {
    "title": "Names",
    "panels": {
        "main": {
            "datasets": ["digits"],
            "models": ["logistic"],
            "seeds": [1],
            "training": {"expected_batch_size": 50, "steps": 4},
            "methods": [{"id": "sgd", "learning_rate": 0.5}],
        }
    },
    "report": [],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of studies, and a study outside it that no name inside may reach."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(STUDY))
    (tmp_path / "secret.csv").write_text("")
    (tmp_path / "studies" / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (tmp_path / "studies" / "elsewhere").symlink_to(tmp_path)
    return tmp_path


OUT = ["../secret", "link", "elsewhere/secret", "{}/secret", "a/../../secret"]


@pytest.mark.parametrize("name", OUT)
def test_a_study_name_cannot_leave_the_studies_folder(name: str, project: Path) -> None:
    with pytest.raises(UserError, match=r"studies: .*leads out of"):
        find_study(name.format(project), project / "studies")


@pytest.mark.parametrize("name", OUT)
def test_a_shared_study_name_cannot_leave_the_studies_folder(name: str, project: Path) -> None:
    values = {"title": "x", "shares": name.format(project), "report": []}
    (project / "studies" / "mine.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match=r"shares: .*leads out of"):
        load_study(project / "studies" / "mine.yaml")


@pytest.mark.parametrize("name", ["../secret", "{}/secret", "elsewhere/secret"])
def test_a_published_table_name_cannot_leave_its_folder(name: str, project: Path) -> None:
    item = {"kind": "table", "panels": "main", "published": name.format(project)}
    path = project / "studies" / "mine.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "report": [item]}))
    with pytest.raises(UserError, match=r"mine\.yaml: report\.published: .*leads out of"):
        published_tables(load_study(path), project / "studies")


def test_a_folder_may_be_a_link_itself(project: Path) -> None:
    (project / "studies" / "mine.yaml").write_text(yaml.safe_dump(STUDY))
    (project / "linked").symlink_to(project / "studies")
    assert find_study("mine", project / "linked").name == "mine"
    assert inside(project / "linked", "mine.yaml", key="x").is_file()


@pytest.mark.parametrize("name", ["../out", "/out", "a/b", "", "a b", "x\n"])
def test_names_that_become_files_are_plain(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "panels": {name: STUDY["panels"]["main"]}}))
    with pytest.raises(UserError, match="letters, digits, - and _"):
        load_study(path)
    with pytest.raises(UserError, match="letters, digits, - and _"):
        parse(Own, {"name": name})


@pytest.mark.parametrize("key", ["dataset", "model", "method"])
@pytest.mark.parametrize("name", ["../digits", "/digits", "digits/../../x"])
def test_a_run_spec_names_nothing_but_plug_ins(key: str, name: str) -> None:
    values: dict[str, Any] = {
        "dataset": "digits",
        "model": "logistic",
        "method": {"id": "sgd", "learning_rate": 1},
        "training": {"expected_batch_size": 10, "steps": 1},
        "seed": 1,
    }
    assert from_mapping(values).folder.count("..") == 0
    with pytest.raises(UserError, match=f"unknown {key}"):
        from_mapping({**values, key: {"id": name}})


# Servers answer this machine alone.


def test_mlflows_pages_are_served_to_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clipnoise.tracking import ui

    started: list[tuple[list[str], dict[str, str]]] = []

    class StartedError(Exception):
        """The command is known: nothing has to be started."""

    def start(words: list[str], *, env: dict[str, str], **options: Any) -> None:
        started.append((words, env))
        raise StartedError

    monkeypatch.setattr(ui.subprocess, "Popen", start)
    with pytest.raises(StartedError), ui.serve(tmp_path, port=5001, log=tmp_path / "log"):
        pass
    ((words, environment),) = started
    assert words[words.index("--host") + 1] == "127.0.0.1"
    # Processes for jobs would take 2 GB of memory beside it.
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"


def test_a_port_that_is_taken_is_named_before_a_server_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clipnoise.tracking import ui

    monkeypatch.setattr(ui.subprocess, "Popen", None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(StoreError, match=f"port {port}: .*in use.* Choose another .--port, "),
            ui.serve(tmp_path, port=port),
        ):
            pass


def test_no_command_of_ours_listens_to_other_machines() -> None:
    everyone = re.compile(r"0\.0\.0\.0|--host[ =\"',]+(?!127\.0\.0\.1|localhost)[\w:]")
    for path in [*SOURCES, ROOT / "Makefile", *(ROOT / "workflow" / "rules").glob("*.smk")]:
        if path.is_relative_to(ROOT / "src") or path.suffix != ".py":
            assert not everyone.search(path.read_text()), path


# Secrets stay where they are.

SECRETS = {
    "MLFLOW_TRACKING_USERNAME": "s3cret-person",
    "MLFLOW_TRACKING_PASSWORD": "s3cret-word",
    "MLFLOW_TRACKING_TOKEN": "s3cret-token",
    "MLFLOW_TRACKING_URI": "http://s3cret-a:s3cret-b@127.0.0.1:9",
    "AWS_SECRET_ACCESS_KEY": "s3cret-key",
    "HF_TOKEN": "s3cret-hub",
}


def test_no_secret_of_the_environment_is_in_what_a_run_and_its_table_say(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    dataset_class("digits")().prepare(tmp_path / "cache")
    values = {**STUDY["panels"]["main"], "methods": [{"id": "sgd", "learning_rate": 0.5}]}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "panels": {"main": values}}))
    run = load_study(path).runs[0].spec
    from clipnoise.run.spec import to_mapping

    places = ["--results", str(tmp_path / "results")]
    words = ["--spec", json.dumps(to_mapping(run)), "--cache", str(tmp_path / "cache"), *places]
    with caplog.at_level("DEBUG"):
        assert main(["train", *words, "--device", "cpu"]) == 0
        assert main(["mlflow-sync", "--study", str(path), *places]) == 1
        assert main(["collect", str(path), *places, "--out", str(tmp_path / "table")]) == 0
    said = "".join(capfd.readouterr()) + caplog.text
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert {"summary.json", "spec.yaml", "runs.parquet", "mlflow.json"} <= {
        one.name for one in files
    }
    content = b"".join(one.read_bytes() for one in files).decode(errors="replace")
    assert "s3cret" not in said + content


def test_what_is_noted_of_the_environment_is_a_short_list() -> None:
    noted = Provenance("cpu").as_mapping()
    assert set(noted) == {"versions", "git_commit", "hardware", "started", "finished"}
    assert set(noted["hardware"]) == {*("cpu", "cores", "gpu", "memory_gb", "host", "processes")}


# Files do not grow when they are read.

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [BOMB, f"{BOMB}? *j\n: 1\n", "a: &a [*a]\n", "a: &a {b: *a}\n", "a: " + "[" * 3000],
    ids=["alias bomb", "as a key", "list in itself", "mapping in itself", "deep"],
)
def test_yaml_that_stands_for_more_than_it_says_is_refused_at_once(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"mine\.yaml: not valid YAML: ") as refused:
        load_study(path)
    assert len(str(refused.value)) < 300
    assert main(["collect", str(path), "--out", str(tmp_path / "table")]) == 2
    assert "mine.yaml: not valid YAML" in capsys.readouterr().err


def test_aliases_that_save_words_are_read(tmp_path: Path) -> None:
    assert load_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n") == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": {"x": 1, "y": 2},
    }


def test_long_values_are_cut_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    long = "dp-sgd" * 5000
    panel = STUDY["panels"]["main"]
    for changed in (
        {"methods": [{"id": long}]},
        {"seeds": long},
        {"datasets": [long]},
        {long: 1},
        {"training": {"steps": long}},
    ):
        path.write_text(yaml.safe_dump({**STUDY, "panels": {"main": {**panel, **changed}}}))
        with pytest.raises(UserError, match="dp-sgd") as refused:
            _ = load_study(path).runs
        assert len(str(refused.value)) < 5000, changed
