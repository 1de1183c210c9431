"""Privacy accounting: the ε that a noise multiplier costs, and the noise multiplier for an ε."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import click
from annotated_types import Ge

from clipnoise.cli import options
from clipnoise.cli.keys import kind_table
from clipnoise.errors import UserError
from clipnoise.fields import Count, Fraction, Natural, Positive, Probability, parse
from clipnoise.files import json_text, write_atomically
from clipnoise.privacy.accountants import ACCOUNTANTS, DEFAULT_ACCOUNTANT, AccountantName
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS, Rate
from clipnoise.privacy.budget import Budget
from clipnoise.privacy.calibration import Calibration
from clipnoise.privacy.calibration import calibrate as find_noise_multiplier
from clipnoise.privacy.noise import NoiseCorrelation
from clipnoise.privacy.participation import Participation
from clipnoise.privacy.profile import PrivacyProfile, privacy_profile
from clipnoise.privacy.samplers import (
    SAMPLERS,
    Sampler,
    check_accountant,
    sampler_class,
)

PARTICIPATION = [field.name for field in fields(Participation)]
BUDGET = [field.name for field in fields(Budget) if field.name != "participation"]
# Of the Monte Carlo accountant: up to about ten seconds for ε alone, and for all bounds.
MOST_TURNS, MOST_TURNS_OF_PROFILE = 100, 10
MOST_STEPS = 10**9  # of which accountants still return finite numbers


@dataclass(frozen=True, kw_only=True)
class Accounted:
    """What every accountant needs besides σ: δ with q and T, or with participations."""

    delta: Annotated[Probability, "δ, greater than 0 and less than 1."]
    sampling_rate: Annotated[Rate | None, "q = B/n, greater than 0 and at most 1."] = None
    steps: Annotated[Natural | None, "Number of steps T."] = None
    participations: Annotated[
        Count | None, "How often each example takes part in a fixed order; replaces q and T."
    ] = None
    microbatch: Annotated[
        Count, "Examples whose mean is clipped. Above 1, one example can move that mean by 2C."
    ] = 1

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps > MOST_STEPS:
            raise UserError(f"--steps: must be at most {MOST_STEPS:,}, got {self.steps:,}.")
        sampled = [value for value in (self.sampling_rate, self.steps) if value is not None]
        if self.participations is not None and sampled:
            raise UserError("--participations: cannot be combined with --sampling-rate or --steps.")
        if self.participations is None and len(sampled) < 2:
            raise UserError("--sampling-rate, --steps: give both, or --participations instead.")

    @property
    def sensitivity(self) -> float:
        """How far one example moves the clipped sum, in units of C."""
        return 2.0 if self.microbatch > 1 else 1.0


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """How batches are drawn, and what ε depends on with some samplers only."""

    sampler: Annotated[str, click.Choice(list(SAMPLERS)), "How batches are drawn."] = "poisson"
    groups: Annotated[Count, "Groups of examples that take turns; 1 is everyone."] = 1
    truncation_probability: Annotated[
        Fraction | None, "Probability that a step of truncated-poisson draws too many examples."
    ] = None
    affected_examples: Annotated[
        Count,
        "Per-example gradients that one unit can change: K + 1 for a node of a graph. σ is then in "
        "units of 2(K + 1)C.",
    ] = 1
    examples: Annotated[Count | None, "n, for batches of a fixed size."] = None
    noise: Annotated[
        options.JsonValues | None,
        options.JsonObject(),
        "JSON object of how noise is correlated, for the accountant monte-carlo.",
    ] = None
    trials: Annotated[
        options.JsonValues | None,
        options.JsonObject(),
        'JSON object of the law of a number of trials, such as {"mean": 10}, whose choice ε (or '
        "its target) is to cover, too.",
    ] = None


@options.command()
def account(
    noise_multiplier: Annotated[
        Positive,
        "σ, greater than 0: the noise on the clipped sum, in units of the clip norm C; with "
        "--affected-examples a, in units of 2aC, by which one unit can move the sum.",
    ],
    mechanism: Accounted,
    drawn: SamplerOptions,
    accountant: Annotated[
        AccountantName | None, click.Choice(list(ACCOUNTANTS)), "Print only this one."
    ] = None,
    json: Annotated[bool, "Print ε and all bounds below as JSON."] = False,
) -> None:
    """Print the ε that a noise multiplier costs under each accountant.

    ε is an upper bound for T steps under the adjacency beside it. Accountants that agree in the
    adjacency bound the same true value, and each is a guarantee by itself unless it is called
    nominal, so the smallest is the tightest. With --participations nothing is sampled: each example
    takes part that often, in a fixed order, and ε is exact.

    Where examples take part in turns, or in one step of each epoch, --groups says how many turns
    there are, and --sampling-rate is that of an example in its turn: 1 with cyclic, shuffled
    and balls-in-bins, and 1/groups with random-allocation. With b-min-sep, --groups is b, and the
    rate is the probability with which an example that may take part does so. Where their order is
    fixed, ε is the same for any noise, because σ is relative to a strategy scaled to it; --noise is
    needed for balls-in-bins and b-min-sep alone.

    One (ε, δ) cannot be compared with another, so the bounds that follow from the whole profile
    δ(ε) are printed below, by the accountant of the smallest ε: μ of Gaussian differential privacy,
    true positive rates of any attack at given false positive rates, δ at other ε, and ε at other δ.
    docs/guarantees.md says what they mean. With --accountant and without --json, only ε is
    printed.

    --trials '{"law": "poisson", "mean": 10}' adds ε with a choice among that many trials, as
    `trials` of `tune` in a study draws them: each has the σ of the run, and a run with what the
    best of them used follows. It is the same under every accountant of Poisson sampling.
    """
    _check_alone(mechanism, drawn)
    _check_units(mechanism, drawn)
    budgets = _accounted_by(mechanism, drawn, accountant)
    _refuse_long(budgets, drawn.groups, alone=accountant is not None and not json)
    sigma = noise_multiplier / mechanism.sensitivity
    if json:
        stated = {name: _stated(budget, sigma) for name, budget in budgets.items()}
        print(json_text({"delta": mechanism.delta, **_with_choice(budgets, sigma), **stated}))
    elif accountant is not None:
        (budget,) = budgets.values()
        print(f"{budget.spent(sigma):.4f}{'' if _proved(budget) else '  nominal'}")
        for value in _with_choice(budgets, sigma).values():
            print(f"{value:.4f}  with the choice")
    else:
        _print_accounts(budgets, sigma)
        _print_unit(drawn)


def _print_unit(drawn: SamplerOptions) -> None:
    """Say what σ is relative to, where that is not C."""
    if drawn.affected_examples > 1:
        moved = 2 * drawn.affected_examples
        print(f"\nσ is in units of {moved} C, by which one unit can move the clipped sum.")


def _check_units(mechanism: Accounted, drawn: SamplerOptions) -> None:
    """Refuse what no analysis covers, and what would be taken for free."""
    if drawn.affected_examples > 1 and mechanism.microbatch > 1:
        raise UserError(
            "--microbatch: no analysis covers micro-batches where one unit changes several "
            "gradients (--affected-examples)."
        )
    if (drawn.truncation_probability is None) == sampler_class(drawn.sampler).truncated:
        raise UserError(
            "--truncation-probability: give it with --sampler truncated-poisson, and with no other."
        )


def _check_alone(mechanism: Accounted, drawn: SamplerOptions) -> None:
    """Refuse what would be ignored beside participations in a fixed order."""
    ignored = [name for name, value in vars(type(drawn)()).items() if value != vars(drawn)[name]]
    if mechanism.participations is not None and ignored:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        raise UserError(f"--participations: cannot be combined with {names}.")


def _accounted_by(
    mechanism: Accounted, drawn: SamplerOptions, accountant: AccountantName | None
) -> dict[str, Budget]:
    """Return the budget of a mechanism by accountant, or as `exact` where nothing is sampled.

    Raises:
        UserError: no accountant is for these values, or not the one that is asked for.
    """
    given: dict[str, object] = {"delta": mechanism.delta, "noise_multiplier": 1.0}
    given |= {**vars(Details()), **vars(drawn)}
    if mechanism.participations is not None:
        whole = {"sampling_rate": 1.0, "steps": mechanism.participations}
        return {"exact": budget_of({**given, **whole, "sampler": "full"})}
    given |= {"sampling_rate": mechanism.sampling_rate, "steps": mechanism.steps}
    if accountant is not None:
        return {accountant: budget_of({**given, "accountant": accountant})}
    budgets: dict[str, Budget] = {}
    refusals: dict[str, UserError] = {}
    for name in ACCOUNTANTS:
        try:
            budgets[name] = budget_of({**given, "accountant": name})
        except UserError as error:
            refusals[name] = error
    if not budgets:
        proved = [name for able in sampler_class(drawn.sampler).proved.values() for name in able]
        raise refusals[proved[0]]
    return budgets


def _refuse_long(budgets: Mapping[str, Budget], groups: int, *, alone: bool) -> None:
    """Refuse what the Monte Carlo accountant would take much longer for than ten seconds."""
    most = MOST_TURNS if alone else MOST_TURNS_OF_PROFILE
    if "monte-carlo" in budgets and groups > most:
        shorter = "" if alone else f", or up to {MOST_TURNS} with --accountant monte-carlo"
        raise UserError(
            f"--groups: must be at most {most} for the bounds of the accountant monte-carlo, got "
            f"{groups}. Allowed: fewer groups{shorter}, or `clipnoise calibrate`, which may take "
            "a minute."
        )


def _print_accounts(budgets: Mapping[str, Budget], sigma: float) -> None:
    """Print ε under every accountant, and the other bounds of the one whose ε is the smallest.

    What is nominal is the tightest only if nothing is proved.
    """
    found: dict[str, float] = {}

    def spent(name: str) -> float:
        found[name] = budgets[name].spent(sigma)
        return found[name]

    _print_epsilons(budgets, spent)
    for value in _with_choice(budgets, sigma).values():
        print(f"\nwith the choice  {value:.4f}")
    if found:
        tightest = min(found, key=lambda name: (not _proved(budgets[name]), found[name]))
        print("" if tightest == "exact" else f"\nby {tightest}")
        nominal = not _proved(budgets[tightest])
        bounds = _profile(budgets[tightest], sigma, found[tightest])
        lines = bounds.lines(nominal=nominal)
        width = max(12, *(len(what) + 1 for what in lines))
        for what, text in lines.items():
            print(f"{what:<{width}}{text}")


def _with_choice(budgets: Mapping[str, Budget], sigma: float) -> dict[str, float]:
    """Return ε with the choice among trials, by its name in statements; nothing without trials.

    Its bounds are of one analysis, whatever accountant a budget names.
    """
    budget = next(iter(budgets.values()))
    return {} if budget.trials is None else {"epsilon_with_tuning": budget.charged(sigma)}


def _stated(budget: Budget, sigma: float) -> dict[str, object]:
    """Return ε and the other bounds of a budget as plain data, or why there are none."""
    claim = "guarantee" if _proved(budget) else "nominal"
    of = {"adjacency": budget.adjacency, "claim": claim}
    try:
        spent = budget.spent(sigma)
    except UserError as error:
        return {**of, "unavailable": str(error)}
    profile = _profile(budget, sigma, spent)
    points = {"epsilons": list(profile.epsilons), "deltas": list(profile.deltas)}
    return {**of, "epsilon": spent, **profile.stated(), "profile": points}


def _profile(budget: Budget, sigma: float, epsilon: float) -> PrivacyProfile:
    stated = (epsilon, budget.delta)
    return privacy_profile(budget.participation, budget.accountant, sigma, stated)


@dataclass(frozen=True, kw_only=True)
class Details(SamplerOptions):
    """What a budget says besides ε and the mechanism: accountant, sampler, and who takes part."""

    accountant: Annotated[str, click.Choice(list(ACCOUNTANTS)), "Accountant that bounds ε."] = (
        DEFAULT_ACCOUNTANT
    )
    prefix_cost: Annotated[
        float,
        Ge(1),
        "How much more the first t < T steps of tree noise may cost than their participations.",
    ] = 1.0
    evaluation_steps: Annotated[
        Sequence[Natural], "Steps, at most T, after which to give the ε spent so far."
    ] = ()


@options.command()
def calibrate(
    mechanism: Accounted,
    details: Details,
    epsilon: Annotated[Positive | None, "The target ε, greater than 0."] = None,
    noise_multiplier: Annotated[Positive | None, "σ instead, greater than 0."] = None,
    out: Annotated[Path | None, "JSON file to write, instead of printing."] = None,
) -> None:
    """Find the smallest noise multiplier for a target ε, or the ε of a given one.

    The ε reached is at most the target and within 1e-3 of it. With --out, the calibration is
    written as JSON with the ε spent at each evaluation step; without, it is printed beside the ε of
    the same noise multiplier under the other accountants. It is called nominal where no accountant
    is proved for the batches of the sampler. With --participations nothing is sampled and σ is
    exact. With --microbatch above 1, the printed σ is in units of C and twice as large,
    because one example can move a clipped mean by 2C; a file cannot hold either of these.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise UserError("--epsilon, --noise-multiplier: give exactly one of them.")
    if out is not None and (mechanism.participations or mechanism.microbatch > 1):
        raise UserError(
            "--out: a calibration file holds neither --participations nor --microbatch."
        )
    _check_alone(mechanism, details)
    if out is None:  # a file of the workflow leaves a probability of 0 out
        _check_units(mechanism, details)
    if mechanism.participations is not None:
        _print_exact(epsilon, noise_multiplier, mechanism)
        return
    sigma = None if noise_multiplier is None else noise_multiplier / mechanism.sensitivity
    given = {**vars(mechanism), **vars(details), "epsilon": epsilon, "noise_multiplier": sigma}
    calibration = find_noise_multiplier(budget_of(given))
    if out is None:
        _print_calibration(calibration, mechanism.sensitivity)
        _print_unit(details)
    else:
        calibration.write(out)
        print(
            f"{out}: noise multiplier {calibration.noise_multiplier:.6f}, "
            f"ε = {calibration.epsilon:.6f} ({_accounted(calibration)})"
        )


