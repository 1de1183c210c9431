"""The command line: every command helps, mistakes are named, exit codes tell who is to act."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import clipnoise.cli
from clipnoise.cli import commands, main, overview

SGD = {"learning_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 2.0, "expected_batch_size": 4}


def test_the_overview_lists_every_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.strip() == overview()
    rows = [line.split(maxsplit=1) for line in shown.splitlines() if line.startswith("  ")]
    assert [name for name, _ in rows] == commands()
    assert all(summary.endswith(".") for _, summary in rows)


@pytest.mark.parametrize("name", commands())
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: clipnoise {name}" in capsys.readouterr().out


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repaly"]) == 2
    message = capsys.readouterr().err
    assert "unknown command 'repaly'" in message
    assert "Did you mean 'replay'?" in message


def test_a_missing_argument_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay"])
    assert ended.value.code == 2
    assert "required" in capsys.readouterr().err


def test_a_fault_is_not_taken_for_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> int:
        raise ZeroDivisionError

    broken = SimpleNamespace(__doc__="Fail.", configure=lambda parser: None, run=fail)
    monkeypatch.setattr(clipnoise.cli, "_module", lambda name: broken)
    with pytest.raises(ZeroDivisionError):
        main(["replay"])


def stream(path: Path) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    arrays = {
        "initial": generator.normal(size=3),
        "per_example_gradients": generator.normal(size=(2, 4, 3)),
        "noise": generator.normal(size=(2, 3)),
    }
    np.savez(path, **arrays)
    return arrays


def test_replay_goes_from_file_to_file(tmp_path: Path) -> None:
    arrays = stream(tmp_path / "in.npz")
    words = [str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    assert main(["replay", "dp-sgd", *words, "--hyperparameters", json.dumps(SGD)]) == 0
    expected = [arrays["initial"]]
    for gradients, z in zip(arrays["per_example_gradients"], arrays["noise"], strict=True):
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients / np.maximum(1, norms)).sum(axis=0)
        expected.append(expected[-1] - 0.5 * (total + 2.0 * z) / 4)
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["iterates"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "hyperparameters", "message"),
    [
        ("dp-sdg", json.dumps(SGD), "Did you mean 'dp-sgd'?"),
        ("dp-sgd", "{", "--hyperparameters: not valid JSON"),
        ("dp-sgd", "[1]", "--hyperparameters: expected a JSON object"),
        ("dp-sgd", json.dumps({**SGD, "clip_nrom": 1}), "Did you mean 'clip_norm'?"),
        ("dp-sgd", json.dumps({**SGD, "clip_norm": -1}), "greater than 0"),
    ],
)
def test_replay_names_the_mistake(
    method: str,
    hyperparameters: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream(tmp_path / "in.npz")
    words = [str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    assert main(["replay", method, *words, "--hyperparameters", hyperparameters]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_replay_names_missing_arrays_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", initial=np.zeros(3))
    for name, message in [
        ("in.npz", "missing arrays: per_example_gradients"),
        ("no.npz", "no.npz"),
    ]:
        words = [str(tmp_path / name), str(tmp_path / "out.npz")]
        assert main(["replay", "dp-sgd", *words, "--hyperparameters", json.dumps(SGD)]) == 2
        assert message in capsys.readouterr().err
