"""A training job on a failing machine: memory, disk, a folder it may not write."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from full_disk import full_disk
from torch import nn

from clipnoise.cli import main
from clipnoise.data.signature import Classification
from clipnoise.errors import UserError, out_of_memory
from clipnoise.files import remove_unfinished, require_writable
from clipnoise.gradients.units import PhysicalBatch
from clipnoise.privacy.calibration import calibrate
from clipnoise.run.checkpoint import InterruptedRunError, StopRequest
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.job import _stopped_together
from clipnoise.run.outcome import LostRankError
from clipnoise.run.results import read_run, run_folder, set_aside
from clipnoise.run.spec import RunSpec, from_mapping, to_mapping
from clipnoise.run.train import Run

NOBODY = 65534


def spec(**training: Any) -> RunSpec:
    return from_mapping(
        {
            "dataset": "digits",
            "model": "logistic",
            "method": {"id": "sgd", "learning_rate": 0.5},
            "training": {"expected_batch_size": 1300, "steps": 3, "evaluations": 3, **training},
            "seed": 1,
        }
    )


def command(run: RunSpec, results: Path, cache: Path) -> list[str]:
    words = ["train", "--spec", json.dumps(to_mapping(run)), "--results", str(results)]
    return [*words, "--cache", str(cache), "--device", "cpu"]


def train_here(run: RunSpec, results: Path, cache: Path) -> int:
    return main(command(run, results, cache))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delta": 0.1}, "delta 0.1, not 1e-05"),
        ({"steps": 2, "evaluation_steps": (0, 2)}, "steps 2, not 3; no ε at step 1, 3"),
        (
            {"epsilon": 2.0, "noise_multiplier": None},
            "epsilon 2.0, not None; noise_multiplier None, not 1.0",
        ),
        ({"sampler": "full"}, "sampler full, not poisson"),
    ],
)
def test_a_calibration_of_another_budget_is_refused(
    changes: dict[str, Any],
    said: str,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    method = {"id": "dp-sgd", "learning_rate": 0.5, "clip_norm": 1}
    privacy = {"noise_multiplier": 1, "delta": 1e-5}
    run = from_mapping(to_mapping(spec()) | {"method": method, "privacy": privacy})
    target = run.budget
    assert target is not None
    file = tmp_path / "calibration.json"
    words = [*command(run, tmp_path / "results", cache), "--calibration", str(file)]
    shorter = replace(target.participation, steps=changes.pop("steps", 3))
    calibrate(replace(target, participation=shorter, **changes)).write(file)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"made for another budget: {said}" in error
    assert "This run's is `clipnoise calibrate --noise-multiplier 1.0 --delta 1e-05" in error
    assert not (tmp_path / "results").exists()
    calibrate(target).write(file)
    assert main(words) == 0


# Memory.


@pytest.mark.long
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
)
def test_what_does_not_fit_is_done_again_in_halves_from_its_beginning(error: Exception) -> None:
    tried, batch = [], PhysicalBatch(50)
    for _ in range(2):
        for attempt in batch.attempts():
            with attempt as size:
                tried.append(size)
                if size > 8:
                    raise error
    assert tried == [50, 25, 12, 6, 6]  # and not from 50 again


@pytest.mark.long
def test_other_faults_and_one_example_too_large_are_faults() -> None:
    def fail(batch: PhysicalBatch, error: Exception) -> None:
        for attempt in batch.attempts():
            with attempt:
                raise error

    assert out_of_memory(ImportError("libx.so: failed to map segment from shared object"))
    assert not out_of_memory(RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        fail(PhysicalBatch(8), RuntimeError("shapes differ"))
    batch = PhysicalBatch(8)
    with pytest.raises(MemoryError):
        fail(batch, MemoryError())
    assert batch.size == 1


def test_what_did_not_fit_is_let_go_before_the_next_attempt() -> None:
    def work(size: int) -> None:
        tensor = torch.zeros(size)
        left.append(weakref.ref(tensor))
        raise MemoryError

    left: list[weakref.ref[torch.Tensor]] = []
    for attempt in PhysicalBatch(2).attempts():
        with attempt as size:
            assert all(held() is None for held in left)
            if size == 2:
                work(size)
    assert len(left) == 1


LIMITED = """
import json, resource, sys
from pathlib import Path
import torch
from clipnoise.run.fingerprint import fingerprint
from clipnoise.run.memory import keep_freed_memory
from clipnoise.run.spec import from_mapping
from clipnoise.run.train import Run

