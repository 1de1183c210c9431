"""A run that is stopped and resumed ends bit for bit like one that was never stopped."""

from __future__ import annotations

import json
import math
import pickle
import signal
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from budgets import budget
from every_method import VARIANTS, build, one_per_family, required

from clipnoise.errors import UserError
from clipnoise.run.checkpoint import (
    Checkpoint,
    InterruptedRunError,
    StopRequest,
    identity,
    read,
    stop_requests,
    write,
)
from clipnoise.run.outcome import Outcome
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run, train

THETA = "state/theta"
STEPS = 6
TIMES = {"seconds", "examples_per_second", "peak_memory_mb"}


def spec(name: str = "dp-adam", options: dict[str, Any] | None = None, **privacy: Any) -> RunSpec:
    method, query = build(name), build(name).query
    options = dict(options or {})
    if method.uses_side_information:
        options["side_information"] = {"source": "public-gradients"}
    needed = method.uses_public_data() or method.uses_side_information
    public = {"public_examples": 60} if needed else {}
    users = query.adjacency == "add-remove-user"
    return from_mapping(
        {
            "dataset": {"id": "digits-users" if users else "digits", **public},
            "model": method.made_for or "logistic",
            "method": {"id": name, **required(name), **options},
            "privacy": {"noise_multiplier": 1, **privacy} if query.draws else None,
            "training": {
                "expected_batch_size": 20,
                "steps": STEPS,
                "evaluations": STEPS,
                "physical_batch_size": 16,
            },
            "seed": 3,
        }
    )