def budget_of(given: Mapping[str, object]) -> Budget:
    """Return the budget that the options of `calibrate` describe.

    Raises:
        UserError: options that do not fit each other.
    """
    values = {name: given.get(name) for name in BUDGET}
    participation = {name: given.get(name) for name in PARTICIPATION}
    participation["truncation_probability"] = participation["truncation_probability"] or 0.0
    return parse(Budget, {**values, "participation": participation})


def _print_exact(target: float | None, sigma: float | None, mechanism: Accounted) -> None:
    """Print σ and ε of k participations in a fixed order: one Gaussian mechanism at σ/√k."""
    scale = mechanism.sensitivity * math.sqrt(mechanism.participations or 1)
    if sigma is None:
        assert target is not None
        sigma = scale * gaussian_noise_multiplier(target, mechanism.delta)
    print(f"noise multiplier σ   {sigma:.6f}")
    print(f"ε (exact)            {gaussian_epsilon(sigma / scale, mechanism.delta):.6f}")


def _print_calibration(calibration: Calibration, factor: float) -> None:
    budget = calibration.budget
    print(f"noise multiplier σ   {factor * calibration.noise_multiplier:.6f}")
    print(f"{f'ε ({_accounted(calibration)})':<20} {calibration.epsilon:.6f}")
    print(f"δ                    {budget.delta:g}")
    print(f"adjacency, sampler   {calibration.adjacency}, {budget.sampler}")
    for step, spent in calibration.spent.items():
        print(f"ε at step {step:<11}{spent:.6f}")
    if budget.trials is not None:
        print(f"ε with the choice    {budget.charged(calibration.noise_multiplier):.6f}")
    others = (*POISSON_ACCOUNTANTS, "per-epoch")  # those to which a participation means the same
    if calibration.adjacency not in ("add-remove", "zero-out") or budget.accountant not in others:
        return  # the other accountants are for adding or removing one example
    alike: dict[str, Budget] = {}
    for name in POISSON_ACCOUNTANTS:
        with suppress(UserError):  # not for these batches
            alike[name] = replace(budget, accountant=name)
    if alike:
        print()
        _print_epsilons(alike, lambda name: alike[name].spent(calibration.noise_multiplier))


