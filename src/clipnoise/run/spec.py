"""The run spec: plain, frozen data that holds everything that can change a result, nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import yaml

from clipnoise.core.method import Method
from clipnoise.data.base import Dataset, dataset_class
from clipnoise.data.measures import measured, require_metric
from clipnoise.data.signature import ClassMargins, ClassScores, Task, WeightedClassification
from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Count, parse, to_plain, unhashed_at
from clipnoise.files import read_yaml
from clipnoise.methods.base import WithSideInformation, method_class
from clipnoise.models.base import Model, model_class
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.trials import DrawnTrials
from clipnoise.privacy.units import Unit
from clipnoise.run.procedure import Procedure, Training

NON_PRIVATE = "non-private"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Which settings other runs choose. The key stands for their values in the run's hash.

    Attributes:
        key: the content hash of the search: of its runs, and of how they are compared.
        parameters: what is chosen: hyper-parameters of the method, and keys of training.
        configurations: how many were tried.
        runs: how many runs the search trained.
        chosen: whether the run holds the choice; until then it holds any one candidate.
        law: that of the number of configurations, if it was drawn, each of them is a run with the
            noise of this one, and none diverged.
    """

    __pydantic_config__: ClassVar = STRICT

    key: str
    parameters: tuple[str, ...]
    configurations: Count
    runs: Count
    chosen: bool = False
    law: Annotated[DrawnTrials | None, unhashed_at(None)] = None

    def identity(self) -> dict[str, object]:
        """Return what a run's hash contains of the search: the same before and after the choice."""
        return {"key": self.key, "parameters": list(self.parameters)}


