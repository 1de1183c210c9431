"""Processes that train one run together, each on a device of its own, by torch.distributed.

The first of them draws: batches, keys, micro-batches and noise, each once, and sends them to the
others. Each forms the clipped sum of its share of the batch, the shares are added up, and every
process takes the same step. So ε is that of one process, and so are the numbers, up to rounding.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore

from clipnoise.errors import UserError, reason
from clipnoise.run.nodes import Allocation, OnOtherNodes, step_command
from clipnoise.run.outcome import LostRankError
from clipnoise.run.setup import exact_arithmetic

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from torch import Tensor, nn

T = TypeVar("T")

HERE = "127.0.0.1"
SLOWEST = timedelta(minutes=30)  # how long one process waits for the others
POLL, ENDING = 0.05, 30.0  # seconds: between two looks at a process, and for it to end
LEARNING = 5.0  # seconds until it is known of a process that it has ended
LOST = 76  # exit code of a process that cannot reach the others

logger = logging.getLogger(__name__)


@dataclass
class Ranks:
    """The processes of a run, seen from one of them; by default it is alone.

    Attributes:
        rank: of this process, from 0.
        count: how many there are.
        group: the processes in torch.distributed; None stands for all of them.
        sent: bytes of vectors that all of them together have sent so far, over the shortest ways:
            a sum of k shares takes 2(k − 1) vectors, what the first one sends k − 1. Batches and
            flags, some kilobytes a step, are not counted.
    """

    rank: int = 0
    count: int = 1
    group: Any = None
    sent: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that draws, writes and prints."""
        return self.rank == 0

    def device(self, name: str) -> str:
        """Return the device of this process; of several on GPUs each has its own.

        Raises:
            UserError: there are fewer GPUs than processes.
        """
        if self.count == 1 or name != "cuda":
            return name
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        if local >= torch.cuda.device_count():
            raise UserError(
                f"device: cuda: {self.count} processes train together, each on a GPU of its own, "
                f"but this machine shows {torch.cuda.device_count()}."
            )
        torch.cuda.set_device(local)
        return f"cuda:{local}"

    def share(self, batch: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the part of a batch that this process computes; each unit is in one part.

        Args:
            batch: the drawn examples (or users), indices of shape (b,).
            groups: the micro-batch of each, which stays whole, or None.
        """
        if self.count == 1:
            return batch, groups
        if groups is None:
            return batch[self.rank :: self.count], None
        _, places = torch.unique_consecutive(groups, return_inverse=True)
        chosen = places % self.count == self.rank
        return batch[chosen], groups[chosen]

    def total(self, share: Tensor) -> Tensor:
        """Return the sum of a vector over the processes, the same bits in each.

        The order of the additions follows from the number of processes.
        """
        if self.count == 1:
            return share
        with self._together():
            carried = self._carried(share).clone()
            distributed.all_reduce(carried, group=self.group)
        self.sent += 2 * (self.count - 1) * share.nbytes
        return carried.to(share.device)

    def vectors(
        self, draw: Callable[[], Sequence[Tensor]], likes: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return vectors that the first process alone draws.

        Args:
            draw: called in the first process only.
            likes: for each vector, one of its shape, dtype and device.
        """
        drawn = list(draw()) if self.first else [torch.empty_like(like) for like in likes]
        if self.count == 1:
            return drawn
        found = []
        for vector in drawn:
            with self._together():
                carried = self._carried(vector).contiguous()
                distributed.broadcast(carried, group=self.group, group_src=0)
            self.sent += (self.count - 1) * vector.nbytes
            found.append(carried.to(vector.device))
        return found

    def same(self, draw: Callable[[], T]) -> T:
        """Return a small value that the first process alone draws, such as the indices of a batch.

        Args:
            draw: called in the first process only.
        """
        if self.count == 1:
            return draw()
        value: list[Any] = [draw() if self.first else None]
        with self._together():
            distributed.broadcast_object_list(value, group=self.group, group_src=0)
        drawn: T = value[0]
        return drawn

    def each(self, value: T) -> list[T]:
        """Return a small value of every process, in the order of ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with self._together():
            distributed.all_gather_object(values, value, group=self.group)
        return values

    def require_alike(self, facts: Mapping[str, str]) -> None:
        """Refuse to train together with processes that were given something else.

        Args:
            facts: what must be the same, by name.

        Raises:
            UserError: names what differs, and in which process.
        """
        for rank, others in enumerate(self.each(dict(facts))):
            for name, value in facts.items():
                if others.get(name) != value:
                    raise UserError(
                        f"{name}: must be the same in all {self.count} processes that train "
                        f"together: {others.get(name)} in process {rank + 1}, {value} in process "
                        f"{self.rank + 1}."
                    )

    def require_same(self, theta: Tensor, step: int) -> None:
        """Refuse to go on where the processes have come to different parameters.

        Raises:
            ArithmeticError: they differ.
        """
        if self.count == 1:
            return
        bits = theta.view(torch.int32 if theta.element_size() == 4 else torch.int64)
        if len(set(self.each(int(bits.sum(dtype=torch.int64))))) > 1:
            raise ArithmeticError(
                f"the {self.count} processes of this run have different parameters after step "
                f"{step}: their devices compute, or draw, different numbers."
            )

    def _carried(self, tensor: Tensor) -> Tensor:
        """Return a tensor that the group can send; gloo sends from the memory of the CPU."""
        return tensor.cpu() if distributed.get_backend(self.group) == "gloo" else tensor

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRankError(
                f"process {self.rank + 1} of {self.count} that train this run together cannot "
                f"reach the others: one of them has ended ({reason(error)})"
            ) from error


def from_environment(device: str) -> Ranks:
    """Join the processes that torchrun has started, or the group that the program has made.

    Args:
        device: a torch device name.

    Returns:
        This process among them; alone where there is neither.
    """
    if not distributed.is_available():
        return Ranks()
    if not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return Ranks()
        distributed.init_process_group(_backend(device), timeout=SLOWEST)
        atexit.register(_leave)
    return Ranks(distributed.get_rank(), distributed.get_world_size())


def _leave() -> None:
    """End the threads of the group: one that runs when the program ends may abort it."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _backend(device: str) -> str:
    return "nccl" if device.startswith("cuda") else "gloo"


def send_state(ranks: Ranks, network: nn.Module) -> None:
    """Give the network of every process the parameters and buffers of the first one's."""
    held = [*network.parameters(), *network.buffers()]
    with torch.no_grad():
        for tensor, first in zip(held, ranks.vectors(lambda: held, held), strict=True):
            if not ranks.first:
                tensor.copy_(first)


@contextmanager
def started(
    count: int, device: str, work: Callable[..., object], *arguments: object, nodes: int = 1
) -> Iterator[Ranks]:
    """Start the other processes of a run, for the `with` block.

    Args:
        count: how many processes there are together with this one, which is the first.
        device: a torch device name.
        work: called in each of the others with its `Ranks` and the arguments; importable, and so
            are the arguments plain data.
        nodes: of the Slurm job in which this process runs, the same number of processes on each;
            1 is this machine.

    Raises:
        UserError: there are not so many nodes, or they cannot have as many processes each.
        LostRankError: one of the others has ended before this one was done.
    """
    if count == 1 and nodes == 1:
        yield Ranks()
        return
    if count % nodes:
        raise UserError(f"processes: {count} cannot be shared out evenly among {nodes} nodes.")
    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    others = list(_others(count, nodes, store.port, device, work, arguments))
    try:
        for other in others:
            other.start()
        _wait_until_ready(store, others, count)
        yield _joined(0, count, store, device)
        for other in others:
            other.join(ENDING)
    except LostRankError as error:
        raise LostRankError(_ended(others) or str(error)) from error
    finally:
        _leave()
        for other in others:
            if other.is_alive():
                other.kill()


def _others(
    count: int,
    nodes: int,
    port: int,
    device: str,
    work: Callable[..., object],
    arguments: Sequence[object],
) -> Iterator[BaseProcess | OnOtherNodes]:
    """Yield what starts the other processes: those of this machine, then those of other nodes."""
    each, threads = count // nodes, torch.get_num_threads()
    allocation = Allocation.here(nodes) if nodes > 1 else None
    given = (count, port, device, threads, work, arguments)
    context = multiprocessing.get_context("spawn")
    for rank in range(1, each):
        name = f"process {rank + 1} of {count}"
        part = partial(_other, rank, HERE, *given)
        yield context.Process(target=_child, args=(part,), name=name, daemon=True)
    if allocation is not None:
        some = f"one of processes {each + 1} to {count}"
        name = f"process {count} of {count}" if each + 1 == count else some
        yield OnOtherNodes(
            f"{name}, on {', '.join(allocation.others)},",
            step_command(allocation, each, threads),
            partial(_other, each, allocation.address, *given),
        )


def _child(work: Callable[[int, Callable[[], object]], object]) -> None:
    """Be one of the other processes on the machine of the first one, which is the parent."""
    first = multiprocessing.parent_process()
    assert first is not None
    work(0, first.join)


def _other(
    start: int,
    host: str,
    count: int,
    port: int,
    device: str,
    threads: int,
    work: Callable[..., object],
    arguments: Sequence[object],
    place: int,
    first_ended: Callable[[], object],
) -> None:
    """Be one of the other processes; end with the first one.

    Args:
        start, place: their sum is the rank of this process.
        host, port: of the first process.
        count, device, work, arguments: as in `started`.
        threads: of this process.
        first_ended: returns once the first process has ended.
    """
    rank = start + place

    def end_with_first() -> None:
        first_ended()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end_with_first, daemon=True).start()
    logging.basicConfig(
        level=logging.WARNING, format=f"%(asctime)s process {rank + 1}: %(message)s"
    )
    torch.set_num_threads(threads)
    exact_arithmetic(device)
    store = TCPStore(host, port, is_master=False)
    store.set(f"ready {rank}", "")
    try:
        work(_joined(rank, count, store, device), *arguments)
    except LostRankError:
        raise SystemExit(LOST) from None  # the first process says which one has ended
    except UserError as error:
        raise SystemExit(f"process {rank + 1} of {count}: {error}") from None
    _leave()


