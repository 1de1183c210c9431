"""The contract of a dataset, checked for every registered one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from real_files import DATASETS, prepare, small, small_with_public, write_raw

from clipnoise.data.base import DenseExamples, Splits
from clipnoise.data.cache import MANIFEST
from clipnoise.data.signature import Signature
from clipnoise.data.synthetic import Drawn
from clipnoise.errors import UserError
from clipnoise.fields import parse

SMALL = {name: small(name) for name in DATASETS}
# The cache is one piece of code: of each kind of inputs one dataset, with files if there is one
# that has some, tells whether it works.
FILES_LAST = sorted(DATASETS, key=lambda name: bool(SMALL[name].files))
OF_EACH_KIND = list({SMALL[name].signature.kind: name for name in FILES_LAST}.values())
one_of_each_kind = pytest.mark.quick(name=OF_EACH_KIND)
every_dataset = pytest.mark.parametrize("name", DATASETS)
every_dataset_with_raw_files = pytest.mark.parametrize(
    "name", [name for name in DATASETS if SMALL[name].files]
)
every_dataset_with_arrays = pytest.mark.parametrize(
    "name", [name for name in DATASETS if not issubclass(DATASETS[name], Drawn)]
)
every_dataset_with_classes = pytest.mark.parametrize(
    "name", [name for name in DATASETS if SMALL[name].signature.task_name == "classification"]
)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache in which every dataset is prepared; no test writes to it."""
    cache = tmp_path_factory.mktemp("cache")
    for name in DATASETS:
        prepare(cache, name)
    return cache


def parts(splits: Splits) -> dict[str, DenseExamples]:
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    named = named if splits.public is None else {**named, "public": splits.public}
    return {part: examples.dense() for part, examples in named.items()}


def rows(examples: DenseExamples) -> set[bytes]:
    return {row.numpy().tobytes() for row in examples.inputs}


@every_dataset
def test_sizes_are_known_before_loading_and_true(name: str, prepared: Path) -> None:
    for dataset in (small(name), small_with_public(name)):
        loaded = {part: len(examples) for part, examples in parts(dataset.load(prepared)).items()}
        assert loaded == {part: count for part, count in dataset.sizes().items() if count}


@every_dataset
def test_the_sizes_of_the_real_files_are_known_without_them(name: str) -> None:
    assert DATASETS[name]().sizes()["train"] > 0


@every_dataset
def test_what_decides_what_is_prepared_is_enough_to_prepare_it(name: str) -> None:
    dataset = small_with_public(name)
    assert parse(DATASETS[name], dataset.preparation()).prepared == dataset.prepared


@every_dataset
def test_inputs_are_as_declared(name: str, prepared: Path) -> None:
    dataset = small_with_public(name)
    signature = dataset.signature
    for examples in parts(dataset.load(prepared)).values():
        inputs = examples.inputs
        if signature.kind != "tokens":
            assert inputs.shape[1:] == signature.shape
            assert inputs.dtype == torch.float32
            assert inputs.isfinite().all()
            continue
        assert signature.vocabulary is not None
        assert inputs.dtype == torch.int64
        assert inputs.shape[1:] <= signature.shape
        assert 0 <= int(inputs.min()) <= int(inputs.max()) < signature.vocabulary


@every_dataset
def test_targets_are_as_the_task_declares(name: str, prepared: Path) -> None:
    dataset = small_with_public(name)
    for examples in parts(dataset.load(prepared)).values():
        check_targets(examples, dataset.signature)


def check_targets(examples: DenseExamples, signature: Signature) -> None:
    targets = examples.targets
    if signature.task_name == "classification":
        assert targets.dtype == torch.int64
        assert targets.shape == (len(examples),)
        assert 0 <= int(targets.min()) <= int(targets.max()) < signature.outputs
    elif signature.task_name == "masked-tokens":
        asked = targets[targets != -100]
        assert targets.dtype == torch.int64
        assert targets.shape == examples.inputs.shape
        assert 0 <= int(asked.min()) <= int(asked.max()) < signature.outputs
    else:
        assert targets.shape == (len(examples), signature.outputs)
        assert targets.dtype == torch.float32
        assert targets.isfinite().all()


@every_dataset_with_classes
def test_every_class_is_there_to_train_on(name: str, prepared: Path) -> None:
    dataset = small(name)
    targets = dataset.load(prepared).train.dense().targets
    assert len(targets.unique()) == dataset.signature.outputs


@every_dataset
def test_no_example_is_in_two_parts(name: str, prepared: Path) -> None:
    found = [rows(examples) for examples in parts(small_with_public(name).load(prepared)).values()]
    assert len(set.union(*found)) == sum(len(part) for part in found)


@every_dataset
def test_the_split_follows_from_its_seed_alone(name: str, prepared: Path) -> None:
    torch.manual_seed(1)
    first = small(name).load(prepared)
    torch.manual_seed(2)
    again, other = small(name).load(prepared), small(name, split_seed=1).load(prepared)
    train = first.train.dense().inputs
    assert torch.equal(train, again.train.dense().inputs)
    assert torch.equal(first.test.dense().targets, again.test.dense().targets)
    assert not torch.equal(train, other.train.dense().inputs)


