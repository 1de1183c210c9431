"""Pretrained weights in a local folder: where they come from, and how they are checked and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints

from clipnoise.data.remote import RawFiles, RemoteFile, digest, file_at
from clipnoise.errors import UserError, reason, unknown
from clipnoise.files import inside
from clipnoise.lazy import Tensor, nn, torch
from clipnoise.models.base import Model, PretrainedWeights
from clipnoise.models.encoders import ENCODERS
from clipnoise.plugins import plugins

HUB = "https://huggingface.co"
CONFIG = "config.json"
TENSORS = ("model.safetensors", "pytorch_model.bin")
TOKENIZERS = ("tokenizer.json", "vocab.txt")
Checksum = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def hub(
    repository: str, licence: str, *, tensors: str = TENSORS[0], tokenizer: str = "tokenizer.json"
) -> PretrainedWeights:
    """Describe weights in a repository of the Hugging Face hub, by the names of two files there."""
    page = f"{HUB}/{repository}"
    files = tuple(file_at(f"{page}/resolve/main", name) for name in (CONFIG, tensors, tokenizer))
    return PretrainedWeights(files, page, licence)


def pretrained_weights() -> dict[str, PretrainedWeights]:
    """Return the weights of each model that can start from pretrained ones, by the model's id.

    Those of the encoders that make features are among them.
    """
    known = plugins("clipnoise.models", Model)
    weights = {name: model.pretrained_weights for name, model in known.items()}
    weights |= {name: encoder.weights for name, encoder in ENCODERS.items()}
    return {name: source for name, source in sorted(weights.items()) if source is not None}


def weight_files(weights: Path, name: str) -> RawFiles:
    """Return the files of a model's weights and tokenizer, present or not.

    Where a file is there in another form that is read, too, that one is meant.

    Args:
        weights: the folder of pretrained weights.
        name: a model's id, a repository `<owner>/<name>` of the Hugging Face hub, or a folder.

    Raises:
        UserError: no such model has pretrained weights; names the nearest one.
    """
    known, folder = pretrained_weights(), inside(weights, name, key="NAME")
    if name not in known and "/" not in name and not folder.is_dir():
        raise unknown("pretrained model", name, known)
    source = known.get(name) or hub(name, "see there")
    files = [_in_form(folder, file) for file in source.files]
    if name not in known:  # networks of images have no tokenizer
        texts = not name.startswith("timm/") and ("/" in name or (folder / files[-1].name).exists())
        files = files if texts else files[:-1]
    return RawFiles(
        folder=folder,
        files=tuple(files),
        manual=f"download from {source.source} (licence: {source.licence})",
        command=f"clipnoise weights {{}} {name} --weights {weights}",
        instead=f"clipnoise weights accept {name} --weights {weights}",
    )


def tensors_digest(model: Model, weights: Path) -> dict[str, str]:
    """Return the checksum of the tensors that a model starts from, as a result records it."""
    path = model.tensors(weights)
    return {} if path is None else {"sha256 of weights": digest(path, "sha256")}


def _in_form(folder: Path, file: RemoteFile) -> RemoteFile:
    """Return a file, or the other form of it that is read from a folder before it."""
    forms = next((forms for forms in (TENSORS, TOKENIZERS) if file.name in forms), (file.name,))
    present = next((name for name in forms if (folder / name).is_file()), file.name)
    return file if present == file.name else RemoteFile(present)


@dataclass(frozen=True)
class Weights:
    """The weights of one model.

    Attributes:
        model: the model's id, or the name of another folder.
        root: the folder of pretrained weights.
    """

    model: str
    root: Path

    @property
    def folder(self) -> Path:
        """The folder of config.json and the tensors."""
        return self.root / self.model

    def config(self) -> dict[str, Any]:
        """Read config.json; where it is missing or no mapping, raise UserError."""
        path = self.folder / CONFIG
        try:
            config = json.loads(path.read_bytes())
        except OSError as error:
            raise self._unusable(path, _missing(error)) from None
        except ValueError as error:
            raise self._unusable(path, f"is not JSON ({error})") from None
        if not isinstance(config, dict):
            raise self._unusable(path, "is not a mapping")
        return config

    def require(self, wanted: Mapping[str, Any]) -> None:
        """Compare config.json with the requested architecture: values by their key.

        Raises:
            UserError: names the file and every key that differs, with both values.
        """
        config = self.config()
        wrong = [
            f"{key} is {config.get(key)!r}, but {value!r} is wanted"
            for key, value in wanted.items()
            if config.get(key) != value
        ]
        if wrong:
            raise UserError(
                f"{self.folder / CONFIG}: not the weights of this {self.model}: "
                f"{'; '.join(wrong)}. {self._advice()} A network of other sizes is loaded by name "
                "from a folder of its own: docs/own.md."
            )

    def tensors(self) -> dict[str, Tensor]:
        """Read the tensors by name, without executing code that a file may contain.

        Raises:
            UserError: the file is missing, truncated or damaged.
        """
        path = self._required_file()
        try:
            if path.suffix == ".safetensors":
                from safetensors.torch import load_file

                tensors: dict[str, Tensor] = load_file(path)
            else:
                tensors = dict(torch.load(path, map_location="cpu", weights_only=True))
        except OSError as error:
            raise self._unusable(path, _missing(error)) from None
        except Exception as error:  # each format raises its own error for a damaged file
            raise self._unusable(path, f"is truncated or damaged ({reason(error)})") from None
        return {_renamed(name): tensor for name, tensor in tensors.items()}

    def file(self) -> Path | None:
        """Return the file of tensors, or None if it is missing."""
        paths = (self.folder / name for name in TENSORS)
        return next((path for path in paths if path.is_file()), None)

    def _required_file(self) -> Path:
        path = self.file()
        if path is None:
            raise self._unusable(self.folder / TENSORS[0], "does not exist")
        return path

    def require_digest(self, sha256: str) -> None:
        """Raise UserError unless the file of tensors has the checksum that a study gives."""
        path = self._required_file()
        found = digest(path, "sha256")
        if found != sha256:
            raise UserError(f"{path}: its sha256 is {found}, but model.sha256 is {sha256}.")

    def load_into(self, network: nn.Module, prefix: str, fresh: tuple[str, ...]) -> None:
        """Load the tensors of the folder into a network, in place.

        Args:
            prefix: of the names of the network's encoder; files of the encoder alone omit it.
            fresh: prefixes of the names that keep their initial values.

        Raises:
            UserError: a tensor is missing or has another shape.
        """
        tensors = self.tensors()
        if not any(name.startswith(prefix) for name in tensors):
            tensors = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
        names: dict[int, list[str]] = {}
        for name, parameter in network.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        chosen, wrong = {}, []
        for name, parameter in network.named_parameters():
            if name.startswith(fresh):
                continue
            tied = names[id(parameter)]  # a file holds a shared tensor under any of its names
            tensor = next((tensors[alias] for alias in tied if alias in tensors), None)
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
        return UserError(f"{path} {problem}: no usable weights of {self.model}. {self._advice()}")

    def _advice(self) -> str:
        return (
            f"Run: clipnoise weights fetch {self.model} --weights {self.root} (or set "
            "model.pretrained: false to start from random values)."
        )


def _renamed(name: str) -> str:
    """Return a tensor's current name in transformers; old files use others."""
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _missing(error: OSError) -> str:
    missing = isinstance(error, FileNotFoundError)
    return "does not exist" if missing else f"cannot be read ({error.strerror})"
