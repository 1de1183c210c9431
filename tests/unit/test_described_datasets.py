"""A dataset whose reader is a standard one is a YAML file: its facts, and no code."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from real_files.images import idx, made_up

from clipnoise.cli import main
from clipnoise.data.base import dataset_class
from clipnoise.errors import UserError
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.spec import RunSpec, from_mapping

ROOT = Path(__file__).parents[2]
FILES = {
    "train": ["train-images.gz", {"name": "train-labels.gz", "md5": "0" * 32}],
    "test": ["test-images.gz", "test-labels.gz"],
}
GLYPHS: dict[str, Any] = {
    "reader": "idx",
    "title": "Glyphs",
    "about": "Small images of made-up letters.",
    "shape": [1, 9, 7],
    "classes": 4,
    "means": [0.5],
    "deviations": [0.25],
    "training_file": 60,
    "test_file": 20,
    "defaults": {"validation_examples": 8},
}
SOURCE: dict[str, Any] = {
    "licence": "CC0 1.0",
    "source": "made up",
    "split": "60 and 20",
    "manual": "draw them.",
    "site": "https://example.org/glyphs",
    "files": FILES,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a plug-in folder."""
    place = tmp_path / "plugins"
    monkeypatch.setenv("CLIPNOISE_PLUGINS", str(place))
    return place


def describe(folder: Path, source: dict[str, Any] = SOURCE, **facts: Any) -> Path:
    """Write the file of a source with one dataset, and return its path."""
    path = folder / "datasets" / "glyphs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    given = {name: fact for name, fact in {**GLYPHS, **facts}.items() if fact is not None}
    path.write_text(yaml.safe_dump({**source, "datasets": {"glyphs": given}}, sort_keys=False))
    return path


def write_glyphs(cache: Path) -> None:
    images, labels = made_up(80, 4, (9, 7))
    raw = cache / "raw" / "glyphs"
    raw.mkdir(parents=True)
    for part, rows in (("train", slice(60)), ("test", slice(60, 80))):
        for kind, values in (("images", images), ("labels", labels)):
            (raw / f"{part}-{kind}.gz").write_bytes(gzip.compress(idx(values[rows])))


def test_a_file_alone_makes_a_dataset_that_is_prepared_and_loaded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    describe(folder)
    write_glyphs(tmp_path)
    assert main(["data", "prepare", "glyphs", "--cache", str(tmp_path)]) == 2
    assert f"not {'0' * 32}, that of its source" in capsys.readouterr().err
    assert main(["data", "prepare", "glyphs", "--unverified", "--cache", str(tmp_path)]) == 0
    assert main(["data", "list", "--cache", str(tmp_path)]) == 0
    assert "Glyphs: train 52, validation 8, test 20" in capsys.readouterr().out
    splits = dataset_class("glyphs")().load(tmp_path)
    images, labels = made_up(80, 4, (9, 7))
    expected = torch.from_numpy(images[60:, None]).float() / 255
    test = splits.test.dense()
    assert {row.numpy().tobytes() for row in test.inputs} == {
        row.numpy().tobytes() for row in expected
    }
    assert sorted(test.targets.tolist()) == sorted(labels[60:].tolist())


def test_the_file_of_the_documentation_is_one(folder: Path) -> None:
    page = (ROOT / "docs" / "own.md").read_text()
    (block,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.S) if "reader:" in text]
    path = folder / "datasets" / "kuzushiji.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(block)
    dataset = dataset_class("kuzushiji")()
    assert dataset.sizes() == {"train": 55_000, "validation": 5000, "test": 10_000, "public": 0}
    assert {str(file.address) for file in dataset.files} == {
        f"http://codh.rois.ac.jp/kmnist/dataset/kmnist/{file.name}" for file in dataset.files
    }


def test_its_files_are_below_the_address_of_the_source(folder: Path) -> None:
    describe(folder)
    first, second, *_ = dataset_class("glyphs").files
    assert first.address == "https://example.org/glyphs/train-images.gz"
    assert second.md5 == "0" * 32


