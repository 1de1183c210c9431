"""Tuning: which runs choose the hyper-parameters of others, the choice, and its cost in ε."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, model_validator

from clipnoise.core.schedule import each_candidate
from clipnoise.data.measures import ValidationMetric
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Natural, Positive, to_plain
from clipnoise.lazy import np
from clipnoise.privacy.accountants.selection import composed_epsilon, selected_epsilon
from clipnoise.privacy.claim import composable
from clipnoise.privacy.trials import DrawnTrials
from clipnoise.run.choice import Choice, Spent, Tried, tuned_values
from clipnoise.run.results import Summary
from clipnoise.run.spec import TRAINING, RunSpec, Tuning
from clipnoise.seeds import derive
from clipnoise.studies.moved import TUNE_KEYS, refuse_moved

Axis = Literal["dataset", "model", "epsilon"]
Charge = Literal["nothing", "composition", "selection", "included"]
Range = tuple[Positive, Positive]
Ends = Range | dict[str, object]  # of a number, or of one number of a schedule


def _listed(candidates: object) -> object:
    return each_candidate(candidates) if isinstance(candidates, Mapping) else candidates


Candidates = Annotated[
    tuple[object, ...],
    BeforeValidator(_listed, json_schema_input_type=tuple[object, ...] | dict[str, object]),
]

AXES: tuple[Axis, ...] = ("dataset", "model", "epsilon")
PRIMES = (2, 3, 5, 7, 11, 13)  # the bases of the Halton sequence
OUTER = 0.2  # of the logarithms of a range, at each of its ends
NO_RANGE = (
    "ranges.{}: give a smallest and a larger value, both above 0, because values are spread evenly "
    "over logarithms"
)
PARTIAL = "Some runs of the search diverged; a configuration with such a run cannot win."
NONE_LEFT = "Every configuration of the search has a diverged run; the first one was taken."


@dataclass(frozen=True, kw_only=True)
class Tune:
    """What is tuned for a method of a study, and how.

    Attributes:
        seeds: of the tuning runs; none is reported. One per search, if `trials` are drawn.
        grid: candidates by hyper-parameter, or by `expected_batch_size`, `epochs` or `steps`; all
            combinations are tried, at the same ε. A schedule has lists in the place of numbers.
        ranges: the smallest and largest value by hyper-parameter, for `trials`; or a list of such
            ranges, such as one of numbers and one of a schedule, of which each trial takes one.
        trials: points of a quasi-random sequence, spread evenly over candidates and the logarithms
            of ranges; or the law of a drawn number of points at random, such as `{mean: 10}`.
        searches: how often the search is repeated, independently: these seeds and those of the
            panel are dealt out to the searches in order, and the points of each are moved at
            random.
        metric: its mean over seeds is compared; by default that of `rank_by`.
        per: axes along which choices are made separately.
        charge: the ε of the search: none, that of publishing all of its runs, or only the best of a
            random number; or included, so that σ is calibrated for an ε that covers the choice
            among a drawn number of trials, too.
    """

    __pydantic_config__: ClassVar = STRICT

    seeds: tuple[Natural, ...]
    grid: dict[str, Candidates] = field(default_factory=dict)
    ranges: dict[str, Ends | tuple[Ends, ...]] = field(default_factory=dict)
    trials: Count | DrawnTrials | None = None
    searches: Count | None = None
    metric: ValidationMetric | None = None
    per: tuple[Axis, ...] = AXES
    charge: Charge = "nothing"

    @model_validator(mode="before")
    @classmethod
    def _refuse_moved(cls, values: Any) -> Any:
        return refuse_moved(values, TUNE_KEYS, {})

    @model_validator(mode="before")
    @classmethod
    def _refuse_ends(cls, values: Any) -> Any:
        """Refuse two numbers that are no range before they are taken for a list of ranges."""
        ranges = values.get("ranges") if isinstance(values, dict) else None
        for name, ends in ranges.items() if isinstance(ranges, dict) else ():
            numbers = isinstance(ends, list) and all(isinstance(end, int | float) for end in ends)
            if numbers and not _ascending(ends):
                raise ValueError(NO_RANGE.format(name))
        return values

    def __post_init__(self) -> None:
        if not self.parameters or not all(self.grid.values()):
            raise ValueError("grid: give at least one hyper-parameter, each with its candidates")
        for name, candidates in self.grid.items():
            twice = [one for k, one in enumerate(candidates) if one in candidates[:k]]
            if twice:
                raise ValueError(f"grid.{name}: {twice[0]} is given twice")
        self._check_drawn()
        if isinstance(self.trials, int) and len(self.parameters) > len(PRIMES):
            raise ValueError(
                f"trials: at most {len(PRIMES)} hyper-parameters can be tuned together"
            )
        if self.ranges and self.trials is None:
            raise ValueError("ranges: give `trials`, the number of points to try in them")
        for name, ends in self.ranges.items():
            of_each = [_within(one)[1] for one in alternatives(ends)]
            if name in self.grid:
                raise ValueError(f"ranges.{name}: has candidates in `grid`, too. Give one of them")
            if not of_each or not all(map(_ascending, of_each)):
                raise ValueError(NO_RANGE.format(name))
        named = [name for name in ("id", "label") if name in self.parameters]
        if named:
            raise ValueError(f"{named[0]}: is no hyper-parameter; a search is of one method")
        if not self.seeds:
            raise ValueError("seeds: give at least one")
        twice = [seed for seed, times in Counter(self.seeds).items() if times > 1]
        if twice:
            raise ValueError(f"seeds: {twice[0]} is given twice")
        self.require_dealt(self.seeds, "seeds")

    def _check_drawn(self) -> None:
        """Refuse a drawn number of trials that are not runs of one mechanism, each by itself."""
        if self.law is None:
            if self.charge == "included":
                raise ValueError(
                    "charge: included needs the law of a drawn number of trials, such "
                    "as `trials: {mean: 10}`"
                )
            return
        if len(self.seeds) != (self.searches or 1):
            raise ValueError("seeds: give one, from which a drawn number of trials follows")
        if {*self.per} != {*AXES}:
            raise ValueError("per: must be every axis where the number of trials is drawn")
        unfit = [name for name in TRAINING if name in self.parameters]
        if unfit:
            raise ValueError(
                f"{unfit[0]}: not where the number of trials is drawn, because every trial must "
                "have the noise of the run that is reported"
            )

    def require_dealt(self, seeds: Sequence[int], key: str) -> None:
        """Require that seeds can be dealt out to the searches evenly.

        Raises:
            ValueError: they cannot.
        """
        if self.searches is not None and len(seeds) % self.searches:
            raise ValueError(
                f"{key}: give a multiple of {self.searches}, the number of searches; "
                f"{len(seeds)} are given"
            )

    @property
    def law(self) -> DrawnTrials | None:
        """The law of the number of trials, if it is drawn."""
        return self.trials if isinstance(self.trials, DrawnTrials) else None

    @property
    def charged(self) -> str:
        """How the report charges the tuning runs: as `charge` says, or as a drawn number."""
        drawn = self.law is not None and self.charge != "composition"
        return "drawn" if drawn else self.charge

    @property
    def included(self) -> DrawnTrials | None:
        """The law of the number of trials, if the target ε of every run covers the choice."""
        return self.law if self.charge == "included" else None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of everything that is tuned: the ranges first."""
        return (*self.ranges, *self.grid)

    def configurations(self, limit: int | None = None, search: int = 0) -> list[dict[str, object]]:
        """Return what is tried: every combination of the grid, the last one varying fastest.

        With `trials`, the points 1, 2, … of the Halton sequence, whose first point is the middle of
        every range; numbers are rounded to three significant digits. Of repeated searches each
        moves all points by a vector that its first seed draws evenly, around the ends of the ranges
        (Cranley and Patterson 1976). A drawn number of trials takes points at random.

        Args:
            limit: how many are kept, the first ones; None keeps all.
            search: which of the searches, from 0.
        """
        if self.law is not None:
            return self._drawn(self.law, search)[:limit]
        if isinstance(self.trials, int):
            shift = self._shift(search)
            return [
                self._at(
                    [(radical_inverse(n, p) + by) % 1 for p, by in zip(PRIMES, shift, strict=True)]
                )
                for n in range(1, self.trials + 1)[:limit]
            ]
        combinations = itertools.product(*self.grid.values())
        return [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.islice(combinations, limit)
        ]

    def _shift(self, search: int) -> list[float]:
        """Return by how much a search moves its points in each direction; 0 for one alone."""
        if self.searches is None:
            return [0.0] * len(PRIMES)
        stream = np.random.default_rng(derive("trials", self.seeds_in(search)[0]))
        return [stream.random() for _ in PRIMES]

    def _drawn(self, law: DrawnTrials, search: int) -> list[dict[str, object]]:
        """Return the values of each of a drawn number of trials, equal ones among them."""
        stream = np.random.default_rng(derive("trials", self.seeds_in(search)[0]))
        count = law.draw(stream.random())
        return [self._at(stream.random(len(self.parameters)).tolist()) for _ in range(count)]

    def seeds_in(self, search: int) -> tuple[int, ...]:
        """Return the seeds that a search has, by its number."""
        each = len(self.seeds) // (self.searches or 1)
        return self.seeds[search * each : (search + 1) * each]

    def seeds_of(self, number: int, search: int = 0) -> tuple[int, ...]:
        """Return the seeds of the runs of a configuration of a search, by their numbers.

        Each of a drawn number of trials has a seed of its own, of 52 bits: its noise and its
        batches are independent of those of all others.
        """
        seeds = self.seeds_in(search)
        return seeds if self.law is None else (derive("trials", seeds[0], number) >> 11,)

    def end_of(self, name: str, value: object) -> Literal["lowest", "highest"] | None:
        """Return in which outer fifth of its range, by logarithms, a value lies; None in neither.

        Args:
            name: of the hyper-parameter; one without a range has no ends.
            value: a number, or a schedule with the number that has a range.
        """
        for ends in alternatives(self.ranges.get(name, ())):
            inside, (low, high) = _within(ends)
            number = value.get(inside) if isinstance(value, Mapping) else value
            if bool(inside) == isinstance(value, Mapping) and isinstance(number, int | float):
                place = math.log(number / low) / math.log(high / low)
                return "lowest" if place <= OUTER else "highest" if place >= 1 - OUTER else None
        return None

    def _at(self, places: Sequence[float]) -> dict[str, object]:
        """Return the values at a point: a number in [0, 1) for each of what is tuned."""
        values: dict[str, object] = {}
        for place, name in zip(places, self.parameters, strict=False):
            if name in self.grid:
                values[name] = self.grid[name][int(place * len(self.grid[name]))]
            else:
                several = alternatives(self.ranges[name])
                number = int(place * len(several))
                ends, within = several[number], place * len(several) - number
                inside, (low, high) = _within(ends)
                value = float(f"{low * (high / low) ** within:.3g}")
                values[name] = {**ends, inside: value} if isinstance(ends, dict) else value
        return values