def _accounted(calibration: Calibration) -> str:
    """Return whose ε it is, and that it is nominal where it is not proved for the batches."""
    budget = calibration.budget
    return budget.accountant if _proved(budget) else f"{budget.accountant}, nominal"


def _proved(budget: Budget) -> bool:
    """Return whether ε is proved for the batches of the sampler."""
    return sampler_class(budget.sampler).proves(budget.accountant, budget.adjacency)


def _print_epsilons(budgets: Mapping[str, Budget], spent: Callable[[str], float]) -> None:
    """Print ε and its adjacency under every accountant, or the reason why one gives none."""
    width = max(map(len, ["accountant", *budgets])) + 2
    if "exact" not in budgets:
        print(f"{'accountant':<{width}}{'ε':<10}adjacency")
    for name, budget in budgets.items():
        try:
            about = f"{budget.adjacency}{'' if _proved(budget) else ', nominal'}"
            text = f"{spent(name):<9.4f} {about}"
        except UserError as error:
            text = f"none: {error}"
        print(f"{name:<{width}}{text}")


@options.command()
def registry(
    folder: Annotated[Path, options.ARGUMENT],
    out: Annotated[Path | None, "JSON file to write, instead of printing."] = None,
) -> None:
    """Describe the private run in FOLDER for a registry of deployments, as JSON.

    FOLDER holds the summary.json of a finished run. The entry has mechanism, unit, adjacency, ε, δ
    and bounds that can be compared, what tuning cost, and what NIST SP 800-226 asks to look at;
    what a run cannot know is empty or “not known”. Its part `registry` has the keys of the Privacy
    Deployments Registry of OpenDP. `src/clipnoise/run/registry.schema.json` is its JSON Schema.
    """
    from clipnoise.run.registry import registry_entry

    text = json_text(registry_entry(folder))
    if out is None:
        print(text)
    else:
        write_atomically(out, f"{text}\n")
        print(out)


