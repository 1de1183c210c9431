"""A method that runs in another process: the judge trains with it, and sees only its answers."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import make_dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from clipnoise.audit.judge.wire import OF_METHOD, OF_QUERY, pack, unpack
from clipnoise.core.method import Method, WarmStart
from clipnoise.core.query import Query
from clipnoise.core.state import State
from clipnoise.errors import UserError
from clipnoise.fields import parse, to_plain
from clipnoise.methods.base import WithSideInformation
from clipnoise.plugins import VARIABLE

SECONDS = 120  # that one answer may take
LONGER = {"train": 900, "cost": 900}  # where it trains: honest users may train long
LARGEST = 2**28  # bytes of an answer
WORKER = "clipnoise.audit.judge.worker"
# What the suite may call of a method, all of it asked: by a hook that is called only where the file
# itself trains, it would know where that is.
HOOKS = tuple(
    name
    for name, member in vars(Method).items()
    if isinstance(member, FunctionType) and name[0] != "_" and name not in Method.sealed
)


class RefusedError(Exception):
    """The judged file did what refutes it: it reached across the boundary, or answered nonsense."""


class Process:
    """A process that runs the judged file."""

    def __init__(
        self, file: Path, scene: Mapping[str, str] | None = None, words: tuple[str, ...] = ()
    ) -> None:
        """Start it.

        Args:
            file: the judged file, in a folder without any other.
            scene: environment variables, which differ between processes.
            words: further words on its command line.
        """
        here, there = socket.socketpair()
        # A file that announces a message and does not send it cannot make the judge wait for ever.
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SECONDS, 0))
        source = str(Path(sys.modules["clipnoise"].__path__[0]).parent)
        path = os.pathsep.join([source, *filter(os.path.isabs, sys.path)])
        # Nothing in the folder stands for a module: imported as one, it would know where it is.
        own = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", VARIABLE: str(file.parent)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(there.fileno()), str(file), *words],
            pass_fds=[there.fileno()],
            cwd=file.parent,
            env={**os.environ, **own, **(scene or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        there.close()
        self._connection = Connection(here.detach())
        self._failed: RefusedError | UserError | None = None

    def ask(self, what: str, **values: Any) -> Any:
        """Ask a question and return the answer, as plain data and tensors.

        A process that does not answer properly is ended and never asked again: what it sends later
        would be taken for the answer to another question.

        Raises:
            RefusedError: the file reached across the boundary, or did not answer properly.
            UserError: the file fails in another way.
        """
        if self._failed is not None:
            raise self._failed
        question, limit = pack({"ask": what, **values}), LONGER.get(what, SECONDS)
        try:
            self._connection.send_bytes(question)
            if not self._connection.poll(limit):
                raise self._ended(UserError(f"the file did not answer within {limit} seconds."))
            reply = unpack(self._connection.recv_bytes(LARGEST))
            if "answer" in reply:
                return reply["answer"]
            said, refused = str(reply["failed"]), bool(reply["at_the_boundary"])
        except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
            lied = RefusedError(f"the process of the file ended or lied: {error!r}")
            raise self._ended(lied) from None
        raise RefusedError(said) if refused else UserError(said)

    def _ended(self, failed: RefusedError | UserError) -> RefusedError | UserError:
        """End the process because of what it failed at, and return that."""
        self._failed = failed
        self.close()
        return failed

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def remote_method(
    name: str, options: str, hooks: Process, queries: Process | None = None, part: str = ""
) -> Method:
    """Return a method of the judged file as one that the suite can train with.

    Args:
        name: its id.
        options: hyper-parameters, as JSON; those that are not given have their defaults or example
            values.
        hooks: the process that is asked.
        queries: the process that is asked for the query, where it is another one: then the first
            one never sees anything private.
        part: "" for the method, "warm" for the one that trains on public examples before it.

    Raises:
        UserError: an unknown hyper-parameter, or a value out of range.
        RefusedError: the file reached across the boundary.
    """
    facts = hooks.ask("facts", method=[name, options, part])
    values = dict(facts["options"])

    def given(method: Any) -> str:
        return json.dumps(to_plain(method), sort_keys=True)

    def asking(hook: str, process: Process = hooks, options: str | None = None) -> FunctionType:
        def call(self: Any, *words: Any) -> Any:
            method = [name, options or given(self), part]
            reply = process.ask("call", method=method, hook=hook, words=words)
            for state in (word for word in words if isinstance(word, State)):
                state.buffers, state.unwritten = reply["state"].buffers, reply["state"].unwritten
            return reply["found"]

        return cast("FunctionType", call)

    @cache
    def query(options: str) -> Query:
        facts = hooks.ask("facts", method=[name, options, part])
        asked = {key: asking(key, queries or hooks, options) for key in ("components", "values")}
        said = {**{key: facts[key] for key in OF_QUERY}, "formulas": tuple(facts["formulas"])}
        return cast("Query", type("RemoteQuery", (Query,), {**said, **asked})())

    def warm_start(self: Any) -> WarmStart:
        method = remote_method(name, given(self), hooks, queries, "warm")
        return WarmStart(method=method, **asking("warm_start")(self))

    members: dict[str, object] = {
        **{key: facts[key] for key in OF_METHOD},
        **{hook: asking(hook) for hook in HOOKS},
        "warm_start": warm_start if facts["warms_up"] else Method.warm_start,
        "query": property(lambda self: query(given(self))),
    }
    base = WithSideInformation if facts["uses_side_information"] else Method
    kind = make_dataclass(
        "RemoteMethod",
        [(key, Any) for key in values if not hasattr(base, key)],
        bases=(base,),
        namespace=members,
        frozen=True,
        kw_only=True,
    )
    return cast("Method", parse(kind, values, key=name))
