"""Pretrained weights in a local folder: what they must be, and reading them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipnoise.data.fetch import RawFiles, RemoteFile
from clipnoise.errors import UserError, unknown
from clipnoise.models.base import Model
from clipnoise.plugins import plugins

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG = "config.json"
TENSORS = ("model.safetensors", "pytorch_model.bin")
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


@dataclass(frozen=True)
class PretrainedWeights:
    """Where the pretrained weights of a model come from.

    Attributes:
        files: what is downloaded, into a folder named by the model's id.
        source: the page that describes them.
        licence: under which they are given out.
    """

    files: tuple[RemoteFile, ...]
    source: str
    licence: str


def hub(
    repository: str,
    licence: str,
    *,
    tensors: str = TENSORS[0],
    tokenizer: str = "tokenizer.json",
) -> PretrainedWeights:
    """Describe weights that lie on the Hugging Face hub.

    Args:
        repository: its name there.
        licence: under which they are given out.
        tensors: the name of the file of tensors.
        tokenizer: the name of the file of the tokenizer.
    """
    page = f"https://huggingface.co/{repository}"
    names = (CONFIG, tensors, tokenizer)
    files = tuple(RemoteFile(name, f"{page}/resolve/main/{name}") for name in names)
    return PretrainedWeights(files, page, licence)


def checkpoints() -> dict[str, PretrainedWeights]:
    """Return the checkpoint of each model that can start from one, by the model's id."""
    known = plugins("clipnoise.models", Model)
    return {name: one.checkpoint for name, one in known.items() if one.checkpoint is not None}


def weight_files(weights: Path, name: str) -> RawFiles:
    """Return the files that a model's weights and tokenizer are, there or not.

    Args:
        weights: the folder of pretrained weights.
        name: the model's id.

    Raises:
        UserError: no such model starts from pretrained weights; names the nearest one.
    """
    known = checkpoints()
    if name not in known:
        raise unknown("pretrained model", name, known)
    return RawFiles(
        folder=weights / name,
        files=known[name].files,
        manual=f"download from {known[name].source} (licence: {known[name].licence})",
        command=f"clipnoise weights {{}} {name} --weights {weights}",
        instead=f"clipnoise weights accept {name} --weights {weights}",
    )


@dataclass(frozen=True)
class Weights:
    """The weights folder of one model.

    Attributes:
        model: the model's id.
        folder: where config.json and the tensors lie.
    """

    model: str
    folder: Path

    def config(self) -> dict[str, Any]:
        """Read config.json.

        Raises:
            UserError: it is missing or not a mapping.
        """
        path = self.folder / CONFIG
        try:
            found = json.loads(path.read_bytes())
        except OSError as error:
            raise self._unusable(path, _missing(error)) from None
        except ValueError as error:
            raise self._unusable(path, f"is not JSON ({error})") from None
        if not isinstance(found, dict):
            raise self._unusable(path, "is not a mapping")
        return found

    def require(self, wanted: Mapping[str, Any]) -> None:
        """Compare config.json with the architecture that is asked for.

        Args:
            wanted: values by their key in config.json.

        Raises:
            UserError: names the file and every key that differs, with both values.
        """
        found = self.config()
        wrong = [
            f"{key} is {found.get(key)!r}, but {value!r} is wanted"
            for key, value in wanted.items()
            if found.get(key) != value
        ]
        if wrong:
            raise UserError(
                f"{self.folder / CONFIG}: not the weights of this {self.model}: "
                f"{'; '.join(wrong)}. {self._advice()}"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Read the tensors by name, without running any code that a file may hold.

        Raises:
            UserError: no file of tensors is there, or it is truncated or damaged.
        """
        path = self.file()
        if path is None:
            raise self._unusable(self.folder / TENSORS[0], "is not there")
        return self._read(path)

    def file(self) -> Path | None:
        """Return the file of tensors, or None where there is none."""
        paths = (self.folder / name for name in TENSORS)
        return next((path for path in paths if path.is_file()), None)

    def _read(self, path: Path) -> dict[str, Tensor]:
        try:
            if path.suffix == ".safetensors":
                from safetensors.torch import load_file

                found: dict[str, Tensor] = load_file(path)
            else:
                import torch

                found = dict(torch.load(path, map_location="cpu", weights_only=True))
        except OSError as error:
            raise self._unusable(path, _missing(error)) from None
        except Exception as error:  # each format has its own for a damaged file
            raise self._unusable(path, f"is truncated or damaged ({_line(error)})") from None
        return {_renamed(name): tensor for name, tensor in found.items()}

    def load_into(self, network: nn.Module, prefix: str, fresh: tuple[str, ...]) -> None:
        """Give a network the tensors of the folder.

        Args:
            network: its parameters are changed in place.
            prefix: what the names of the network's encoder begin with; files that hold nothing but
                the encoder leave it out.
            fresh: beginnings of the names that keep their initial values.

        Raises:
            UserError: a tensor is missing or has another shape.
        """
        found = self.tensors()
        if not any(name.startswith(prefix) for name in found):
            found = {f"{prefix}{name}": tensor for name, tensor in found.items()}
        names: dict[int, list[str]] = {}
        for name, parameter in network.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        chosen, wrong = {}, []
        for name, parameter in network.named_parameters():
            if name.startswith(fresh):
                continue
            tied = names[id(parameter)]
            tensor = next((found[one] for one in tied if one in found), None)
            if tensor is None:
                wrong.append(f"{name} is missing")
            elif tensor.shape != parameter.shape:
                shapes = f"{tuple(tensor.shape)}, not {tuple(parameter.shape)}"
                wrong.append(f"{name} has the shape {shapes}")
            else:
                chosen[name] = tensor
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise UserError(
                f"{self.folder}: the tensors are those of another architecture: {wrong[0]}{more}. "
                f"{self._advice()}"
            )
        network.load_state_dict(chosen, strict=False)

    def _unusable(self, path: Path, problem: str) -> UserError:
        return UserError(
            f"{path} {problem}: the weights of {self.model} are not here. {self._advice()}"
        )

    def _advice(self) -> str:
        root = self.folder.parent
        return (
            f"Run: clipnoise weights fetch {self.model} --weights {root} (or set "
            "model.pretrained: false to start from random values)."
        )


def _renamed(name: str) -> str:
    """Return a tensor's name as transformers has it today."""
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _missing(error: OSError) -> str:
    missing = isinstance(error, FileNotFoundError)
    return "is not there" if missing else f"cannot be read ({error.strerror})"


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
