"""What a Slurm cluster says about itself, and what follows from it for Snakemake's profile."""

from __future__ import annotations

import getpass
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from clipnoise.errors import UserError
from clipnoise.run.scheduler import output_of
from clipnoise.studies.config import Config, Resources

# How long Slurm must remember a job that has ended. Where it is less, Snakemake's executor asks
# `sacct` in any case.
ENOUGH_SECONDS = 120
FIRST_SECONDS, LONGEST_SECONDS = 30.0, 3600.0  # between two tries of a refused submission
# What sbatch says where the same submission can succeed later: a limit on the number of jobs of a
# user, an account or a QOS, or a controller that is away or busy.
FOR_NOW = re.compile(
    r"(Assoc|QOS)\w*Submit\w*Limit|slurm controller|temporarily unable|timed out on send/recv"
)
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
            ("threads", wanted.threads, self.cpus),
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


def choose_status_command(settings: Any) -> str | None:
    """Make Snakemake ask `squeue` for its jobs where `sacct` cannot answer.

    It would ask `sacct` again and again, for hours and without a word, while its jobs have ended.
    It would also go back to `sacct` at each check at which the controller is away, because it looks
    for MinJobAge every time; so it is told that there is no `sacct`.

    Args:
        settings: of Snakemake's executor; changed if it is the one for Slurm and asks `sacct`.

    Returns:
        One sentence for the user if something was changed.

    Raises:
        UserError: Slurm would forget jobs that have ended before Snakemake asks for them.
    """
    command = getattr(settings, "status_command", None)
    if command is None or has_accounting():
        return None
    cluster = Cluster.here()
    if cluster is None:
        raise UserError("Slurm: neither sacct nor scontrol answers. Is the controller running?")
    if cluster.status_command is None:
        raise UserError(
            "Slurm: sacct does not answer, and squeue forgets jobs "
            f"{cluster.memory_seconds} s after their end (MinJobAge in slurm.conf), before "
            "Snakemake asks for them. Ask the administrator for accounting, or for a MinJobAge of "
            f"at least {ENOUGH_SECONDS}."
        )
    settings.status_command = cluster.status_command
    import snakemake_executor_plugin_slurm as plugin

    plugin.is_query_tool_available = lambda tool: tool == cluster.status_command
    if command == cluster.status_command:
        return None
    return "Slurm: sacct does not answer, so squeue is asked how jobs end."


def submit_patiently(executor: Any, say: Callable[[str], None]) -> None:
    """Let submissions that Slurm refuses for now wait, and show what its commands say.

    Snakemake would take such a refusal for a failure of the job, try again at once until its
    retries are spent, and show nothing of what `sbatch` says. Nor does it say that it waits for an
    answer about its jobs.

    Args:
        executor: Snakemake's; changed if it is the one for Slurm.
        say: called with a line for the user.
    """
    if hasattr(executor.workflow.executor_settings, "status_command"):
        _Submissions(executor, say)
        _tell_of_silence(say)


class _Submissions:
    """What becomes of the submissions of an executor, whose methods it takes over.

    The executor submits in two threads. A refused submission keeps its thread while it waits, so
    that Slurm is not asked for the others meanwhile.
    """

    def __init__(self, executor: Any, say: Callable[[str], None]) -> None:
        self._executor, self._say = executor, say
        self._accept = executor._report_job_submission_threadsafe
        self._fail = executor._report_job_error_threadsafe
        self._shutdown = executor.shutdown
        self._ended = threading.Event()
        self._said: set[str] = set()
        self._refusals = 0  # since the last submission that was accepted
        executor._report_job_submission_threadsafe = self.accepted
        executor._report_job_error_threadsafe = self.refused
        executor.shutdown = self.shutdown

    def accepted(self, job: Any) -> None:
        """Tell Snakemake that a job is in the queue."""
        self._refusals = 0
        self._accept(job)

    def refused(self, job: Any, message: str) -> None:
        """Submit a job again after a while, or tell Snakemake that it has failed."""
        found = re.search(r"message was '(.*?)'\.?\n    sbatch call:", message, re.DOTALL)
        words = " ".join((found[1] if found else message).split())
        for_now = found is not None and FOR_NOW.search(words) is not None
        if words not in self._said:
            self._said.add(words)
            next_step = " Such jobs wait until they are accepted." if for_now else ""
            self._say(f"Slurm refused a job: {words}.{next_step}")
        if not for_now:
            self._fail(job, message)
            return
        seconds = min(FIRST_SECONDS * 2 ** min(self._refusals, 20), LONGEST_SECONDS)
        self._refusals += 1
        if not self._ended.wait(seconds):
            self._executor._job_submission_executor.submit(self._executor.run_job, job.job)

    def shutdown(self) -> None:
        """End with the executor, which waits for its threads."""
        self._ended.set()
        self._shutdown()


def _tell_of_silence(say: Callable[[str], None]) -> None:
    """Say once when Slurm no longer answers the question how jobs end, and once when it does."""
    import snakemake_executor_plugin_slurm as plugin

    ask = plugin.query_job_status
    silent = False

    async def asked(command: str, logger: Any) -> Any:
        nonlocal silent
        answer = await ask(command, logger)
        if silent != (answer[0] is None):
            silent = not silent
            how = "does not answer; it is asked again" if silent else "answers again"
            say(f"Slurm: {command.split()[0]} {how}.")
        return answer

    plugin.query_job_status = asked


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
