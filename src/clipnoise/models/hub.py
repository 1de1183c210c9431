"""Any network of transformers or timm, by name, from a folder of weights with a known checksum."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from clipnoise.data.signature import Signature
from clipnoise.errors import UserError, nearest, reason
from clipnoise.fields import unhashed_at
from clipnoise.lazy import Tensor, nn, torch
from clipnoise.models.base import Part, PartlyTrained
from clipnoise.models.language import LONGEST, logits
from clipnoise.models.pretrained import Checksum, Weights
from clipnoise.models.recomputed import recompute_blocks

FOLDER = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@dataclass(frozen=True, kw_only=True)
class NamedModel(PartlyTrained):
    """Base of the networks that a library builds by name."""

    name: str
    train: Part = "all"

    def __post_init__(self) -> None:
        if not FOLDER.fullmatch(self.name):
            raise ValueError(f"name must be a folder, or a folder in one, got {self.name!r}")

    def _tried(self, network: nn.Module, inputs: Tensor) -> nn.Module:
        """Return the network if it takes such inputs; raise UserError otherwise."""
        try:
            with torch.no_grad():
                finite = bool(network.eval()(inputs).isfinite().all())
            problem = "" if finite else "its outputs are not finite"
        except Exception as error:  # whatever the library raises
            problem = reason(error)
        if problem:
            shape = tuple(inputs.shape[1:])
            raise UserError(f"model.name: {self.name} takes no inputs of shape {shape}: {problem}.")
        return network


@dataclass(frozen=True, kw_only=True)
class HuggingFace(NamedModel):
    """A text classifier of transformers, of whichever architecture its config.json says.

    It must be an encoder, which sees a text as a whole: BERT, RoBERTa, DistilBERT, ELECTRA, ALBERT,
    ModernBERT, …. Its head is new, and so is a pooler that the weights lack.

    Attributes:
        name: of the folder of weights, which is also the model's name on the hub, if it has one.
        sha256: of the file of tensors, so that other weights make another run.
        recompute: whether what a block computes is computed again in the backward pass, which takes
            time, rather than kept for it, which takes memory.
    """

    id = "huggingface"
    title = "A model of Hugging Face"
    accepts = f"up to {LONGEST} tokens, to classify"
    work = 2e8

    sha256: Checksum
    recompute: Annotated[bool, unhashed_at(False)] = False

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        classifies = signature.task_name == "classification"
        return signature.kind == "tokens" and classifies and signature.shape[0] <= LONGEST

    def tensors(self, weights: Path) -> Path | None:
        return Weights(self.name, weights).file()

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        self.require(signature)
        folder = Weights(self.name, weights)
        folder.require_digest(self.sha256)
        words = folder.config().get("vocab_size")
        if words is not None and words < (signature.vocabulary or 0):
            raise UserError(
                f"model.name: {self.name} has {words:,} token ids, but the dataset has "
                f"{signature.vocabulary:,}: tokenise it with tokenizer: {self.name}."
            )
        network = _classifier(folder, signature.outputs)
        self.partly_trained(network, network.base_model.parameters())
        if self.recompute:
            recompute_blocks(network)
        padding = network.config.pad_token_id or 0
        segments = "token_type_ids" in inspect.signature(network.forward).parameters
        wrapped = logits(network, padding, separator=None, segments=segments)
        tokens = torch.ones(2, *signature.shape, dtype=torch.int64)
        tokens[1, 1:] = 0  # a text of one token
        return self._tried(wrapped, tokens)


def _classifier(folder: Weights, outputs: int) -> Any:
    """Load a network with a new head."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    family = folder.config().get("model_type")
    if family not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:  # another would not see all tokens
        raise UserError(f"{folder.folder}: model_type {family!r} is no encoder of transformers.")
    try:
        network, found = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder.folder,
            num_labels=outputs,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # a head for other classes is replaced
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"{folder.folder}: cannot be loaded: {str(error).strip()}") from None
    encoder = f"{network.base_model_prefix}."
    absent = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    wrong = sorted(n for n in absent if n.startswith(encoder) and ".pooler." not in n)
    if wrong:
        raise UserError(
            f"{folder.folder}: no usable tensor {wrong[0]}"
            f"{f', and {len(wrong) - 1} more' if wrong[1:] else ''}: the weights are those of "
            "another architecture than config.json says."
        )
    return network


@dataclass(frozen=True, kw_only=True)
class Timm(NamedModel):
    """An image classifier of timm; one with BatchNorm mixes examples, and is refused.

    Attributes:
        name: of the network in timm, such as `convnext_atto` or `convnext_atto.d2_in1k`.
        sha256: of the file of tensors that it starts from, in the folder `timm/<name>`; None starts
            from random values. The head is new where the weights are for other classes.
    """

    id = "timm"
    title = "A model of timm"
    accepts = "images of shape (channels, height, width)"
    work = 2e6

    sha256: Checksum | None = None

    @classmethod
    def takes(cls, signature: Signature) -> bool:
        return signature.kind == "image" and signature.task_name == "classification"

    def tensors(self, weights: Path) -> Path | None:
        return None if self.sha256 is None else Weights(f"timm/{self.name}", weights).file()

    def build(self, signature: Signature, weights: Path) -> nn.Module:
        import timm

        self.require(signature)
        if not timm.is_model(self.name):
            close = nearest(self.name, timm.list_models())
            raise UserError(f"model.name: timm has no {self.name!r}.{close}")
        channels, *sides = signature.shape
        options: dict[str, Any] = {"num_classes": signature.outputs, "in_chans": channels}
        usual = timm.get_pretrained_cfg(self.name, allow_unregistered=True)
        if usual is not None and usual.fixed_input_size:
            options["img_size"] = tuple(sides)
        if self.sha256 is not None:
            folder = Weights(f"timm/{self.name}", weights)
            folder.require_digest(self.sha256)
            tensors = folder.tensors()
            options |= {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": tensors}}
        try:
            network: Any = timm.create_model(self.name, **options)
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            raise UserError(f"model.name: timm cannot build {self.name}: {error}") from None
        head = {id(parameter) for parameter in network.get_classifier().parameters()}
        body = {name: p for name, p in network.named_parameters() if id(p) not in head}
        if self.sha256 is not None:
            absent = [name for name in body if name not in tensors]
            if absent:
                where = folder.file()
                raise UserError(f"{where}: no tensor {absent[0]}: not those of {self.name}.")
        for module in network.modules():
            if hasattr(module, "inplace"):
                module.inplace = False
        self.partly_trained(network, body.values())
        return self._tried(network, torch.zeros(2, *signature.shape))
