"""Schedules: hyper-parameters that change from step to step, as functions of the step alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic_core import core_schema

from clipnoise.fields import STRICT, Decay, NonNegative, Positive, Probability

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Base of the kinds. Step t of T has a value that follows from t and T, and from nothing else.

    The first W = round(warmup·T) steps climb in equal parts: step t ≤ W has t/W of the peak. Step
    t > W is at p = (t − 1 − W)/(T − W), so the first of them is at 0 and none is at 1: a schedule
    that ends at 0 wastes no step there.

    Attributes:
        kind: the name of the kind.
        peak: the largest value.
        warmup: the share of the T steps in which the value climbs to its peak.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: str
    peak: Positive
    warmup: Decay = 0.0

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Read the base as any of its kinds; a JSON Schema then has them once, under its name."""
        if cls is not Schedule:
            return handler(source)
        choices = {kind.kind: handler.generate_schema(kind) for kind in KINDS}
        name = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"  # as pydantic names classes
        return core_schema.tagged_union_schema(choices, discriminator="kind", ref=name)

    def at(self, step: int, steps: int) -> float:
        """Return the value of step t, from 1, of T."""
        climb = round(self.warmup * steps)
        if step <= climb:
            return self.peak * step / climb
        return self.after_warmup((step - 1 - climb) / (steps - climb), step, steps)

    def extremes(self, steps: int) -> set[int]:
        """Return steps of T, two of which have the smallest and the largest value."""
        return {1, min(steps, round(self.warmup * steps) + 1), steps}

    def relative(self) -> Self:
        """Return the schedule with every value divided by the peak."""
        return replace(self, peak=1.0)

    def after_warmup(self, place: float, step: int, steps: int) -> float:
        """Return the value after the warm-up: at most the peak, and never rising.

        Args:
            place: p, at least 0 and below 1.
            step: t, from 1.
            steps: T.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ConstantSchedule(Schedule):
    """The peak itself, after the warm-up."""

    kind: Literal["constant"] = "constant"

    def after_warmup(self, place: float, step: int, steps: int) -> float:
        return self.peak


@dataclass(frozen=True, kw_only=True)
class Decaying(Schedule):
    """What the kinds share that fall from the peak, at p = 0, towards a final value, at p = 1.

    Attributes:
        final: what step T + 1 would have.
    """

    final: NonNegative

    def __post_init__(self) -> None:
        if self.final > self.peak:
            raise ValueError(f"final: must be at most the peak, {self.peak:g}, got {self.final:g}")

    def relative(self) -> Self:
        return replace(self, peak=1.0, final=self.final / self.peak)


@dataclass(frozen=True, kw_only=True)
class LinearSchedule(Decaying):
    """peak + (final − peak)·p."""

    kind: Literal["linear"] = "linear"
    final: NonNegative = 0.0

    def after_warmup(self, place: float, step: int, steps: int) -> float:
        return self.peak + (self.final - self.peak) * place


@dataclass(frozen=True, kw_only=True)
class CosineSchedule(Decaying):
    """final + (peak − final)·(1 + cos πp)/2.

    Source: Loshchilov and Hutter 2017 (SGDR), equation 5, without restarts.
    """

    kind: Literal["cosine"] = "cosine"
    final: NonNegative = 0.0

    def after_warmup(self, place: float, step: int, steps: int) -> float:
        return self.final + (self.peak - self.final) * (1 + math.cos(math.pi * place)) / 2


@dataclass(frozen=True, kw_only=True)
class ExponentialSchedule(Decaying):
    """peak·(final/peak)^p: every step after the first multiplies by the same factor."""

    kind: Literal["exponential"] = "exponential"
    final: Positive

    def after_warmup(self, place: float, step: int, steps: int) -> float:
        return self.peak * math.pow(self.final / self.peak, place)


@dataclass(frozen=True, kw_only=True)
class StepSchedule(Schedule):
    """The peak, times the factor after each breakpoint.

    Attributes:
        breakpoints: shares of the T steps, in ascending order: at 0.5 the first round(T/2) steps
            come before it.
        factor: below 1.
    """

    kind: Literal["step"] = "step"
    breakpoints: tuple[Probability, ...] = (0.5, 0.75)
    factor: Probability = 0.1

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.breakpoints, self.breakpoints[1:], strict=False))
        if not self.breakpoints or not ascending or self.breakpoints[0] < self.warmup:
            raise ValueError(
                "breakpoints: give shares of the steps in ascending order, none before the end of "
                "the warm-up"
            )

    def after_warmup(self, place: float, step: int, steps: int) -> float:
        passed = sum(step > round(share * steps) for share in self.breakpoints)
        return self.peak * self.factor**passed


# A new kind is a class above, and is listed here.
KINDS = (ConstantSchedule, LinearSchedule, CosineSchedule, ExponentialSchedule, StepSchedule)


def each_candidate(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the schedules that a search tries: one for each combination of the listed numbers.

    Args:
        values: a schedule as plain data, with a list of candidates in the place of any value.
    """
    listed = {
        name: value
        for name, value in values.items()
        if isinstance(value, list | tuple) and (name != "breakpoints" or _several(value))
    }
    combinations = itertools.product(*listed.values())
    return [{**values, **dict(zip(listed, point, strict=True))} for point in combinations]


def _several(breakpoints: Sequence[Any]) -> bool:
    return all(isinstance(one, list | tuple) for one in breakpoints)


def scheduled(value: Any) -> Iterator[Schedule]:
    """Yield the schedules of a hyper-parameter, which may be a tuple of several."""
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, Schedule):
            yield one


def at_step(value: Any, step: int, steps: int) -> Any:
    """Return a hyper-parameter with numbers in place of its schedules, for step t of T."""
    if isinstance(value, tuple):
        return tuple(at_step(one, step, steps) for one in value)
    return value.at(step, steps) if isinstance(value, Schedule) else value


def own_names(kind: type[Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return those names that are fields of a dataclass."""
    own = {one.name for one in fields(kind)}
    return tuple(name for name in names if name in own)


def one_number(reason: str) -> Callable[[Any], Any]:
    """Return a check of a number that refuses a schedule, and says why it has none."""

    def check(value: Any) -> Any:
        if isinstance(value, Schedule) or (isinstance(value, Mapping) and "kind" in value):
            raise ValueError(f"must be one number for all steps: {reason}")
        return value

    return check


def with_schedules(
    options: Mapping[str, Any], names: tuple[str, ...], handler: GetCoreSchemaHandler
) -> None:
    """Let some numbers of a dataclass be schedules, and refuse one elsewhere with a reason.

    Args:
        options: pydantic's schema of the dataclass, which is changed in place.
        names: the fields that may be schedules.
        handler: builds the schema of a schedule.
    """
    refuse = one_number(f"schedules are for {', '.join(names) or 'none of its options'}")

    def replaced(schema: Any, allowed: bool) -> Any:
        if schema["type"] in ("default", "nullable"):
            return {**schema, "schema": replaced(schema["schema"], allowed)}
        if schema["type"] == "tuple":
            items = [replaced(item, allowed) for item in schema["items_schema"]]
            return {**schema, "items_schema": items}
        if schema["type"] != "float":
            return schema
        if allowed:
            return core_schema.union_schema([schema, handler.generate_schema(Schedule)])
        return core_schema.no_info_before_validator_function(refuse, schema)

    for option in options["schema"]["fields"]:
        option["schema"] = replaced(option["schema"], option["name"] in names)