@every_dataset
def test_loading_leaves_the_random_stream_alone(name: str, prepared: Path) -> None:
    state = torch.random.get_rng_state()
    small(name).load(prepared).train.take(torch.tensor([0, 1]))
    assert torch.equal(torch.random.get_rng_state(), state)


@every_dataset
def test_what_is_loaded_can_be_changed_without_touching_the_cache(
    name: str, prepared: Path
) -> None:
    first = small(name).load(prepared).train.dense()
    before = first.inputs.clone()
    first.inputs.zero_()
    assert torch.equal(small(name).load(prepared).train.dense().inputs, before)


@every_dataset
def test_provenance_is_plain_text_with_source_and_licence(name: str, prepared: Path) -> None:
    dataset = small(name)
    provenance = dataset.load(prepared).provenance
    assert provenance["source"] == dataset.source
    assert provenance["licence"] == dataset.licence
    assert json.loads(json.dumps(provenance)) == provenance


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@one_of_each_kind
@every_dataset
def test_preparing_gives_the_same_bytes_every_time(
    name: str, prepared: Path, tmp_path: Path
) -> None:
    dataset = prepare(tmp_path, name)
    once = contents(tmp_path / dataset.prepared)
    dataset.prepare(tmp_path)
    assert contents(tmp_path / dataset.prepared) == once == contents(prepared / dataset.prepared)


@every_dataset
def test_an_unprepared_dataset_says_how_to_prepare_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"clipnoise data prepare {name} .*--cache {tmp_path}"):
        small(name).load(tmp_path)


@every_dataset_with_raw_files
def test_missing_raw_files_are_named_with_how_to_get_them(name: str, tmp_path: Path) -> None:
    dataset = small(name)
    with pytest.raises(UserError, match=f"clipnoise data fetch {name} --cache") as caught:
        dataset.prepare(tmp_path)
    for file in dataset.files:
        assert file.name in str(caught.value)
    assert not list(tmp_path.iterdir())


@one_of_each_kind
@every_dataset_with_raw_files
def test_a_truncated_raw_file_is_named_and_the_cache_stays_as_it_was(
    name: str, tmp_path: Path
) -> None:
    dataset = write_raw(tmp_path, name)
    dataset.prepare(tmp_path)
    before = contents(tmp_path / dataset.prepared)
    path = tmp_path / "raw" / (dataset.raw or name) / dataset.files[0].name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=re.escape(path.name)):
        dataset.prepare(tmp_path)
    assert contents(tmp_path / dataset.prepared) == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture
def copy(name: str, prepared: Path, tmp_path: Path) -> Path:
    """Return a prepared folder to damage."""
    folder = tmp_path / small(name).prepared
    shutil.copytree(prepared / folder.name, folder)
    return folder


@one_of_each_kind
@every_dataset_with_arrays
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
def test_a_damaged_file_is_noticed(
    name: str, damage: Callable[[Path], None], copy: Path, prepared: Path, tmp_path: Path
) -> None:
    arrays = [path for path in copy.iterdir() if path.name != MANIFEST]
    assert arrays
    for path in arrays:
        damage(path)
        with pytest.raises(UserError, match=f"{path.name} .*clipnoise data prepare {name}"):
            small(name).load(tmp_path)
        shutil.copy(prepared / copy.name / path.name, path)


@one_of_each_kind
@every_dataset
@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"files": {"inputs.npy": {}}}'])
def test_a_damaged_manifest_is_noticed(name: str, content: str, copy: Path, tmp_path: Path) -> None:
    (copy / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=f"clipnoise data prepare {name}"):
        small(name).load(tmp_path)


@one_of_each_kind
@every_dataset
def test_preparing_again_repairs_a_damaged_cache(
    name: str, copy: Path, prepared: Path, tmp_path: Path
) -> None:
    for path in copy.iterdir():
        truncate(path)
    prepare(tmp_path, name)
    assert contents(copy) == contents(prepared / copy.name)


@one_of_each_kind
@every_dataset
def test_a_read_only_cache_loads(name: str, copy: Path, tmp_path: Path) -> None:
    for path in copy.iterdir():
        path.chmod(0o444)
    copy.chmod(0o555)
    try:
        assert len(small(name).load(tmp_path).train) == small(name).sizes()["train"]
    finally:
        copy.chmod(0o755)


@one_of_each_kind
@every_dataset
def test_a_cache_that_cannot_be_written_is_named_and_leaves_nothing(
    name: str, tmp_path: Path
) -> None:
    dataset = write_raw(tmp_path, name)
    (tmp_path / dataset.prepared).write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        dataset.prepare(tmp_path)
    assert (tmp_path / dataset.prepared).read_text() == "not a folder"


@every_dataset
def test_a_mistyped_option_is_named(name: str) -> None:
    with pytest.raises(UserError, match="Did you mean 'split_seed'"):
        parse(DATASETS[name], {"splitseed": 1})