def alternatives(ends: Ends | tuple[Ends, ...]) -> tuple[Ends, ...]:
    """Return the ranges that a hyper-parameter has; one, unless a list of ranges is given."""
    if isinstance(ends, dict):
        return (ends,)
    ranges = tuple(one for one in ends if not isinstance(one, int | float))
    return ranges if len(ranges) == len(ends) else (cast("Range", ends),)


def _within(ends: Ends) -> tuple[str, Range]:
    """Return the ends of a range, and which number of a schedule they are of, if of one."""
    if not isinstance(ends, Mapping):
        return "", ends
    pairs = {
        name: value
        for name, value in ends.items()
        if isinstance(value, list | tuple) and len(each_candidate({name: value})) > 1
    }
    if [len(value) for value in pairs.values()] != [2]:
        raise ValueError("ranges: give a smallest and a largest value of one number of a schedule")
    ((name, (low, high)),) = pairs.items()
    return name, (low, high)


def _ascending(ends: Sequence[float]) -> bool:
    numbers = all(isinstance(end, int | float) for end in ends)
    return numbers and len(ends) == 2 and 0 < ends[0] < ends[1]


def radical_inverse(number: int, base: int) -> float:
    """Return a number in (0, 1) whose digits after the point are those of `number`, reversed.

    Source: Halton 1960, On the efficiency of certain quasi-random sequences of points.
    """
    place, result = 1.0, 0.0
    while number:
        number, digit = divmod(number, base)
        place /= base
        result += digit * place
    return result


