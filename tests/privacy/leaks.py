"""Deliberate leaks: ways to get private data past the privacy boundary, each a small function.

mypy must refuse every line that is marked with `leak`, and each function must fail when it is
called: see test_judge.py and test_leaks.py.
"""

# What `strict` stands for, in this file alone, so that mypy's cache can be that of the judge.
# mypy: disallow-untyped-defs, disallow-incomplete-defs, check-untyped-defs, disallow-untyped-calls
# mypy: disallow-any-generics, disallow-subclassing-any, disallow-untyped-decorators
# mypy: warn-unused-ignores, warn-return-any, no-implicit-reexport, strict-equality, extra-checks

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.step import step
from clipnoise.methods.base import (
    Clean,
    ClippedMean,
    Method,
    OracleMethod,
    PlainMean,
    PrivateMethod,
    Public,
    Released,
    State,
)
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD

METHOD = DPSGD(learning_rate=1.0, clip_norm=1.0)
PUBLIC = Public(noise_multiplier=1.0, expected_batch_size=2.0, total_steps=1)
LEAKS: list[Callable[[ClippedSum], object]] = []


def leak(attempt: Callable[[ClippedSum], object]) -> Callable[[ClippedSum], object]:
    """Register a leak. It is called with a sum that holds private data."""
    LEAKS.append(attempt)
    return attempt


def take_step(method: Method, total: ClippedSum) -> Tensor:
    state = State(torch.zeros(3))

    def clipped_sum(clipping: Clipping) -> ClippedSum:
        return total

    step(method, state, PUBLIC, clipped_sum=clipped_sum, noise=[torch.zeros(3)])
    return state.theta


# The sum itself.


@leak
def divide_it(total: ClippedSum) -> object:
    return total / 2.0  # leak


@leak
def add_it_to_a_tensor(total: ClippedSum) -> object:
    return torch.zeros(3) + total  # leak


@leak
def pass_it_to_a_function_of_torch(total: ClippedSum) -> object:
    return torch.add(total, 1)  # leak


@leak
def read_it_as_a_number(total: ClippedSum) -> object:
    return float(total)  # leak


@leak
def measure_it(total: ClippedSum) -> object:
    return len(total)  # leak


@leak
def index_it(total: ClippedSum) -> object:
    return total[0]  # leak


@leak
def iterate_over_it(total: ClippedSum) -> object:
    return list(total)  # leak


@leak
def reach_for_its_tensor(total: ClippedSum) -> object:
    return total.total  # leak


@leak
def attach_something_to_it(total: ClippedSum) -> object:
    total.copy = torch.zeros(3)  # leak
    return total


@leak
def subclass_it(total: ClippedSum) -> object:
    class Readable(ClippedSum):  # leak
        pass

    return Readable(torch.zeros(3))


@leak
def update_with_it(total: ClippedSum) -> object:
    return METHOD.update((total,), State(torch.zeros(3)), PUBLIC)  # leak


@leak
def call_a_tensor_released(total: ClippedSum) -> object:
    return Released(torch.zeros(3))  # leak


# Methods.


@leak
def ask_for_clean_values_in_an_update(total: ClippedSum) -> object:
    class Curious(DPSGD):
        def update(  # leak
            self, released: tuple[Released, ...], state: State, public: Public, clean: Clean
        ) -> Tensor:
            return clean.values[0]

    return take_step(Curious(learning_rate=1.0, clip_norm=1.0), total)


@leak
def ask_for_a_clean_gradient_as_public_knowledge(total: ClippedSum) -> object:
    class Curious(DPSGD):
        def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
            return public.clean_gradient  # leak

    return take_step(Curious(learning_rate=1.0, clip_norm=1.0), total)


@leak
def exchange_the_query_of_a_method(total: ClippedSum) -> object:
    method: Method = METHOD
    method.query = PlainMean()  # leak
    return take_step(method, total)


@leak
def be_private_and_an_oracle(total: ClippedSum) -> object:
    @dataclass(frozen=True, kw_only=True)
    class Both(PrivateMethod, OracleMethod):  # leak
        query = ClippedMean()

    return Both(learning_rate=1.0, clip_norm=1.0)


@leak
def call_an_oracle_private(total: ClippedSum) -> object:
    class Impostor(OracleMethod):
        query = ClippedMean()
        private = True  # leak

    return Impostor(learning_rate=1.0, clip_norm=1.0)


# Queries.


@leak
def release_without_noise(total: ClippedSum) -> object:
    class Open(ClippedMean):
        def release(self, mean: Tensor) -> Tensor:  # leak
            return mean

    return Open()


@leak
def privatize_in_a_query(total: ClippedSum) -> object:
    class Open(ClippedMean):
        def privatize(self, total: Tensor, noise: Sequence[Tensor]) -> Tensor:  # leak
            return total

    return Open()
