"""Private training in a loop of one's own, by the code that trains the runs of a study."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clipnoise.core.method import Method
from clipnoise.core.schedule import own_names
from clipnoise.errors import UserError, explained, unknown
from clipnoise.fields import parse, to_plain
from clipnoise.files import json_text
from clipnoise.methods.base import method_class
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import Calibration, calibrate
from clipnoise.privacy.claim import PrivacyStatement
from clipnoise.privacy.remarks import of_delta, of_epsilon
from clipnoise.resumable import gather
from clipnoise.run import checkpoint
from clipnoise.run.fingerprint import fingerprint_of
from clipnoise.run.outcome import Clock
from clipnoise.run.own import OwnProcedure, PreparedNetwork, tried_out
from clipnoise.run.own_examples import (
    PAIRS,
    WithAdditiveMask,
    digest_of,
    examples_of,
    hashed,
    names_of,
    takes_additive_mask,
    users_of,
)
from clipnoise.run.procedure import Procedure, Training
from clipnoise.run.published import PublishedModel, publish, tensors_of
from clipnoise.run.ranks import from_environment, send_state
from clipnoise.run.results import privacy_statement
from clipnoise.run.setup import Material, exact_arithmetic, named_device
from clipnoise.run.streams import GlobalStreams, networks_watched
from clipnoise.run.trainer import Trainer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clipnoise.run.ranks import Ranks

BUDGET = {field.name for field in fields(Privacy)} - {"secure_noise", "release", "counterfactual"}
LENGTH = {field.name for field in fields(Training)} - {
    *("evaluations", "diagnostics", "save", "class_weights", "evaluate")
}

ARGUMENTS = {"method", "users", "public", "seed", "device"}  # of `private`, by name
INTERRUPTED = (
    "a step was interrupted before it was counted. Its batch or noise may have been drawn, and "
    "those of later steps follow from them, so that ε would not cover what comes: prepare the "
    "training again."
)

logger = logging.getLogger(__name__)


def private(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Any,
    *,
    method: str | Method,
    users: Any = None,
    public: Any = None,
    seed: int | None = None,
    device: str = "auto",
    **settings: Any,
) -> PrivateTraining:
    """Prepare to train a network privately; the steps are taken by iterating over the result.

    Processes that torchrun has started train together, each with its part of every batch: all of
    them call this with the same examples in the same order, and take every step. The network, and
    what is drawn, are those of the first.

    Args:
        model: from inputs of shape (b, …) to one tensor of outputs, or to what has it as `logits`,
            as models of transformers return it. Of several inputs, those of a dict are given by
            name, those of a tuple in order. It is moved to the device, and its parameters are
            overwritten after each step.
        loss: (outputs, targets) → the loss of each example, shape (b,).
        data: the private examples: a pair of tensors (inputs, targets), or a torch Dataset of
            such pairs. Inputs may be a dict or a tuple of tensors. Their number is public.
        method: an id, such as "dp-adambc", or a method with its hyper-parameters.
        users: whose each example is, as whole numbers or texts, one id for each, for the methods
            that protect users: ε is then that of adding or removing a user with all examples, and
            the expected batch size counts users. How many there are is public.
        public: examples that need no protection, for the methods that use some; as `data`.
        seed: of noise, batches and dropout, for an experiment that is to be repeated; whoever knows
            it knows the noise. By default they come from the operating system.
        device: a torch device name; "auto" takes a CUDA GPU if there is one. On a GPU the whole
            process then computes in full float32 and deterministically.
        settings: what a study says of a run, by the same names: `expected_batch_size`; `epochs` or
            `steps`; `epsilon` or `noise_multiplier`; `delta` (1/n by default); `accountant`,
            `sampler` and others; and the hyper-parameters of the method.

    Returns:
        The training, before its first step.

    Raises:
        UserError: a setting is wrong, or the model or the loss cannot be trained privately; the
            message names it, and says what is allowed or why.

    Examples:
        >>> import torch
        >>> import clipnoise
        >>> inputs = torch.randn(1000, 8)
        >>> training = clipnoise.private(
        ...     torch.nn.Linear(8, 2),
        ...     torch.nn.CrossEntropyLoss(reduction="none"),
        ...     (inputs, (inputs[:, 0] > 0).long()),
        ...     method="dp-adambc",
        ...     epsilon=3,
        ...     delta=1e-5,
        ...     epochs=2,
        ...     expected_batch_size=100,
        ...     learning_rate=0.1,
        ...     clip_norm=1,
        ... )
        >>> for step in training:
        ...     pass
        >>> step, training.spent <= 3, training.statement.claim
        (20, True, 'guarantee')
    """
    device = named_device(device)
    ranks = from_environment(device)
    device = ranks.device(device)
    exact_arithmetic(device)
    with explained(f"device: {device!r} cannot be used"):
        torch.empty(0, device=device)
    _require_full_precision(device)
    with _as_arguments():
        chosen = _method(method, settings)
        material = _material(model, loss, data, users, public, chosen)
        drawn = ranks.same(lambda: secrets.randbits(63))
        procedure = _procedure(chosen, settings, material, seed, drawn)
        _require_alike(ranks, procedure, material)
        send_state(ranks, material.network)
        calibration = None if procedure.budget is None else calibrate(procedure.budget)
        sigma = 0.0 if calibration is None else calibration.noise_multiplier
        trainer = Trainer.begin(procedure, material.to(device), noise_multiplier=sigma, ranks=ranks)
    if not trainer.engine_name.startswith("factored"):
        logger.warning("a slower gradient engine is used: %s", trainer.engine_name)
    training = PrivateTraining(trainer, calibration, material)
    for remark in _remarks(training._claimed()):
        logger.warning("%s", remark)
    return training


def _remarks(statement: OwnStatement) -> Iterator[str]:
    """Yield what of the privacy that was asked for is weaker than it looks."""
    if statement.epsilon is None or statement.delta is None or statement.examples is None:
        return
    remarks = (
        of_delta(statement.delta, statement.examples, statement.unit or "example"),
        of_epsilon(statement.epsilon_target or statement.epsilon),
    )
    yield from filter(None, remarks)


def _only(settings: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if name in names}


def _method(method: str | Method, settings: Mapping[str, object]) -> Method:
    """Return the method, with those of the settings that are its hyper-parameters."""
    options: set[str] = set()
    if isinstance(method, str):
        options = {field.name for field in fields(method_class(method))}
    for name in settings:
        if name not in BUDGET | LENGTH | options:
            raise unknown("setting", name, BUDGET | LENGTH | options | ARGUMENTS)
    if isinstance(method, str):
        return parse(method_class(method), _only(settings, options))
    return method


def _material(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    data: Any,
    users: Any,
    public: Any,
    method: Method,
) -> Material:
    """Return what was handed over, tried out."""
    examples = examples_of(data, "data")
    if public is None and method.uses_public_data():
        raise UserError(f"public: {method.id} needs public examples, {PAIRS}.")
    if public is not None and not method.uses_public_data():
        raise UserError(f"public: {method.id} uses no public examples; leave public out.")
    others = None if public is None else examples_of(public, "public")
    signature = tried_out(model, loss, examples)
    if others is not None and names_of(others) != names_of(examples):
        raise UserError(
            "public: the inputs must be as those of data, one tensor or several of the same names."
        )
    if takes_additive_mask(model, examples):
        examples = WithAdditiveMask(examples)
        others = None if others is None else WithAdditiveMask(others)
    return Material(
        network=model,
        losses=loss,
        examples=examples,
        users=None if users is None else users_of(users, len(examples)),
        public=others,
        signature=signature,
    )


def _procedure(
    method: Method, settings: Mapping[str, object], material: Material, seed: int | None, drawn: int
) -> OwnProcedure:
    """Return what is done with the examples; without a seed, a number that was drawn decides."""
    asked = _only(settings, BUDGET)
    return OwnProcedure(
        method=method,
        privacy=parse(Privacy, {**asked, "secure_noise": seed is None}) if asked else None,
        training=parse(Training, {**_only(settings, LENGTH), "evaluations": 1}),
        seed=drawn if seed is None else parse(int, seed, key="seed"),
        examples=len(material.examples),
        users=None if material.users is None else 1 + int(material.users.max()),
    )


def _require_alike(ranks: Ranks, procedure: OwnProcedure, material: Material) -> None:
    """Refuse processes that were given other examples or settings: an index must name one example.

    Raises:
        UserError: names what differs.
    """
    if ranks.count == 1:
        return
    public = material.public
    ranks.require_alike(
        {
            "method": f"{procedure.method.id} {to_plain(procedure.method)}",
            "budget": str(to_plain(procedure.privacy)),
            "training": str(to_plain(procedure.training)),
            "seed": str(procedure.seed),
            **_digests(material),
            "public": "none" if public is None else f"{len(public)} {digest_of(public)}",
        }
    )


def _digests(material: Material) -> dict[str, str]:
    """Return what tells apart other examples, another order of them, and other users."""
    users = material.users
    return {
        "data": f"{len(material.examples)} examples, {digest_of(material.examples)}",
        "users": "none" if users is None else hashed([users]),
    }


def _require_full_precision(device: str) -> None:
    """Refuse to compute norms, clipping and noise in the precision of `torch.autocast`.

    Raises:
        UserError: it is on.
    """
    if torch.is_autocast_enabled(torch.device(device).type):
        raise UserError(
            "torch.autocast is on, so norms of per-example gradients would be rounded to a lower "
            "precision, and clipped gradients could be longer than the clip norm. Keep private() "
            "and its loop outside of it; precision='bfloat16' speeds up the passes alone."
        )


@contextmanager
def _as_arguments() -> Iterator[None]:
    """Name an argument in messages where a study has a key in a section."""
    try:
        yield
    except UserError as error:
        message = str(error).replace("method.id: ", "method: ")
        raise UserError(re.sub("(?m)^(method|privacy|training)[.]", "", message)) from None


@dataclass(frozen=True, kw_only=True)
class OwnStatement(PrivacyStatement):
    """What training in one's own loop claims about privacy; printed, one line for each entry.

    Attributes:
        assumes: what must hold for the claim, in sentences.
    """

    assumes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return every entry as plain data: text, numbers, lists, mappings and None."""
        values: dict[str, object] = to_plain(self)
        return values

    def to_json(self) -> str:
        """Return every entry as JSON, None as null."""
        return json_text(self.to_dict())

    def __str__(self) -> str:
        plain = {**asdict(self), "noise": self.noise and self.noise.id, "profile": None}
        plain |= {} if self.profile is None else self.profile.lines(nominal=self.claim == "nominal")
        lines = [f"{name}: {value}" for name, value in plain.items() if name != "assumes"]
        given = [line for line in lines if not line.endswith(": None")]
        return "\n".join([*given, *(f"assumes: {sentence}" for sentence in self.assumes)])