SAMPLERS_PAGE = """# Samplers

Generated by `clipnoise samplers --markdown docs/samplers.md`; edit the classes in
`src/clipnoise/privacy/samplers` instead.

A study chooses one under `privacy: {sampler: …}`. The first table says under which
[adjacency](guarantees.md#adjacency) the ε of an accountant is a guarantee with the batches of a
sampler. “Nominal” means that the accountant may be used and nothing is proven; “–” that it is
refused. What holds for examples holds for users, too. Only independent noise goes with every
sampler, because other noise needs to know how many steps lie between two participations.

Four studies on handwritten digits change nothing else, and their reports say what each change
gains at equal ε, seed by seed. The first one changes the sampler; the second one the noise, with
balls in bins and in a fixed order; the third one the number of bands, with b-min-sep and with
cyclic Poisson sampling; the fourth one what the noise is optimised for:

```sh
snakemake --cores all reports/samplers/report.pdf
snakemake --cores all reports/drawn-turns/report.pdf
snakemake --cores all reports/banded-turns/report.pdf
snakemake --cores all reports/scheduled-noise/report.pdf
```

"""

NOISE_SECTION = """

## Correlated noise

`noise` in `privacy` says how the noise of a run is correlated across its steps, so that later steps
take back part of what earlier ones added, e.g. `{sampler: cyclic, noise: {kind: blt, buffers: 3}}`.

"""

