"""Checkpoints: all that a run needs to go on where it stopped, as data in one file.

The file holds tensors and JSON (safetensors), so reading it runs no code. It lies in the run's
folder, appears whole or not at all, and is gone when the run has its result files.
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

from clipnoise.files import write_atomically
from clipnoise.run.fingerprint import fingerprint, fingerprint_of
from clipnoise.run.spec import to_mapping

if TYPE_CHECKING:
    from types import FrameType

    from torch import Tensor

    from clipnoise.privacy.calibration import Calibration
    from clipnoise.run.spec import RunSpec

FILE = "checkpoint.safetensors"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

logger = logging.getLogger(__name__)


class InterruptedRunError(Exception):
    """The run was asked to stop before its end. What it did is in its checkpoint."""


@dataclass
class StopRequest:
    """Whether somebody asked the process to stop.

    Attributes:
        signal: the name of the signal that did, or None.
    """

    signal: str | None = None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note SIGTERM and SIGUSR1 instead of dying of them, while the `with` block runs."""
    request = StopRequest()

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds.

    Attributes:
        tensors: parameters, buffers and the states of random streams, on the CPU.
        notes: plain data: metrics and counts.
    """

    tensors: dict[str, Tensor]
    notes: dict[str, Any]


@dataclass
class Checkpoint:
    """The checkpoint of one run.

    Attributes:
        path: the file.
        identity: what must be the same for a checkpoint to be used, see `identity`.
        every: seconds between two checkpoints.
        stop: a request to stop makes a checkpoint due at once.
        kept: whether anything is written. A run with secure noise keeps nothing that could give
            its noise or its batches away, and starts anew when it was stopped.
    """

    path: Path
    identity: dict[str, str]
    every: float
    stop: StopRequest = field(default_factory=StopRequest)
    kept: bool = True
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> Saved | None:
        """Return what was saved, or None where the run has to start at its beginning.

        A checkpoint that is damaged, or that other code, another spec or another kind of device
        made, is refused: the log says why.
        """
        if not self.kept:
            return None
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            made_by, saved = _unpack(content)
            refusal = _difference(made_by, self.identity)
        except Exception as error:  # whatever is wrong with a damaged file, it is not used
            refusal = f"it is damaged ({error})"
        if refusal is None:
            return saved
        logger.warning("%s is not used: %s. Training starts anew.", self.path, refusal)
        return None

    def due(self) -> bool:
        """Return whether it is time to save."""
        return self.stop.signal is not None or time.monotonic() - self._last >= self.every

    def save(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Save a run between two steps, then end it if that was asked for.

        A checkpoint that cannot be written costs time, not the run: the log says so, and the one
        before it stays.

        Args:
            tensors: on any device; values may share memory.
            notes: plain data; must have `outcome.steps_done`.

        Raises:
            InterruptedRunError: the process was asked to stop.
        """
        step = notes["outcome"]["steps_done"]
        said = f"no checkpoint after step {step}: secure noise is not kept"
        if self.kept:
            try:
                write_atomically(self.path, _pack(self.identity, tensors, notes))
                said = f"checkpoint after step {step}"
            except OSError as error:
                said = f"no checkpoint after step {step}: {error}"
        logger.info(said)
        self._last = time.monotonic()
        if self.stop.signal is not None:
            raise InterruptedRunError(f"stopped by {self.stop.signal}, {said}")

    def remove(self) -> None:
        """Delete the file: the run has its results."""
        self.path.unlink(missing_ok=True)


def identity(
    spec: RunSpec,
    calibration: Calibration | None,
    device: str,
    data: Mapping[str, str],
) -> dict[str, str]:
    """Return all that decides how a run goes on, in words.

    Args:
        spec: the run.
        calibration: its σ; None for a non-private run.
        device: the torch device name.
        data: the digests of the prepared data.
    """
    import torch

    sigma = None if calibration is None else calibration.noise_multiplier
    return {
        "spec": _short(to_mapping(spec)),  # its own hash leaves tuned values out
        "data": _short(data),
        "code": f"{fingerprint(spec)}-{fingerprint_of([__name__])}",
        "noise multiplier": str(sigma),
        "torch": str(torch.__version__),
        "device": torch.device(device).type,
    }


def _short(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _pack(
    identity: Mapping[str, str], tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> bytes:
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    said = json.dumps({"identity": dict(identity), "notes": dict(notes)})
    return save(plain, {"said": said, "digest": _digest(said, plain)})


def _unpack(content: bytes) -> tuple[dict[str, str], Saved]:
    from safetensors.torch import load

    tensors = load(content)
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    if _digest(metadata["said"], tensors) != metadata["digest"]:
        raise ValueError("its digest is another")
    said = json.loads(metadata["said"])
    return said["identity"], Saved(tensors, said["notes"])


def _digest(said: str, tensors: Mapping[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _difference(made_by: Mapping[str, str], here: Mapping[str, str]) -> str | None:
    for name, value in here.items():
        if made_by.get(name) != value:
            return f"its {name} is {made_by.get(name)}, this run's is {value}"
    return None
