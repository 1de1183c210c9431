"""Secure noise: normal, never repeated, never stored, and named in the privacy statement."""

from __future__ import annotations

import csv
import json
import logging
import math
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from clipnoise.cli import main
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.draws import PAIRS, Draws, secure_normals
from clipnoise.privacy.noise import NoiseSource
from clipnoise.privacy.noise_strategies import optimal_toeplitz
from clipnoise.run.checkpoint import FILE, InterruptedRunError
from clipnoise.run.job import run_job
from clipnoise.run.results import privacy_statement, read_run, run_folder
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run
from clipnoise.studies.plan import Plan

NOWHERE = torch.empty(0)
STOP = signal.SIGTERM


def spec(**privacy: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
            "privacy": {"noise_multiplier": 1, **privacy},
            "training": {"expected_batch_size": 50, "steps": 4, "evaluations": 2},
            "seed": 1,
        }
    )


def test_numbers_are_standard_normal_and_uncorrelated() -> None:
    """Failing by chance: below 1e-8 for each bound of six standard deviations."""
    count = 4 * PAIRS
    z = secure_normals((count,), NOWHERE).double()
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(float(z.pow(power).mean()) - expected) < 6 * math.sqrt(variance / count)
    for lag in (1, PAIRS, 2 * PAIRS):  # neighbours, the two of a pair, pieces
        assert abs(float((z[lag:] * z[:-lag]).mean())) < 6 / math.sqrt(count - lag)


def test_the_distribution_is_that_of_a_normal_everywhere() -> None:
    """Kolmogorov and Smirnov's distance stays below its bound for p = 1e-8."""
    z = secure_normals((2 * PAIRS,), torch.empty(0, dtype=torch.float64)).sort().values
    count = len(z)
    steps = torch.arange(1, count + 1, dtype=torch.float64) / count
    distance = float((torch.special.ndtr(z) - steps).abs().max())
    assert distance < math.sqrt(math.log(2 / 1e-8) / 2 / count) + 1 / count


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 2 * PAIRS + 1), (0, 5)])
def test_any_shape_and_dtype_is_filled(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64):
        z = secure_normals(shape, torch.empty(0, dtype=dtype))
        assert (z.shape, z.dtype) == (torch.Size(shape), dtype)
        assert torch.isfinite(z).all()
        assert len(z.unique()) == z.numel() or z.numel() > PAIRS  # float32 may meet again


def test_as_many_uniforms_are_drawn_as_are_asked_for() -> None:
    assert [len(Draws(None).uniform(count)) for count in (0, 1, 3)] == [0, 1, 3]


def test_secure_noise_ignores_seeds_and_leaves_torchs_stream_unchanged() -> None:
    before = torch.random.get_rng_state()
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append(NoiseSource(None, torch.zeros(8)).next()[0])
    assert not torch.equal(*draws)
    torch.random.set_rng_state(before)
    secure_normals((8,), NOWHERE)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_whatever_is_drawn_in_secret_ignores_seeds_too() -> None:
    before = torch.random.get_rng_state()
    drawn = []
    for _ in range(2):
        torch.random.set_rng_state(before)
        stream = Draws(None)
        drawn.append((stream.uniform(50), stream.permutation(50), stream.integers(50, 50)))
        assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(torch.equal(*pair) for pair in zip(*drawn, strict=True))


def test_correlated_noise_mixes_secure_numbers_as_it_mixes_seeded_ones() -> None:
    strategy, d = optimal_toeplitz(4, 2), 100_000
    source = NoiseSource(None, torch.zeros(d, dtype=torch.float64), strategy)
    for step in range(1, 5):
        (y,) = source.next()
        variance = source.row_norm_squared(step)
        assert float(y.square().mean()) == pytest.approx(variance, rel=6 * math.sqrt(2 / d))


def test_the_position_of_a_secure_stream_can_be_neither_saved_nor_restored() -> None:
    source = NoiseSource(None, torch.zeros(3))
    assert source.get_state() == {}
    with pytest.raises(ValueError, match="cannot be resumed"):
        source.set_state({})


