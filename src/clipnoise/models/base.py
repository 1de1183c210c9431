"""The contract of a model: build a network for the signature of a dataset's examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from clipnoise.data.remote import RemoteFile
from clipnoise.data.signature import Signature
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Positive
from clipnoise.lazy import Tensor, nn
from clipnoise.plugins import lookup, plugins


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
        """Return the file of pretrained tensors that the network starts from, if it is there."""
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


Part = Literal["all", "head", "bias", "lora"]


@dataclass(frozen=True, kw_only=True)
class PartlyTrained(Model):
    """Base of the models of which a part can be trained; what is frozen is not in θ.

    Source: Hu et al. 2022 (LoRA), section 4.1; Bu et al. 2022 (DP-BiTFiT) for biases.

    Attributes:
        train: "all" parameters, the "head", the head and every "bias", or the head and "lora":
            Wx becomes Wx + (α/r) B(Ax), in which W is frozen, A is random and B begins at 0.
        rank: r, the rows of A; of no effect but with "lora".
        alpha: α, likewise.
    """

    train: str = "all"
    rank: Count = 8
    alpha: Positive = 8.0

    def partly_trained(self, network: nn.Module, body: Iterable[nn.Parameter]) -> nn.Module:
        """Freeze what is not to be trained, and add the adapters.

        Args:
            network: changed in place.
            body: all of its parameters but those of the head.

        Raises:
            UserError: there is no layer to adapt.
        """
        frozen = {id(parameter) for parameter in body}
        if self.train == "lora":
            _adapt(network, frozen, self.rank, self.alpha / self.rank)
        for name, parameter in network.named_parameters():
            kept = self.train == "bias" and name.endswith("bias")
            if self.train != "all" and id(parameter) in frozen and not kept:
                parameter.requires_grad_(False)
        return network


def _adapt(network: nn.Module, frozen: set[int], rank: int, factor: float) -> None:
    """Put an adapter around each linear layer and convolution whose weights are frozen."""
    kinds, adapters = (nn.Linear, nn.Conv2d), dict[int, nn.Module]()
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, kinds) and id(layer.weight) in frozen:
                if id(layer) not in adapters:
                    adapters[id(layer)] = _adapter(layer, rank, factor)
                setattr(parent, name, adapters[id(layer)])
    if not adapters:
        raise UserError("model.train: lora adapts linear layers and convolutions; there are none.")


def _adapter(layer: Any, rank: int, factor: float) -> nn.Module:
    """Return a linear layer or a convolution with an adapter, Wx + (α/r) B(Ax)."""
    down: nn.Module
    up: nn.Module
    if isinstance(layer, nn.Linear):
        down = nn.Linear(layer.in_features, rank, bias=False)
        up = nn.Linear(rank, layer.out_features, bias=False)
    else:
        geometry = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        down = nn.Conv2d(layer.in_channels, rank, *geometry, bias=False)
        up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
    nn.init.zeros_(up.weight)

    def forward(network: Any, x: Tensor) -> Any:
        return network.layer(x) + factor * network.up(network.down(x))

    return network_of(forward, layer=layer, down=down, up=up)


def network_of(
    forward: Callable[..., Any], *, by_rows: bool = False, **parts: nn.Module
) -> nn.Module:
    """Return a network of some parts.

    Args:
        forward: (the network, its inputs) → its outputs; the parts are attributes of the network.
            Several inputs are as many arguments, those of a dict by name.
        by_rows: says that `forward` computes each row of what it returns from the same row of its
            inputs, if the parts do. Nothing checks it, and the privacy guarantee rests on it; what
            says nothing runs under vmap, which makes sure, and costs about a millisecond a step.
        parts: by name.
    """

    class Network(nn.Module):
        def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
            return forward(self, *inputs, **named)

    Network.by_rows = by_rows  # type: ignore[attr-defined]
    whole = Network()
    for name, part in parts.items():
        whole.add_module(name, part)
    return whole


def model_class(name: str, *, file: str | None = None) -> type[Model]:
    """Return the model class of an id, or raise UserError naming the nearest one."""
    return lookup("clipnoise.models", Model, "model", name, file=file)
