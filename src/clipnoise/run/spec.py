"""The run spec: plain, frozen data that holds everything that can change a result, nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field

from clipnoise.core.clip_rules import ClipRule
from clipnoise.core.method import Method, WithClipRule
from clipnoise.data.base import Dataset, dataset_class
from clipnoise.errors import UserError, unknown
from clipnoise.fields import STRICT, Count, Decay, Natural, Positive, Precision, parse, to_plain
from clipnoise.files import read_yaml
from clipnoise.kinds import OwnKind
from clipnoise.methods.base import WithSideInformation, method_class
from clipnoise.models.base import Model, model_class
from clipnoise.plugins import require_sealed
from clipnoise.privacy.budget import Budget, Privacy
from clipnoise.privacy.mechanism import Mechanism
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.units import Unit


@dataclass(frozen=True, kw_only=True)
class ExponentialAverage:
    """θ̄_t = β_t θ̄_{t−1} + (1−β_t) θ_t with β_t = min(β, t/(t + 9)), θ̄_0 = θ_0.

    The smaller decay at the start lets the average forget θ_0.

    Source: De et al. 2022 (Unlocking High-Accuracy Differentially Private Image Classification
    through Scale), parameter averaging; jax_privacy, averaging.py, which counts t from 0.

    Attributes:
        decay: β.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Literal["ema"]
    decay: Decay

    def share(self, step: int, steps: int) -> float:
        """Return what share of the average the iterate of step t, from 1, has: 1 − β_t."""
        return 1 - min(self.decay, step / (step + 9))


