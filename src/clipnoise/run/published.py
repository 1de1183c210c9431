"""A trained model in a folder of its own: parameters, privacy statement and a model card."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from clipnoise.errors import UserError, reason
from clipnoise.fields import to_plain
from clipnoise.files import finite, read_bytes, read_json, write_atomically, write_json
from clipnoise.privacy.claim import NEIGHBOURS, PrivacyStatement
from clipnoise.privacy.remarks import of_delta
from clipnoise.run.spec import RunSpec, read_spec, write_spec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.data.base import Dataset

CARD, PARAMETERS, STATEMENT = "README.md", "model.safetensors", "privacy.json"
SPEC, MANIFEST = "spec.yaml", "manifest.json"
FORM = 1  # of the folder; a later version that cannot be read by this one has a higher number


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """What is published.

    Attributes:
        tensors: every parameter and buffer of the network, by name.
        statement: what may be said about privacy.
        spec: the run; None for training in one's own loop.
        metrics: what was measured on the test set, by name; nan where nothing was.
        assumes: what else the statement rests on, in sentences.
    """

    tensors: Mapping[str, Tensor]
    statement: PrivacyStatement
    spec: RunSpec | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    assumes: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why it must not be given to others as a private model, in sentences."""
        return tuple(_doubts(self.statement, self.spec))


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers of a network, on the CPU."""
    return {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in network.state_dict().items()
    }


def _doubts(statement: PrivacyStatement, spec: RunSpec | None) -> Iterator[str]:
    if statement.claim == "non-private":
        yield "Nothing protects the data that it was trained on."
        return
    if statement.claim == "nominal":
        cause = f": {statement.caveat}" if statement.caveat else ""
        yield f"Its ε is nominal, so no guarantee holds{cause}."
    if statement.randomness != "secure":
        yield (
            "Its noise follows from a seed, and whoever knows the seed can remove the noise. Train "
            "with secure_noise."
        )
    if spec is not None and spec.tuning is not None:
        yield "A search on the same data chose its hyper-parameters, and its ε leaves that out."
    if statement.delta is not None:
        remark = of_delta(statement.delta, statement.examples or 1, statement.unit or "example")
        yield from [remark] if remark else []


def publish(folder: Path, model: PublishedModel) -> str:
    """Write the folder of a model, the manifest last.

    Args:
        folder: new, or that of an earlier model, which is replaced.
        model: what is published.

    Returns:
        The SHA-256 of the file of parameters.

    Raises:
        UserError: the folder holds something else.
        OSError: it cannot be written.
    """
    from safetensors.torch import save

    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: holds other files. Choose an empty or a new folder.")
    (folder / MANIFEST).unlink(missing_ok=True)
    texts = {
        PARAMETERS: save(dict(model.tensors), metadata={"format": "pt"}),
        STATEMENT: json.dumps(finite(to_plain(model.statement)), indent=1).encode(),
        CARD: card(_name(folder, model.spec), model).encode(),
    }
    if model.spec is not None:
        texts[SPEC] = write_spec(model.spec).encode()
    digests = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    for name, text in texts.items():
        write_atomically(folder / name, text)
    write_json(folder / MANIFEST, {"form": FORM, "sha256": digests})
    return digests[PARAMETERS]


def read_manifest(folder: Path) -> dict[str, str]:
    """Return the digests of the files of a published model.

    Raises:
        UserError: the folder holds none, or a file has changed since.
    """
    path = folder / MANIFEST
    try:
        values = read_json(path)
        form, digests = values["form"], dict(values["sha256"])
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no published model. `save: true` in the training of a study writes one for "
            "each run, and `training.publish(folder)` in a loop of one's own."
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: damaged ({reason(error)}).") from None
    if form != FORM:
        raise UserError(f"{path}: written by another version of clipnoise (form {form}).")
    for name, digest in digests.items():
        if name not in (CARD, PARAMETERS, STATEMENT, SPEC):
            raise UserError(f"{path}: names a file that no published model has, {name!r}.")
        try:
            found = hashlib.sha256(read_bytes(folder / name)).hexdigest()
        except OSError as error:
            raise UserError(f"{folder / name}: cannot be read ({reason(error)}).") from None
        if found != digest:
            raise UserError(f"{folder / name}: has changed since it was published.")
    return digests


def read_published(folder: Path, weights: Path) -> tuple[nn.Module, RunSpec]:
    """Build the network of a published model, with its parameters; no code is read from the folder.

    Args:
        folder: of the model.
        weights: of pretrained models, whose configuration some networks need.

    Raises:
        UserError: the folder is damaged, or is of a network that only its author can build.
    """
    from safetensors.torch import load

    from clipnoise.run.setup import build_network

    digests = read_manifest(folder)
    if SPEC not in digests:
        raise UserError(
            f"{folder}: holds the parameters of a network that was trained in a loop of its "
            "author's. Build that network, and load them: "
            f"network.load_state_dict(safetensors.torch.load_file({str(folder / PARAMETERS)!r}))."
        )
    spec = read_spec(folder / SPEC)
    network = build_network(spec, weights)
    try:
        network.load_state_dict(load(read_bytes(folder / PARAMETERS)))
    except RuntimeError as error:
        raise UserError(
            f"{folder / PARAMETERS}: does not fit the model {spec.model.id} ({reason(error)})."
        ) from None
    return network.eval(), spec


# The model card


def _name(folder: Path, spec: RunSpec | None) -> str:
    """Return what the card calls the model."""
    if spec is None:
        return folder.resolve().name
    return "-".join((spec.model.id, _called(spec.dataset), spec.method.id))


def card(name: str, model: PublishedModel) -> str:
    """Return a model card in the form of the Hugging Face Hub: front matter and sections."""
    front = yaml.safe_dump(_front_matter(name, model), sort_keys=False, allow_unicode=True)
    sections = [
        f"# {name}",
        _summary(model),
        "## Privacy",
        "\n".join(_privacy(model)),
        *(("## Training", "\n".join(_training(model.spec))) if model.spec else ()),
        *(("## Measured", "\n".join(_measured(model))) if _known(model.metrics) else ()),
        "## Limits",
        "\n".join(_limits(model)),
        "## Use",
        "\n".join(_use(model)),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(sections) + "\n"


def _known(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _front_matter(name: str, model: PublishedModel) -> dict[str, object]:
    spec, tags = model.spec, ["differential-privacy"]
    if spec is None:
        return {"library_name": "clipnoise", "tags": tags}
    task = {"type": spec.dataset.signature.task_name}
    measured = [{"type": kind, "value": value} for kind, value in _known(model.metrics).items()]
    results = [
        {
            "task": task,
            "dataset": {"type": _called(spec.dataset), "name": spec.dataset.title, "split": "test"},
            "metrics": measured,
        }
    ]
    return {
        "library_name": "clipnoise",
        "tags": [*tags, spec.method.id],
        "datasets": [_called(spec.dataset)],
        **({"model-index": [{"name": name, "results": results}]} if measured else {}),
    }


def _called(dataset: Dataset) -> str:
    """Return the id of a dataset, or the name of a user's own."""
    from clipnoise.data.own import Own

    return dataset.name if isinstance(dataset, Own) else dataset.id


