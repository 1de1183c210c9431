"""A Slurm cluster on one machine, for tests: virtual nodes whose GPUs are empty files.

    python tests/slurm/cluster.py install   # Debian's packages
    python tests/slurm/cluster.py start     # then: sinfo, snakemake --cores all --profile slurm
    python tests/slurm/cluster.py stop

Needs root, but neither systemd nor cgroups. Its configuration stands in /etc/slurm, because job
steps find it nowhere else. A configuration that is not this script's own is never touched.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock

ETC = Path("/etc/slurm")
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")
MARK = "# A test cluster of clipnoise in "
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "squeue", "srun")
NODES = ("node1", "node2")
CPUS, MEMORY_MB, GPUS, SHARDS = 64, 64_000, 2, 8  # of each node, whatever the machine has

CONFIGURATION = """\
{mark}{folder}
ClusterName=clipnoise
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=2,bf_interval=2
GresTypes=gpu,shard
# Jobs that take more memory than they asked for are killed, without cgroups too.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
# Without accounting the executor asks squeue, which must still show the jobs that have ended.
MinJobAge=3600
KillWait=60
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}"
    " RealMemory={memory} Gres=gpu:{gpus},shard:{shards}\n"
)
GRES = """\
NodeName={name} Name=gpu File={folder}/{name}.gpu[1-{gpus}] Flags=nvidia_gpu_env
NodeName={name} Name=shard Count={shards}
"""


class ClusterError(Exception):
    """The cluster cannot be started here; the message says why."""


def lacking() -> str | None:
    """Say what keeps a cluster from being started on this machine; None when nothing does."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)}: not installed (apt-get install {' '.join(PACKAGES)})"
    if os.geteuid() != 0:
        return "a Slurm controller needs root"
    files = [Path(os.environ.get("SLURM_CONF", "")), Path("/run/slurm/conf/slurm.conf")]
    files += [ETC / name for name in FILES if _folder() is None]
    others = [str(path) for path in files if path.is_file()]
    return f"{', '.join(others)}: belongs to another cluster" if others else None


def install() -> None:
    """Install Debian's packages."""
    settings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    subprocess.run(["apt-get", "update", "-qq"], env=settings, check=True)
    subprocess.run(packages, env=settings, check=True, stdin=subprocess.DEVNULL)


def start() -> Path:
    """Start the daemons and wait until every node takes jobs.

    Returns:
        The folder of their state, logs and pids.

    Raises:
        ClusterError: they do not come up; the message holds what their logs say.
    """
    reason = lacking()
    if reason is not None:
        raise ClusterError(reason)
    stop()  # what a process that was killed has left
    folder = Path(tempfile.mkdtemp(prefix="clipnoise-slurm-"))
    _configure(folder)
    try:
        _start_munge(folder)
        _daemon("slurmctld", "-c")
        for name in NODES:
            start_node(name)
    except ClusterError:
        stop()
        raise
    return folder


def start_node(name: str) -> None:
    """Start a node's daemon and wait until it takes jobs.

    Raises:
        ClusterError: it does not come up.
    """
    _daemon("slurmd", "-N", name)
    try:
        wait(lambda: node_state(name) in ("idle", "mixed"), f"{name} takes jobs")
    except TimeoutError as error:
        raise ClusterError(f"{error}\n{_said()}") from None


def lose_controller() -> None:
    """End the controller at once; jobs and nodes go on without it."""
    folder = _folder()
    assert folder is not None
    controller = psutil.Process(int((folder / "slurmctld.pid").read_text()))
    controller.kill()
    wait(lambda: not _alive(controller), "the controller ends")


def start_controller() -> None:
    """Start the controller again, which goes on from the state that it has saved.

    Raises:
        ClusterError: it does not come up.
    """
    _daemon("slurmctld")
    for name in NODES:
        wait(lambda name=name: node_state(name) in ("idle", "mixed"), f"{name} takes jobs")


def lose_node(name: str) -> None:
    """End a node's daemon and everything that runs there at once, as when its power goes.

    Slurm would miss the node after some minutes; here it is told at once.
    """
    folder = _folder()
    assert folder is not None
    daemon = psutil.Process(int((folder / f"slurmd.{name}.pid").read_text()))
    states = ("--states=running,suspended", "--noheader", "--format=%A")
    jobs = output("squeue", f"--nodelist={name}", *states).split()
    keepers = [p for p in _named("slurmstepd") if _job(p) in jobs]
    running = [p for p in psutil.process_iter() if _node(p) == name]
    gone = [daemon, *keepers, *running]
    # All at once: what lives longer would tell the controller how the rest ended.
    for end in (psutil.Process.suspend, psutil.Process.kill):
        for process in gone:
            with suppress(psutil.NoSuchProcess):
                end(process)
    output("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")


def node_state(name: str) -> str:
    """Return a node's state in Slurm's words, e.g. `idle`, `mixed` or `down*`."""
    return output("sinfo", "--noheader", f"--nodes={name}", "--partition=main", "--format=%T")