@dataclass(frozen=True, kw_only=True)
class TailAverage:
    """The mean of the iterates after a share of the steps; before that, the last iterate.

    Source: Polyak and Juditsky 1992, from a later start; De et al. 2022, its released jax_privacy,
    averaging.py (polyak).

    Attributes:
        after: the share of the T steps whose iterates are left out: 0.5 averages the second half.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Literal["tail"]
    after: Decay

    def share(self, step: int, steps: int) -> float:
        """Return what share of the average the iterate of step t, from 1, has."""
        return 1 / max(1, step - int(self.after * steps))


Average = Annotated[ExponentialAverage | TailAverage, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and in what pieces a run trains.

    Attributes:
        expected_batch_size: B = q·n; in federated training the expected number of users a round.
        epochs: expected passes over the data (or users); T = round(epochs·n/B), at least 1.
        steps: T itself, instead of epochs; in federated training the number of rounds.
        views: K: the gradients of K views of an example are averaged, and the mean is clipped once
            (De et al. 2022, augmentation multiplicity); views differ by augmentation and dropout.
        physical_batch_size: examples held in memory at once, each view counted; bounds memory, not
            privacy.
        evaluations: how many times the metrics are taken, the last step included.
        diagnostics: whether moments are also recorded without their noise, which makes the run
            non-private.
        average: of the iterates, to be measured and published in place of the last one; it is taken
            from what is released and costs no privacy.
        precision: of the forward and backward passes; bfloat16 is autocast. Norms, clipped sums,
            noise, updates and metrics are always float32.
    """

    __pydantic_config__: ClassVar = STRICT

    expected_batch_size: Count
    epochs: Positive | None = None
    steps: Natural | None = None
    views: Count = 1
    physical_batch_size: Count = 256
    evaluations: Count = 10
    diagnostics: bool = False
    average: Average | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give exactly one of epochs and steps")

    def total_steps(self, examples: int) -> int:
        """Return T for n private examples: fixed up front from public numbers."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * examples / self.expected_batch_size))


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Which settings other runs choose. The key stands for their values in the run's hash.

    Attributes:
        key: the content hash of the search: of its runs, and of how they are compared.
        parameters: what is chosen: hyper-parameters of the method, and keys of training.
        configurations: how many were tried.
        runs: how many runs the search trained.
        times: factors by which the run multiplies what was chosen.
        chosen: whether the run holds the choice; until then it holds any one candidate.
    """

    __pydantic_config__: ClassVar = STRICT

    key: str
    parameters: tuple[str, ...]
    configurations: Count
    runs: Count
    times: dict[str, float] = field(default_factory=dict)
    chosen: bool = False

    def identity(self) -> dict[str, Any]:
        """Return what a run's hash contains of the search: the same before and after the choice."""
        times = {"times": dict(self.times)} if self.times else {}
        return {"key": self.key, "parameters": list(self.parameters), **times}


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run. Its hash is its identity: studies that need the same run share it.

    Attributes:
        dataset: the private examples, and the examples to validate and test on.
        model: the network.
        method: the optimizer.
        privacy: what is asked of privacy; None for a method without noise.
        training: for how long, and in what pieces.
        seed: of every random stream.
        public: the dataset whose training examples serve as public data; None if `dataset` sets its
            public examples aside itself, or if none are needed.
        tuning: which settings earlier runs choose; None if none is tuned.
    """

    dataset: Dataset
    model: Model
    method: Method
    privacy: Privacy | None
    training: Training
    seed: int
    public: Dataset | None = None
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        self._check_sealed()
        if self.method.query.draws and self.privacy is None:
            raise UserError(
                f"privacy: {self.method.id} adds noise; give an epsilon or a noise_multiplier."
            )
        if not self.method.query.draws and self.privacy is not None:
            raise UserError(
                f"privacy: {self.method.id} adds no noise; leave privacy out (null), "
                "so that no table can show an epsilon for it."
            )
        unit = self.unit
        if self.training.expected_batch_size > unit.count:
            raise UserError(
                f"training.expected_batch_size: {self.training.expected_batch_size} is more than "
                f"the {unit.count} private {unit.name}s of {self.dataset.id}."
            )
        if self.training.diagnostics and self.method.query.of == "losses":
            raise UserError(
                f"training.diagnostics: must be false for {self.method.id}: it releases a number, "
                "which has no moments by coordinate."
            )
        self.model.require(self.dataset.signature)
        _ = self.mechanism.denominator  # checks that B is a multiple of m
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
        if unit.name == "user" and self.training.views > 1:
            raise UserError(
                f"training.views: must be 1 for {self.method.id}, which clips one vector per user, "
                f"not a gradient; got {self.training.views}."
            )
        unit.check(self.method.query, self.mechanism.microbatches)
        if self.privacy is not None:
            self._check_shared(unit)
            _ = self.budget  # checks that sampler, accountant and noise fit each other

    def _check_sealed(self) -> None:
        """Check the user's classes again: a mix-in can keep them from being checked at first."""
        for part in (*self.choices, self.method.query):
            try:
                require_sealed(type(part))
            except TypeError as error:
                raise UserError(f"{error}.") from None
            kind, known = type(part), ClipRule.package_kinds().values()
            if issubclass(kind, ClipRule) and not (kind in known or issubclass(kind, OwnKind)):
                raise UserError(f"method.clip_rule: {kind.__name__} must be an OwnClipRule.")

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

    @property
    def choices(self) -> tuple[Method | ClipRule | NoiseCorrelation, ...]:
        """The method, its clip rule and the kind of noise: each may be a plug-in of the user's."""
        rule = (self.method.clip_rule,) if isinstance(self.method, WithClipRule) else ()
        return (self.method, *rule, *(() if self.privacy is None else (self.privacy.noise,)))

    @cached_property
    def unit(self) -> Unit:
        """What is drawn, clipped and protected as a whole, and how many are private.

        Raises:
            UserError: the method protects users, and the dataset has none.
        """
        return units_of(self.dataset, self.method)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What ε depends on."""
        return Mechanism.asked_for(
            self.privacy,
            unit=self.unit,
            size=self.training.expected_batch_size,
            steps=self.steps,
            query=self.method.query,
        )

    @property
    def secure_noise(self) -> bool:
        """Whether noise and batches come from a cryptographic source, not from the seed."""
        return self.privacy is not None and self.privacy.secure_noise

    @property
    def strict(self) -> bool:
        """Whether nothing is written that depends on private data and that ε does not cover."""
        return self.privacy is not None and self.privacy.release == "strict"

    @property
    def withheld(self) -> frozenset[str]:
        """The parts of the dataset on which the run is not measured."""
        if not self.strict:
            return frozenset()
        return frozenset({"train", "validation", *({"test"} & set(self.unit.shared))})

    @property
    def passes(self) -> int:
        """How many gradients of a drawn example a step takes, each view counted."""
        return self.method.passes() * self.training.views

    @cached_property
    def steps(self) -> int:
        """T."""
        return self.training.total_steps(self.unit.count)

    @cached_property
    def budget(self) -> Budget | None:
        """What σ is calibrated for; None for a non-private run."""
        privacy = self.privacy
        if privacy is None:
            return None
        sigma = privacy.noise_multiplier
        if sigma is not None:
            batch = self.training.expected_batch_size
            sigma = self.method.effective_noise_multiplier(sigma, batch)
        return self.mechanism.budget(privacy, sigma, self.evaluation_steps())

    @property
    def budget_label(self) -> str:
        """The privacy budget in paths and tables: `eps=1`, `sigma=0.5` or `non-private`."""
        return "non-private" if self.privacy is None else self.privacy.label

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
        place = (self.dataset.id, self.model.id, self.method.id, self.budget_label)
        return "/".join((*place, f"seed={self.seed}", self.hash))

    def evaluation_steps(self) -> list[int]:
        """Return the steps after which metrics are taken: 0, then evenly spaced, T last."""
        count, steps = self.training.evaluations, self.steps
        return sorted({round(steps * i / count) for i in range(count + 1)})


def units_of(dataset: Dataset, method: Method) -> Unit:
    """Return what a method protects on a dataset.

    Raises:
        UserError: it protects users, and the dataset has none; names the datasets with users.
    """
    if method.query.adjacency != "add-remove-user":
        return dataset.unit()
    users = dataset.user_unit()
    if users is None:
        raise dataset.without_users(method.id)
    return users


TRAINING = ("expected_batch_size", "epochs", "steps")  # what of a training section may be tuned
REQUIRED = ("dataset", "model", "method", "training", "seed")
SECTIONS = (*REQUIRED, "privacy", "public", "tuning")


def to_mapping(spec: RunSpec) -> dict[str, Any]:
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
    }


def _with_id(plugin: Dataset | Model | Method) -> dict[str, Any]:
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
            choose hyper-parameters.
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
            tuning=None if tuning is None else parse(Tuning, tuning, key="tuning"),
        )
    except UserError as error:
        prefix = f"{file}: " if file else ""
        lines = [prefix + _placed(line, places) for line in str(error).splitlines()]
        raise UserError("\n".join(lines)) from None


def _placed(line: str, places: Mapping[str, str]) -> str:
    """Return a message with the key of its section as a file has it."""
    section = re.match("[a-z]*", line)[0]  # type: ignore[index]
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
