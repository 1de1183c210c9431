"""The contract of a model: build a network for a dataset's shapes; give a loss per example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clipnoise.errors import UserError
from clipnoise.fields import STRICT
from clipnoise.plugins import lookup, plugins

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Model:
    """Base of every model: a frozen dataclass with an `id` and architecture options as fields.

    Attributes:
        pretrained: the file below the weights folder that the network starts from, or None for one
            that starts from random values.
        shapes: the inputs that the model takes, in words; `takes` decides.
    """

    __pydantic_config__: ClassVar = STRICT
    id: ClassVar[str]
    title: ClassVar[str]
    pretrained: ClassVar[str | None] = None
    shapes: ClassVar[str] = "any shape"

    @classmethod
    def takes(cls, example_shape: tuple[int, ...]) -> bool:
        """Return whether the model takes inputs of a shape."""
        return True

    @classmethod
    def require(cls, example_shape: tuple[int, ...]) -> None:
        """Raise UserError, naming the models that fit, unless the model takes inputs of a shape."""
        if not cls.takes(example_shape):
            known = plugins("clipnoise.models", Model)
            fitting = [name for name, model in known.items() if model.takes(example_shape)]
            raise UserError(
                f"model.id: {cls.id} takes {cls.shapes}, but the dataset's examples have shape "
                f"{example_shape}. Models that take it: {', '.join(fitting) or 'none'}."
            )

    def build(self, example_shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network; its initial values are drawn from torch's default generator.

        Args:
            example_shape: shape of one input, without the batch axis.
            classes: number of outputs.

        Raises:
            UserError: the model does not take inputs of this shape; says which models do.
        """
        raise NotImplementedError

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, shape (b,). Default: cross entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none")

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for each example whether the prediction is right, bool of shape (b,)."""
        return outputs.argmax(dim=-1) == targets


def model_class(name: str, *, file: str | None = None) -> type[Model]:
    """Return the model class of an id, or raise UserError naming the nearest one."""
    return lookup("clipnoise.models", Model, "model", name, file=file)