def _joined(rank: int, count: int, store: TCPStore, device: str) -> Ranks:
    distributed.init_process_group(
        _backend(device), store=store, rank=rank, world_size=count, timeout=SLOWEST
    )
    return Ranks(rank, count)


def _wait_until_ready(
    store: TCPStore, others: Sequence[BaseProcess | OnOtherNodes], count: int
) -> None:
    """Wait until every other process has imported what it needs.

    Raises:
        LostRankError: one has ended instead.
    """
    for rank in range(1, count):
        while not store.check([f"ready {rank}"]):
            time.sleep(POLL)
            if not all(other.is_alive() for other in others):
                raise LostRankError(_ended(others))


def _ended(others: Sequence[BaseProcess | OnOtherNodes]) -> str:
    """Return which of the other processes has ended before its time, and how; or nothing."""
    until = time.monotonic() + LEARNING
    while True:
        codes = {other.name: other.exitcode for other in others}
        failed = {name: code for name, code in codes.items() if code}
        # The others have lost it, too, and end for that reason.
        name, code = next(
            (pair for pair in failed.items() if pair[1] != LOST),
            next(iter(failed.items()), ("", 0)),
        )
        if code not in (0, LOST) or time.monotonic() > until or None not in codes.values():
            break
        time.sleep(POLL)
    if not code:
        return ""
    how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    return (
        f"{name} that train this run together has ended ({how}); the log has its reason, unless it "
        "was killed"
    )
