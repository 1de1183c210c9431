"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clipnoise.errors import UserError
from clipnoise.fields import Count, Natural, Probability, adapter
from clipnoise.privacy.accountants.poisson import POISSON_ACCOUNTANTS, Rate, epsilon
from clipnoise.studies.comparisons import PUBLISHED


def ranged(kind: Any) -> Callable[[str], Any]:
    """Return a converter from an option's text that holds it to the range of a field type."""

    def convert(text: str) -> Any:
        try:
            value = adapter(kind).validate_strings(text)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise argparse.ArgumentTypeError(
                f"{problem[0].lower()}{problem[1:]}, got {text!r}"
            ) from None
        if value != value or value in (float("inf"), float("-inf")):
            raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
        return value

    return convert


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add the file that makes a study smaller."""
    parser.add_argument(
        "--scale",
        type=Path,
        nargs="?",
        help="rules that make the study smaller, e.g. workflow/scales/smoke.yaml",
    )


def add_planned(parser: argparse.ArgumentParser) -> None:
    """Add all that changes which runs a study plans."""
    add_scale(parser)
    parser.add_argument(
        "--secure-noise", action="store_true", help="as config.yaml may say for all private runs"
    )


def add_mechanism(parser: argparse.ArgumentParser) -> None:
    """Add δ, q and T: what every accountant needs besides σ."""
    parser.add_argument(
        "--delta", type=ranged(Probability), required=True, help="δ, above 0 and below 1"
    )
    parser.add_argument("--sampling-rate", type=ranged(Rate), help="q = B/n, above 0 and at most 1")
    parser.add_argument("--steps", type=ranged(Natural), help="T")
    parser.add_argument(
        "--participations",
        type=ranged(Count),
        help="instead of q and T: how often each example takes part, in a fixed order",
    )
    parser.add_argument(
        "--microbatch",
        type=ranged(Count),
        default=1,
        help="examples whose mean is clipped; above 1 one example can move it by 2C, not C",
    )


def check_mechanism(arguments: argparse.Namespace) -> None:
    """Hold the options to one of the two forms.

    Raises:
        UserError: neither or both of (sampling rate, steps) and participations are there.
    """
    given = [name for name in ("sampling_rate", "steps") if getattr(arguments, name) is not None]
    if arguments.participations is not None and given:
        raise UserError("--participations: goes without --sampling-rate and --steps.")
    if arguments.participations is None and len(given) < 2:
        raise UserError("--sampling-rate, --steps: give both, or --participations instead.")


def sensitivity_in_clip_norms(arguments: argparse.Namespace) -> float:
    """Return how far one example moves the clipped sum, in units of C."""
    return 2.0 if arguments.microbatch > 1 else 1.0


def add_published(parser: argparse.ArgumentParser) -> None:
    """Add the folder of published tables."""
    parser.add_argument(
        "--published",
        type=Path,
        default=PUBLISHED,
        help="folder of published tables (default: %(default)s)",
    )


def print_epsilons(mechanism: Mapping[str, Any]) -> None:
    """Print ε under every accountant, and why where one has none to give.

    Args:
        mechanism: noise_multiplier, sampling_rate, steps and delta.
    """
    print("accountant  ε")
    for accountant in POISSON_ACCOUNTANTS:
        try:
            value = f"{epsilon(accountant, **mechanism):.4f}"
        except UserError as error:
            value = f"none: {error}"
        print(f"{accountant:<12}{value}")
