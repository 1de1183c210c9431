"""The contract of a model: build a network for the signature of a dataset's examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.data.remote import RemoteFile
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import STRICT
from clipnoise.plugins import lookup, plugins

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class PretrainedWeights:
    """Where the pretrained weights of a model come from.

    Attributes:
        files: what is downloaded, into a folder named by the model's id.
        source: the page that describes them.
        licence: under which they are published.
    """

    files: tuple[RemoteFile, ...]
    source: str
    licence: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """Base of every model: a frozen dataclass with an `id` and architecture options as fields.

    Attributes:
        pretrained_weights: that the network can start from, in a folder named by its id below the
            weights folder; None where it always starts from random values.
        accepts: the examples that the model takes, in words; `takes` decides.
        work: operations of a forward pass for each number of an example, roughly: the runs that
            need most are started first.
    """

    __pydantic_config__: ClassVar = STRICT
    needs: ClassVar[tuple[str, ...]] = ("takes", "build")
    id: ClassVar[str]
    title: ClassVar[str]
    pretrained_weights: ClassVar[PretrainedWeights | None] = None
    accepts: ClassVar[str]
    work: ClassVar[float] = 1000.0

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        """Return whether the model takes such examples."""
        raise NotImplementedError

    @classmethod
    def require(cls, signature: Signature) -> None:
        """Raise UserError, naming the models that fit, unless the model takes such examples."""
        if not cls.takes(signature):
            known = plugins("clipnoise.models", Model)
            fitting = [name for name, model in known.items() if model.takes(signature)]
            raise UserError(
                f"model.id: {cls.id} takes {cls.accepts}, but the dataset's examples are "
                f"{signature}. Models that take them: {', '.join(fitting) or 'none'}."
            )

    def tensors(self, weights: Path) -> Path | None:
        """Return the file of pretrained tensors that the network starts from, if it is there.

        Args:
            weights: the folder of pretrained weights.
        """
        return None

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        """Build the network, with initial values from torch's default generator.

        Args:
            signature: what an example looks like, and the task.
            weights: the folder of pretrained weights; only models with `pretrained_weights` use it.

        Returns:
            A network from inputs of shape (b, …) to outputs of shape (b, outputs), or
            (b, length, outputs) for masked tokens. A classifier may have more outputs than classes.

        Raises:
            UserError: the model does not take such examples; the message names models that do. Or
                its weights are missing; the message says how to get them.
        """
        raise NotImplementedError


def model_class(name: str, *, file: str | None = None) -> type[Model]:
    """Return the model class of an id, or raise UserError naming the nearest one."""
    return lookup("clipnoise.models", Model, "model", name, file=file)
