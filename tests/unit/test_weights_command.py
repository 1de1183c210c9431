"""Pretrained weights are fetched, verified and listed by their model's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from web_server import Site, serve

from clipnoise.cli import doctor, main
from clipnoise.data import remote
from clipnoise.models.language import BertBase, TinyBert
from clipnoise.models.pretrained import Weights, pretrained_weights

FILES = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serve files in the place of those of BERT-base."""
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    site = Site({f"/{name}": name.encode() * 1000 for name in FILES})
    server = serve(site)
    source = BertBase.pretrained_weights
    files = tuple(replace(file, address=f"{site.address}/{file.name}") for file in source.files)
    monkeypatch.setattr(BertBase, "pretrained_weights", replace(source, files=files))
    yield site
    server.shutdown()
    server.server_close()


def run(folder: Path, *words: str) -> int:
    return main(["weights", *words, "--weights", str(folder)])


def test_weights_are_fetched_once_and_verified(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.stops = [500]
    assert run(tmp_path, "fetch", "bert-base") == 0
    assert {path.name for path in (tmp_path / "bert-base").glob("[!.]*")} == {
        *FILES, "checksums.json",
    }  # fmt: skip
    assert run(tmp_path, "fetch", "bert-base") == 0
    assert len(site.asked) == 4  # one of the three broke off
    assert run(tmp_path, "verify", "bert-base") == 0
    assert "model.safetensors: sha256 " in capsys.readouterr().out


def test_changed_weights_are_noticed_until_they_are_accepted(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "fetch", "bert-base")
    (tmp_path / "bert-base" / "model.safetensors").write_text("another")
    assert run(tmp_path, "verify", "bert-base") == 2
    stderr = capsys.readouterr().err
    assert "model.safetensors: its sha256 is" in stderr
    assert f"clipnoise weights accept bert-base --weights {tmp_path}" in stderr
    assert run(tmp_path, "accept", "bert-base") == 0
    assert run(tmp_path, "verify", "bert-base") == 0


def test_without_a_network_the_message_gives_the_manual_steps(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.failures = [404]
    assert run(tmp_path, "fetch", "bert-base") == 2
    stderr = capsys.readouterr().err
    assert "By hand: download from https://huggingface.co/google-bert/bert-base-cased" in stderr
    assert f"to {tmp_path / 'bert-base' / 'model.safetensors'}" in stderr
    assert f"Then: clipnoise weights verify bert-base --weights {tmp_path}" in stderr


def test_the_list_and_the_doctor_say_which_weights_are_there(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "fetch", "bert-base")
    capsys.readouterr()
    assert run(tmp_path, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == sorted(pretrained_weights())
    assert lines[0].split() == ["bert-base", "present"]
    absent = ["tiny-bert", "absent: config.json, pytorch_model.bin, vocab.txt"]
    assert absent in [line.split(maxsplit=1) for line in lines]
    assert any("licence MIT" in line for line in lines)
    found = {finding.name: finding for finding in doctor.pretrained(tmp_path)}
    assert [name for name, finding in found.items() if finding.present] == ["weights bert-base"]
    advice = found["weights tiny-bert"].advice
    assert advice == f"clipnoise weights fetch tiny-bert --weights {tmp_path}"


def test_a_model_without_weights_is_refused_with_those_that_have_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "fetch", "bert-bse") == 2
    stderr = capsys.readouterr().err
    assert "Did you mean 'bert-base'?" in stderr
    assert "logistic" not in stderr


@pytest.mark.parametrize("model", [BertBase, TinyBert])
def test_what_is_fetched_is_what_is_read(model: type[BertBase | TinyBert], tmp_path: Path) -> None:
    assert model.pretrained_weights is not None
    folder = tmp_path / model.id
    folder.mkdir()
    for file in model.pretrained_weights.files:
        (folder / file.name).touch()
    assert (folder / "config.json").exists()
    assert Weights(model.id, tmp_path).file() is not None