class StopAfter(Checkpoint):
    """A checkpoint of a run that is asked to stop after some steps."""

    def stop_after(self, steps: int) -> Checkpoint:
        self.left = steps
        return self

    def due(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.stop.signal = "SIGTERM"
        return super().due()


def keeping(run: RunSpec, path: Path, **settings: Any) -> dict[str, Any]:
    return {
        "path": path,
        "identity": identity(run, budget(run), "cpu", {}),
        "every": 1e9,
        **settings,
    }


def interrupted(run: RunSpec, cache: Path, path: Path, steps: int) -> None:
    stopping = StopAfter(**keeping(run, path)).stop_after(steps)
    with pytest.raises(InterruptedRunError, match="stopped by SIGTERM, checkpoint after step"):
        train(run, cache=cache, calibration=budget(run), checkpoint=stopping)


def resumed(run: RunSpec, cache: Path, path: Path) -> Outcome:
    going_on = Checkpoint(**keeping(run, path))
    return train(run, cache=cache, calibration=budget(run), checkpoint=going_on)


def measured(outcome: Outcome) -> list[str]:
    rows = [{k: v for k, v in asdict(row).items() if k not in TIMES} for row in outcome.metrics]
    return [json.dumps(row) for row in rows]  # as text NaN equals itself


def check(run: RunSpec, cache: Path, path: Path, stops: tuple[int, ...]) -> None:
    whole = train(run, cache=cache, calibration=budget(run))
    assert whole.steps_done == STEPS, whole.reason
    for steps in stops:
        interrupted(run, cache, path, steps)
    last = resumed(run, cache, path)
    assert last.resumed == [sum(stops[: n + 1]) for n in range(len(stops))]
    assert measured(last) == measured(whole)
    assert (last.status, last.cost["processed"]) == (whole.status, whole.cost["processed"])


@pytest.mark.parametrize(("name", "options"), one_per_family(VARIANTS))
def test_every_method(name: str, options: dict[str, Any], cache: Path, tmp_path: Path) -> None:
    """Two runs, one three steps ahead: the other takes its checkpoint over, and then its steps."""
    run = spec(name, options)
    checkpoint = Checkpoint(**keeping(run, tmp_path / "checkpoint"))
    ahead, behind = (Run.prepare(run, cache, "cpu", noise_multiplier=1.0) for _ in range(2))
    stream = ahead.batches()
    for _ in range(3):
        ahead.step(next(stream))
    checkpoint.save(3, ahead.get_state(), {})
    saved = checkpoint.load()
    assert saved is not None
    behind.set_state(saved.tensors)
    rest = behind.batches(after=3)
    for _ in range(3):
        ahead.step(next(stream))
        behind.step(next(rest))
    left, right = ahead.get_state(), behind.get_state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    ("name", "privacy"),
    [
        ("sgd", {}),
        ("adadps-fed", {}),
        ("dp-sgd-warm", {}),
        ("dp-sgd", {"sampler": "shuffled"}),
        ("dp-sgd", {"sampler": "fixed-size"}),
        ("dp-sgd", {"sampler": "cyclic"}),
        ("dp-sgd", {"sampler": "cyclic-poisson", "noise": {"kind": "banded", "bands": 3}}),
        ("stp-adam", {"sampler": "cyclic", "noise": {"kind": "dense"}}),
        ("dp-sgd", {"sampler": "cyclic", "noise": {"kind": "banded-inverse", "bands": 3}}),
        ("dp-adambc", {"sampler": "cyclic", "noise": {"kind": "lambda-cgd", "cancelled": 0.8}}),
        ("jme-adam", {"sampler": "cyclic", "noise": {"kind": "blt", "buffers": 2}}),
        ("dp-sgd", {"sampler": "cyclic", "noise": {"kind": "tree"}}),
        ("jme-adam", {"sampler": "cyclic-poisson", "noise": {"kind": "banded", "bands": 2}}),
        ("dp-pmlf", {"microbatch_size": 4}),
        ("adadps-adam", {"microbatch_size": 2}),
    ],
)
def test_a_whole_run_with_every_sampler_kind_of_noise_and_micro_batches(
    name: str, privacy: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    check(spec(name, **privacy), cache, tmp_path / "checkpoint", stops=(1, 1, 3))


def test_saving_checkpoints_does_not_change_the_result(cache: Path, tmp_path: Path) -> None:
    run, path = spec("dp-pmlf"), tmp_path / "checkpoint"
    saving = Checkpoint(**keeping(run, path, every=0.0))
    outcome = train(run, cache=cache, calibration=budget(run), checkpoint=saving)
    assert measured(outcome) == measured(train(run, cache=cache, calibration=budget(run)))
    made = saving.load()
    assert made is not None
    assert made.notes["outcome"]["steps_done"] == STEPS - 1  # after the last there are results


def test_a_checkpoint_holds_every_random_stream_and_no_code(cache: Path, tmp_path: Path) -> None:
    run, path = spec("dp-adam-pub", microbatch_size=2), tmp_path / "checkpoint"
    interrupted(run, cache, path, 2)
    saved = Checkpoint(**keeping(run, path)).load()
    assert saved is not None
    streams = {name.partition("/")[0] for name in saved.tensors if name.endswith("/generator")}
    assert streams == {"sampler", "noise", "public", "micro-batches"}
    assert b"pickle" not in path.read_bytes()
    header = int.from_bytes(path.read_bytes()[:8], "little")
    json.loads(path.read_bytes()[8 : 8 + header])  # the rest is numbers


@pytest.mark.parametrize("harm", ["spec", "data", "code", "noise multiplier", "torch", "device"])
def test_a_foreign_checkpoint_is_refused_and_training_starts_again(
    harm: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, path = spec(), tmp_path / "checkpoint"
    settings = keeping(run, path)
    other = {**settings, "identity": {**settings["identity"], harm: "other"}}
    train(run, cache=cache, calibration=budget(run), checkpoint=Checkpoint(**other | {"every": 0}))
    outcome = resumed(run, cache, path)
    assert outcome.resumed == []
    assert f"is not used: its {harm} is other, this run's is" in caplog.text
    assert "Training starts again" in caplog.text
    assert measured(outcome) == measured(train(run, cache=cache, calibration=budget(run)))


def test_a_run_whose_tuned_values_have_changed_does_not_resume() -> None:
    values = to_mapping(spec("dp-sgd"))
    tuning = {"key": "0" * 12, "parameters": ["learning_rate"], "configurations": 2, "runs": 2}
    runs = [
        from_mapping(
            {**values, "method": {**values["method"], "learning_rate": rate}} | {"tuning": tuning}
        )
        for rate in (1.0, 0.1)
    ]
    assert runs[0].hash == runs[1].hash
    one, other = (identity(run, budget(run), "cpu", {}) for run in runs)
    assert {name for name in one if one[name] != other[name]} == {"spec"}


class Code:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("it-ran"),))


