"""The command line: every command has help, mistakes are named, exit codes tell whose they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click
import numpy as np
import pytest

from clipnoise.cli import main, options
from clipnoise.cli.program import COMMANDS, USERS, WORKFLOW, LazyGroup, program
from clipnoise.fields import Natural, Probability

SGD = {"learning_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 2.0, "expected_batch_size": 4}


def listed(text: str) -> dict[str, str]:
    """Return the commands of a help text, each with the beginning of its summary."""
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    return {row[0]: row[1] for row in rows if row[0] in COMMANDS}


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_overview_lists_the_commands_that_users_type(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert list(listed(capsys.readouterr().out)) == sorted(USERS)


@pytest.mark.parametrize("words", [["--all"], ["--all", "--help"], ["--help", "--all"]])
def test_the_commands_of_the_workflow_are_listed_on_request(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    shown = listed(capsys.readouterr().out)
    assert list(shown) == [*sorted(USERS), *sorted(WORKFLOW)]
    assert all(shown.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: clipnoise {name} " in shown
    command = program.get_command(click.Context(program), name)
    assert command is not None
    assert (command.help or "").splitlines()[0].endswith(".")


def test_a_command_that_is_gone_names_the_one_that_does_its_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["mlflow-init", "quickstart", "--results", "results"]) == 2
    assert "`clipnoise mlflow-sync --study FILE`" in capsys.readouterr().err


def test_means_are_those_of_one_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mlflow-sync", "--runs", "runs.parquet"]) == 2
    assert "--runs: is of one study, and --study names 0" in capsys.readouterr().err


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for words, wrong, right in [
        (["repaly"], "repaly", "replay"),
        (["data", "fetsh", "mnist"], "fetsh", "fetch"),
    ]:
        assert main(words) == 2
        message = capsys.readouterr().err
        assert f"unknown command {wrong!r}" in message
        assert f"Did you mean {right!r}?" in message


def test_an_unknown_option_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--hyperparameter", "{}"]) == 2
    assert "Did you mean '--hyperparameters'?" in capsys.readouterr().err


def test_a_missing_argument_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay"]) == 2
    assert "clipnoise replay: Missing argument" in capsys.readouterr().err


def test_a_fault_is_not_taken_for_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    broken = click.Command("replay", callback=fail)
    monkeypatch.setattr(LazyGroup, "get_command", lambda *words: broken)
    with pytest.raises(ZeroDivisionError):
        main(["replay"])


def test_ctrl_c_ends_a_command_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait() -> None:
        raise KeyboardInterrupt

    interrupted = click.Command("replay", callback=wait)
    monkeypatch.setattr(LazyGroup, "get_command", lambda *words: interrupted)
    assert main(["replay"]) == 130
    assert capsys.readouterr().err.strip() == ""


@options.command()
def takes_lists(
    names: Annotated[Sequence[str], options.ARGUMENT] = (),
    files: Annotated[Sequence[str], "Some files."] = (),
    more: Annotated[Sequence[str], "More files."] = (),
    scale: options.Scale = None,
    out: Annotated[str | None, "One file."] = None,
) -> dict[str, object]:
    """Return what is given."""
    return {"names": names, "files": files, "more": more, "scale": scale, "out": out}


@options.command()
def takes_folders(
    results: options.Results = options.RESULTS,
    cache: options.Cache = options.CACHE,
    weights: Annotated[Path | None, "Not the usual default."] = None,
) -> dict[str, Path | None]:
    """Return what is given."""
    return {"results": results, "cache": cache, "weights": weights}


def test_folders_are_those_of_config_yaml_unless_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(*words: str) -> list[Path]:
        *folders, weights = takes_folders.main(words, standalone_mode=False).values()
        assert weights is None
        return folders

    monkeypatch.chdir(tmp_path)
    assert given() == [Path("results"), Path("data")]
    Path("config.yaml").write_text("results: Ergebnisse\nweights: w\n")
    assert given() == [Path("Ergebnisse"), Path("data")]
    assert given("--results", "r", "--cache", "c") == [Path("r"), Path("c")]
    Path("config.yaml").write_text("results: [of another program")
    assert given() == [Path("results"), Path("data")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--files --more --scale --out x", {"out": "x"}),
        ("--files a b --more c --out x", {"files": ("a", "b"), "more": ("c",), "out": "x"}),
        ("--files a --out x --files b", {"files": ("a", "b"), "out": "x"}),
        ("--files a b", {"files": ("a", "b")}),
        ("--files=a --scale s name", {"files": ("a",), "scale": Path("s"), "names": ("name",)}),
        ("one two --scale --out x", {"names": ("one", "two"), "out": "x"}),
    ],
)
def test_a_list_option_takes_any_number_of_values(line: str, expected: dict[str, object]) -> None:
    none = {"names": (), "files": (), "more": (), "scale": None, "out": None}
    assert takes_lists.main(line.split(), standalone_mode=False) == none | expected


@dataclass(frozen=True)
class Shared:
    """Options that commands have in common."""

    delta: Annotated[Probability, "Above 0 and below 1."]
    device: Annotated[Literal["cpu", "cuda"], "Where."] = "cpu"
    fast: Annotated[bool, "Hurry."] = False


@options.command()
def takes_shared(shared: Shared, steps: Annotated[Natural | None, "T."] = None) -> object:
    """Return what is given."""
    return shared, steps


def test_a_dataclass_stands_for_its_fields() -> None:
    given = takes_shared.main(["--delta", "0.5", "--fast", "--steps", "3"], standalone_mode=False)
    assert given == (Shared(0.5, fast=True), 3)
    given = takes_shared.main(["--delta=0.5", "--device", "cuda"], standalone_mode=False)
    assert given == (Shared(0.5, device="cuda"), None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "Missing option '--delta'"),
        ("--delta 1", "less than 1, got '1'"),
        ("--delta 0.5 --steps -1", "greater than or equal to 0"),
        ("--delta 0.5 --steps 2.5", "valid integer"),
        ("--delta 0.5 --device tpu", "'cpu', 'cuda'"),
    ],
)
def test_a_value_out_of_range_is_refused(line: str, message: str) -> None:
    with pytest.raises(click.UsageError) as error:
        takes_shared.main(line.split(), standalone_mode=False)
    assert message in error.value.format_message()


def test_a_required_list_without_values_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", "--runs", "--parameters", "clip_norm", "--out", "x"]) == 2
    assert "Missing option '--runs'" in capsys.readouterr().err


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
        ("dp-sgd", "{", "'--hyperparameters': not valid JSON"),
        ("dp-sgd", "[1]", "'--hyperparameters': expected a JSON object"),
        ("dp-sgd", json.dumps({**SGD, "clip_nrom": 1}), "Did you mean 'clip_norm'?"),
        ("dp-sgd", json.dumps({**SGD, "clip_norm": -1}), "greater than or equal to"),
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


GREEK = """
title: ε of 中
panels:
  main:
    datasets: [digits]
    models: [logistic]
    methods: [{id: sgd, learning_rate: 1}]
    seeds: [1, 2]
    training: {expected_batch_size: 50, steps: 2}
report: []
"""


@pytest.mark.long
def test_a_locale_without_greek_is_no_fault(tmp_path: Path) -> None:
    """Files are read as ASCII unless the program says otherwise, and output is strict."""
    (tmp_path / "config.yaml").write_text("studies: [mine.yaml]\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(GREEK, encoding="utf-8")
    words = [sys.executable, "-c", "from clipnoise.cli import main; raise SystemExit(main())"]
    own = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    own |= {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [*words, "check"], cwd=tmp_path, env={**os.environ, **own}, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"mine: \\u03b5 of \\u4e2d" in done.stdout


# More than a buffer, less, and by a library that ends the program itself.
@pytest.mark.quick(words=["data list", "data --help"])
@pytest.mark.parametrize("words", ["data list", "data --help", "methods"])
def test_a_command_whose_reader_has_seen_enough_ends_without_a_word(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "from clipnoise.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", code, *words.split()]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
