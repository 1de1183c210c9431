"""The process that runs the judged file: it answers questions about its method.

Nothing that it says is believed without a check: see `clipnoise.audit.judge.verdict`.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from itertools import chain, zip_longest
from multiprocessing.connection import Connection
from operator import truediv
from pathlib import Path
from statistics import median
from types import FunctionType, ModuleType
from typing import Any

import torch

from clipnoise import plugins
from clipnoise.audit.judge.wire import OF_METHOD, OF_QUERY, pack, unpack
from clipnoise.audit.subject import Subject, run_spec, subject, with_numbers
from clipnoise.core import method as method_module
from clipnoise.core.method import Method
from clipnoise.core.state import State
from clipnoise.data.base import PARTS
from clipnoise.errors import UserError
from clipnoise.fields import to_plain
from clipnoise.methods.base import methods
from clipnoise.plugins import is_own
from clipnoise.run.outcome import Clock, DivergenceError
from clipnoise.run.train import Run

TIMED = 200  # steps whose time is taken
MEASURED = [f"{part}_{what}" for part in PARTS[:3] for what in ("loss", "accuracy")]
CORE = Path(method_module.__file__).parent
STATE = CORE / "state.py"  # of what a method is given, which it may use wrongly
DESCRIPTORS = (property, staticmethod, classmethod, cached_property)
SEALING = Path(plugins.__file__)
# What Python says when a method asks for what only an oracle is given, or changes its query.
REFUSED = re.compile(
    r"\b(ClippedSum|Clean)\b|cannot assign to field"
    r"|(required positional argument:|'Public' object has no attribute) '\w*clean"
)
WATCHED = ("clipnoise", "torch", "numpy", "math", "random", "builtins", "statistics", "functools")


def snapshot(modules: Iterable[str]) -> dict[str, tuple[object, ...]]:
    """Return every function and class of the libraries by name, with the code of each function."""
    found: dict[str, tuple[object, ...]] = {}
    for name, module in [(name, sys.modules.get(name)) for name in modules]:
        if name.split(".")[0] in WATCHED and not is_own(name) and isinstance(module, ModuleType):
            for owner, members in _members(name, module):
                for member, value in members.items():
                    if callable(value) or isinstance(value, DESCRIPTORS):
                        found[f"{owner}.{member}"] = (value, *_code(value))
    return found


def _members(name: str, module: ModuleType) -> Iterator[tuple[str, Mapping[str, object]]]:
    yield name, dict(vars(module))
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == name:
            yield f"{name}.{value.__name__}", dict(vars(value))


def _code(value: Any) -> tuple[object, ...]:
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if isinstance(function, FunctionType):
        return (function.__code__, function.__defaults__, function.__kwdefaults__)
    return ()


def changed(before: dict[str, tuple[object, ...]], modules: Iterable[str]) -> list[str]:
    """Return the names of what has been replaced since a snapshot of some modules.

    What has been added to the suite counts, too: it may stand for what a class inherits.
    """
    now = snapshot(modules)
    replaced = [
        name
        for name, old in before.items()
        if any(x is not y for x, y in zip_longest(old, now.get(name, ())))
    ]
    added = [name for name in now.keys() - before.keys() if name.startswith("clipnoise.")]
    return sorted(replaced + added)


class Worker:
    """Answers questions about the methods of the judged file, one after another, each by `ask_…`.

    Which method a question is about, it says in three words: an id, hyper-parameters as JSON, and
    "" for the method, "warm" for the one that trains on public examples before it.
    """

    def __init__(self) -> None:
        """Hold the libraries as they are before the file is imported."""
        self.modules = tuple(sys.modules)
        self.before = snapshot(self.modules)
        self.method = cache(self._method)

    def _method(self, name: str, options: str, part: str) -> Method:
        made = with_numbers(methods()[name], json.loads(options))
        if part == "warm":
            start = made.warm_start()
            assert start is not None
            made = start.method
        return made

    def ask_methods(self) -> list[str]:
        """Return the ids of the file's methods."""
        return [name for name, kind in methods().items() if is_own(kind.__module__)]

    def ask_facts(self, method: list[str]) -> dict[str, object]:
        """Return what the class of a method and its query say of themselves."""
        made = self.method(*method)
        return {
            "options": to_plain(made),
            "warms_up": made.warms_up(),
            "formulas": list(made.query.formulas),
            **{name: getattr(made, name) for name in OF_METHOD},
            **{name: getattr(made.query, name) for name in OF_QUERY},
        }

    def ask_call(self, method: list[str], hook: str, words: list[Any]) -> dict[str, object]:
        """Return what a hook of a method or of its query returns, and the memory after it."""
        made = self.method(*method)
        owner = made.query if hook in ("components", "values") else made
        if hook in ("update", "check_shapes"):  # lists, as they came
            words[0] = tuple(tuple(x) if isinstance(x, list) else x for x in words[0])
        found = getattr(owner, hook)(*words)
        if hook == "warm_start":
            found = {"epochs": found.epochs, "batch_size": found.batch_size}
        state = next((word for word in words if isinstance(word, State)), None)
        if state is not None:  # what was written in place, a message does not say
            state.unwritten -= {x for x in state.unwritten if state.buffers[x]._version}
        return {"found": found, "state": state}

    def ask_train(
        self,
        method: list[str],
        cache: str,
        saved: Mapping[str, torch.Tensor] | None = None,
        **run: Any,
    ) -> list[torch.Tensor]:
        """Train as any run does, all in this process, and return what `trajectory` shows."""
        of_file = Subject(self.method(*method))
        return [shown for shown, _ in trajectory(of_file, Path(cache), saved, **run)]

    def ask_cost(self, method: list[str], cache: str) -> dict[str, object]:
        """Return what a step costs: the values of `Cost`.

        A method that protects users is compared with DP-FedAvg, so that both have users in their
        batches and train as long on each; any other with DP-SGD. The two take turns step by
        step, and the median of the ratios counts, so that both feel it if the machine slows down.
        """
        own = Subject(self.method(*method))
        local = own.method.local_training()
        than = subject("dp-sgd")
        if local is not None:
            names = ("learning_rate", "epochs", "batch_size")
            than = subject("dp-fedavg", {f"local_{x}": getattr(local, x) for x in names})
        runs = [
            Run.prepare(
                run_spec(chosen, noise_multiplier=1.0, expected_batch_size=130, steps=TIMED),
                Path(cache),
                "cpu",
                noise_multiplier=1.0,
            )
            for chosen in (own, than)
        ]
        batches = [run.batches() for run in runs]
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(TIMED):
            for k in (0, 1) if turn % 2 else (1, 0):
                batch, start = next(batches[k]), time.perf_counter()
                runs[k].step(batch)
                seconds[k].append(time.perf_counter() - start)
        held = sum(buffer.numel() for buffer in runs[0].state.buffers.values())
        return {
            "than": than.method.id,
            "unit": "example" if local is None else "user",
            "time": median(map(truediv, *seconds)),
            "passes": own.method.passes(),
            "buffers": held // runs[0].state.theta.numel(),
        }

    def ask_changed(self) -> list[str]:
        """Return which functions of libraries have been replaced."""
        return changed(self.before, self.modules)


