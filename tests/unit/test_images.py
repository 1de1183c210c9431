"""Image datasets: read as torchvision reads them, stored compactly, refused if damaged."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from full_disk import full_disk
from real_files import prepare, small, write_raw
from real_files.images import archive, batch, idx, made_up, pickled

from clipnoise.cli import main
from clipnoise.data.base import Splits, dataset_class
from clipnoise.data.cache import MANIFEST, write_arrays
from clipnoise.data.images import Images, read_idx, read_members, unpickle
from clipnoise.data.rows import StoredRows
from clipnoise.data.synthetic import SyntheticImages
from clipnoise.errors import UserError
from clipnoise.fields import parse
from clipnoise.models.dense import Logistic

CIFAR = Path("raw") / "cifar-10" / "cifar-10-python.tar.gz"
LABELS = Path("raw") / "mnist" / "train-labels-idx1-ubyte.gz"


def everything(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_idx_files_are_read_as_torchvision_reads_them(tmp_path: Path) -> None:
    from torchvision.datasets import MNIST

    write_raw(tmp_path, "mnist")
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for path in (tmp_path / "raw" / "mnist").glob("*.gz"):
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    for part, train in (("train", True), ("test", False)):
        theirs = MNIST(str(tmp_path), train=train)
        ours = small("mnist")
        assert isinstance(ours, Images)
        images, labels = ours.raw_images(tmp_path / "raw" / "mnist")[part]
        assert np.array_equal(images[:, 0], theirs.data.numpy())
        assert np.array_equal(labels, theirs.targets.numpy())


@pytest.mark.parametrize("name", ["cifar-10", "cifar-100"])
def test_batches_are_read_as_torchvision_reads_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import CIFAR10, CIFAR100, cifar

    monkeypatch.setattr(cifar, "check_integrity", lambda *words: True)
    monkeypatch.setattr(CIFAR10, "_load_meta", lambda self: None)
    ours = write_raw(tmp_path, name)
    path = tmp_path / "raw" / name / ours.files[0].name
    with tarfile.open(path) as stream:
        for member in filter(tarfile.TarInfo.isfile, stream.getmembers()):
            file, content = tmp_path / member.name, stream.extractfile(member)
            assert content is not None
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.read())
    for part, train in (("train", True), ("test", False)):
        theirs = (CIFAR10 if name == "cifar-10" else CIFAR100)(str(tmp_path), train=train)
        images, labels = ours.raw_images(path.parent)[part]  # type: ignore[attr-defined]
        assert np.array_equal(images.transpose(0, 2, 3, 1), theirs.data)
        assert labels.tolist() == theirs.targets


def test_pixels_are_scaled_as_requested(tmp_path: Path) -> None:
    prepare(tmp_path, "cifar-10")
    unit = small("cifar-10", pixels="unit").load(tmp_path).test.dense().inputs
    standardised = small("cifar-10").load(tmp_path).test.dense().inputs
    assert 0 <= float(unit.min()) < float(unit.max()) <= 1
    kind = dataset_class("cifar-10")
    assert issubclass(kind, Images)
    means = torch.tensor(kind.means).view(3, 1, 1)
    deviations = torch.tensor(kind.deviations).view(3, 1, 1)
    torch.testing.assert_close(standardised * deviations + means, unit)


def test_an_image_to_reconstruct_is_its_own_target(tmp_path: Path) -> None:
    prepare(tmp_path, "mnist")
    asked = small("mnist", task="reconstruction")
    inputs, targets = asked.load(tmp_path).train.take(torch.tensor([3, 1]))
    assert asked.signature.outputs == 784
    assert torch.equal(inputs.flatten(1), targets)
    with pytest.raises(UserError, match="pixels must be unit for reconstruction"):
        parse(dataset_class("cifar-10"), {"task": "reconstruction"})


def in_order(splits: Splits, part: str) -> list[bytes]:
    return [row.numpy().tobytes() for row in getattr(splits, part).dense().inputs]


def test_more_public_or_fewer_private_examples_move_no_other(tmp_path: Path) -> None:
    prepare(tmp_path, "mnist")
    few = small("mnist", public_examples=2).load(tmp_path)
    many = small("mnist", public_examples=8, train_examples=30).load(tmp_path)
    assert in_order(few, "train")[:30] == in_order(many, "train")
    assert set(in_order(few, "public")) < set(in_order(many, "public"))
    assert in_order(few, "validation") == in_order(many, "validation")
    assert in_order(few, "test") == in_order(many, "test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_examples": 60_000}, "together must be at most 60000"),
        ({"public_examples": 55_000}, "together must be at most 60000"),
        ({"test_examples": 10_001}, "test_examples must be at most 10000"),
    ],
    ids=str,
)
def test_more_than_the_real_files_hold_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(dataset_class("mnist"), options)


def test_too_few_prepared_examples_are_counted(tmp_path: Path) -> None:
    prepare(tmp_path, "mnist")
    with pytest.raises(UserError, match=r"asks for 60000 examples of the training .*holds 60"):
        dataset_class("mnist")().load(tmp_path)
    with pytest.raises(UserError, match=r"asks for 30 examples of the test .*holds 20"):
        small("mnist", test_examples=30).load(tmp_path)


def test_prepared_data_record_the_files_they_were_made_from(tmp_path: Path) -> None:
    dataset = write_raw(tmp_path, "mnist")
    dataset.prepare(tmp_path)
    manifest = json.loads((tmp_path / dataset.prepared / MANIFEST).read_text())
    raw = manifest["raw files"]
    assert raw.keys() == {file.name for file in dataset.files}
    assert {file["checked against"] for file in raw.values()} == {"what was accepted"}


def overwrite_labels(cache: Path, labels: list[int]) -> None:
    (cache / LABELS).write_bytes(gzip.compress(idx(np.array(labels))))


def cifar_batch(cache: Path, **changes: Any) -> None:
    images, labels = made_up(10, 10, (3, 32, 32))
    content = {**batch(slice(10), images, labels, "labels"), **changes}
    names = [name for names in dataset_class("cifar-10").pieces.values() for name in names]
    archive(cache / CIFAR, dict.fromkeys(names, pickled(content)))


FAULTS = {
    "a label too high": (
        "mnist",
        lambda cache: overwrite_labels(cache, [*range(10)] * 5 + [10] * 10),
        r"the train split holds the label 10; allowed are 0 to 9",
    ),
    "fewer labels than images": (
        "mnist",
        lambda cache: overwrite_labels(cache, [0] * 59),
        "60 images, but 59 labels",
    ),
    "images as labels": (
        "mnist",
        lambda cache: shutil.copy(
            cache / "raw" / "mnist" / "train-images-idx3-ubyte.gz", cache / LABELS
        ),
        "train-labels.*not an IDX file of bytes with 1 axes",
    ),
    "fewer bytes than its head says": (
        "mnist",
        lambda cache: (cache / LABELS).write_bytes(gzip.compress(idx(np.zeros(60))[:-1])),
        "train-labels.*holds 59 bytes",
    ),
    "an empty file": (
        "mnist",
        lambda cache: (cache / LABELS).write_bytes(gzip.compress(b"")),
        "train-labels.*not an IDX file",
    ),
    "a split that is missing": (
        "cifar-10",
        lambda cache: archive(cache / CIFAR, {"cifar-10-batches-py/data_batch_1": b""}),
        "data_batch_2.*test_batch is not in the archive",
    ),
    "a label below 0": (
        "cifar-10",
        lambda cache: cifar_batch(cache, labels=[-1] * 10),
        "the train split holds the label -1",
    ),
    "images of another size": (
        "cifar-10",
        lambda cache: cifar_batch(cache, data=np.zeros((10, 3000), np.uint8)),
        r"3000 bytes do not make an image \(3, 32, 32\)",
    ),
    "floats": (
        "cifar-10",
        lambda cache: cifar_batch(cache, data=np.zeros((10, 3072))),
        "expected rows of bytes",
    ),
    "no labels": (
        "cifar-10",
        lambda cache: cifar_batch(cache, labels=None),
        "data_batch_1: expected rows of bytes and whole numbers as labels",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_raw_file_is_reported_and_leaves_the_cache_unchanged(
    fault: str, tmp_path: Path
) -> None:
    name, spoil, message = FAULTS[fault]
    prepare(tmp_path, name)
    before = everything(tmp_path / name)
    spoil(tmp_path)
    with pytest.raises(UserError, match=message):
        small(name).prepare(tmp_path)
    assert everything(tmp_path / name) == before


def test_a_wrong_checksum_is_reported_before_anything_is_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_raw(tmp_path, "mnist")
    (tmp_path / "raw" / "mnist" / "checksums.json").unlink()
    before = everything(tmp_path)
    words = ["data", "prepare", "mnist", "--cache", str(tmp_path)]
    assert main(words) == 2
    stderr = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz: its md5 is" in stderr
    assert str(dataset_class("mnist").files[0].md5) in stderr
    assert "--unverified" in stderr
    assert everything(tmp_path) == before
    assert main([*words, "--unverified"]) == 0
    assert main(words) == 0  # from now on
    assert main(["data", "verify", "mnist", "--cache", str(tmp_path)]) == 0
    assert "checked against what was accepted" in capsys.readouterr().out


@pytest.mark.parametrize("before", [True, False], ids=["prepared before", "new"])
def test_a_disk_that_fills_up_leaves_the_cache_unchanged(before: bool, tmp_path: Path) -> None:
    dataset = write_raw(tmp_path, "cifar-10")
    if before:
        dataset.prepare(tmp_path)
    contents, folders = everything(tmp_path), sorted(tmp_path.iterdir())
    with full_disk(10_000), pytest.raises(UserError, match="cifar-10: cannot be written"):
        dataset.prepare(tmp_path)
    assert everything(tmp_path) == contents
    assert sorted(tmp_path.iterdir()) == folders


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_call_a_function_is_refused(protocol: int, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(UserError, match=r"data_batch_1: .*mkdir, which is not data"):
        unpickle(pickle.dumps({"data": Trap()}, protocol), "data_batch_1")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1, 2])[:-3]], ids=str)
def test_a_file_that_is_no_pickle_is_reported(content: bytes) -> None:
    with pytest.raises(UserError, match="here: cannot be read"):
        unpickle(content, "here")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_to_nothing_in_an_archive_is_reported(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as stream:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = kind, "nowhere"
        stream.addfile(link)
    with pytest.raises(UserError, match=r"a\.tar\.gz: truncated or damaged"):
        read_members(path, ["a"])


def test_an_archive_that_ends_after_its_last_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    archive(path, {"a": b"first"})
    assert read_members(path, ["a"]) == {"a": b"first"}
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"a\.tar\.gz: truncated or damaged"):
        read_members(path, ["a"])


def test_a_damaged_file_of_bytes_is_noticed(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(idx(np.zeros((5, 28, 28)))))
    content[30] ^= 1
    with pytest.raises(UserError, match=r"a\.gz: truncated or damaged"):
        read_idx(bytes(content), 3, "a.gz")


def test_sixty_thousand_images_stay_in_their_file(tmp_path: Path) -> None:
    images = np.lib.format.open_memmap(
        tmp_path / "images.npy", mode="w+", dtype=np.uint8, shape=(60_000, 1, 28, 28)
    )
    labels = np.arange(60_000).astype("uint8") % 10
    arrays = {"train_images": images, "train_labels": labels}
    arrays |= {"test_images": images[:10_000], "test_labels": labels[:10_000]}
    tracemalloc.start()
    try:
        write_arrays(tmp_path / "mnist", arrays, {"source": "", "licence": ""})
        splits = dataset_class("mnist")().load(tmp_path)
        splits.train.take(torch.arange(512))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(splits.train.inputs, StoredRows)
    assert isinstance(splits.train.inputs.array, np.memmap)
    assert peak < images.nbytes / 2


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 7, 11)], ids=str)
def test_synthetic_images_are_learnt_in_a_few_steps(
    shape: tuple[int, int, int], tmp_path: Path
) -> None:
    dataset = SyntheticImages(shape=shape, classes=5, train_examples=500)
    dataset.prepare(tmp_path)
    splits = dataset.load(tmp_path)
    torch.manual_seed(0)
    network, task = Logistic().build(dataset.signature, tmp_path), dataset.signature.task
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    data = splits.train.dense()
    for _ in range(30):
        optimizer.zero_grad()
        task.losses(network(data.inputs), data.targets).mean().backward()
        optimizer.step()
    test = splits.test.dense()
    assert float(task.scores(network(test.inputs), test.targets).mean()) > 0.9


def test_synthetic_images_can_be_reconstructed_better_than_by_their_mean(tmp_path: Path) -> None:
    dataset = SyntheticImages(task="reconstruction", shape=(1, 8, 8), classes=3)
    dataset.prepare(tmp_path)
    data, task = dataset.load(tmp_path).train.dense(), dataset.signature.task
    mean = data.targets.mean(dim=0).expand_as(data.targets)
    _, _, axes = torch.linalg.svd(data.targets - mean, full_matrices=False)
    plane = axes[:2].T @ axes[:2]
    by_plane = mean + (data.targets - mean) @ plane
    losses = [float(task.losses(guess, data.targets).mean()) for guess in (mean, by_plane)]
    assert losses[1] < 0.7 * losses[0]
