"""Snakemake forked from a process that has imported it: to start it takes longer than most plans.

That the program itself starts, stops and is killed as it should be is tested with real processes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import NamedTuple


class Ended(NamedTuple):
    """How a process has ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], *, timeout: float = 400
) -> Ended:
    """Run `snakemake WORDS` in a folder, and wait for its end.

    Args:
        words: options and targets.
        folder: the current folder of the process.
        environment: its environment.
        timeout: seconds after which it is killed.

    Raises:
        TimeoutError: It was killed; what it wrote until then is in the message.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with TemporaryDirectory() as place:
        out, err = Path(place) / "out", Path(place) / "err"
        request = [list(words), str(folder), dict(environment), str(out), str(err)]
        timer = Timer(timeout, os.killpg, (server.pid, signal.SIGKILL))
        timer.start()
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        timer.cancel()
        if not answer:
            server.wait()  # it was killed
            _server.cache_clear()  # the next command needs another
            written = [file.read_text() for file in (out, err) if file.exists()]
            raise TimeoutError(f"no end after {timeout} s: {words}\n{''.join(written)}")
        return Ended(int(answer), out.read_text(), err.read_text())


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process that forks; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it forks can be killed with it
    )


def _serve() -> None:
    """Fork a child for each line of input, and answer with its exit code."""
    for name in ("cluster", "plan", "status"):  # what the Snakefile imports
        import_module(f"clipnoise.studies.{name}")
    import smart_open  # noqa: F401
    from snakemake.cli import get_argument_parser, main

    from clipnoise.run.fingerprint import closure

    get_argument_parser()  # imports plug-ins
    closure(("clipnoise.run.train",))  # reads the code whose fingerprint is taken
    gc.freeze()
    for line in sys.stdin:
        words, folder, environment, *files = json.loads(line)
        child = os.fork()
        if child == 0:
            with Path(os.devnull).open() as nothing:
                os.dup2(nothing.fileno(), 0)
            for number, name in enumerate(files, start=1):
                with Path(name).open("w") as file:
                    os.dup2(file.fileno(), number)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.argv = ["snakemake", *words]
            main(words)  # exits
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