def _summary(model: PublishedModel) -> str:
    claim, epsilon = model.statement.claim, model.statement.epsilon
    if model.doubts:
        return "**Not to be published as a private model.** " + " ".join(model.doubts)
    return (
        f"Trained with differential privacy: ε = {epsilon:.4g} at δ = {model.statement.delta:.3g} "
        f"({claim}), with noise from a cryptographic source. It may be published."
    )


def _privacy(model: PublishedModel) -> Iterator[str]:
    statement = model.statement
    if statement.claim == "non-private":
        yield "- None: nothing is claimed."
        return
    assert statement.adjacency is not None
    yield f"- Claim: {statement.claim}."
    neighbours = NEIGHBOURS[statement.adjacency]
    yield f"- ε = {statement.epsilon:.6g}, δ = {statement.delta:.6g}, where {neighbours}."
    if statement.profile is not None:
        bounds = statement.profile.lines(nominal=statement.claim == "nominal")
        yield from (f"- {what}: {text}." for what, text in bounds.items())
    yield (
        f"- Noise multiplier {statement.noise_multiplier:.6g}, {statement.steps} steps, sampling "
        f"rate {statement.sampling_rate:.6g}, sampler {statement.sampler}, accountant "
        f"{statement.accountant}."
    )
    for sentence in (statement.caveat, statement.covers, statement.does_not_cover, *model.assumes):
        if sentence:
            yield f"- {sentence}"
    yield f"- The whole statement is in `{STATEMENT}`."


def _training(spec: RunSpec) -> Iterator[str]:
    dataset, sizes = spec.dataset, spec.dataset.sizes()
    yield (
        f"- Data: {dataset.title} (`{_called(dataset)}`), {sizes['train']:,} private examples. "
        f"Licence: {dataset.licence}. Source: {dataset.source}."
    )
    yield f"- Preprocessing: {dataset.preprocessing}."
    options = {name: value for name, value in to_plain(spec.method).items() if value is not None}
    text = yaml.safe_dump(options, sort_keys=False, default_flow_style=True, width=10_000)
    yield f"- Method: `{spec.method.id}`, with `{text.strip()}`."
    yield f"- Model: `{spec.model.id}`. What is published is {_iterate(spec)}."


def _iterate(spec: RunSpec) -> str:
    average = spec.training.average
    return "the last iterate" if average is None else f"an average of the iterates ({average.kind})"


def _measured(model: PublishedModel) -> Iterator[str]:
    for name, value in _known(model.metrics).items():
        yield f"- {name.replace('_', ' ')}: {value:.4f}"


def _limits(model: PublishedModel) -> Iterator[str]:
    if model.statement.claim != "non-private":
        yield (
            "- ε bounds what the parameters reveal about one "
            f"{model.statement.unit}. It does not bound what they reveal about many of them "
            "together, and it says nothing about the quality of predictions."
        )
    yield "- Only the measurements above were taken, on test data of the same source."


def _use(model: PublishedModel) -> Iterator[str]:
    if model.spec is None:
        yield "Build the network that was trained, and load its parameters:"
        yield "\n```python\nfrom safetensors.torch import load_file\n"
        yield f'network.load_state_dict(load_file("{PARAMETERS}"))\n```'
    else:
        yield "```sh\nclipnoise predict FOLDER DATA\n```"