def trajectory(
    subject: Subject,
    cache: Path,
    saved: Mapping[str, torch.Tensor] | None = None,
    /,
    **settings: Any,
) -> Iterator[tuple[torch.Tensor, Run]]:
    """Train as every run does, so that a method is asked the same, in the same order.

    Args:
        subject: the method.
        cache: the folder of prepared datasets.
        saved: where the run goes on, as its checkpoint has it; None starts from the beginning.
        settings: of the run, as `run_spec` takes them; σ among them.

    Yields:
        θ before the first step and after each, up to one that is not finite, followed by a digest
        of all that a checkpoint would hold of the method; where the model is measured, also by its
        parameters and by losses and accuracies. Beside it the run, as it is then.
    """
    spec, clock = run_spec(subject, **settings), Clock()
    sigma = settings["noise_multiplier"]
    training = Run.prepare(spec, cache, "cpu", noise_multiplier=sigma)
    if saved is not None:
        training.set_state(saved)
    due = spec.evaluation_steps()
    with suppress(DivergenceError):
        for t in chain([training.state.step], training.steps(clock)):
            shown = torch.cat([training.state.theta, remembered(training.state)])
            if t in due:
                metrics = vars(training.evaluate(t, None, clock))
                measured = torch.tensor([metrics[name] for name in MEASURED]).nan_to_num()
                shown = torch.cat([shown, training.engine.flat.theta, measured])
            yield shown, training


def remembered(state: State) -> torch.Tensor:
    """Return 16 numbers that follow from all that a method remembers: its memory may be read."""
    digest = hashlib.sha256()
    for name, value in sorted(state.get_state().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return torch.tensor(list(digest.digest()[:16])).to(state.theta)


def frames(error: BaseException) -> list[tuple[str, int]]:
    """Return file and line of every call that an error came through, the last one first."""
    trace = traceback.walk_tb(error.__traceback__)
    return [(frame.f_code.co_filename, line) for frame, line in trace][::-1]


def at_the_boundary(error: BaseException) -> bool:
    """Return whether the privacy boundary refused something, or what no class may redefine.

    What Python or torch refuses in the same code is a mistake of the method's.
    """
    cause = error.__cause__ or error
    refused = REFUSED.search(str(cause)) is not None
    for last in traceback.extract_tb(cause.__traceback__)[-1:]:
        file = Path(last.filename)
        guards = file == SEALING or (file.parent == CORE and file != STATE)
        refused = refused or (guards and (last.line or "").startswith("raise "))
    return refused and isinstance(cause, TypeError | AttributeError | ValueError)


def said(error: Exception, file: Path) -> str:
    """Return what a file failed at, and in which line; the judge names the file.

    Args:
        error: a user's mistake says what is wrong by itself, and any other also needs its kind.
        file: a copy, whose place is left out.
    """
    place = re.compile(re.escape(str(file)) + r"(:\d+)?: ")
    text = place.sub(lambda found: f"line {found[1][1:]}: " if found[1] else "", str(error))
    if not isinstance(error, UserError):
        text = f"{type(error).__name__}: {text}"
    lines = [line for name, line in frames(error.__cause__ or error) if name == str(file)]
    return f"line {lines[0]}: {text}" if lines and not text.startswith("line ") else text


def serve(connection: Connection, file: Path) -> None:
    """Answer every question that comes, until the judge hangs up."""
    torch.set_num_threads(1)
    worker = Worker()
    while True:
        try:
            question = unpack(connection.recv_bytes())
        except EOFError:
            return
        try:
            ask = getattr(worker, f"ask_{question.pop('ask')}")
            sent = pack({"answer": ask(**question)})
        except Exception as error:
            failed, refused = said(error, file), at_the_boundary(error)
            sent = pack({"failed": failed, "at_the_boundary": refused})
        connection.send_bytes(sent)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Path(sys.argv[2]))
