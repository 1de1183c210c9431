"""What the adapters share: a loop is run while a library is watched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from clipnoise.audit.loops.claim import Claim
from clipnoise.audit.loops.watched import Loop, WatchedData
from clipnoise.errors import UserError
from clipnoise.fields import parse

Record = Callable[[Any], Any]
Found = dict[str, Any]  # values of `Claim` and of a library, by name
# (record, found, data): while it is open, releases are recorded and what is claimed is put down.
Watch = Callable[[Record, Found, WatchedData], AbstractContextManager[None]]


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by what is made from it, until the `with` block ends."""
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def recording(train: Callable[..., Any], watch: Watch, found: Found) -> Callable[..., Any]:
    """Return a loop (data, record, seed) that records what a watched library releases."""
    takes = Loop(train).takes
    if "record" in takes:
        raise UserError("train: takes record, so it needs no adapter; write its Claim.")

    @wraps(train)
    def recorded(data: WatchedData, record: Record, seed: int) -> Any:
        with watch(record, found, data):
            return train(data, **({"seed": seed} if "seed" in takes else {}))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = ("data", "record", "seed")  # and not those of train, to which __wrapped__ leads
    recorded.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    return recorded


def tried(train: Callable[..., Any], watch: Watch, data: Any) -> Found:
    """Run a loop once, and return what was found, the number of releases among it.

    Raises:
        UserError: nothing was released.
    """
    found: Found = {}
    trace = Loop(recording(train, watch, found)).run(WatchedData(data), seed=0)
    if not trace.steps:
        raise UserError("train: released nothing that the adapter saw; call record yourself.")
    return {"steps": trace.steps, **found}


def claim_of(found: Found, given: Found) -> Claim:
    """Return a claim: what was found, but for what is given.

    Raises:
        UserError: a key, a value, or a sampler that cannot be claimed.
    """
    claim: Claim = parse(Claim, {**found, **given}, key="claim")
    return claim
