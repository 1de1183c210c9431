"""Tests in a process of their own, which test_pretend_device.py starts: whole runs on a device
that is not the CPU end where those on the CPU do, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from budgets import budget
from pretend_device import pretend_device
from rank_cases import CASES, STEPS, own_theta, own_training, prepared
from torch import Tensor

from clipnoise.run.checkpoint import read, write
from clipnoise.run.outcome import Clock
from clipnoise.run.ranks import Ranks
from clipnoise.run.train import train

# Two cases stand for the others, each of which takes a second of a core, in `make test`.
OFTEN = ("engine vmap", "blt, two moments")


@pytest.fixture
def device() -> Iterator[str]:
    with pretend_device() as name:
        yield name


def trained(name: str, cache: Path, device: str) -> Tensor:
    run = prepared(CASES[name], cache, Ranks(), device)
    for _ in run.steps(Clock()):
        pass
    assert str(run.state.theta.device) == device
    return run.evaluated().cpu()


@pytest.mark.quick(name=OFTEN)
@pytest.mark.parametrize("name", CASES)
def test_every_case_is_that_of_the_cpu(name: str, cache: Path, device: str) -> None:
    assert torch.equal(trained(name, cache, device), trained(name, cache, "cpu"))


def test_metrics_are_those_of_the_cpu(cache: Path, device: str) -> None:
    spec = CASES["micro-batches"].spec
    here, there = (
        train(spec, cache=cache, calibration=budget(spec), device=where).metrics[-1]
        for where in ("cpu", device)
    )
    assert here.step == there.step == STEPS
    for name in ("train_loss", "test_loss", "test_accuracy", "validation_accuracy"):
        assert getattr(here, name) == getattr(there, name)


def test_a_run_resumes_from_its_checkpoint(cache: Path, tmp_path: Path, device: str) -> None:
    name, path = "blt, two moments", tmp_path / "checkpoint"
    begun, resumed = (prepared(CASES[name], cache, Ranks(), device) for _ in range(2))
    next(begun.steps(Clock()))
    write(path, {}, begun.get_state(), {})
    resumed.set_state(read(path, {}).tensors)
    for _ in resumed.steps(Clock()):
        pass
    assert torch.equal(resumed.state.theta.cpu(), trained(name, cache, "cpu"))


def test_an_own_loop_is_that_of_the_cpu(device: str) -> None:
    there, here = (own_training(0, device=where) for where in (device, "cpu"))
    assert str(there._trainer.state.theta.device) == device
    assert torch.equal(own_theta(there).cpu(), own_theta(here))


def test_secure_noise_is_drawn_for_the_device(device: str) -> None:
    assert bool(own_theta(own_training(0, device=device, seed=None)).cpu().isfinite().all())


def test_what_mixes_devices_fails(cache: Path, device: str) -> None:
    with pytest.raises(RuntimeError, match="two devices"):
        torch.ones(3, device=device) + torch.ones(3)
    run = prepared(CASES["non-private"], cache, Ranks(), device)
    run.state.theta = run.state.theta.cpu()
    with pytest.raises(RuntimeError, match="two devices"):
        next(run.steps(Clock()))
