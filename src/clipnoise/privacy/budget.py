"""Budgets: the section `privacy` of a run spec, and what follows from it for a run."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from clipnoise.core.query import Adjacency
from clipnoise.core.schedule import one_number
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Natural, Positive, Probability, to_plain, unhashed_at
from clipnoise.kinds import as_sealed
from clipnoise.privacy.accountants import ACCOUNTANTS, DEFAULT_ACCOUNTANT, AccountantName
from clipnoise.privacy.accountants.selection import selected_epsilon
from clipnoise.privacy.counterfactual import Counterfactual
from clipnoise.privacy.microbatches import Accounting, MicroBatches
from clipnoise.privacy.noise import IndependentNoise, NoiseCorrelation
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.samplers import SamplerName, check_accountant, sampler_class
from clipnoise.privacy.trials import DrawnTrials

Release = Literal["full", "strict"]
ONE_SIGMA = (
    "the accountants compose T steps with one σ. A schedule of the method's clip_norm changes the "
    "noise of a step, too, and ε covers it"
)


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The section `privacy` of a run spec: what is asked for.

    Attributes:
        epsilon: the target; σ is the smallest value that meets it.
        noise_multiplier: σ, instead of a target.
        delta: δ.
        accountant: whose analysis turns σ, q and T into ε.
        sampler: how batches are drawn.
        largest_batch: of truncated-poisson.
        noise: how it is correlated across steps.
        microbatch_size: m, how many examples are averaged before clipping, on average.
        microbatch_accounting: noise for 2C, or as published for C; that ε is nominal.
        secure_noise: whether noise and batches come from a cryptographic source, not from the seed.
            No such run can be reproduced or resumed.
        release: strict writes nothing that depends on private data and that ε does not cover; full
            adds losses, accuracies and speeds.
        counterfactual: what a diagnosis leaves out: `{noise: 0, clipping: false}`. Such a run is
            not private.
        trials: the law of the number of trials of a search whose choice the target covers, such
            as `{mean: 10}`; a search with `charge: included` sets it.
    """

    __pydantic_config__: ClassVar = STRICT

    epsilon: Positive | None = None
    noise_multiplier: Annotated[Positive | None, BeforeValidator(one_number(ONE_SIGMA))] = None
    delta: Positive | Literal["1/n"] = "1/n"
    accountant: AccountantName = DEFAULT_ACCOUNTANT
    sampler: SamplerName = "poisson"
    largest_batch: Count | None = None
    noise: NoiseCorrelation = field(default_factory=IndependentNoise)
    microbatch_size: Count = 1
    microbatch_accounting: Accounting = "corrected"
    secure_noise: bool = False
    release: Release = "full"
    counterfactual: Annotated[Counterfactual | None, unhashed_at(None)] = None
    trials: Annotated[DrawnTrials | None, unhashed_at(None)] = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of epsilon and noise_multiplier")
        if self.trials is not None and self.epsilon is None:
            raise ValueError(
                "trials: only with epsilon, of which the choice takes a part; a given "
                "noise_multiplier leaves nothing to be found"
            )
        if not isinstance(self.delta, str) and self.delta >= 1:
            raise ValueError("delta must be below 1")
        if self.release == "strict" and not self.secure_noise:
            raise ValueError(
                "release: strict needs secure_noise: true, because the seed, which is written, "
                "gives seeded noise away"
            )
        if self.release == "strict" and self.counterfactual is not None:
            raise ValueError("release: strict is for private runs, and counterfactual makes none")
        _ = self.microbatches  # checks its fields

    @property
    def microbatches(self) -> MicroBatches:
        """How examples are averaged before clipping, and what the noise is scaled to."""
        return MicroBatches(self.microbatch_size, self.microbatch_accounting)

    @property
    def label(self) -> str:
        """What is asked for, as a label: `eps=1`, `sigma=0.5`, `eps=1, without noise, …`."""
        asked = (
            f"sigma={self.noise_multiplier:g}" if self.epsilon is None else f"eps={self.epsilon:g}"
        )
        if self.counterfactual is None:
            return asked
        return f"{asked}, {self.counterfactual.words}, non-private"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The privacy budget of a run: everything that σ, and ε along the way, depend on.

    Attributes:
        epsilon, noise_multiplier, delta, accountant, sampler: as in `Privacy`, with δ as a number.
        participation: in which steps an example can take part.
        evaluation_steps: the steps at which to report the ε spent so far.
        trials: the law of the number of trials of a search whose choice the target covers; each
            trial has the noise of the run.
    """

    __pydantic_config__: ClassVar = STRICT

    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    delta: Probability
    accountant: AccountantName
    sampler: SamplerName
    participation: Participation
    evaluation_steps: tuple[Natural, ...] = ()
    trials: Annotated[DrawnTrials | None, unhashed_at(None)] = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise UserError("epsilon, noise_multiplier: give exactly one of them.")
        affected, examples = self.participation.affected_examples, self.participation.examples
        check_accountant(self.accountant, self.sampler, affected_examples=affected)
        counted = sampler_class(self.sampler).depends_on_n(self.accountant, affected)
        if counted != (examples is not None):
            raise UserError(
                "examples: required for the sampler 'fixed-size' with affected_examples above 1 or "
                f"the accountant 'rdp-replace', and not allowed otherwise; got {examples} with "
                f"{self.sampler!r}, {affected} and {self.accountant!r}."
            )
        self._check_participation()
        self._check_trials()
        steps, latest = self.participation.steps, max(self.evaluation_steps, default=0)
        if latest > steps:
            raise UserError(
                f"evaluation_steps: must not exceed steps, which is {steps}, got {latest}."
            )

    def _check_trials(self) -> None:
        """Refuse a search whose cost no formula here bounds."""
        affected = self.participation.affected_examples
        if self.trials is not None and (self.sampler != "poisson" or affected > 1):
            raise UserError(
                "trials: what a choice costs is known for the sampler 'poisson' and for examples "
                f"or users; got {self.sampler!r} with {affected} affected examples. Allowed: the "
                "sampler 'poisson', or a search that is not included in ε."
            )

    def _check_participation(self) -> None:
        """Refuse numbers that the sampler cannot have, for which ε would be too small."""
        given, epochs = self.participation, self.accountant == "per-epoch"
        drawn = sampler_class(self.sampler)
        patterned = ACCOUNTANTS[self.accountant].patterned
        allocated = self.accountant == "pld-allocation"
        turns = epochs or allocated or patterned or drawn.turns
        whole = epochs or drawn.whole or (patterned and not drawn.waits)
        if allocated and not math.isclose(given.sampling_rate * given.groups, 1, rel_tol=1e-12):
            raise UserError(
                "sampling_rate: must be 1/groups for the accountant 'pld-allocation', where an "
                f"example is in one of {given.groups} steps; got {given.sampling_rate:g}."
            )
        if patterned != (given.noise is not None):
            raise UserError(
                "noise: required for the accountant 'monte-carlo', and not allowed otherwise; got "
                f"{given.noise} with {self.accountant!r}."
            )
        if given.noise is not None and drawn.waits:
            bands = as_sealed(given.noise, "bands_over")(given.steps)
            if bands > given.groups:
                raise UserError(
                    f"groups: must be at least the {bands} bands of the noise for the sampler "
                    f"{self.sampler!r}, got {given.groups}."
                )
        for name, value, only in (
            ("groups", given.groups, None if turns else 1),
            ("sampling_rate", given.sampling_rate, 1 if whole else None),
            (
                "truncation_probability",
                given.truncation_probability,
                None if drawn.truncated else 0,
            ),
        ):
            if only not in (None, value):
                raise UserError(
                    f"{name}: must be {only} for the sampler {self.sampler!r} with the accountant "
                    f"{self.accountant!r}, got {value:g}."
                )

    @property
    def adjacency(self) -> Adjacency:
        """The relation between neighbouring datasets under which ε holds.

        Users are accounted as examples are: only the query's sensitivity differs.
        """
        if self.participation.affected_examples > 1:
            return "add-remove-node"
        return sampler_class(self.sampler).adjacency(self.accountant)

    def spent(self, noise_multiplier: float, steps: int | None = None) -> float:
        """Bound the ε that the first `steps` steps (all T by default) spend at σ.

        Raises:
            UserError: the accountant cannot bound ε for these values.
        """
        return self.participation.epsilon(
            self.accountant, noise_multiplier=noise_multiplier, delta=self.delta, steps=steps
        )

    def charged(self, noise_multiplier: float) -> float:
        """Bound the ε of the run, and of the choice if that is included: the target is of it.

        Raises:
            UserError: the accountant cannot bound ε for these values.
        """
        given = self.participation
        if self.trials is None or not given.releases():
            return self.spent(noise_multiplier)
        run = (noise_multiplier, given.sampling_rate, given.releases())
        return selected_epsilon(self.trials, run, then=run, delta=self.delta)

    @property
    def label(self) -> str:
        """What is calibrated, in words."""
        of = (
            f"ε={self.epsilon:g}"
            if self.noise_multiplier is None
            else f"σ={self.noise_multiplier:g}"
        )
        search = "" if self.trials is None else ", choice included"
        steps = self.participation.steps
        return f"{of}, δ={self.delta:.2g}, {steps:g} steps, {self.accountant}{search}"

    def options(self) -> str:
        """Return the options by which `clipnoise calibrate` computes this budget, for a shell."""
        given = self.participation
        numbers = {
            "epsilon": self.epsilon,
            "noise-multiplier": self.noise_multiplier,
            "delta": self.delta,
            "sampling-rate": given.sampling_rate,
            "truncation-probability": given.truncation_probability or None,
        }
        counts = {"groups": given.groups, "affected-examples": given.affected_examples}
        words = [f"--{name} {float(x)!r}" for name, x in numbers.items() if x is not None]
        words += [f"--steps {int(given.steps)}"]
        words += [f"--{name} {count}" for name, count in counts.items() if count > 1]
        words += [f"--examples {given.examples}"] if given.examples else []
        words += [f"--prefix-cost {given.prefix_cost!r}"] if given.prefix_cost > 1 else []
        words += [f"--noise {_in_shell(given.noise)}"] if given.noise else []
        words += [f"--trials {_in_shell(self.trials)}"] if self.trials else []
        words += [f"--accountant {self.accountant}", f"--sampler {self.sampler}"]
        if self.evaluation_steps:
            words += ["--evaluation-steps", *map(str, sorted(set(self.evaluation_steps)))]
        return " ".join(words)

    @cached_property
    def key(self) -> str:
        """The content hash: 12 hex digits of SHA-256 over the options. Runs that share it share σ.

        Floats enter by their shortest exact form, so equal budgets have equal keys everywhere.
        """
        return hashlib.sha256(self.options().encode()).hexdigest()[:12]


def _in_shell(option: NoiseCorrelation | DrawnTrials) -> str:
    """Return an option with fields as a JSON object, quoted for a shell."""
    given = {name: value for name, value in to_plain(option).items() if value is not None}
    return shlex.quote(json.dumps(given, sort_keys=True))
