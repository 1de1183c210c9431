"""What the suite changes inside Snakemake, where none of its options does it.

This is the only file that knows the inside of Snakemake (9.27) and of its executor for Slurm (2.8).
Each function says what would happen without it, and where that is reported. A part that a newer
version no longer has is named in an error when a workflow starts; see `_replace`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clipnoise.errors import UserError
from clipnoise.studies.cluster import (
    ENOUGH_SECONDS,
    Cluster,
    check_nodes,
    check_paths,
    has_accounting,
)
from clipnoise.studies.config import Config

FIRST_SECONDS, LONGEST_SECONDS = 30.0, 3600.0  # between two tries of a refused submission
# What sbatch says where the same submission can succeed later: a limit on the number of jobs of a
# user, an account or a QOS, or a controller that is away or busy.
FOR_NOW = re.compile(
    r"(Assoc|QOS)\w*Submit\w*Limit|slurm controller|temporarily unable|timed out on send/recv"
)


def adapt(workflow: Any, config: Config, say: Callable[[str], None]) -> None:
    """Make a workflow that starts do what its options cannot ask for.

    Args:
        workflow: Snakemake's.
        config: config.yaml, with what was given on Snakemake's command line.
        say: called with a line for the user.

    Raises:
        UserError: jobs on a cluster would read a path otherwise; nothing on the cluster tells how
            jobs end; or Snakemake has another inside than this file knows.
    """
    check_paths(workflow.executor_settings, config)
    check_nodes(workflow.local_exec, config)
    let_signals_interrupt(workflow.scheduler)
    stop_when_the_terminal_closes()
    accept_inputs_from_the_future(workflow.dag, say)
    if workflow.local_exec:
        start_jobs_at_once(workflow.scheduler)
    changed = choose_status_command(workflow.executor_settings)
    if changed:
        say(changed)
    submit_patiently(_part(workflow.scheduler, "_executor"), say)


def _part(owner: Any, name: str) -> Any:
    """Return a part of Snakemake that is not its public interface."""
    if not hasattr(owner, name):
        kind = owner.__name__ if hasattr(owner, "__name__") else type(owner).__name__
        raise UserError(
            f"Snakemake: {kind} has no {name} in this version, which clipnoise changes. Install "
            "the version in envs/requirements.lock."
        )
    return getattr(owner, name)


def _replace(owner: Any, name: str, value: Any) -> Any:
    """Replace a part of Snakemake, which must exist, and return what was there."""
    before = _part(owner, name)
    setattr(owner, name, value)
    return before


def let_signals_interrupt(scheduler: Any) -> None:
    """Let the scheduler's signal handler take its lock where the thread holds it already.

    Python runs the handler of SIGTERM in the thread that schedules. While that holds the lock,
    which is not reentrant, the handler would wait for it forever.
    """
    _replace(scheduler, "_lock", threading.RLock())


def start_jobs_at_once(scheduler: Any) -> None:
    """Drop the limit on how fast jobs start, which a single machine does not need.

    While it holds, each round of the scheduler sets off another one a second later, and each job
    that ends adds one more: after some hundred jobs they keep a core busy with nothing else. See
    https://github.com/snakemake/snakemake/pull/3744.
    """
    _replace(scheduler, "job_rate_limiter", None)


def stop_when_the_terminal_closes() -> None:
    """Let SIGHUP end the process that starts the jobs as Ctrl-C does, unless it is ignored.

    Snakemake does not handle it, so jobs and a lock would be left. Jobs are told to stop, so that
    runs save themselves.
    """

    def stop(number: int, frame: object) -> None:
        import psutil

        for job in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                job.terminate()
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, stop)


def accept_inputs_from_the_future(dag: Any, say: Callable[[str], None]) -> None:
    """Let jobs end whose inputs lie in the future, as after a clock was set back.

    Snakemake fails such a job when its work is done, and deletes what it has made, hours of
    training or results that were finished before. Instead, the inputs get the time of what was
    made from them. See https://github.com/snakemake/snakemake/issues/3261.

    Args:
        dag: Snakemake's.
        say: tells the user which file it was.
    """
    check = _part(dag, "check_output_mtime")

    async def check_present(job: Any, outputs: Sequence[Any]) -> None:
        made = min(
            (Path(file).stat().st_mtime for file in outputs if Path(file).exists()), default=0
        )
        for file in map(Path, job.input):
            with suppress(OSError):  # another user's
                if made and file.stat().st_mtime > max(made, time.time()):
                    os.utime(file, (made, made))
                    say(f"{file} lay in the future; it has the present time now.")
        await check(job, outputs)

    dag.check_output_mtime = check_present


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

    _replace(plugin, "is_query_tool_available", lambda tool: tool == cluster.status_command)
    if command == cluster.status_command:
        return None
    return "Slurm: sacct does not answer, so squeue is asked how jobs end."


def submit_patiently(executor: Any, say: Callable[[str], None]) -> None:
    """Let submissions that Slurm refuses for now wait, and show what its commands say.

    Snakemake would take such a refusal for a failure of the job, try again at once until its
    retries are spent, and show nothing of what `sbatch` says. Nor does it say that it waits for an
    answer about its jobs. See
    https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/320.

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
        self._ended = threading.Event()
        self._said: set[str] = set()
        self._refusals = 0  # since the last submission that was accepted
        self._accept = _replace(executor, "_report_job_submission_threadsafe", self.accepted)
        self._fail = _replace(executor, "_report_job_error_threadsafe", self.refused)
        self._shutdown = _replace(executor, "shutdown", self.shutdown)

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
            pool = _part(self._executor, "_job_submission_executor")
            pool.submit(self._executor.run_job, job.job)

    def shutdown(self) -> None:
        """End with the executor, which waits for its threads."""
        self._ended.set()
        self._shutdown()


def _tell_of_silence(say: Callable[[str], None]) -> None:
    """Say once when Slurm no longer answers the question how jobs end, and once when it does."""
    import snakemake_executor_plugin_slurm as plugin

    ask = _part(plugin, "query_job_status")
    silent = False

    async def asked(command: str, logger: Any) -> Any:
        nonlocal silent
        answer = await ask(command, logger)
        if silent != (answer[0] is None):
            silent = not silent
            how = "does not answer; it is asked again" if silent else "answers again"
            say(f"Slurm: {command.split()[0]} {how}.")
        return answer

    _replace(plugin, "query_job_status", asked)
