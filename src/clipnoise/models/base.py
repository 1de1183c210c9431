"""The contract of a model: build a network for what a dataset's examples look like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clipnoise.errors import UserError
from clipnoise.fields import STRICT
from clipnoise.plugins import lookup, plugins

if TYPE_CHECKING:
    from torch import nn

    from clipnoise.data.signature import Signature
    from clipnoise.models.checkpoints import PretrainedWeights


@dataclass(frozen=True, kw_only=True)
class Model:
    """Base of every model: a frozen dataclass with an `id` and architecture options as fields.

    Attributes:
        checkpoint: the pretrained weights that the network can start from, in a folder named by its
            id below the weights folder; None where it always starts from random values.
        accepts: the examples that the model takes, in words; `takes` decides.
        libraries: modules that take seconds to load; a job of several runs loads them once.
    """

    __pydantic_config__: ClassVar = STRICT
    id: ClassVar[str]
    title: ClassVar[str]
    checkpoint: ClassVar[PretrainedWeights | None] = None
    accepts: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()

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

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        """Build the network; its initial values are drawn from torch's default generator.

        Args:
            signature: what an example looks like, and what is asked about it.
            weights: the folder of pretrained weights; only models with a `checkpoint` look into it.

        Returns:
            A network from inputs of shape (b, …) to outputs of shape (b, outputs), or
            (b, length, outputs) where every token is asked about.

        Raises:
            UserError: the model does not take such examples, and which models do; or its weights
                are not there, and how to get them.
        """
        raise NotImplementedError


def model_class(name: str, *, file: str | None = None) -> type[Model]:
    """Return the model class of an id, or raise UserError naming the nearest one."""
    return lookup("clipnoise.models", Model, "model", name, file=file)
