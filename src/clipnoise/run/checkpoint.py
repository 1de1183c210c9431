"""Checkpoints: all that a run needs to resume where it stopped, as data in one file.

The file holds tensors and JSON (safetensors), so reading it runs no code. It is in the run's
folder, appears whole or not at all, and is deleted when the run has its result files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.errors import UserError
from clipnoise.files import write_atomically
from clipnoise.lazy import Tensor, torch
from clipnoise.run.fingerprint import fingerprint, fingerprint_of
from clipnoise.run.spec import RunSpec, to_mapping

if TYPE_CHECKING:
    from clipnoise.privacy.calibration import Calibration

FILE = "checkpoint.safetensors"
# Ctrl-C, the end of a job, the time limit of a Slurm job, and a terminal that was closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

logger = logging.getLogger(__name__)


class InterruptedRunError(Exception):
    """The run was told to stop before its end; it is saved in its checkpoint."""


@dataclass
class StopRequest:
    """Whether the process was told to stop: the name of the signal, or None."""

    signal: str | None = None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note signals to stop during the `with` block, instead of ending the process.

    What is ignored, as nohup has it, stays ignored. A second Ctrl-C ends the process at once.
    """
    request = StopRequest()

    def note(number: int, _: object) -> None:
        request.signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Saved:
    """The content of a checkpoint.

    Attributes:
        tensors: parameters, buffers and the states of random streams, on the CPU.
        notes: plain data: metrics and counts.
    """

    tensors: dict[str, Tensor]
    notes: Mapping[str, Any]


@dataclass
class Checkpoint:
    """The checkpoint of one run.

    Attributes:
        path: the file.
        identity: what must be the same for a checkpoint to be used; see `identity`.
        every: seconds between two checkpoints.
        stop: after a request to stop, a checkpoint is due at once.
        kept: whether anything is written. A run with secure noise keeps nothing that could reveal
            its noise or its batches, and starts again from the beginning after a stop.
        first: whether this process writes it: of several that train together the first one does.
    """

    path: Path
    identity: dict[str, str]
    every: float
    stop: StopRequest = field(default_factory=StopRequest)
    kept: bool = True
    first: bool = True
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> Saved | None:
        """Return what was saved, or None if the run has to start from the beginning.

        A checkpoint that is damaged, or that was made by other code, another spec or another kind
        of device, is not used; the log gives the reason.
        """
        if not self.kept:
            return None
        try:
            return read(self.path, self.identity)
        except FileNotFoundError:
            return None
        except UserError as refusal:
            logger.warning("%s Training starts again.", refusal)
            return None

    def due(self) -> bool:
        """Return whether it is time to save."""
        return self.stop.signal is not None or time.monotonic() - self._last >= self.every

    def save(self, step: int, tensors: Mapping[str, Tensor], notes: Mapping[str, object]) -> None:
        """Save a run between two steps, then end it if it was told to stop.

        If a checkpoint cannot be written, the log says so, the previous one stays, and the run
        continues.

        Args:
            step: the last one that was taken.
            tensors: on any device; values may share memory.
            notes: plain data.

        Raises:
            InterruptedRunError: the process was told to stop.
        """
        outcome = f"no checkpoint after step {step}: secure noise is not kept"
        if self.kept and not self.first:
            outcome = f"after step {step}"
        elif self.kept:
            try:
                write(self.path, self.identity, tensors, notes)
                outcome = f"checkpoint after step {step}"
            except OSError as error:
                outcome = f"no checkpoint after step {step}: {error}"
        logger.info(outcome)
        self._last = time.monotonic()
        if self.stop.signal is not None:
            raise InterruptedRunError(f"stopped by {self.stop.signal}, {outcome}")


def identity(
    spec: RunSpec, calibration: Calibration | None, device: str, data: Mapping[str, str]
) -> dict[str, str]:
    """Return all that decides how a run continues, in words.

    Args:
        spec: the run, and so are calibration and device as in `run_job`.
        data: the digests of the prepared data.
    """

    def short(values: Mapping[str, object]) -> str:
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    sigma = None if calibration is None else calibration.noise_multiplier
    return {
        "spec": short(to_mapping(spec)),  # unlike its hash, this includes tuned values
        "data": short(data),
        "code": f"{fingerprint(spec)}-{fingerprint_of([__name__])}",
        "noise multiplier": str(sigma),
        "torch": str(torch.__version__),
        "device": torch.device(device).type,
    }


def write(
    path: Path,
    identity: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    notes: Mapping[str, object],
) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: the file.
        identity: what must be the same for it to be used.
        tensors: on any device; values may share memory.
        notes: plain data.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    text = json.dumps({"identity": dict(identity), "notes": dict(notes)})
    write_atomically(path, save(plain, {"text": text, "digest": _digest(text, plain)}))


def read(path: Path, identity: Mapping[str, str]) -> Saved:
    """Return what a checkpoint holds.

    Args:
        path: the file.
        identity: what must be as it was when it was written.

    Raises:
        FileNotFoundError: there is none.
        UserError: it is damaged, or something else made it; the message says what differs.
    """
    if path.exists() and not path.is_file():  # a pipe would never end
        raise UserError(f"{path} is not used: it is no regular file.")
    content = path.read_bytes()
    try:
        made_by, saved = _unpack(content)
    except Exception as error:  # whatever is wrong with a damaged file, it is not used
        raise UserError(f"{path} is not used: it is damaged ({error}).") from None
    for name, value in identity.items():
        if made_by.get(name) != value:
            different = f"its {name} is {made_by.get(name)}, this run's is {value}"
            raise UserError(f"{path} is not used: {different}.")
    return saved


def _unpack(content: bytes) -> tuple[dict[str, str], Saved]:
    from safetensors.torch import load

    tensors = load(content)
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    if _digest(metadata["text"], tensors) != metadata["digest"]:
        raise ValueError("its digest does not match")
    plain = json.loads(metadata["text"])
    return plain["identity"], Saved(tensors, plain["notes"])


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