def test_secure_noise_is_part_of_a_run_s_identity() -> None:
    plain, secure = spec(), spec(secure_noise=True)
    assert plain.hash == spec(secure_noise=False).hash
    assert secure.hash != plain.hash
    assert from_mapping(to_mapping(secure)) == secure


def test_one_line_of_the_configuration_makes_all_private_runs_secure(tmp_path: Path) -> None:
    """Also what is collected: no command may look for other runs than were planned."""
    study = tmp_path / "mine.yaml"
    panel = {
        "datasets": ["digits"],
        "models": ["logistic"],
        "epsilons": [1],
        "seeds": [1],
        "privacy": {"secure_noise": False},
        "methods": [
            {"id": "sgd", "learning_rate": 1},
            {"id": "dp-sgd", "learning_rate": 1, "clip_norm": 1},
        ],
        "training": {"expected_batch_size": 50, "steps": 4},
    }
    study.write_text(yaml.safe_dump({"title": "x", "panels": {"main": panel}, "report": []}))
    scale = Path(__file__).parents[2] / "workflow" / "scales" / "smoke.yaml"
    for smaller in ([], ["--scale", str(scale)]):
        config = {"studies": [str(study)], "scale": "smoke" if smaller else "paper"}
        studies = scale.parents[1] / "studies"
        plain = Plan.from_values(config, studies)
        secure = Plan.from_values({**config, "secure_noise": True}, studies)
        specs = [run.spec for run in secure.study("mine").runs]
        assert [run.secure_noise for run in specs] == [False, True]
        assert [
            run.spec == one for run, one in zip(plain.study("mine").runs, specs, strict=True)
        ] == [True, False]
        out = ["--results", str(tmp_path), "--out", str(tmp_path)]
        assert main(["collect", str(study), *smaller, secure.secure_option, *out]) == 0
        with (tmp_path / "runs.csv").open() as stream:
            assert [row["hash"] for row in csv.DictReader(stream)] == [run.hash for run in specs]
        assert plain.secure_option == ""
        assert secure.secure_option == "--secure-noise"


def test_every_rule_whose_command_plans_runs_passes_the_configuration_on() -> None:
    rules = Path(__file__).parents[2] / "workflow" / "rules"
    commands = re.compile(r'"clipnoise (collect|partial-report|mlflow-sync) .*?> \{log', re.DOTALL)
    found = [m.group() for path in rules.glob("*.smk") for m in commands.finditer(path.read_text())]
    assert len(found) == 3
    assert all("{params.secure}" in command for command in found)


def test_batches_are_secret_too(cache: Path) -> None:
    def batches(run: RunSpec) -> list[list[int]]:
        return [batch.tolist() for batch in Run.prepare(run, cache, "cpu").batches()]

    assert batches(spec()) == batches(spec())
    assert batches(spec(secure_noise=True)) != batches(spec(secure_noise=True))


def test_every_statement_names_its_source_of_randomness() -> None:
    for run, said in [(spec(), "seeded"), (spec(secure_noise=True), "secure")]:
        target = run.budget
        assert target is not None
        statement = privacy_statement(run, calibrate(target))
        assert statement.randomness == said
        assert statement.claim == "guarantee"
        assert statement.noise_multiplier == pytest.approx(1)  # the same mechanism


def test_a_stopped_secure_run_keeps_nothing_and_starts_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = spec(secure_noise=True)
    target = run.budget
    assert target is not None
    places = {"results": tmp_path, "cache": cache, "weights": tmp_path, "device": "cpu"}

    def job() -> dict[str, Any]:
        return run_job(run, calibrate(target), **places)  # type: ignore[arg-type]

    with caplog.at_level(logging.INFO), monkeypatch.context() as patch:
        patch.setattr("clipnoise.run.job.describe", lambda *_, **__: signal.raise_signal(STOP))
        with pytest.raises(InterruptedRunError, match="no checkpoint after step 1: secure noise"):
            job()
    assert not (run_folder(tmp_path, run) / FILE).exists()
    summary = job()
    assert summary["resumed"] == []
    files = read_run(run_folder(tmp_path, run))
    assert files is not None
    assert json.loads(json.dumps(files.summary["privacy"]))["randomness"] == "secure"
    assert [row["step"] for row in files.metrics] == ["0", "2", "4"]