NOISE_ERRORS = """
| `kind` | vectors in memory | error, T = 200 | error, T = 1000 | error, T = 1000, 10 rounds |
|---|---|---|---|---|
| `independent` (default) | 0 | 10.0 | 22.4 | 70.7 |
| `banded`, `bands: 8` | 7 | 4.10 | 8.35 | 26.4 |
| `banded`, `bands: 32` | 31 | 2.88 | 4.91 | 15.5 |
| `banded-inverse`, `bands: 8` | 7 | 3.29 | 6.61 | 20.9 |
| `banded-inverse`, `bands: 32` | 31 | 2.58 | 4.03 | 13.2 |
| `lambda-cgd`, `cancelled: 0.9` | 1 | 3.24 | 5.62 | 17.8 |
| `blt`, `buffers: 1` | 1 | 2.66 | 3.44 | 12.4 |
| `blt`, `buffers: 3` | 3 | 2.54 | 3.05 | 12.2 |
| `tree` | ⌊log₂ T⌋ + 1 | 5.42 | 7.03 | 22.7 |
| `dense` | T − 1 | 2.45 | 2.95 | 14.7 |

The error is the root mean square of the noise in the T prefix sums, where all participations of an
example together cost one Gaussian release at σ = 1: in the first two columns it takes part once, in
the last one every hundredth step. It is computed by `prefix_sum_rmse`; it leaves out amplification
by sampling, and it is no good predictor of accuracy for adaptive methods.

`banded`, `blt` and `dense` minimise that error, which is what a constant learning rate adds up.
With `rates: learning_rate` they minimise it for the sums Σ η_s y_s that a
[schedule](studies.md#schedules) makes of the noise y. Only the choice of the strategy changes: σ
and ε follow from its matrix, as for any other. A run whose learning rate is the same at every step
is refused, and so is one of more than 5,000 steps. For an optimizer whose steps are not η times
what was released, with momentum or division by moments, the sums are an approximation in both
cases. The error of such sums, as above, of strategies for prefix sums and for the schedule:

| `kind` | linear, T = 100 | cosine, T = 100 | linear, T = 1000 | cosine, T = 1000 |
|---|---|---|---|---|
| `banded`, `bands: 8` | 2.188 → 2.182 | 2.330 → 2.323 | 5.862 → 5.857 | 6.291 → 6.286 |
| `banded`, `bands: 32` | 1.679 → 1.669 | 1.771 → 1.757 | 3.382 → 3.372 | 3.617 → 3.605 |
| `blt`, `buffers: 1` | 1.646 → 1.636 | 1.737 → 1.726 | 2.258 → 2.240 | 2.390 → 2.370 |
| `blt`, `buffers: 3` | 1.624 → 1.611 | 1.722 → 1.703 | 2.048 → 2.029 | 2.172 → 2.147 |
| `dense` | 1.590 → 1.575 | 1.691 → 1.667 | 1.994 → 1.979 | 2.126 → 2.102 |

That is 0.1 to 1.4% less. Where the rates climb first or fall in steps `dense` gains more: 10% for a
cosine after a warm-up of a fifth of 100 steps, and 12% for `step`. Each kind is compared where an
example takes part once; `banded` is optimised for participations at least `bands` steps apart, and
in a fixed order with shorter epochs the schedule can add to its error.

In the study `scheduled-noise`, 15 epochs in a fixed order and ten seeds, the schedule changes the
accuracy by 0.2 points or less, with one exception. Under a cosine after a warm-up of a fifth of the
steps, `dense` gains 5.4 ± 1.5 points at ε = 1 and 0.5 ± 0.3 at ε = 8 (95% intervals over seeds).

Correlated noise needs to know when an example can take part. With `sampler: cyclic` every kind is
covered, without amplification: the strategy is scaled to a bound on what the participations of an
example add up to, which is exact where no entry of C is negative. So it is with `full`.
`cyclic-poisson` amplifies, and needs as many groups as the strategy has bands: only `banded` has
fewer than T. With the accountant `monte-carlo`, `b-min-sep` amplifies such noise more, in runs of
at most 2,000 steps, and `balls-in-bins` amplifies every kind, in runs of at most 5,000 steps and
epochs of at most 250. A calibration takes seconds for eight bands or epochs of up to 40 steps, and
about a minute at the most. Other samplers are refused.

In the study `banded-turns`, 195 steps at q = 0.077, `b-min-sep` and `cyclic-poisson` need these σ.
At ε = 1 they are nearly the same: where there is so much noise, waiting hides little more than a
fixed group.

| ε | sampler | one band | two | four | eight |
|---|---|---|---|---|---|
| 1 | `b-min-sep` | 4.24 | 5.91 | 8.21 | 11.34 |
| 1 | `cyclic-poisson` | 4.18 | 5.87 | 8.23 | 11.62 |
| 8 | `b-min-sep` | 0.97 | 1.15 | 1.44 | 1.80 |
| 8 | `cyclic-poisson` | 0.96 | 1.20 | 1.53 | 1.99 |

One band is Poisson sampling under both, so its rows show what verification by random draws costs:
up to 1.4%. Accuracy does not differ between the two samplers by more than chance over five seeds.
At ε = 1 it is 3.3 points lower on average with eight bands than with independent noise.
"""