HARMS = {
    "truncate": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "one bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "text": lambda _: b"x" * 100,
    "a header of an exabyte": lambda content: struct.pack("<Q", 2**60) + content[8:],
    "a header longer than the file": lambda content: struct.pack("<Q", 2**30) + content[8:],
    "a pickle": lambda _: pickle.dumps(Code()),
    "a pickle in the place of the tensors": lambda content: (
        content[: 8 + int.from_bytes(content[:8], "little")] + pickle.dumps(Code())
    ),
    "a header nested without end": lambda _: struct.pack("<Q", 10**6) + b"[" * 10**6,
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_is_refused(
    harm: str,
    cache: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run, path = spec(), tmp_path / "checkpoint"
    interrupted(run, cache, path, 3)
    path.write_bytes(HARMS[harm](path.read_bytes()))
    assert resumed(run, cache, path).resumed == []
    assert "it is damaged" in caplog.text
    assert not (tmp_path / "it-ran").exists()


FORGED: dict[str, Callable[[dict[str, torch.Tensor], dict[str, Any]], object]] = {
    "another shape": lambda tensors, _: tensors.update({THETA: tensors[THETA][:-1]}),
    "another type": lambda tensors, _: tensors.update({THETA: tensors[THETA].double()}),
    "not finite": lambda tensors, _: tensors[THETA].fill_(math.nan),
    "no parameters": lambda tensors, _: tensors.pop(THETA),
    "no step": lambda tensors, _: tensors.pop("state/step"),
    "no examples at once": lambda tensors, _: tensors["physical"].fill_(0),
    "no counts": lambda _, notes: notes.pop("outcome"),
    "metrics of another kind": lambda _, notes: notes["outcome"].update(metrics=[{"step": 1}]),
    "a step behind the end": lambda tensors, _: tensors["state/step"].fill_(STEPS + 1),
    "a step before it was saved": lambda tensors, _: tensors["state/step"].fill_(1),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_checkpoint_whose_digest_is_right_but_that_does_not_fit_is_named(
    forgery: str, cache: Path, tmp_path: Path
) -> None:
    run, path = spec(), tmp_path / "checkpoint"
    interrupted(run, cache, path, 3)
    saved = read(path, {})
    tensors, notes = dict(saved.tensors), dict(saved.notes)
    FORGED[forgery](tensors, notes)
    write(path, keeping(run, path)["identity"], tensors, notes)
    with pytest.raises(UserError, match="checkpoint: does not fit this run"):
        resumed(run, cache, path)


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    run, path = spec(), tmp_path / "file" / "checkpoint"
    saving = Checkpoint(**keeping(run, path, every=0.0))
    with caplog.at_level("INFO"), pytest.raises(NotADirectoryError):
        saving.load()
    saving.path = tmp_path / "file" / "deeper" / "checkpoint"
    saving.load = lambda: None  # type: ignore[method-assign]
    with caplog.at_level("INFO"):
        outcome = train(run, cache=cache, calibration=budget(run), checkpoint=saving)
    assert outcome.status == "completed"
    assert "no checkpoint after step 1" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noted_and_handled_as_before_afterwards(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_requests() as stop:
        assert stop.signal is None
        signal.raise_signal(number)
        assert stop.signal == number.name
    assert signal.getsignal(number) is before


def test_saving_is_due_after_its_interval_and_at_once_on_a_request(tmp_path: Path) -> None:
    stop = StopRequest()
    seldom = Checkpoint(tmp_path / "x", {}, math.inf, stop)
    assert not seldom.due()
    stop.signal = "SIGTERM"
    assert seldom.due()
    assert Checkpoint(tmp_path / "x", {}, 0.0).due()