keep_freed_memory()
spec = from_mapping(json.loads(sys.argv[1]))
run = Run.prepare(spec, Path(sys.argv[2]), "cpu", noise_multiplier=1.0)
batch = torch.arange(len(run.splits.train))  # larger than any before it
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
room = int(sys.argv[3]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (held + room, held + room))
run.step(batch)
print(json.dumps([run.units.physical.size, float(run.state.theta.double().norm())]))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the address space")
def test_a_step_that_does_not_fit_is_taken_in_smaller_batches_with_the_same_result(
    cache: Path,
) -> None:
    run = {
        **to_mapping(spec(physical_batch_size=1300, expected_batch_size=32)),
        "model": {"id": "cnn-small", "width": 128},
        "method": {"id": "dp-sgd", "learning_rate": 0.1, "clip_norm": 1},
        "privacy": {"noise_multiplier": 1},
    }

    whole = Run.prepare(from_mapping(run), cache, "cpu", noise_multiplier=1.0)
    whole.step(torch.arange(len(whole.splits.train)))
    words = [sys.executable, "-c", LIMITED, json.dumps(run), str(cache), "90"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    smaller, norm = json.loads(done.stdout)
    assert smaller < whole.units.physical.size == 1300
    assert norm == pytest.approx(float(whole.state.theta.double().norm()), rel=1e-5)


STARVED = """
import json, resource, sys
from pathlib import Path
import torch
from clipnoise.cli import main

words, wide = sys.argv[1:-1], sys.argv[-1]
assert main(words) == 0  # so that all that a run loads is loaded
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**23, held + 2**23))
words[words.index("--spec") + 1] = wide
sys.exit(main(words))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the address space")
def test_a_run_that_gets_no_memory_says_so_and_leaves_no_result(
    cache: Path, tmp_path: Path
) -> None:
    run = spec(expected_batch_size=8, steps=1, evaluations=1)
    network = {"id": "mlp", "widths": [30_000]}  # 9 MB of parameters
    wide = from_mapping({**to_mapping(run), "model": network})
    words = [*command(run, tmp_path, cache), json.dumps(to_mapping(wide))]
    done = subprocess.run(
        [sys.executable, "-c", STARVED, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("clipnoise train: there is not enough memory")
    assert read_run(run_folder(tmp_path, wide)) is None
    assert train_here(wide, tmp_path, cache) == 0


# Disk.


def test_a_disk_that_is_full_leaves_no_result_and_room_for_the_next_try(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = spec()
    folder = run_folder(tmp_path, run)
    with full_disk(1000):
        assert train_here(run, tmp_path, cache) == 1
    assert "File too large" in capsys.readouterr().err.splitlines()[-1]
    assert read_run(folder) is None
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    assert train_here(run, tmp_path, cache) == 0
    files = read_run(folder)
    assert files is not None
    assert files.summary["status"] == "completed"


def test_an_unwritable_folder_is_reported_before_training(
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Run as the user `nobody` if the tests run as root, who may write everywhere."""
    results = tmp_path / "results"
    results.mkdir(mode=0o555)
    assert train_here(spec(), tmp_path / "other", cache) == 0  # everything is imported by now
    caplog.clear()
    me = os.geteuid()
    try:
        os.seteuid(me or NOBODY)
        code = train_here(spec(), results, cache)
    finally:
        os.seteuid(me)
    assert code == 2
    said = capsys.readouterr().err
    assert str(results) in said
    assert "cannot be written (Permission denied)" in said
    assert "step 0" not in caplog.text


def test_another_job_may_tidy_up_while_a_folder_is_tried(tmp_path: Path) -> None:
    """The job that holds the lock deletes unfinished files; another tries the folder before."""
    stop = threading.Event()

    def tidy() -> None:
        while not stop.is_set():
            remove_unfinished(tmp_path)

    other = threading.Thread(target=tidy)
    other.start()
    try:
        for _ in range(300):
            require_writable(tmp_path)
    finally:
        stop.set()
        other.join()
    assert list(tmp_path.iterdir()) == []


# Damage.


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("summary.json", '"test_accuracy": 0.', '"test_accuracy": 1.'),
        ("summary.json", '"epsilon": null', '"epsilon": 1'),
        ("metrics.csv", "\n1,", "\n7,"),
        ("spec.yaml", "learning_rate: 0.5", "learning_rate: 0.6"),
    ],
)
def test_a_number_that_changed_on_the_disk_is_noticed_and_the_result_set_aside(
    name: str, old: str, new: str, cache: Path, tmp_path: Path
) -> None:
    run = spec()
    folder = run_folder(tmp_path, run)
    assert train_here(run, tmp_path, cache) == 0
    assert read_run(folder) is not None
    path = folder / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(
        UserError, match=r"summary\.json: damaged result file .*has changed since the run"
    ):
        read_run(folder)
    assert "It is set aside." in set_aside(folder, "damaged")
    assert read_run(folder) is None
    assert train_here(run, tmp_path, cache) == 0
    assert read_run(folder) is not None


# Edits.