@dataclass(frozen=True)
class Search:
    """One choice to be made, and the runs that it is based on.

    Attributes:
        parameters: what is to be chosen.
        metric: the basis of the comparison.
        configurations: the runs of each configuration, in the order of the grid.
        law: that of the number of trials, if it is drawn and each of them is a run.
        each: whether every run is a trial, also where several have the same values.
    """

    parameters: tuple[str, ...]
    metric: ValidationMetric
    configurations: tuple[tuple[RunSpec, ...], ...]
    law: DrawnTrials | None = None
    each: bool = False

    @cached_property
    def key(self) -> str:
        """The content hash: 12 hex digits of SHA-256 over the runs and how they are compared."""
        runs = [[spec.hash for spec in specs] for specs in self.configurations]
        law = [] if self.law is None else [to_plain(self.law)]
        text = json.dumps([list(self.parameters), self.metric, runs, *law])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def runs(self) -> list[RunSpec]:
        """Every run, one configuration after the other."""
        return [spec for specs in self.configurations for spec in specs]

    @cached_property
    def budget_keys(self) -> tuple[str, ...]:
        """The keys of the budgets of its runs, each once; every run that waits has one of them."""
        budgets = (spec.budget for spec in self.runs)
        return tuple(dict.fromkeys(budget.key for budget in budgets if budget is not None))

    @property
    def tuning(self) -> Tuning:
        """What a run says of the search whose choice it waits for."""
        return Tuning(
            key=self.key,
            parameters=self.parameters,
            configurations=len(self.configurations),
            runs=len(self.runs),
            law=self.law,
        )