@options.command()
def samplers(
    markdown: Annotated[Path | None, "Write the page of the documentation."] = None,
) -> None:
    """List the samplers: whose ε is a guarantee for their batches, and which noise they allow.

    With --markdown, write the page of the documentation instead.
    """
    heads = ["sampler", "noise", *ACCOUNTANTS, "nodes of a graph"]
    rows = [[kind.id, kind.noise(), *_claims(kind)] for kind in SAMPLERS.values()]
    if markdown is None:
        print("\n".join(options.aligned([heads, *rows], left=range(len(heads)))))
        return
    lines = [heads, ["---"] * len(heads), *([f"`{row[0]}`", *row[1:]] for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    details = "".join(
        f"\n\n## {kind.id}\n\n{inspect.cleandoc(kind.__doc__ or '')}" for kind in SAMPLERS.values()
    )
    kinds = kind_table(NoiseCorrelation.package_kinds())
    write_atomically(
        markdown, f"{SAMPLERS_PAGE}{table}{details}{NOISE_SECTION}{kinds}{NOISE_ERRORS}"
    )
    print(markdown)


def _claims(kind: type[Sampler]) -> Iterator[str]:
    """Yield what each accountant's ε is for the batches of a sampler, then those for nodes."""
    for name in ACCOUNTANTS:
        try:
            check_accountant(name, kind.id)
        except UserError:
            yield "–"
            continue
        adjacency = kind.adjacency(name)
        yield adjacency if kind.proves(name, adjacency) else "nominal"
    yield ", ".join(n for n in ACCOUNTANTS if kind.proves(n, "add-remove-node")) or "–"
