"""Finished runs are repeated bit for bit, and a number that does not repeat is named."""

from __future__ import annotations

import copy
import json
import os
import shutil
from contextlib import AbstractContextManager, chdir
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from clipnoise.cli import main
from clipnoise.errors import UserError
from clipnoise.privacy.calibration import read_calibration
from clipnoise.run import ranks
from clipnoise.run.job import is_finished
from clipnoise.run.ranks import Ranks, started
from clipnoise.run.results import digest_of, run_folder
from clipnoise.run.spec import RunSpec, to_mapping
from clipnoise.studies.collect import collect
from clipnoise.studies.study import load_study
from clipnoise.tracking import Membership
from clipnoise.tracking.view import finished_view

STUDY: dict[str, Any] = {
    "title": "Verify",
    "panels": {
        "one": {
            "datasets": ["synthetic"],
            "models": ["logistic"],
            "epsilons": [4],
            "seeds": [1, 2],
            "training": {"steps": 4, "evaluations": 2, "expected_batch_size": 24},
            "methods": [{"id": "dp-adam", "learning_rate": 0.1, "clip_norm": 1}],
        }
    },
    "report": [],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the first of the two runs of a study is trained."""
    folder = tmp_path_factory.mktemp("project")
    with chdir(folder):
        train_the_first()
    return folder


def train_the_first() -> None:
    Path("config.yaml").write_text(yaml.safe_dump({"studies": ["mine.yaml"], "device": "cpu"}))
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY))
    spec = load_study(Path("mine.yaml")).runs[0].spec
    assert main(["data", "prepare", "synthetic"]) == 0
    assert spec.budget is not None
    calibration = f"results/calibration/{spec.budget.key}.json"
    assert main(["calibrate", *spec.budget.options().split(), "--out", calibration]) == 0
    words = ["--spec", json.dumps(to_mapping(spec)), "--calibration", calibration]
    assert main(["train", *words, "--device", "cpu"]) == 0


@pytest.fixture
def trained(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a copy of the folder, and return that of its run."""
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (summary,) = Path("results/runs").rglob("summary.json")
    return summary.parent


def restate(folder: Path, summary: dict[str, Any]) -> None:
    """Write a summary, with a digest that is right."""
    summary["digest"] = digest_of(summary, (folder / "metrics.csv").read_text())
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.mark.long
def test_a_finished_run_is_repeated_bit_for_bit(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "summary.json").read_bytes()
    assert main(["verify", "mine.yaml"]) == 0
    assert "1 of 1 runs repeated bit for bit, of 1" in capsys.readouterr().out
    assert (trained / "summary.json").read_bytes() == before


def test_a_run_is_repeated_with_the_threads_of_the_configuration(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over several threads are added in another order, so their last bits differ."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")  # and are restored
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert main(["verify", "mine.yaml"]) == 0
        assert (os.environ["OMP_NUM_THREADS"], torch.get_num_threads()) == ("1", 1)
    finally:
        torch.set_num_threads(before)


@pytest.mark.long
def test_a_run_of_several_processes_is_repeated_with_as_many(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = []

    def counted(count: int, *given: Any, **options: Any) -> AbstractContextManager[Ranks]:
        counts.append(count)
        return started(count, *given, **options)

    monkeypatch.setattr(ranks, "started", counted)
    (calibration,) = Path("results/calibration").glob("*.json")
    words = ["--spec", str(trained / "spec.yaml"), "--calibration", str(calibration)]
    assert main(["train", *words, "--device", "cpu", "--processes", "2"]) == 0
    assert main(["verify", "mine.yaml"]) == 0
    assert counts == [2, 2]
    assert "1 of 1 runs repeated bit for bit, of 1" in capsys.readouterr().out


def test_a_number_that_does_not_repeat_is_named(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    accuracy = summary["final"]["test_accuracy"]
    summary["final"]["test_accuracy"] = accuracy + 1e-9
    restate(trained, summary)
    assert main(["verify", "mine.yaml"]) == 1
    said = capsys.readouterr().out
    assert f"final test_accuracy: {accuracy + 1e-9} before, {accuracy} now" in said
    assert "0 of 1 runs repeated bit for bit" in said


def test_another_processor_is_named_beside_numbers_that_do_not_repeat(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    here = summary["hardware"]["cpu"]
    summary["hardware"]["cpu"] = "another"

    def said(accuracy: float) -> str:
        summary["final"]["test_accuracy"] = accuracy
        restate(trained, summary)
        main(["verify", "mine.yaml"])
        return capsys.readouterr().out

    accuracy = summary["final"]["test_accuracy"]
    assert "processor" not in said(accuracy)
    different = said(accuracy + 1e-9)
    assert f"    processor: another before, {here} now\n" in different
    assert "trained on another processor, which may round sums differently" in different


def forge(folder: Path, **privacy: Any) -> None:
    """State other numbers in a summary, with a digest that is right."""
    summary = json.loads((folder / "summary.json").read_text())
    summary["privacy"] |= privacy
    restate(folder, summary)


def test_a_forged_epsilon_is_refused_wherever_it_is_read(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(trained, epsilon=0.5)
    assert main(["verify", "mine.yaml"]) == 1
    assert "privacy epsilon: 0.5 before, 3.99" in capsys.readouterr().out
    study = load_study(Path("mine.yaml"))
    (row, _) = collect(study, Path("results"))[0].to_pylist()
    assert (row["status"], "costs ε 3.99" in row["reason"]) == ("corrupt", True)
    with pytest.raises(UserError, match=r"states ε 0\.5, but its noise multiplier.* costs ε 3\.99"):
        finished_view(trained, Membership())
    spec = study.runs[0].spec
    assert spec.budget is not None
    calibration = read_calibration(Path("results/calibration") / f"{spec.budget.key}.json")
    assert not is_finished(Path("results"), Path("data"), spec, calibration)


def test_all_that_a_result_states_of_privacy_is_compared(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(trained, covers="everything, the search, too", epsilon_with_tuning=0.01)
    assert main(["verify", "mine.yaml"]) == 1
    said = capsys.readouterr().out
    assert "privacy covers: everything, the search, too before, " in said
    assert "privacy epsilon_with_tuning: 0.01 before, None now" in said


def test_a_result_of_another_run_than_the_planned_one_is_not_verified(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a sound result with the name of the planned run."""
    summary = json.loads((trained / "summary.json").read_text())
    summary["spec"]["method"]["learning_rate"] = 0.2
    (trained / "spec.yaml").write_text(yaml.safe_dump(summary["spec"]))
    del summary["spec_file"]  # as older results are
    restate(trained, summary)
    assert main(["verify", "mine.yaml"]) == 1
    assert "the run, by its spec: " in capsys.readouterr().out


def train(spec: RunSpec, *words: str) -> None:
    assert main(["train", "--spec", json.dumps(to_mapping(spec)), "--device", "cpu", *words]) == 0


def test_what_a_search_chose_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values = copy.deepcopy(STUDY)
    values["panels"]["one"] |= {
        "epsilons": [],
        "seeds": [1],
        "methods": [{"id": "sgd", "tune": {"grid": {"learning_rate": [1e-6, 1]}, "seeds": [9]}}],
    }
    values["panels"]["one"]["datasets"] = ["digits"]
    Path("config.yaml").write_text(yaml.safe_dump({"studies": ["mine.yaml"], "device": "cpu"}))
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    study = load_study(Path("mine.yaml"))
    dataset = study.runs[0].spec.dataset
    dataset.prepare(Path("data"))
    ((key, search),) = study.searches.items()
    for tried in search.runs:
        train(tried)
    choice = Path("results/tuning") / f"{key}.json"
    folders = [str(run_folder(Path("results"), tried)) for tried in search.runs]
    words = ["--parameters", "learning_rate", "--metric", search.metric, "--out", str(choice)]
    choice.parent.mkdir()
    assert main(["select", "--runs", *folders, *words]) == 0
    run = study.runs[0].spec
    train(run, "--choice", str(choice))
    assert main(["verify", "mine.yaml"]) == 0
    found = json.loads(choice.read_text())
    other = next(one for one in found["tried"] if one["values"] != found["choice"])
    choice.write_text(json.dumps(found | {"choice": other["values"]}))  # as it looks best on tests
    train(run, "--choice", str(choice))
    capsys.readouterr()
    assert main(["verify", "mine.yaml"]) == 1
    assert "what its search chose: learning_rate " in capsys.readouterr().out


@pytest.mark.parametrize(
    "change", [{"privacy": {}}, {"engine": ..., "versions": []}, {"hardware": None}, {"spec": {}}]
)
def test_a_summary_that_lacks_something_is_a_damaged_result_in_the_table(
    change: dict[str, Any], trained: Path
) -> None:
    summary = {**json.loads((trained / "summary.json").read_text()), **change}
    restate(trained, {name: value for name, value in summary.items() if value is not ...})
    runs, curves = collect(load_study(Path("mine.yaml")), Path("results"))
    (row, _) = runs.to_pylist()
    assert row["status"] == "corrupt"
    assert "summary.json: damaged result file" in row["reason"]
    assert len(curves) == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["summary.json", "metrics.csv", "spec.yaml"])
def test_a_pipe_in_the_place_of_a_result_is_not_waited_for(name: str, trained: Path) -> None:
    (trained / name).unlink()
    os.mkfifo(trained / name)
    (row, _) = collect(load_study(Path("mine.yaml")), Path("results"))[0].to_pylist()
    assert row["status"] == "corrupt"
    with pytest.raises((UserError, OSError), match="no regular file"):
        finished_view(trained, Membership())


def test_a_study_without_results_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(yaml.safe_dump({"studies": ["mine.yaml"]}))
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY))
    assert main(["verify", "mine.yaml"]) == 2
    assert "mine.yaml has no completed run" in capsys.readouterr().err