def choose(
    summaries: Iterable[Summary],
    parameters: Sequence[str],
    metric: ValidationMetric,
    *,
    each: bool = False,
) -> Choice:
    """Choose the configuration with the best mean metric on the validation split.

    Of two equally good configurations the first wins. A configuration with a diverged run cannot
    win, because its mean over the other runs would be too good.

    Args:
        summaries: summary.json of every run, in the order of the grid.
        parameters, metric: what is tuned, and by what.
        each: whether every run is a trial by itself, whatever its values.

    Raises:
        UserError: completed runs do not have the metric.
    """
    runs = list(summaries)
    groups: dict[tuple[str, int], list[Summary]] = {}
    for number, summary in enumerate(runs):
        values = tuned_values(summary["spec"], parameters)
        groups.setdefault((json.dumps(values), number if each else 0), []).append(summary)
    tried = tuple(_tried(json.loads(text), group, metric) for (text, _), group in groups.items())
    done = any(run["status"] == "completed" for run in runs)
    if done and not any(configuration.n for configuration in tried):
        raise UserError(f"tune.metric: the runs have no {metric}: their task or split has none.")
    made = Choice(metric=metric, choice=tried[0].values, tried=tried, spent=_spent(runs))
    able = made.ranked
    remark = "" if len(able) == len(tried) else PARTIAL if able else NONE_LEFT
    return replace(made, choice=(able or tried)[0].values, remark=remark)


def _tried(values: dict[str, object], runs: Sequence[Summary], metric: ValidationMetric) -> Tried:
    found = [run["final"].get(metric) for run in runs if run["status"] == "completed"]
    finite = [value for value in found if value is not None and math.isfinite(value)]
    mean = sum(finite) / len(finite) if len(finite) == len(runs) else None
    return Tried(values=values, mean=mean, n=len(finite), planned=len(runs))


def _spent(runs: Sequence[Summary]) -> tuple[Spent, ...]:
    """Group the private runs by the budget that they spent."""
    names = ("noise_multiplier", "sampling_rate", "steps", "claim")
    each = Counter(
        Spent(**{name: privacy[name] for name in names}, runs=1, composable=composable(privacy))
        for privacy in (summary["privacy"] for summary in runs)
        if privacy["claim"] != "non-private"
    )
    return tuple(replace(spent, runs=number) for spent, number in each.items())


def epsilon_with_tuning(charge: str, privacy: Mapping[str, Any], choice: Choice) -> float:
    """Return ε of a run with the search that chose its hyper-parameters.

    Args:
        charge: "composition": everything that the search and the run release, composed in RDP. It
            is nominal if runs with the same seed share their noise; with secure noise they do not.
            "selection": a search that tries a Poisson-distributed number of configurations, on
            average as many as were tried here, and publishes its best run. This ε is nominal,
            because the grid here has a fixed number. "drawn": what the run states of the drawn
            number of trials behind it.
        privacy: the section `privacy` of the summary of the run.
        choice: the outcome of the search.

    Returns:
        ε; NaN if nothing is charged, or if no formula here covers what was released.
    """
    if charge == "drawn":
        return float(privacy.get("epsilon_with_tuning", math.nan))
    covered = composable(privacy) and all(spent.composable for spent in choice.spent)
    # Whether a trial diverges depends on losses on private examples, which no ε covers.
    covered &= len(choice.ranked) == len(choice.tried)
    if charge == "nothing" or not covered or privacy["epsilon"] is None:
        return math.nan
    sigma, rate, steps = (privacy[key] for key in ("noise_multiplier", "sampling_rate", "steps"))
    if charge == "composition":
        search = [
            (spent.noise_multiplier, spent.sampling_rate, spent.steps * spent.runs)
            for spent in choice.spent
        ]
        return composed_epsilon([*search, (sigma, rate, steps)], delta=privacy["delta"])
    law = DrawnTrials(law="poisson", mean=len(choice.tried))
    return selected_epsilon(law, (sigma, rate, steps), delta=privacy["delta"])