@dataclass(frozen=True, kw_only=True)
class RunSpec(Procedure):
    """One training run. Its hash is its identity: studies that need the same run share it.

    Attributes:
        dataset: the private examples, and the examples to validate and test on.
        model: the network.
        public: the dataset whose training examples serve as public data; None if `dataset` sets its
            public examples aside itself, or if none are needed.
        tuning: which settings earlier runs choose; None if none is tuned.
        metrics: what is measured on test and validation split beside loss and accuracy.
    """

    dataset: Dataset
    model: Model
    public: Dataset | None = None
    tuning: Tuning | None = None
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.model.require(self.dataset.signature)
        for name in self.metrics:
            require_metric(name, self.dataset.signature.task_name, "metrics")
        object.__setattr__(self, "metrics", measured(self.metrics))
        self._check_class_weights()
        self._check_class_scores()
        self._check_correctness()
        if self.strict:
            self._check_strict()
        if self.public is not None:
            self._check_public(self.public)
        elif self.method.uses_public_data() and not self.dataset.sizes()["public"]:
            raise UserError(
                f"dataset.public_examples: {self.method.id} needs public examples, and "
                f"{self.dataset.id} sets none aside. Give it some, or another dataset as public."
            )
        if isinstance(self.method, WithSideInformation):
            self.method.side_information.check(self.dataset)
        if self.privacy is not None:
            self._check_shared(self.unit)

    def _check_class_weights(self) -> None:
        weights, signature = self.training.class_weights, self.dataset.signature
        if not weights:
            return
        if signature.task_name != "classification":
            raise UserError(
                f"training.class_weights: are for classification; {self.dataset.id} is for "
                f"{signature.task_name}."
            )
        if len(weights) != signature.outputs:
            raise UserError(
                f"training.class_weights: give a weight for each of the {signature.outputs} "
                f"classes of {self.dataset.id}, got {len(weights)}."
            )

    def _check_class_scores(self) -> None:
        if self.method.gradients_of == "loss":
            return
        if self.dataset.signature.task_name != "classification":
            raise UserError(
                f"dataset.id: {self.method.id} is for classification; {self.dataset.id} is for "
                f"{self.dataset.signature.task_name}."
            )
        if self.training.class_weights:
            raise UserError(
                f"training.class_weights: {self.method.id} adds features and not gradients of a "
                "loss, which weights could multiply; leave them out."
            )

    def _check_correctness(self) -> None:
        task = self.dataset.signature.task_name
        if self.training.correctness and task != "classification":
            raise UserError(
                f"training.correctness: is for classification; {self.dataset.id} is for {task}."
            )

    @property
    def trained_task(self) -> Task:
        """The losses that are trained: those of the dataset's task, with the class weights."""
        if self.method.gradients_of != "loss":
            return ClassScores() if self.method.gradients_of == "class score" else ClassMargins()
        weights = self.training.class_weights
        return WeightedClassification(weights) if weights else self.dataset.signature.task

    def _check_strict(self) -> None:
        if self.tuning is not None:
            raise UserError(
                "privacy.release: strict writes no validation metrics, by which a search chooses; "
                "give the hyper-parameters instead of tune."
            )
        if self.training.diagnostics:
            raise UserError(
                "privacy.release: strict does not go with training.diagnostics, which record "
                "moments without noise."
            )

    def _check_shared(self, unit: Unit) -> None:
        for part in ("public", "validation"):
            if part in unit.shared:
                raise UserError(
                    f"dataset.{part}_examples: {self.method.id} protects {unit.name}s, but "
                    f"{self.dataset.id} takes its {part} examples from these {unit.name}s, whom ε "
                    f"would not cover. Give {unit.shared[part]} instead."
                )

    def _check_public(self, public: Dataset) -> None:
        if not self.method.uses_public_data():
            raise UserError(f"public: {self.method.id} uses no public data; leave public out.")
        if self.dataset.sizes()["public"]:
            raise UserError(
                f"public: {self.dataset.id} already sets public examples aside; give either public "
                "or the dataset's public_examples."
            )
        if public.signature != self.dataset.signature:
            raise UserError(
                f"public.id: {public.id} holds {public.signature}, but {self.dataset.id} holds "
                f"{self.dataset.signature}: public examples must look like the private ones."
            )
        if public.origin == self.dataset.origin:
            raise UserError(
                f"public.id: {public.id} has the same source as the private dataset "
                f"{self.dataset.id}, whose option public_examples sets public examples aside."
            )

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """Every dataset that the run reads, the private one first."""
        return (self.dataset,) if self.public is None else (self.dataset, self.public)

    @cached_property
    def unit(self) -> Unit:
        return units_of(self.dataset, self.method)

    @property
    def population(self) -> str:
        return f"{super().population} of {self.dataset.id}"

    def caveat(self) -> str | None:
        return self.dataset.caveat()

    @property
    def search_law(self) -> DrawnTrials | None:
        return None if self.tuning is None or not self.tuning.chosen else self.tuning.law

    @property
    def withheld(self) -> frozenset[str]:
        """The parts of the dataset on which the run is not measured."""
        if not self.strict:
            return frozenset()
        return frozenset({"train", "validation", *({"test"} & set(self.unit.shared))})

    @property
    def budget_label(self) -> str:
        """The privacy budget in tables: `eps=1`, `sigma=0.5` or `non-private`.

        That of a run that leaves something out says so: `eps=1, without noise, non-private`.
        """
        return NON_PRIVATE if self.privacy is None else self.privacy.label

    @cached_property
    def hash(self) -> str:
        """The content hash: 12 hex digits of SHA-256 over the canonical JSON of the spec.

        Tuned settings are not known before the search, so the search stands for them.
        """
        values = {**self._plain, "seed": self.seed}
        if self.tuning is not None:
            values |= {name: dict(values[name]) for name in ("training", "method")}
            for name in self.tuning.parameters:
                values["training" if name in TRAINING else "method"].pop(name, None)
            values["tuning"] = self.tuning.identity()
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def _plain(self) -> Mapping[str, Any]:
        """The spec as plain data, at this or another seed."""
        return to_mapping(self)

    def at_seed(self, seed: int) -> RunSpec:
        """Return the same run with another seed.

        The copy keeps what this spec has already computed and what no seed changes.
        """
        _ = self._plain
        other = copy(self)
        object.__setattr__(other, "seed", seed)
        vars(other).pop("hash", None)
        return other

    def to_json(self) -> str:
        """Return the spec as one line of JSON, for the command line of its job."""
        return json.dumps({**self._plain, "seed": self.seed}, separators=(",", ":"))

    @property
    def folder(self) -> str:
        """The run's folder below results/runs."""
        budget = self.budget_label if self.counterfactual is None else NON_PRIVATE
        place = (self.dataset.id, self.model.id, self.method.id, budget)
        return "/".join((*place, f"seed={self.seed}", self.hash))


def units_of(dataset: Dataset, method: Method) -> Unit:
    """Return what a method clips, and so protects, on a dataset.

    Raises:
        UserError: it clips users, and the dataset has none; names the datasets with users.
    """
    if method.local_training() is None:
        return dataset.unit()
    users = dataset.user_unit()
    if users is None:
        raise dataset.without_users(method.id)
    return users


