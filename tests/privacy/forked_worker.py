"""Workers of the judge, forked from a process that has imported torch: most of their time is that.

One has the command line, the environment, the folder and the streams that it would be started with.
Real workers are started by a whole judgement and by the short one of a method of the suite.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from clipnoise.audit.judge.worker import serve

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["clipnoise.audit.judge.worker"])


class ForkedWorker:
    """What the judge asks of a `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        pass_fds: Sequence[int],
        cwd: Path,
        env: Mapping[str, str],
        **_: object,
    ) -> None:
        """Do what `subprocess.Popen` does with these arguments."""
        with Connection(os.dup(pass_fds[0])) as there:
            given = (there, list(words[4:]), str(cwd), dict(env))
            self._process = CONTEXT.Process(target=_work, args=given, daemon=True)
            self._process.start()
        self.kill, self.wait = self._process.kill, self._process.join


def _work(
    connection: Connection, words: list[str], folder: str, environment: dict[str, str]
) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["worker", str(connection.fileno()), *words]
    serve(connection, Path(words[0]))
