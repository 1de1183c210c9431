"""A dataset that notes which examples are read, and what a loop does on it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from clipnoise.errors import UserError

Item = tuple[Any, Any]
Change = Callable[[int, Item], Item]
OTHER_PROCESSES = (
    "train: hands data or record to another process, where neither reads nor releases are seen. "
    "Read examples and call record in train itself: send each rank its part of a batch, and record "
    "what the ranks send back; in a DataLoader, num_workers=0."
)
NUMBERS_KEPT = 5_000_000  # of all releases of a run; of the first release all are kept


class WatchedData(torch.utils.data.Dataset[Item]):
    """Examples whose reads are noted, some of them perhaps changed or left out.

    Attributes:
        inner: (input, target) by index; the same at every read.
        change: what is handed out instead of an item.
        kept: the indices that are there; None for all.
        reads: the indices that were read since `take_reads` was last called.
        before_read: called before each read; a library that computes in the background may hand
            over what was released before it.
    """

    def __init__(
        self, inner: Any, change: Change | None = None, kept: Sequence[int] | None = None
    ) -> None:
        self.inner, self.change, self.kept = inner, change, kept
        self.reads: list[int] = []
        self.before_read: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.inner) if self.kept is None else len(self.kept)

    def __getitem__(self, index: int) -> Item:
        place = int(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {place} of {len(self)} examples")
        place %= len(self)
        self.before_read()
        self.reads.append(place)
        where = place if self.kept is None else self.kept[place]
        inputs, target = self.inner[where]
        return (inputs, target) if self.change is None else self.change(where, (inputs, target))

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied into another process, whose reads would not be seen."""
        raise UserError(OTHER_PROCESSES)

    def take_reads(self) -> list[int]:
        """Return what was read since the last call."""
        reads, self.reads = self.reads, []
        return reads


class Enough(BaseException):
    """Ends a loop after the step that was asked for; no `except Exception` of a loop stops it."""


@dataclass
class Trace:
    """What a run of a loop has shown.

    Attributes:
        reads: which examples were read for each release, one list for each.
        rest: what was read after the last release.
        first: the first release, float64 of shape (d,); None without releases.
        releases: of every release the same coordinates, float32 of shape (T, k).
        shapes: of the tensors of the first release.
        published: what the loop returned.
    """

    reads: list[list[int]] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)
    first: Tensor | None = None
    releases: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    published: Any = None

    @property
    def steps(self) -> int:
        """T, the number of releases."""
        return len(self.reads)


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors of a release: one, or several in a sequence or mapping; not None.

    Arrays of other libraries and numbers become tensors.

    Raises:
        TypeError: anything else is in it.
    """
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, float | int) or hasattr(values, "__array__"):  # of NumPy, JAX and others
        return [torch.as_tensor(np.array(values, dtype=np.float64))]
    if values is None:
        return []
    if isinstance(values, Mapping):
        return [one for part in values.values() for one in tensors_in(part)]
    if isinstance(values, Sequence | Iterator) and not isinstance(values, str):
        return [one for part in values for one in tensors_in(part)]
    raise TypeError(
        f"record: takes a tensor, or a list or dict of tensors; got {type(values).__name__}"
    )


class ReleaseLog:
    """What a loop calls with each release."""

    def __init__(self, trace: Trace, data: WatchedData, limit: int | None, steps: int | None):
        """Take the number of releases after which the loop is ended, and T as it is claimed."""
        self.trace, self.data, self.limit = trace, data, limit
        self.expected, self.rows = steps or 1000, list[Tensor]()
        self.every = 1

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied into another process, whose releases would not be seen."""
        raise UserError(OTHER_PROCESSES)

    def __call__(self, values: Any) -> Any:
        """Note a release, and hand it back."""
        parts = [part.detach() for part in tensors_in(values)]
        if not parts:
            raise TypeError("record: was called without a tensor")
        flat = torch.cat([part.reshape(-1).to("cpu", torch.float64) for part in parts])
        trace = self.trace
        if trace.first is None:
            trace.first, trace.shapes = flat, [tuple(part.shape) for part in parts]
            self.every = max(1, -(-len(flat) * self.expected // NUMBERS_KEPT))
        if len(flat) != len(trace.first):
            raise TypeError(
                f"record: the release of step {trace.steps + 1} has {len(flat)} numbers, "
                f"the first one had {len(trace.first)}"
            )
        trace.reads.append(self.data.take_reads())
        self.rows.append(flat[:: self.every].float())
        if self.limit is not None and trace.steps >= self.limit:
            raise Enough
        return values

    def close(self) -> None:
        """Put the releases together."""
        self.trace.rest = self.data.take_reads()
        if self.rows:
            self.trace.releases = torch.stack(self.rows)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and PyTorch, and put them back afterwards."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Attributes:
        train: (data, record) → what is published; record and seed are handed over where it takes
            them.
        steps: T as it is claimed, if it is.
    """

    train: Callable[..., Any]
    steps: int | None = None

    @property
    def takes(self) -> set[str]:
        """The names of what it takes besides data."""
        return {*inspect.signature(self.train).parameters} & {"record", "seed"}

    def run(self, data: WatchedData, seed: int, limit: int | None = None) -> Trace:
        """Run it once, at most until a number of releases."""
        trace = Trace()
        recording = ReleaseLog(trace, data, limit, self.steps)
        given = {"record": recording, "seed": seed}
        with seeded(seed), suppress(Enough):
            trace.published = self.train(data, **{name: given[name] for name in self.takes})
        recording.close()
        return trace


def parameters_of(published: Any) -> dict[str, Tensor]:
    """Return the tensors of what was published that are no buffers, by name."""
    if isinstance(published, nn.Module):
        return {name: one.detach().clone() for name, one in published.named_parameters()}
    if isinstance(published, Mapping):
        return {str(name): one for name, one in published.items() if isinstance(one, Tensor)}
    if isinstance(published, Tensor):
        return {"published": published.detach()}
    if isinstance(published, Sequence) and not isinstance(published, str):
        return {str(place): one for place, one in enumerate(published) if isinstance(one, Tensor)}
    return {}