def test_a_run_whose_code_was_edited_since_it_was_planned_is_not_trained(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its result would keep the place of the planned one, also when the edit has been undone."""
    words = [*command(spec(), tmp_path, cache), "--fingerprint"]
    assert main([*words, "0123456789ab-cdef"]) == 2
    assert "has been edited since Snakemake planned it" in capsys.readouterr().err
    assert main([*words, "0123456789ab,ba9876543210-cdef"]) == 2
    assert read_run(run_folder(tmp_path, spec())) is None
    assert main([*words, f"0123456789ab,{fingerprint(spec())}-cdef"]) == 0
    assert read_run(run_folder(tmp_path, spec())) is not None


# Two jobs.


def test_a_second_job_waits_for_the_first_and_takes_its_result_over(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is another process, as it is where two people share a results folder."""
    run = spec()
    folder = run_folder(tmp_path, run)
    hold = f"""
import sys, time
from pathlib import Path
from clipnoise.files import locked
with locked(Path({str(folder / ".lock")!r})):
    print("held", flush=True)
    sys.stdin.readline()
"""
    first = subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdin is not None
    assert first.stdout is not None
    first.stdout.readline()
    second = threading.Thread(target=train_here, args=(run, tmp_path, cache))
    with caplog.at_level("INFO"):
        second.start()
        while "waiting for it to end" not in caplog.text:
            assert second.is_alive()
            second.join(0.01)
        assert train_here(run, tmp_path / "other", cache) == 0  # what the first would have written
        for path in run_folder(tmp_path / "other", run).glob("*.*"):
            shutil.copy(path, folder)
        written = (folder / "summary.json").read_bytes()
        first.communicate("\n", timeout=60)
        second.join(60)
    assert "finished before" in caplog.text
    assert (folder / "summary.json").read_bytes() == written
    assert not (folder / ".lock").exists()


def test_a_lock_is_free_again_when_its_holder_was_killed(cache: Path, tmp_path: Path) -> None:
    run = spec()
    folder = run_folder(tmp_path, run)
    folder.mkdir(parents=True)
    (folder / ".lock").touch()  # what is left of it
    assert train_here(run, tmp_path, cache) == 0
    assert not (folder / ".lock").exists()


def test_a_process_that_is_lost_on_a_signal_to_all_counts_as_a_stop() -> None:
    lost = LostRankError("process 2 of 2 has ended (SIGTERM)")
    said = r"stopped by SIGTERM; .*process 2 of 2 has ended"
    with pytest.raises(InterruptedRunError, match=said), _stopped_together(StopRequest("SIGTERM")):
        raise lost
    with pytest.raises(LostRankError), _stopped_together(StopRequest()):
        raise lost


@pytest.mark.long
def test_two_processes_train_a_run_and_leave_one_result(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = spec()
    words = [*command(run, tmp_path / "two", cache), "--processes", "2"]
    assert train_here(run, tmp_path / "one", cache) == main(words) == 0
    one, two = (read_run(run_folder(tmp_path / name, run)) for name in ("one", "two"))
    assert one is not None
    assert two is not None
    for name, value in one.summary["final"].items():
        assert two.summary["final"][name] == pytest.approx(value, rel=1e-5)
    assert two.summary["hardware"]["processes"] == 2
    assert two.summary["hardware"]["cpu"].endswith(", 2 processes")
    sent = 2 * 4 * two.summary["parameters"]  # the sum; there is no noise
    assert (one.summary["bytes_per_step"], two.summary["bytes_per_step"]) == (0, sent)
    assert f"2 processes sent {sent:,} bytes a step" in caplog.text


def test_a_network_that_notices_padding_is_refused_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {**to_mapping(spec(expected_batch_size=100)), "model": "averaged-words"}
    of_texts = from_mapping({**plain, "dataset": {"id": "synthetic-tokens", "length": 64}})
    of_texts.dataset.prepare(tmp_path / "cache")
    assert train_here(of_texts, tmp_path / "results", tmp_path / "cache") == 0
    monkeypatch.setattr("clipnoise.models.language._mean", lambda vectors, ids: vectors.mean(1))
    assert train_here(of_texts, tmp_path / "others", tmp_path / "cache") == 2
    assert "depends on how far the text is padded" in capsys.readouterr().err
    assert not list((tmp_path / "others").rglob("summary.json"))


def drawing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that draws from Python's global stream first."""

    def draws(*given: Any) -> Any:
        random.random()
        return original(*given)

    return draws


def test_a_network_that_draws_from_pythons_global_stream_leaves_no_result(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Linear, "forward", drawing(nn.Linear.forward))
    assert train_here(spec(evaluations=1), tmp_path, cache) == 2
    assert "the global stream of Python, NumPy or torch" in capsys.readouterr().err
    assert not list(tmp_path.rglob("summary.json"))


def test_the_engine_of_a_run_is_made_before_its_network_is_watched(
    tmp_path: Path, cache: Path
) -> None:
    """An engine that is made while hooks of all modules are there takes a slower way."""
    assert train_here(spec(), tmp_path, cache) == 0
    (path,) = tmp_path.rglob("summary.json")
    expected = Run.prepare(spec(), cache, "cpu").engine_name
    assert "every layer has a rule" in expected
    assert json.loads(path.read_text())["engine"] == expected


def test_a_library_may_draw_from_pythons_global_stream_as_a_run_is_measured(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich does as it is imported, and scikit-learn imports it for the metrics of two classes."""
    monkeypatch.setattr(Classification, "scores", drawing(Classification.scores))
    assert train_here(spec(evaluations=1), tmp_path, cache) == 0
