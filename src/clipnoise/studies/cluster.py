"""What a Slurm cluster says about itself, and what follows from it for Snakemake's profile."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from clipnoise.errors import UserError
from clipnoise.run.scheduler import output_of
from clipnoise.studies.config import Config, Resources

# How long Slurm must remember a job that has ended. Where it is less, Snakemake's executor asks
# `sacct` in any case.
ENOUGH_SECONDS = 240  # Snakemake may wait 180 s from one question to the next
GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:(\d+)")  # such as `gpu:2` or `gpu:a100:4(S:0-1)`


@dataclass(frozen=True)
class Partition:
    """A partition of a cluster, and its largest node.

    Attributes:
        name: of the partition.
        default: whether jobs go there that name none.
        up: whether it takes jobs.
        minutes: the time limit; None if there is none.
        memory_mb, cpus, gpus: of the largest node, each by itself.
    """

    name: str
    default: bool
    up: bool
    minutes: int | None
    memory_mb: int
    cpus: int
    gpus: int

    def lacks(self, wanted: Resources) -> list[str]:
        """Return what one run asks for and no node of the partition has."""
        pairs = [
            ("minutes", wanted.minutes, self.minutes),
            ("memory_mb", wanted.memory_mb, self.memory_mb),
            ("threads", wanted.cpus, self.cpus),
            ("gpus", wanted.gpus, self.gpus),
        ]
        return [
            f"{name}: {asked}, at most {most}"
            for name, asked, most in pairs
            if most is not None and asked > most
        ]


@dataclass(frozen=True)
class Cluster:
    """A Slurm cluster, as its commands describe it.

    Attributes:
        version: of Slurm.
        partitions: in Slurm's order.
        accounting: whether `sacct` answers.
        memory_seconds: how long Slurm remembers a job that has ended (MinJobAge).
        account: the user's default account; None where accounts are not used.
        most_jobs: how many jobs the user may have in the queue; None without a limit.
    """

    version: str
    partitions: tuple[Partition, ...]
    accounting: bool
    memory_seconds: int
    account: str | None
    most_jobs: int | None

    @classmethod
    def here(cls) -> Cluster | None:
        """Ask Slurm; None where its controller does not answer."""
        settings = output_of("scontrol", "show", "config")
        nodes = output_of("sinfo", "--noheader", "--format=%P|%a|%l|%m|%c|%G")
        if settings is None or nodes is None:
            return None
        values = dict(re.findall(r"^(\w+)\s*= (.*)$", settings, re.MULTILINE))
        user = f"user={getpass.getuser()}"
        shown = ("--noheader", "--parsable2", "format=defaultaccount,maxsubmitjobs")
        limits = output_of("sacctmgr", "show", "user", "withassoc", "where", user, *shown) or ""
        account, _, most = limits.partition("\n")[0].partition("|")
        return cls(
            version=values.get("SLURM_VERSION", "unknown"),
            partitions=tuple(_partitions(nodes.splitlines())),
            accounting=has_accounting(),
            memory_seconds=_number(values.get("MinJobAge", "")),
            account=account or None,
            most_jobs=int(most) if most.isdigit() else None,
        )

    @cached_property
    def status_command(self) -> Literal["sacct", "squeue"] | None:
        """What tells Snakemake how its jobs ended; None if nothing on this cluster does."""
        if self.accounting:
            return "sacct"
        return "squeue" if self.memory_seconds >= ENOUGH_SECONDS else None

    def partition(self, wanted: Resources) -> Partition | None:
        """Return where runs should go: the first partition that has what a run asks for.

        The default partition comes first.
        """
        ordered = sorted(self.partitions, key=lambda one: not one.default)
        return next((one for one in ordered if one.up and not one.lacks(wanted)), None)


def has_accounting() -> bool:
    """Return whether `sacct` answers, by which Snakemake asks how its jobs ended."""
    return output_of("sacct", "--allocations", "--noheader", "--starttime=now") is not None


def check_paths(settings: Any, config: Config) -> None:
    """Refuse paths that the jobs on a cluster would read otherwise.

    Snakemake repeats the paths of a job's inputs on the command line of the job, between quotes in
    which a shell still expands some characters.

    Args:
        settings: of Snakemake's executor; the one for Slurm has a `status_command`.
        config: config.yaml, with what was given on Snakemake's command line.

    Raises:
        UserError: names file, key and value.
    """
    if not hasattr(settings, "status_command"):
        return
    names = ("results", "reports", "cache", "weights")
    paths = [(f"config.yaml: {name}", str(getattr(config, name))) for name in names]
    paths += [("config.yaml: studies", study) for study in config.studies]
    for place, path in [*paths, ("the working directory", str(Path.cwd()))]:
        wrong = re.search(r"['\"$`\\]", path)
        if wrong:
            raise UserError(
                f"{place}: {path}: jobs on a cluster would get another path, for the {wrong[0]} in "
                "it. Choose one without quotes, $, ` and \\."
            )


def check_nodes(local: bool, config: Config) -> None:
    """Refuse several nodes where no cluster has them.

    Args:
        local: whether Snakemake runs its jobs on this machine.
        config: config.yaml.

    Raises:
        UserError: names file and key.
    """
    nodes = config.resources.nodes
    if local and nodes > 1 and "SLURM_JOB_ID" not in os.environ:
        raise UserError(
            f"config.yaml: resources: nodes: {nodes}: several nodes are those of Slurm "
            "(--profile slurm). On one machine leave it out; processes says how many train a run "
            "together."
        )


def _partitions(lines: Iterable[str]) -> Iterator[Partition]:
    """Yield partitions from lines of sinfo, one for each kind of node, which are put together."""
    found: dict[str, list[list[str]]] = {}
    for line in lines:
        name, *values = line.split("|")
        found.setdefault(name, []).append(values)
    for name, kinds in found.items():
        up, limit = kinds[0][:2]
        yield Partition(
            name=name.removesuffix("*"),
            default=name.endswith("*"),
            up=up == "up",
            minutes=_minutes(limit),
            memory_mb=max(_number(kind[2]) for kind in kinds),
            cpus=max(_number(kind[3]) for kind in kinds),
            gpus=max(sum(map(int, GPUS.findall(kind[4]))) for kind in kinds),
        )


def _number(text: str) -> int:
    """Return the number that a text begins with, as in `64000+` or `300 sec`; otherwise 0."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def _minutes(limit: str) -> int | None:
    """Return a time limit, such as `7-00:00:00`, `30:00` or `infinite`, in minutes."""
    days, _, clock = limit.rpartition("-")
    parts = [_number(part) for part in clock.split(":")]
    if limit == "infinite" or not clock[:1].isdigit():
        return None
    hours, minutes = (parts[0], parts[1]) if len(parts) == 3 else (0, parts[0])
    return 24 * 60 * _number(days) + 60 * hours + minutes