class PrivateTraining:
    """Training that takes a step each time the next one is asked for.

    Between two steps the model has the parameters of the last one, to be measured or saved, or the
    average that the method publishes in their place. What is written into them there is
    overwritten. After T steps the budget is spent and iteration ends.
    """

    def __init__(
        self, trainer: Trainer, calibration: Calibration | None, material: Material
    ) -> None:
        """Begin before the first step; without noise there is no calibration."""
        self._trainer, self._procedure = trainer, trainer.procedure
        self._calibration, self._numbers = calibration, dict[str, object]()
        self._material = material
        self._refused = ""  # why nothing of it may be published any more
        self._show()
        self._network = PreparedNetwork(trainer.engine.network)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse an assignment: it would have no effect.

        Raises:
            UserError: always, but for attributes that begin with an underscore.
        """
        if not name.startswith("_"):
            how = f"use training.set({name}=…)" if name in self._may_be_set() else "prepare another"
            raise UserError(f"training.{name}: an assignment has no effect; {how}.")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Return T, as progress bars ask for it."""
        return self.steps

    def __repr__(self) -> str:
        """Return the method, where the training is, and what it claims."""
        statement = self._claimed()
        claim: str = statement.claim
        if statement.epsilon is not None:
            spent = f"ε = {statement.epsilon:.4g} at δ = {statement.delta:.4g}"
            claim = f"{spent}, {statement.adjacency}, {claim}"
        method = self._procedure.method.id
        return f"<PrivateTraining: {method}, step {self.step} of {self.steps}, {claim}>"

    def __iter__(self) -> Iterator[int]:
        """Take the steps that are left; yield t after step t.

        Raises:
            DivergenceError: a parameter is not finite.
            UserError: the model was moved, its layers or parameters are others than before, or a
                step drew from a global random stream or left something behind.
        """
        steps = self._trainer.steps(Clock())
        while True:
            _require_full_precision(self._trainer.state.theta.device.type)
            self._network.require_unchanged()
            self._trainer.engine.network.train()
            with self._refusals():
                done = self._next(steps)
            if done is None:
                return
            yield done

    def _next(self, steps: Iterator[int]) -> int | None:
        """Take a step, and load what it released into the network, however the step ends.

        While it is taken, the network may hold what a single user has trained.
        """
        before = self.step
        try:
            streams = GlobalStreams()
            with networks_watched(self._trainer.engine.network):
                done = next(steps, None)
            streams.require_unchanged()  # by its loss and its method, too
            if done is not None:
                self._trainer.kept.require_unchanged(exactly=False)  # neither may remember
            self._show()
        except BaseException:
            self._show()
            if self.step == before and self._has_positions():
                self._refused = INTERRUPTED
            raise
        return done

    def _has_positions(self) -> bool:
        """Return whether what the next step draws depends on how much was drawn before."""
        drawn = gather({"noise": self._trainer.noise, "sampler": self._trainer.sampler})
        return any(not name.endswith("/generator") for name in drawn)  # of a seed

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Refuse what was refused before, and remember why something is refused now."""
        self._require_not_refused()
        try:
            yield
        except UserError as error:
            self._refused = str(error)
            raise

    def _require_not_refused(self) -> None:
        if self._refused:
            raise UserError(self._refused)

    def set(self, **numbers: Any) -> None:
        """Change hyper-parameters from the next step on, such as the learning rate.

        They act on what was released, so ε stays the same if they are chosen by what was released
        or is public. A choice by losses on private examples is not covered.

        Args:
            numbers: a number, or a schedule over all T steps, by the name of a hyper-parameter.

        Raises:
            UserError: it cannot change during training, or the value is wrong.
        """
        procedure, allowed = self._trainer.procedure, self._may_be_set()
        for name in numbers:
            if name not in allowed:
                raise unknown("setting that can change during training", name, allowed)
        with _as_arguments():
            values = {**to_plain(procedure.method), **numbers}
            method = parse(type(procedure.method), values, key="method")
            # Noise that is optimised for the first learning rates stays what it is.
            privacy = procedure.privacy and replace(
                procedure.privacy, noise=procedure.mechanism.noise
            )
            self._trainer.procedure = replace(procedure, method=method, privacy=privacy)
        self._numbers |= {name: to_plain(method)[name] for name in numbers}

    def _may_be_set(self) -> tuple[str, ...]:
        """Return what acts after the boundary; a clip norm follows a schedule from the start."""
        method = self._procedure.method
        names = own_names(type(method), method.may_change)
        return tuple(name for name in names if not name.startswith("clip_norm"))

    def _show(self) -> None:
        self._trainer.engine.flat.load(self._trainer.evaluated())

    @property
    def step(self) -> int:
        """t, the number of steps taken."""
        return self._trainer.state.step

    @property
    def steps(self) -> int:
        """T, the number of steps that the budget is for."""
        return self._procedure.steps

    @property
    def engine(self) -> str:
        """How per-example gradients are clipped, and why so."""
        return self._trainer.engine_name

    @property
    def physical_batch_size(self) -> int:
        """Most examples in memory at once: at most what was asked for, and no more than fit."""
        return self._trainer.units.physical.size

    @property
    def bytes_sent(self) -> int:
        """Bytes of vectors that all processes together have sent so far; 0 for one process."""
        return self._trainer.ranks.sent

    @property
    def spent(self) -> float:
        """ε of the first t steps; infinite where nothing is protected.

        It is what t steps cost if their number was fixed in advance. Whoever stops because of what
        they see pays for all T steps: `statement.epsilon`.
        """
        if self._calibration is None or self._claimed().claim == "non-private":
            return math.inf
        return self._calibration.budget.spent(self._calibration.noise_multiplier, self.step)

    @property
    def statement(self) -> OwnStatement:
        """What may be said about privacy: ε is that of all T steps."""
        return self._claimed().with_profile(self._calibration)

    def _claimed(self) -> OwnStatement:
        """Return the statement without the profile, which takes a second and never changes."""
        statement = privacy_statement(self._procedure, self._calibration)
        count = self._trainer.ranks.count
        assumes = () if statement.claim == "non-private" else _assumptions(self._procedure, count)
        return OwnStatement(**vars(statement), assumes=assumes)

    def save(self, path: str | Path) -> None:
        """Save the training between two steps, so that another process can go on.

        Raises:
            UserError: noise or batches would have to be kept that must stay secret, or a step was
                refused.
            OSError: the file cannot be written.
        """
        self._require_not_refused()
        run = self._trainer
        if self._procedure.secure_noise and self._has_positions():
            raise UserError(
                "save: to go on, correlated noise and batches in a fixed order have to be kept, "
                "and who reads them can undo the noise. Save a training with independent noise and "
                "the sampler 'poisson', or an experiment with a seed."
            )
        notes = {"step": self.step, "set": self._numbers}
        if run.ranks.first:
            checkpoint.write(Path(path), self._identity(), run.get_state(), notes)
        run.ranks.same(lambda: None)  # the others wait until it is there

    def publish(self, folder: str | Path) -> tuple[str, ...]:
        """Write the model for others: parameters, privacy statement and a model card.

        Args:
            folder: new, or that of an earlier model, which is replaced.

        Returns:
            Why it must not be published as a private model, in sentences; empty if it may. The
            model card says so, too.

        Raises:
            UserError: the folder holds something else, a step was refused, or the network keeps
                something besides its trained parameters.
            OSError: it cannot be written.
        """
        self._network.require_unchanged()
        with self._refusals():
            self._trainer.kept.require_unchanged(exactly=True)
        self._show()
        statement = self.statement
        model = PublishedModel(
            tensors=tensors_of(self._trainer.engine.network),
            statement=statement,
            assumes=statement.assumes,
        )
        if self._trainer.ranks.first:
            publish(Path(folder), model)
        self._trainer.ranks.same(lambda: None)  # the others wait until it is there
        for doubt in model.doubts:
            logger.warning("%s: not to be published as a private model: %s", folder, doubt)
        return model.doubts

    def resume(self, path: str | Path) -> None:
        """Go to where a saved training was, before the first step of this one.

        With a seed, what follows is bit for bit what it would have been. Without one, noise and
        batches are fresh: of one saved training no two continuations may be published.

        Raises:
            FileNotFoundError: there is no such file.
            UserError: it is damaged, is of another training, or steps were already taken.
        """
        if self.step:
            raise UserError(f"resume: {self.step} steps were already taken; call it before them.")
        saved = checkpoint.read(Path(path), self._identity())
        self._trainer.set_state(saved.tensors)
        self.set(**saved.notes.get("set", {}))
        self._show()

    @cached_property
    def _layers(self) -> str:
        """What the network is besides the parameters that are trained: a digest."""
        network = self._trainer.engine.network
        layers = [f"{name} {type(one).__qualname__}" for name, one in network.named_modules()]
        trained = {name for name, one in network.named_parameters() if one.requires_grad}
        others = {
            name: value
            for name, value in network.state_dict().items()
            if name not in trained and isinstance(value, torch.Tensor)
        }
        named = hashlib.sha256(json.dumps([layers, [*others]]).encode()).hexdigest()[:12]
        return f"{named} {hashed(others.values())}"

    @cached_property
    def _data(self) -> dict[str, str]:
        return _digests(self._material)

    def _identity(self) -> dict[str, str]:
        """Return what must be as it was for a saved training to go on."""
        procedure, flat = self._procedure, self._trainer.engine.flat
        public = 0 if self._trainer.public is None else len(self._trainer.public.examples)
        shapes = [f"{n} {tuple(shape)}" for n, shape in zip(flat.names, flat.shapes, strict=True)]
        modules = [type(part).__module__ for part in procedure.choices]
        code = [
            Trainer.__module__,
            __name__,
            *(one for one in modules if one.startswith("clipnoise.")),
        ]
        # A file that may be public holds no digest of private examples. Without a seed, batches do
        # not depend on the order of examples.
        data = {} if procedure.secure_noise else self._data
        return {
            "method": f"{procedure.method.id} {to_plain(procedure.method)}",
            "budget": str(to_plain(procedure.privacy)),
            "training": str(to_plain(procedure.training)),
            **data,
            "examples": f"{procedure.population}, {public} public",
            "seed": "none" if procedure.secure_noise else str(procedure.seed),
            "model": hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:12],
            "layers": self._layers,
            "code": fingerprint_of(code),
            "torch": str(torch.__version__),
            "device": self._trainer.state.theta.device.type,
        }


def _assumptions(procedure: Procedure, processes: int) -> tuple[str, ...]:
    """Return what a claim about privacy rests on, in sentences."""
    randomness = (
        "Noise and batches came from a cryptographic source of the operating system."
        if procedure.secure_noise
        else "Whoever sees the model does not know the seed, which determines noise and batches; a "
        "seed is for experiments."
    )
    together = (
        f"The {processes} processes were given the same examples in the same order, and what they "
        "send to each other stays secret."
    )
    source = "its user" if procedure.unit.name == "user" else "one example"
    return (
        randomness,
        *((together,) if processes > 1 else ()),
        f"An item of the data depends on {source} alone; starting values, settings and public "
        "examples depend on none. Choosing among several trainings costs more.",
        "Only one continuation of what was saved is published.",
        "Rounding in noise and sums gives nothing away.",
    )
