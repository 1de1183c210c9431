"""config.yaml: what to run, where, and with which resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from clipnoise.engine.tracking import Mode
from clipnoise.fields import STRICT, Count, parse


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one training job asks of a cluster. Attempts that fail for lack of it get more.

    Attributes:
        threads: CPU threads of one run.
        memory_mb: memory of one run, MB.
        minutes: time limit of one run, minutes.
        gpus: GPUs of one run; 0 trains on the CPU.
    """

    __pydantic_config__: ClassVar = STRICT

    threads: Count = 1
    memory_mb: Count = 4000
    minutes: Count = 60
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class Config:
    """config.yaml as typed data.

    Attributes:
        studies: names of study files below workflow/studies, or paths of your own that end in
            `.yaml`.
        scale: how large the studies are: "paper" as published, "small" with reduced data, "smoke"
            to prove that they run. Those whose file says `scales: none` are the same at each.
        results: folder of result files.
        reports: folder in which the reports appear.
        cache: folder of prepared datasets, shared by all runs.
        weights: folder of pretrained weights.
        tracking: when MLflow is told of a run: "live" during it, "after" at its end, "sync" once
            for all runs of a study, "off" never.
        device: "auto" takes a GPU when there is one.
        resources: what one training job asks for.
    """

    __pydantic_config__: ClassVar = STRICT

    studies: tuple[str, ...] = ("quickstart",)
    scale: Literal["paper", "small", "smoke"] = "paper"
    results: str = "results"
    reports: str = "reports"
    cache: str = "data"
    weights: str = "weights"
    tracking: Mode = "live"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    resources: Resources = field(default_factory=Resources)


def parse_config(values: Mapping[str, Any], *, file: str = "config.yaml") -> Config:
    """Check the values of config.yaml (command-line overrides included).

    Raises:
        UserError: names file, key, value, what is allowed and the nearest valid name.
    """
    return parse(Config, dict(values), file=file)