TRAINING = ("expected_batch_size", "epochs", "steps")  # what of a training section may be tuned
REQUIRED = ("dataset", "model", "method", "training", "seed")
SECTIONS = (*REQUIRED, "privacy", "public", "tuning", "metrics")


def to_mapping(spec: RunSpec) -> dict[str, object]:
    """Turn a spec into plain data, defaults written out, in the order of the sections."""
    return {
        "dataset": _with_id(spec.dataset),
        "model": _with_id(spec.model),
        "method": _with_id(spec.method),
        "privacy": to_plain(spec.privacy),
        "training": to_plain(spec.training),
        "seed": spec.seed,
        "public": None if spec.public is None else _with_id(spec.public),
        "tuning": to_plain(spec.tuning),
        **({"metrics": list(spec.metrics)} if spec.metrics else {}),
    }


def _with_id(plugin: Dataset | Model | Method) -> dict[str, object]:
    return {"id": plugin.id, **to_plain(plugin)}


def from_mapping(
    values: Mapping[str, Any],
    *,
    file: str | None = None,
    places: Mapping[str, str] = MappingProxyType({}),
    offered: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Build a spec from plain data.

    Args:
        values: the sections dataset, model, method, training and seed; privacy for a method that
            adds noise; public where another dataset is the public one; tuning where other runs
            choose hyper-parameters; metrics where more is measured than loss and accuracy.
        file: where it was read, for error messages.
        places: section → its key in that file, where it is called otherwise there.
        offered: the section public, of a method that uses public data.

    Returns:
        The checked spec.

    Raises:
        UserError: names file, key, value, what is allowed and the nearest valid name.
    """
    for key in values:
        if key not in SECTIONS:
            raise unknown("section", str(key), SECTIONS, file=file)
    for key in REQUIRED:
        if key not in values:
            raise UserError(f"{file or 'run spec'}: {key}: required, but not given.")
    privacy, public, tuning = (values.get(name) for name in ("privacy", "public", "tuning"))
    try:
        method = _plugin(method_class, values["method"], "method")
        if offered is not None and method.uses_public_data():
            public = offered
        return RunSpec(
            dataset=_plugin(dataset_class, values["dataset"], "dataset"),
            model=_plugin(model_class, values["model"], "model"),
            method=method,
            privacy=None if privacy is None else parse(Privacy, privacy, key="privacy"),
            training=parse(Training, values["training"], key="training"),
            seed=parse(int, values["seed"], key="seed"),
            public=None if public is None else _plugin(dataset_class, public, "public"),
            tuning=None if tuning is None else parse(Tuning, _present(tuning), key="tuning"),
            metrics=parse(tuple[str, ...], values.get("metrics", ()), key="metrics"),
        )
    except UserError as error:
        prefix = f"{file}: " if file else ""
        lines = [prefix + _placed(line, places) for line in str(error).splitlines()]
        raise UserError("\n".join(lines)) from None


def _present(tuning: Any) -> Any:
    """Return the section tuning without the factors of older versions, if it has none of them."""
    old = isinstance(tuning, Mapping) and tuning.get("times") == {}
    return {name: one for name, one in tuning.items() if name != "times"} if old else tuning


def _placed(line: str, places: Mapping[str, str]) -> str:
    """Return a message with the key of its section as a file has it."""
    section: str = re.match("[a-z_]*", line)[0]  # type: ignore[index]
    if section in Privacy.__dataclass_fields__:
        return f"{places.get('privacy', 'privacy')}.{line}"
    return places.get(section, section) + line[len(section) :]


def _plugin(find: Any, values: Any, key: str) -> Any:
    if isinstance(values, str):
        values = {"id": values}
    if not isinstance(values, Mapping) or "id" not in values:
        raise UserError(f"{key}: expected a mapping with an id, got {values!r}.")
    options = {name: value for name, value in values.items() if name != "id"}
    return parse(find(str(values["id"])), options, key=key)


def read_spec(path: Path) -> RunSpec:
    """Read a spec from a YAML file.

    Raises:
        UserError: the file is missing, is not YAML, or does not hold a valid spec.
    """
    return from_mapping(read_yaml(path), file=str(path))


def write_spec(spec: RunSpec) -> str:
    """Return the spec as YAML text, the inverse of `read_spec`."""
    return yaml.safe_dump(to_mapping(spec), sort_keys=False)
