"""What every dataset must keep, whichever it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from clipnoise.data.base import Dataset, Examples, Splits
from clipnoise.data.cache import MANIFEST
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.plugins import plugins

DATASETS = plugins("clipnoise.data", Dataset)
pytestmark = pytest.mark.parametrize("name", DATASETS)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache in which every dataset is prepared; nobody writes into it."""
    cache = tmp_path_factory.mktemp("cache")
    for dataset in DATASETS.values():
        dataset().prepare(cache)
    return cache


def with_public(name: str) -> Dataset:
    """Build a dataset with public examples where it offers them."""
    kind = DATASETS[name]
    return parse(kind, {"public_examples": 50} if "public_examples" in to_plain(kind()) else {})


def parts(splits: Splits) -> dict[str, Examples]:
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return named if splits.public is None else {**named, "public": splits.public}


def rows(examples: Examples) -> set[bytes]:
    return {row.numpy().tobytes() for row in examples.inputs}


def test_sizes_are_known_before_loading_and_true(name: str, prepared: Path) -> None:
    for dataset in (DATASETS[name](), with_public(name)):
        loaded = {part: len(examples) for part, examples in parts(dataset.load(prepared)).items()}
        assert loaded == {part: count for part, count in dataset.sizes().items() if count}


def test_shapes_types_and_labels_are_as_declared(name: str, prepared: Path) -> None:
    dataset = with_public(name)
    for examples in parts(dataset.load(prepared)).values():
        assert examples.inputs.shape[1:] == dataset.signature.shape
        assert examples.targets.dtype == torch.int64
        assert examples.targets.shape == (len(examples),)
        assert int(examples.targets.min()) >= 0
        assert int(examples.targets.max()) < dataset.signature.outputs
        assert examples.inputs.isfinite().all()


def test_every_class_is_there_to_train_on(name: str, prepared: Path) -> None:
    dataset = DATASETS[name]()
    assert len(dataset.load(prepared).train.targets.unique()) == dataset.signature.outputs


def test_no_example_is_in_two_parts(name: str, prepared: Path) -> None:
    found = [rows(examples) for examples in parts(with_public(name).load(prepared)).values()]
    assert len(set.union(*found)) == sum(len(part) for part in found)


def test_the_split_follows_from_its_seed_alone(name: str, prepared: Path) -> None:
    kind = DATASETS[name]
    torch.manual_seed(1)
    first = kind().load(prepared)
    torch.manual_seed(2)
    again, other = kind().load(prepared), kind(split_seed=1).load(prepared)
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert torch.equal(first.test.targets, again.test.targets)
    assert not torch.equal(first.train.inputs, other.train.inputs)


def test_loading_leaves_the_random_stream_alone(name: str, prepared: Path) -> None:
    state = torch.random.get_rng_state()
    DATASETS[name]().load(prepared)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_is_loaded_can_be_changed_without_touching_the_cache(
    name: str, prepared: Path
) -> None:
    first = DATASETS[name]().load(prepared)
    before = first.train.inputs.clone()
    first.train.inputs.zero_()
    assert torch.equal(DATASETS[name]().load(prepared).train.inputs, before)


def test_provenance_is_plain_text_with_source_and_licence(name: str, prepared: Path) -> None:
    dataset = DATASETS[name]()
    provenance = dataset.load(prepared).provenance
    assert provenance["source"] == dataset.source
    assert provenance["licence"] == dataset.licence
    assert json.loads(json.dumps(provenance)) == provenance


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_preparing_gives_the_same_bytes_every_time(
    name: str, prepared: Path, tmp_path: Path
) -> None:
    dataset = DATASETS[name]()
    dataset.prepare(tmp_path)
    once = contents(tmp_path / name)
    dataset.prepare(tmp_path)
    assert contents(tmp_path / name) == once == contents(prepared / name)


def test_an_unprepared_dataset_says_how_to_prepare_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"clipnoise data prepare {name} --cache {tmp_path}"):
        DATASETS[name]().load(tmp_path)


def break_manifest(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_file_is_noticed(
    name: str, damage: object, prepared: Path, tmp_path: Path
) -> None:
    for file in (path.name for path in (prepared / name).iterdir() if path.name != MANIFEST):
        shutil.copytree(prepared, tmp_path / file)
        damage(tmp_path / file / name / file)  # type: ignore[operator]
        with pytest.raises(UserError, match=f"{file} .*clipnoise data prepare {name}"):
            DATASETS[name]().load(tmp_path / file)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": {"inputs.npy": {}}}'])
def test_a_damaged_manifest_is_noticed(
    name: str, content: str, prepared: Path, tmp_path: Path
) -> None:
    shutil.copytree(prepared / name, tmp_path / name)
    (tmp_path / name / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=f"clipnoise data prepare {name}"):
        DATASETS[name]().load(tmp_path)


def test_preparing_again_mends_a_damaged_cache(name: str, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared / name, tmp_path / name)
    for path in (tmp_path / name).iterdir():
        truncate(path)
    DATASETS[name]().prepare(tmp_path)
    assert contents(tmp_path / name) == contents(prepared / name)


def test_a_cache_that_only_can_be_read_loads(name: str, prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared / name, tmp_path / name)
    for path in (tmp_path / name).iterdir():
        path.chmod(0o444)
    (tmp_path / name).chmod(0o555)
    try:
        assert len(DATASETS[name]().load(tmp_path).train) == DATASETS[name]().sizes()["train"]
    finally:
        (tmp_path / name).chmod(0o755)


def test_a_cache_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        DATASETS[name]().prepare(tmp_path / "file")


def test_a_mistyped_option_is_named(name: str) -> None:
    with pytest.raises(UserError, match="Did you mean 'split_seed'"):
        parse(DATASETS[name], {"splitseed": 1})