def stop() -> None:
    """End daemons and jobs of a cluster that this script started, and remove its files."""
    folder = _folder()
    if folder is None:
        return
    ours = [int(path.read_text()) for path in folder.glob("*.pid") if path.read_text().strip()]
    processes = [psutil.Process(pid) for pid in ours if psutil.pid_exists(pid)]
    daemons = [p for p in processes if p.name() in ("munged", "slurmctld", "slurmd")]
    for keeper in _named("slurmstepd"):
        daemons += [keeper, *keeper.children(recursive=True)]
    for process in daemons:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait(lambda: not any(map(_alive, daemons)), "the daemons end")
    for name in FILES:
        (ETC / name).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def alone(base: Path) -> Iterator[None]:
    """Let no other test have a cluster meanwhile; at the end keep its logs below a folder."""
    with FileLock("/tmp/clipnoise-slurm.lock", timeout=600):
        try:
            yield
        finally:
            keep_logs(base / "slurm")
            stop()


def keep_logs(place: Path) -> None:
    """Copy the daemons' logs into a folder, where they outlive the cluster."""
    place.mkdir(exist_ok=True)
    for log in (_folder() or place).glob("*.log"):
        shutil.copyfile(log, place / log.name)


def wait(done: Callable[[], object], what: str, *, seconds: float = 60, every: float = 0.1) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: it is not after `seconds`; the message says `what`.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(every)


def serves() -> bool:
    """Return that the controller runs.

    Raises:
        ClusterError: it has ended; clients would try to reach it for ever.
    """
    folder = _folder()
    if folder is None or not psutil.pid_exists(int((folder / "slurmctld.pid").read_text())):
        raise ClusterError(f"slurmctld has ended\n{_said()}")
    return True


def output(*words: str) -> str:
    """Return what a command of Slurm prints; nothing where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def _folder() -> Path | None:
    """Return the folder of the cluster that /etc/slurm describes, where this script started it."""
    try:
        first = (ETC / "slurm.conf").read_text().partition("\n")[0]
    except FileNotFoundError:
        return None
    return Path(first.removeprefix(MARK)) if first.startswith(MARK) else None


def _configure(folder: Path) -> None:
    """Write the files of the configuration, with ports that are free."""
    host, ports = socket.gethostname().partition(".")[0], _free_ports(1 + len(NODES))
    size = {"cpus": CPUS, "memory": MEMORY_MB, "gpus": GPUS, "shards": SHARDS}
    text = CONFIGURATION.format(mark=MARK, folder=folder, host=host, port=next(ports))
    gres = ""
    for name in NODES:
        text += NODE.format(name=name, host=host, port=next(ports), **size)
        gres += GRES.format(name=name, folder=folder, **size)
        for number in range(GPUS):
            (folder / f"{name}.gpu{number + 1}").touch()
    ETC.mkdir(exist_ok=True)
    (ETC / "slurm.conf").write_text(text)
    (ETC / "gres.conf").write_text(gres)
    # From 23.11 on slurmd wants cgroups unless told otherwise; before, it did not know the word.
    version = re.findall(r"\d+", output("slurmd", "-V"))
    if [int(number) for number in version[:2]] >= [23, 11]:
        (ETC / "cgroup.conf").write_text("CgroupPlugin=disabled\n")


def _free_ports(count: int) -> Iterator[int]:
    with ExitStack() as held:  # all at once, so that no two are the same
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return iter([item.getsockname()[1] for item in sockets])


def _start_munge(folder: Path) -> None:
    """Start the authentication daemon with a key and a socket of its own."""
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    files = {"socket": "socket", "pid": "pid-file", "log": "log-file", "seed": "seed-file"}
    options = [f"--{option}={folder}/munge.{name}" for name, option in files.items()]
    _daemon("munged", "--force", f"--key-file={key}", *options)


def _daemon(*words: str) -> None:
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(words)}: {done.stdout}{done.stderr}\n{_said()}")


def _said() -> str:
    """Return why nodes are down, and the end of every log."""
    logs = [path.read_text()[-2000:] for path in sorted((_folder() or ETC).glob("*.log"))]
    return "\n".join([output("sinfo", "--list-reasons", "--noheader"), *logs])


def _named(name: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] == name]


def _node(process: psutil.Process) -> str | None:
    """Return the node that a process believes to run on."""
    try:
        return process.environ().get("SLURMD_NODENAME")
    except (psutil.Error, OSError):
        return None


def _job(keeper: psutil.Process) -> str | None:
    """Return the job of a keeper of a step, which calls itself e.g. `slurmstepd: [12.batch]`."""
    found = re.search(r"\[(\d+)\.", " ".join(keeper.cmdline()))
    return found[1] if found else None


def _alive(process: psutil.Process) -> bool:
    """Tell whether a process runs; one that has ended may stay a zombie for ever in a container."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    commands = {"install": install, "start": start, "stop": stop}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(str(__doc__))
    try:
        commands[sys.argv[1]]()
    except ClusterError as problem:
        sys.exit(str(problem))
