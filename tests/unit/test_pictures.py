"""Pictures in files become examples of a public shape, each by itself; what is broken is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from clipnoise.cli import main
from clipnoise.data.own import Own
from clipnoise.data.pictures import read_pictures
from clipnoise.errors import UserError
from clipnoise.fields import parse

COLOURS = {"cat": (200, 0, 0), "dog": (0, 0, 100)}


def paint(path: Path, colour: Any, size: tuple[int, int] = (12, 9), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for part, count in (("train", 10), ("test", 4)):
        for place in range(count):
            name = ["cat", "dog"][place % 2]
            path = tmp_path / "raw" / "pets" / part / name / f"{place}.png"
            paint(path, COLOURS[name], (12 + place, 9))
    return tmp_path


def describe(cache: Path, *more: str, folder: str = "train", shape: str = "3 4 5") -> int:
    pictures = str(cache / "raw" / "pets" / folder)
    asked = ["--target", "class", "--shape", *shape.split()]
    return main(["data", "describe", pictures, *asked, "--cache", str(cache), *more])


def described(text: str) -> Own:
    (values,) = yaml.safe_load(text)["datasets"]
    return parse(Own, {name: value for name, value in values.items() if name != "id"})


def test_folders_of_classes_become_examples_of_the_declared_shape(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe(cache) == 0
    dataset = described(capsys.readouterr().out)
    assert dataset.signature.shape == (3, 4, 5)
    assert dataset.classes == ("cat", "dog")
    dataset.prepare(cache)
    splits = dataset.load(cache)
    train, test = splits.train.dense(), splits.test.dense()
    assert (len(train) + len(splits.validation), len(test)) == (10, 4)
    for inputs, label in zip(test.inputs, test.targets, strict=True):
        colour = torch.tensor(COLOURS[dataset.classes[int(label)]]) / 255
        torch.testing.assert_close(inputs, colour.float()[:, None, None].expand(3, 4, 5))


def test_one_folder_is_cut_in_two_and_can_be_described_again_after_a_mistake(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cache / "raw" / "pets"
    (folder / "train").rename(folder / "all")
    assert describe(cache, "--split", "0.3", "--inputs", "fil", folder="all") == 2
    assert not list(folder.glob("*.csv"))
    assert describe(cache, "--split", "0.3", folder="all") == 0
    dataset = described(capsys.readouterr().out)
    assert (dataset.training_file, dataset.test_file) == (7, 3)
    assert {path.name for path in folder.glob("*.csv")} == {"train.csv", "test.csv"}
    dataset.prepare(cache)


def test_a_grey_shape_makes_pictures_grey(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", (10, 200, 30))
    (found,) = read_pictures(tmp_path, ["a.png"], (1, 3, 3))
    assert found.shape == (1, 3, 3)
    assert (found == np.asarray(Image.new("RGB", (1, 1), (10, 200, 30)).convert("L"))).all()


def test_a_picture_is_the_same_whichever_others_are_read_with_it(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        pixels = draws.integers(0, 256, (11, 7, 3)).astype("uint8")
        Image.fromarray(pixels).save(tmp_path / name)
    together = read_pictures(tmp_path, ["b.png", "a.png"], (3, 5, 5))
    alone = read_pictures(tmp_path, ["a.png"], (3, 5, 5))
    assert np.array_equal(together[1], alone[0])
    whole = read_pictures(tmp_path, ["a.png"], (3, 11, 7))[0]
    assert np.array_equal(whole, np.asarray(Image.open(tmp_path / "a.png")).transpose(2, 0, 1))


def truncated(path: Path) -> None:
    paint(path, (1, 2, 3), (50, 50))
    path.write_bytes(path.read_bytes()[:-60])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def deep(path: Path) -> None:
    Image.new("I;16", (4, 4)).save(path)


@pytest.mark.parametrize(
    ("breaking", "message"),
    [(truncated, "truncated"), (empty, "cannot identify"), (deep, "8 bits"),
     (Path.unlink, "No such file")],
)  # fmt: skip
def test_a_broken_picture_is_named(
    cache: Path, breaking: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe(cache) == 0
    dataset = described(capsys.readouterr().out)
    path = cache / "raw" / "pets" / "train" / "dog" / "3.png"
    breaking(path)
    with pytest.raises(UserError, match=rf"the picture .*dog/3\.png in row \d+.*{message}"):
        dataset.prepare(cache)


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    paint(tmp_path / "secret.png", (0, 0, 0))
    with pytest.raises(UserError, match="leads out of"):
        read_pictures(tmp_path / "inside", ["../secret.png"], (3, 2, 2))


def test_the_size_must_be_said(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = str(cache / "raw" / "pets" / "train")
    given = ["--target", "class", "--kind", "image", "--cache", str(cache)]
    assert main(["data", "describe", pictures, *given]) == 2
    assert "--shape 3 32 32" in capsys.readouterr().err


def test_a_size_of_what_is_no_picture_is_refused(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("train", "test"):
        (cache / "raw" / "pets" / f"{part}.csv").write_text("x,y\n" + "1.5,0\n2.5,1\n" * 6)
    table = str(cache / "raw" / "pets" / "train.csv")
    given = ["--target", "y", "--shape", "3", "4", "4", "--cache", str(cache)]
    assert main(["data", "describe", table, *given]) == 2
    assert "--shape is for pictures in files" in capsys.readouterr().err


def test_a_shape_of_two_channels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1 channel \(grey\) or 3 \(colour\)"):
        read_pictures(tmp_path, [], (2, 4, 4))


def test_without_pillow_the_extra_is_named(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert describe(cache) == 2
    assert "pillow is not installed. It comes with the extra" in capsys.readouterr().err
