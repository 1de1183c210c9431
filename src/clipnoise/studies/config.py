"""config.yaml: what to run, where, and with which resources."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator

from clipnoise.fields import STRICT, Count, Natural
from clipnoise.models.base import model_class
from clipnoise.run.scheduler import SLOTS, Slots


def _carried(name: str) -> str:
    """Return a path in its shortest form, or raise ValueError if the workflow cannot carry it."""
    if not name or name != name.strip() or name.startswith("-"):
        raise ValueError("a path may not be empty, start with '-', or start or end with a space")
    # Braces are Snakemake's wildcards, its lists of files are lines, and MLflow's address of its
    # database, which is in the folder, ends at a question mark.
    path = Path(name).absolute()
    # Snakemake's report writes paths into a script, where `<` could end it.
    wrong = re.search(r"[{}?<\x00-\x1f\x7f\x85\u2028\u2029]", str(path))
    if wrong:
        kind = "" if wrong[0].isprintable() else "the line break or control character "
        raise ValueError(f"Snakemake and MLflow cannot use {str(path)!r}: {kind}{wrong[0]!r} in it")
    return os.path.normpath(name)


def _tracking(value: object) -> object:
    """Return the value of `tracking`, or raise ValueError for one that earlier versions had."""
    if value in ("live", "after"):
        raise ValueError(
            f"{value} is gone, because training no longer talks to MLflow: write sync. `make "
            "mlflow` and `clipnoise mlflow-sync --follow` show runs while they train"
        )
    return "off" if value is False else value  # as YAML 1.1 reads `off`


ScaleName = Literal["paper", "small", "smoke"]
Tracking = Annotated[Literal["sync", "off"], BeforeValidator(_tracking)]
CarriedPath = Annotated[str, AfterValidator(_carried)]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one training job asks of a cluster; it gets more after it has lacked time or memory.

    Attributes:
        threads: CPU threads of one run; of each of its processes, where it has several.
        memory_mb: memory of one run, MB.
        minutes: time limit of one run, minutes.
        gpus: GPUs of one run; 0 trains on the CPU. On several, as many processes train it together.
        processes: how many train one run together on the CPU; 0 is 1, or one for each GPU.
        nodes: of Slurm, on which one run trains; memory, GPUs and processes are those of each.
        gpu_share: model id → how many of its runs share one GPU; other models do not share one.
        shards_per_gpu: how many shards Slurm divides a GPU into; a run then asks for its share of
            them. 0 if there are none: runs then share the GPU of the job that they are grouped in.
    """

    __pydantic_config__: ClassVar = STRICT

    threads: Count = 1
    memory_mb: Count = 4000
    minutes: Count = 60
    gpus: Natural = 0
    processes: Natural = 0
    nodes: Count = 1
    gpu_share: dict[str, Slots] = field(default_factory=dict)
    shards_per_gpu: Natural = 0

    def __post_init__(self) -> None:
        if self.gpu_share and self.gpus != 1:
            raise ValueError("gpu_share: runs that share a GPU need gpus: 1")
        if self.shards_per_gpu and self.gpus != 1:
            raise ValueError("shards_per_gpu: runs that ask for shards of a GPU need gpus: 1")
        if self.gpus and self.processes not in (0, self.gpus):
            raise ValueError(
                f"processes: each trains on a GPU of its own, so with gpus: {self.gpus} there are "
                f"{self.gpus}; leave processes out"
            )
        if self.nodes > 1 and (self.gpu_share or self.shards_per_gpu):
            raise ValueError("nodes: runs that share a GPU are on one node")
        for model in self.gpu_share:
            model_class(model, file="gpu_share")

    @property
    def together(self) -> int:
        """How many processes train one run."""
        return self.nodes * self._on_each_node

    @property
    def _on_each_node(self) -> int:
        return self.processes or max(1, self.gpus)

    @property
    def cpus(self) -> int:
        """CPUs of one run, all its processes on a node together."""
        return self.threads * self._on_each_node

    @property
    def several_nodes(self) -> dict[str, int | str]:
        """What a job on several nodes asks Slurm for besides; nothing on one node.

        The first process is in the job's script, from which it starts the others by srun: to a
        signal that asks the script's own steps to stop, srun would answer by killing its step.
        """
        if self.nodes == 1:
            return {}
        # `mpi` keeps Snakemake's executor from starting a step; 0 tasks per GPU leave the word out.
        return {"nodes": self.nodes, "tasks": self.nodes, "tasks_per_gpu": 0, "mpi": "srun"}

    def slots(self, model: str) -> int:
        """Return how many of the slots of a GPU, or of the job that it is in, a run takes."""
        return SLOTS // (1 if self.shards_per_gpu else self.gpu_share.get(model, 1))

    def gres(self, model: str) -> str:
        """Return what a job asks Slurm for: GPUs, the shards of one, or nothing."""
        if self.shards_per_gpu and self.gpus:
            return f"shard:{max(1, self.shards_per_gpu // self.gpu_share.get(model, 1))}"
        return f"gpu:{self.gpus}" if self.gpus else ""


@dataclass(frozen=True, kw_only=True)
class Config:
    """config.yaml as typed data.

    Attributes:
        studies: names of study files below workflow/studies, or paths that end in `.yaml`.
        scale: how large the studies are: "paper" as published, "small" with reduced data, "smoke"
            to show that they run. A study with `scales: none` is the same at every scale.
        results: folder of result files.
        reports: folder in which the reports appear.
        cache: folder of prepared datasets, shared by all runs.
        weights: folder of pretrained weights.
        plugins: folders or packages of the user's own methods, models and datasets, one or several;
            null for none.
        tracking: whether the workflow brings MLflow up to date with each study at its end: "sync"
            or "off".
        device: "auto" takes a CUDA GPU if there is one. Apple's GPUs are not supported, because
            they lack float64, which some norms and sums need.
        secure_noise: whether all private runs draw their noise from a cryptographic source. They
            are then different runs, and cannot be reproduced.
        resources: what one training job asks for.
    """

    __pydantic_config__: ClassVar = STRICT

    studies: tuple[CarriedPath, ...] = ("quickstart",)
    scale: ScaleName = "paper"
    results: CarriedPath = "results"
    reports: CarriedPath = "reports"
    cache: CarriedPath = "data"
    weights: CarriedPath = "weights"
    plugins: CarriedPath | tuple[CarriedPath, ...] | None = None
    tracking: Tracking = "sync"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    secure_noise: bool = False
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        if not self.studies:
            raise ValueError("studies: give at least one")
        twice = [name for name in self.studies if self.studies.count(name) > 1]
        if twice:
            raise ValueError(f"studies: {twice[0]} is given twice")
