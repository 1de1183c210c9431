"""Processes of a run on the other nodes of its Slurm job, started by srun."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from clipnoise.errors import UserError
from clipnoise.run.scheduler import output_of

ENDING = 5.0  # seconds for processes to end once they have been told to
# What Slurm sets for one step must not decide about another; this says which cluster it is.
KEPT = ("SLURM_CONF", "SLURM_CLUSTER_NAME")
OF_A_STEP = ("SLURM_", "SRUN_", "SBATCH_", "PMI_", "PMIX_")


@dataclass(frozen=True)
class Allocation:
    """The nodes of a Slurm job, seen from the one on which its script runs.

    Attributes:
        job: its id.
        address: of this node, by which the others reach it.
        others: the names of the other nodes, in Slurm's order.
    """

    job: str
    address: str
    others: tuple[str, ...]

    @classmethod
    def here(cls, nodes: int, environment: Mapping[str, str] = os.environ) -> Allocation:
        """Ask Slurm about the job that this process runs in.

        Args:
            nodes: how many the job must have.
            environment: the variables that Slurm sets, `SLURM_JOB_ID` and `SLURMD_NODENAME`.

        Raises:
            UserError: this is not a Slurm job, or one with another number of nodes.
        """
        job, this = environment.get("SLURM_JOB_ID"), environment.get("SLURMD_NODENAME")
        if job is None or this is None:
            raise UserError(
                f"nodes: {nodes}: several nodes are those of a Slurm job, and this is none. On one "
                "machine leave nodes out; processes says how many train a run together."
            )
        held = output_of("squeue", "--noheader", "--format=%N", f"--jobs={job}") or ""
        names = (output_of("scontrol", "show", "hostnames", held) or "").split() if held else []
        shown = output_of("scontrol", "show", "node", this) or ""
        found = re.search(r"\bNodeAddr=(\S+)", shown)
        if this not in names or len(names) != nodes:
            raise UserError(
                f"nodes: {nodes}: Slurm job {job} has {len(names)} ({held or 'none are known'}), "
                f"and runs on {this}."
            )
        others = tuple(name for name in names if name != this)
        return cls(job, found[1] if found else this, others)


def step_command(allocation: Allocation, each: int, threads: int) -> list[str]:
    """Return the command that starts processes on every other node of a job.

    Args:
        allocation: the nodes of the job.
        each: processes on each node.
        threads: CPUs of each process.
    """
    nodes = allocation.others
    return [
        "srun",
        f"--jobid={allocation.job}",
        f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes) * each}",
        f"--ntasks-per-node={each}",
        f"--cpus-per-task={threads}",
        "--distribution=block",
        "--overlap",
        "--mpi=none",
        "--kill-on-bad-exit=1",
        *(sys.executable, "-m", "clipnoise.run.nodes"),
    ]


@dataclass
class OnOtherNodes:
    """The processes of a run on the other nodes, with the interface of a single child process.

    They get their work by the standard input of srun, which reaches all of them; its end tells
    them that the first process of the run has ended.

    Attributes:
        name: which processes they are.
        command: what starts them.
        work: called in each with the number of the process among them, and a function that returns
            once the first process has ended; importable, with plain data.
    """

    name: str
    command: Sequence[str]
    work: Callable[[int, Callable[[], object]], object]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start them; this does not wait until they run.

        Raises:
            UserError: srun cannot be started.
        """
        kept = {
            name: text
            for name, text in os.environ.items()
            if name in KEPT or not name.startswith(OF_A_STEP)
        }
        try:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, env=kept)
        except OSError as error:
            raise UserError(f"nodes: {self.command[0]} cannot be started: {error}") from None
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its exit code is asked for next
            self.process.stdin.write(pickle.dumps(self.work))
            self.process.stdin.flush()

    @property
    def exitcode(self) -> int | None:
        """The largest exit code of them; None while one runs."""
        return None if self.process is None else self.process.poll()

    def is_alive(self) -> bool:
        """Return whether one of them runs."""
        return self.process is not None and self.process.poll() is None

    def join(self, seconds: float) -> None:
        """Wait until all have ended, at most so many seconds."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    def kill(self) -> None:
        """End all of them."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.join(ENDING)
        if self.is_alive():
            self.process.kill()
            self.process.wait()


def main() -> None:
    """Be one of these processes."""
    work = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the first process, through srun
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
    work(int(os.environ["SLURM_PROCID"]), _until_the_end)


def _until_the_end() -> None:
    """Return once standard input has ended; a thread may wait here while the process ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass


if __name__ == "__main__":
    main()
