"""A trained model leaves the suite in a folder: parameters, statement, card; and predicts."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from budgets import budget
from safetensors.torch import load_file

import clipnoise
from clipnoise.cli import main
from clipnoise.data.own import Own
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.run.job import run_job
from clipnoise.run.published import CARD, MANIFEST, PARAMETERS, SPEC, STATEMENT, read_published
from clipnoise.run.results import MODEL, read_run, run_folder
from clipnoise.run.setup import build_network
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import evaluate


def spec(dataset: Any = "digits", **changes: Any) -> RunSpec:
    values = {
        "dataset": dataset,
        "model": "logistic",
        "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "training": {"expected_batch_size": 50, "steps": 4, "evaluations": 2, "save": True},
        "seed": 1,
    }
    for name, more in changes.items():
        values[name] = {**values[name], **more} if isinstance(more, dict) else more
    return from_mapping(values)


def train(run: RunSpec, cache: Path, results: Path) -> Path:
    """Train a run and return the folder of its model."""
    run_job(run, budget(run), results=results, cache=cache, weights=results, device="cpu")
    return run_folder(results, run) / MODEL


def front_matter(folder: Path) -> tuple[dict[str, Any], str]:
    _, front, text = (folder / CARD).read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def test_saving_a_model_changes_no_number_and_only_its_own_hash(
    cache: Path, tmp_path: Path
) -> None:
    saved, plain = spec(), spec(training={"save": False})
    assert saved.hash != plain.hash
    assert "save" not in to_mapping(plain)["training"]
    folders = [train(run, cache, tmp_path).parent for run in (saved, plain)]
    files = [read_run(folder) for folder in folders]
    assert files[0] is not None
    assert files[1] is not None
    assert files[0].summary["final"] == files[1].summary["final"]
    assert "model" not in files[1].summary
    assert not (folders[1] / MODEL).exists()


@pytest.mark.parametrize("average", [None, {"kind": "tail", "after": 0.0}])
def test_what_is_published_is_what_was_measured(
    average: dict[str, Any] | None, cache: Path, tmp_path: Path
) -> None:
    run = spec(training={"average": average})
    folder = train(run, cache, tmp_path)
    network, found = read_published(folder, tmp_path)
    assert found == run
    splits = run.dataset.load(cache)
    accuracy = evaluate(network, run.dataset.signature.task, splits.test).score
    front, _ = front_matter(folder)
    (result,) = front["model-index"][0]["results"]
    measured = {one["type"]: one["value"] for one in result["metrics"]}
    assert accuracy == pytest.approx(measured["test_accuracy"])
    assert front["datasets"] == ["digits"]


def test_a_strict_run_with_secure_noise_may_be_published(cache: Path, tmp_path: Path) -> None:
    folder = train(spec(privacy={"secure_noise": True, "release": "strict"}), cache, tmp_path)
    _, text = front_matter(folder)
    assert "It may be published." in text
    assert json.loads((folder / STATEMENT).read_text())["randomness"] == "secure"
    assert "train" not in (folder / MANIFEST).read_text()


SECURE = {"noise_multiplier": 1, "delta": 1e-5, "secure_noise": True}
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "seeded noise": ({}, "follows from a seed"),
    "a nominal claim": ({"privacy": {**SECURE, "sampler": "shuffled"}}, "Its ε is nominal"),
    "no privacy": (
        {"method": {"id": "sgd", "learning_rate": 0.1}, "privacy": None},
        "Nothing protects",
    ),
    "a large δ": ({"privacy": {**SECURE, "delta": 0.5}}, "δ far below 1/n does not allow that"),
}


@pytest.mark.parametrize("why", UNFIT)
def test_any_other_model_says_why_it_must_not_be_published(
    why: str, cache: Path, tmp_path: Path
) -> None:
    changes, message = UNFIT[why]
    run = from_mapping({**to_mapping(spec()), **changes})
    _, text = front_matter(train(run, cache, tmp_path))
    assert "**Not to be published as a private model.**" in text
    assert message in text


def test_a_result_without_its_model_is_damaged(cache: Path, tmp_path: Path) -> None:
    folder = train(spec(), cache, tmp_path)
    (folder / MANIFEST).unlink()
    with pytest.raises(UserError, match="its model is missing"):
        read_run(folder.parent)


@pytest.mark.parametrize("name", [PARAMETERS, SPEC, CARD, STATEMENT])
def test_a_file_that_has_changed_is_named(name: str, cache: Path, tmp_path: Path) -> None:
    folder = train(spec(), cache, tmp_path)
    with (folder / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(UserError, match=rf"{name}: has changed since it was published"):
        read_published(folder, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "damaged"),
        ('{"form": 2, "sha256": {}}', "another version"),
        ('{"form": 1, "sha256": {"../x": ""}}', "a file that no published model has"),
        ('{"form": 1, "sha256": {}}', "a loop of its author's"),
    ],
)
def test_a_foreign_folder_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(UserError, match=message):
        read_published(tmp_path, tmp_path)


def test_parameters_of_another_network_are_refused(cache: Path, tmp_path: Path) -> None:
    folder = train(spec(), cache, tmp_path)
    other = train(spec(model="cnn-small"), cache, tmp_path)
    (folder / PARAMETERS).write_bytes((other / PARAMETERS).read_bytes())
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["sha256"][PARAMETERS] = json.loads((other / MANIFEST).read_text())["sha256"][
        PARAMETERS
    ]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="does not fit the model logistic"):
        read_published(folder, tmp_path)


# Predictions


def own_run(folder: Path) -> tuple[RunSpec, pd.DataFrame]:
    """Prepare a small table whose label follows from its columns, and return a run on it."""
    draws = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draws.normal(size=80), "sex": np.array(["f", "m"] * 40)})
    frame["y"] = np.where(frame["x"] > 0, "up", "down")
    raw = folder / "raw" / "mine"
    raw.mkdir(parents=True)
    frame[:60].to_csv(raw / "train.csv", index=False)
    frame[60:].to_csv(raw / "test.csv", index=False)
    options = {
        "name": "mine",
        "inputs": ["x", "sex"],
        "target": "y",
        "shape": [3],
        "classes": ["down", "up"],
        "training_file": 60,
        "test_file": 20,
        "validation_examples": 10,
        "columns": {"sex": {"categories": ["f", "m"]}},
    }
    parse(Own, options).prepare(folder)
    return spec({"id": "own", **options}, privacy={"noise_multiplier": 0.01}), frame


def test_rows_of_a_table_are_predicted_without_their_target(tmp_path: Path) -> None:
    run, frame = own_run(tmp_path / "data")
    folder = train(run, tmp_path / "data", tmp_path)
    front, text = front_matter(folder)
    assert front["datasets"] == ["mine"]
    assert "(`mine`), 50 private examples" in text
    path, out = tmp_path / "new.csv", tmp_path / "predicted.csv"
    frame[60:][["sex", "x"]].to_csv(path, index=False)
    assert main(["predict", str(folder), str(path), "--out", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    network, _ = read_published(folder, tmp_path)
    inputs = torch.tensor(
        [[x, sex == "f", sex == "m"] for x, sex in zip(frame["x"], frame["sex"], strict=True)][60:],
        dtype=torch.float32,
    )
    expected = network(inputs)[:, :2].softmax(dim=-1)
    assert [row["predicted"] for row in rows] == [
        ["down", "up"][place] for place in expected.argmax(dim=-1).tolist()
    ]
    assert [float(row["probability"]) for row in rows] == pytest.approx(
        expected.max(dim=-1).values.tolist(), abs=1e-5
    )


def test_arrays_are_predicted_for_any_other_dataset(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(spec(), cache, tmp_path)
    inputs = spec().dataset.load(cache).test.dense().inputs[:5]
    np.savez(tmp_path / "new.npz", inputs=inputs.numpy())
    capsys.readouterr()
    assert main(["predict", str(folder), str(tmp_path / "new.npz")]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == "row,predicted,probability"
    assert [row.split(",")[0] for row in rows] == list("01234")
    np.savez(tmp_path / "new.npz", inputs=inputs.flatten(1).numpy())
    assert main(["predict", str(folder), str(tmp_path / "new.npz")]) == 2
    assert "inputs of shape (64,); the model takes" in capsys.readouterr().err
    numbers = inputs.numpy()
    for wrong, said in ((numbers.astype(str), "expected numbers"), (numbers * np.nan, "finite")):
        np.savez(tmp_path / "new.npz", inputs=wrong)
        assert main(["predict", str(folder), str(tmp_path / "new.npz")]) == 2
        assert said in capsys.readouterr().err


# Training in a loop of one's own


def private(**settings: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 4, generator=generator)
    return clipnoise.private(
        torch.nn.Linear(4, 2),
        torch.nn.CrossEntropyLoss(reduction="none"),
        (inputs, (inputs[:, 0] > 0).long()),
        method="dp-sgd",
        learning_rate=0.1,
        clip_norm=1,
        noise_multiplier=1,
        expected_batch_size=20,
        steps=3,
        **{"delta": 1e-4, **settings},
    )


def test_one_s_own_model_is_published_with_its_statement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = private()
    for _ in training:
        pass
    assert training.publish(tmp_path / "mine") == ()
    _, text = front_matter(tmp_path / "mine")
    assert "It may be published." in text
    assert "An item of the data depends on one example alone" in text
    fresh = torch.nn.Linear(4, 2)
    fresh.load_state_dict(load_file(tmp_path / "mine" / PARAMETERS))
    with pytest.raises(UserError, match="in a loop of its author's"):
        read_published(tmp_path / "mine", tmp_path)

    seeded = private(seed=1)
    with caplog.at_level(logging.WARNING):
        (doubt,) = seeded.publish(tmp_path / "mine")  # an earlier model is replaced
    assert "follows from a seed" in doubt
    assert doubt in caplog.text
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(UserError, match="holds other files"):
        training.publish(tmp_path / "other")


def test_a_network_built_from_a_spec_has_the_names_of_what_was_saved(
    cache: Path, tmp_path: Path
) -> None:
    folder = train(spec(model="cnn-small"), cache, tmp_path)
    assert set(load_file(folder / PARAMETERS)) == set(
        build_network(spec(model="cnn-small")).state_dict()
    )