def spec() -> RunSpec:
    return from_mapping(
        {
            "dataset": {"id": "glyphs"},
            "model": {"id": "logistic"},
            "method": {"id": "sgd", "learning_rate": 0.1},
            "training": {"expected_batch_size": 10, "steps": 1},
            "seed": 1,
        }
    )


def test_what_the_file_says_belongs_to_the_fingerprint_of_a_run_and_comments_do_not(
    folder: Path,
) -> None:
    path = describe(folder)
    run = spec()
    before = fingerprint(run)
    path.write_text(f"# A comment.\n{path.read_text()}")
    assert fingerprint(run) == before
    kind = type(run.dataset)
    members = {"facts": {**kind.facts, "means": [0.4]}, "__module__": kind.__module__}
    changed = type("Changed", (kind,), members)()
    assert fingerprint(replace(run, dataset=changed)) != before


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown reader": (
        {"reader": "idxx"},
        r"datasets\.glyphs\.reader: unknown reader 'idxx'\. Did you mean 'idx'\?",
    ),
    "no reader": ({"reader": None}, r"datasets\.glyphs\.reader: input should be text, got None"),
    "no title": ({"title": None}, r"datasets\.glyphs\.title: required, but not given"),
    "a mistyped fact": ({"clases": 4}, "unknown fact 'clases'. Did you mean 'classes'"),
    "a fact of a wrong type": (
        {"classes": "four"},
        r"datasets\.glyphs\.classes: input should be a whole number, got 'four'",
    ),
    "a mistyped option": (
        {"defaults": {"validation_exmples": 3}},
        r"datasets\.glyphs\.defaults: unknown option 'validation_exmples'\. Did you mean "
        r"'validation_examples'",
    ),
    "a default out of range": (
        {"defaults": {"validation_examples": -3}},
        r"datasets\.glyphs\.defaults\.validation_examples: input should be greater than",
    ),
    "more for validation than there is": (
        {"training_file": 5},
        r"datasets\.glyphs: train_examples, .* must be at most 5",
    ),
    "a part without a file": (
        {"files": {"train": ["a", "b"]}},
        r"datasets\.glyphs: files: none is of the part 'test'",
    ),
    "files of no part": ({"files": ["a"]}, r"files: none is of the part 'train'"),
    "one file where images and labels are two": (
        {"files": {"train": ["a"], "test": ["b", "c"]}},
        r"datasets\.glyphs\.files\.train\.1: required, but not given",
    ),
    "a file elsewhere": (
        {"files": {"train": ["../../a", "b"], "test": ["c", "d"]}},
        r"datasets\.glyphs\.files: '\.\./\.\./a' leads out of",
    ),
    "files in a folder elsewhere": ({"raw": "/tmp"}, r"datasets\.glyphs\.raw: '/tmp' leads out of"),
    "an unknown key of a file": (
        {"files": [{"name": "a", "sha265": "0"}]},
        r"datasets\.glyphs\.files\.sha265: unknown key\. Did you mean 'sha256'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_file_is_reported_with_its_name_and_key(fault: str, folder: Path) -> None:
    facts, message = FAULTS[fault]
    path = describe(folder, **facts)
    with pytest.raises(UserError, match=message) as caught:
        dataset_class("glyphs")
    assert str(caught.value).startswith(f"{path}: ")


def test_two_datasets_of_one_id_are_refused_with_both_places(folder: Path) -> None:
    path = describe(folder)
    again = path.with_name("more.yaml")
    again.write_text(path.read_text())
    with pytest.raises(
        UserError, match=r"more\.yaml: .* its id 'glyphs' is that of .*glyphs\.yaml"
    ):
        dataset_class("glyphs")


def test_a_file_without_datasets_is_refused(folder: Path) -> None:
    path = describe(folder)
    path.write_text("title: nothing\n")
    with pytest.raises(UserError, match=r"glyphs\.yaml: datasets: input should be a mapping"):
        dataset_class("glyphs")
