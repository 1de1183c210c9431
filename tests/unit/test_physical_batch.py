"""The size of physical batches is what fits into the memory that is free, counted beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gradient_networks import build, examples, losses
from torch import nn

from clipnoise.core.clipping import Clipping
from clipnoise.data.base import Examples
from clipnoise.gradients.choice import choose_engine
from clipnoise.gradients.engine import GradientEngine, VmapEngine
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.gradients.held import peak_bytes
from clipnoise.run import trainer
from clipnoise.run.job import repeat, run_job
from clipnoise.run.memory import USABLE, _free_of_the_machine, usable_bytes
from clipnoise.run.outcome import Clock
from clipnoise.run.ranks import Ranks
from clipnoise.run.results import run_folder
from clipnoise.run.spec import RunSpec, from_mapping
from clipnoise.run.train import Run

FLOAT32 = 4


def test_tensors_count_until_they_are_freed_and_views_not_at_all() -> None:
    def work() -> None:
        first = torch.zeros(1000)
        second = first.reshape(10, 100).T[3:]
        del first
        third = torch.ones(500)
        del second, third
        torch.zeros(1200)

    assert peak_bytes(work) == 1500 * FLOAT32


def test_what_a_backward_pass_needs_counts_until_it_was_taken() -> None:
    """Of exp, its result is kept; the first two are still there when the third is made."""
    x = torch.zeros(100, requires_grad=True)

    def work() -> None:
        x.exp().exp().exp()

    assert peak_bytes(work) == 3 * 100 * FLOAT32


def taken(engine: GradientEngine, name: str, count: int) -> int:
    inputs, targets = examples(name, count)
    clipping = Clipping(clip_norm=1.0).at(engine.flat.theta)
    return peak_bytes(lambda: engine.clipped_sum(inputs, targets, clipping))


@pytest.mark.parametrize("kind", [FactoredEngine, VmapEngine])
@pytest.mark.parametrize("name", ["convolution", "tied weights"])
def test_what_a_batch_takes_follows_from_what_one_and_two_examples_take(
    name: str, kind: type[GradientEngine]
) -> None:
    engine = kind(build(name).train(), losses)
    one, two, many = (taken(engine, name, count) for count in (1, 2, 33))
    assert many == pytest.approx(one + 32 * (two - one), rel=0.1)
    assert taken(engine, name, 33) == many


@pytest.mark.parametrize("name", ["convolution", "tied weights"])
def test_the_size_is_halved_until_it_fits(name: str) -> None:
    data = Examples(*examples(name, 4))

    def size(free: int | None, most: int = 256) -> int:
        choice = choose_engine(build(name).train(), losses, data, size=most, free=free)
        assert taken(choice.engine, name, choice.size) <= max(free or 10**12, one)
        return choice.size

    engine = FactoredEngine(build(name).train(), losses)
    one, two = (taken(engine, name, count) for count in (1, 2))
    each = two - one
    assert size(None) == size(one + 255 * each) == 256
    assert size(one + 254 * each) == 128
    assert size(one + 6 * each) == 4
    assert size(one + 6 * each, most=7) == 7
    assert size(0) == 1


def test_the_parameters_are_those_before_and_a_reduced_size_is_explained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, data = build("convolution").train(), Examples(*examples("convolution", 4))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    choose_engine(network, losses, data, size=8, free=0)
    assert all(torch.equal(*pair) for pair in zip(before, network.parameters(), strict=True))
    (record,) = caplog.records
    assert "physical batches of 1 examples, not 8: each takes" in record.getMessage()


class Uncountable(nn.Module):
    """It refuses to run while anything watches its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError("I am watched")
        outputs: torch.Tensor = self.layer(x)
        return outputs


def test_a_network_whose_tensors_cannot_be_counted_trains_in_the_size_asked_for() -> None:
    data = Examples(torch.randn(4, 6), torch.zeros(4, dtype=torch.long))
    assert choose_engine(Uncountable().train(), losses, data, size=8, free=0).size == 8


def machine(folder: Path, **groups: tuple[str, int, int]) -> Path:
    """Lay out /proc and /sys of a machine with 8 GB free, and of the job's control groups."""
    files = {
        "proc/meminfo": "MemTotal:       9000000 kB\nMemAvailable:    8000000 kB\n",
        "proc/self/statm": "900 100 10 1 0 300 0\n",
        "proc/self/cgroup": "0::/slurm/job\n",
    }
    for name, (most, held, inactive) in groups.items():
        top = f"sys/fs/cgroup/{name.replace('_', '/')}"
        files[f"{top}/memory.max"] = f"{most}\n"
        files[f"{top}/memory.current"] = f"{held}\n"
        files[f"{top}/memory.stat"] = f"anon 5\ninactive_file {inactive}\nactive_file 7\n"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_limits_of_control_groups_and_of_a_slurm_job_count(tmp_path: Path) -> None:
    root = machine(tmp_path, slurm_job=("max", 600, 0), slurm=("1000", 600, 50))
    every = list(_free_of_the_machine(root, {}))
    assert every == [8_000_000 * 1024, 1000 - (600 - 50 - 7)]
    job = list(_free_of_the_machine(root, {"SLURM_MEM_PER_NODE": "2"}))
    assert len(job) == 3
    assert 2 * 2**20 - 100 * 2**16 <= job[1] < 2 * 2**20
    assert list(_free_of_the_machine(root, {"SLURM_MEM_PER_NODE": "0"})) == every
    assert list(_free_of_the_machine(tmp_path / "elsewhere", {})) == []


def test_processes_on_a_cpu_share_its_memory_and_an_unknown_device_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clipnoise.run.memory._free_of_the_machine", lambda: [9000, 1000])
    assert [usable_bytes("cpu", count) for count in (1, 2)] == [1000 * USABLE, 500 * USABLE]
    assert usable_bytes("meta") is None


def spec() -> RunSpec:
    values: dict[str, Any] = {
        "dataset": "digits",
        "model": {"id": "cnn-small", "width": 4},
        "method": {"id": "sgd", "learning_rate": 0.5},
        "training": {"expected_batch_size": 100, "steps": 3, "evaluations": 1},
        "seed": 1,
    }
    return from_mapping(values)


def test_a_run_records_its_size_and_is_repeated_with_it_where_more_is_free(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = spec()
    places: dict[str, Any] = {"cache": cache, "weights": tmp_path, "device": "cpu"}
    with monkeypatch.context() as little:
        little.setattr(trainer, "usable_bytes", lambda device, processes: 600_000)
        run_job(run, None, results=tmp_path / "little", **places)
    run_job(run, None, results=tmp_path / "much", **places)
    little, much = (
        json.loads((run_folder(tmp_path / name, run) / "summary.json").read_text())
        for name in ("little", "much")
    )
    assert little["physical_batch_size"] < 100 < much["physical_batch_size"] == 256
    assert little["final"] != much["final"]  # other bits
    assert little["final"]["train_loss"] == pytest.approx(much["final"]["train_loss"], rel=1e-5)
    assert repeat(run, results=tmp_path / "little", **places) == {}


class Small(Ranks):
    """This process sees that another one has taken a size of 16."""

    def each(self, value: Any) -> list[Any]:
        return [value, 16]


def test_processes_take_the_smallest_size_of_theirs(cache: Path) -> None:
    run = Run.prepare(spec(), cache, "cpu")
    run.ranks = Small()
    next(run.steps(Clock()))
    assert run.units.physical.size == 16
