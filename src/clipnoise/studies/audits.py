"""What audits found of several methods together: one error for all that is said of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from clipnoise.errors import UserError
from clipnoise.files import read_json
from clipnoise.lazy import np

ERROR = 0.05  # of all refutations by guesses, together
TOGETHER = (
    f"Verdicts by guesses hold with {1 - ERROR:.0%} confidence for all audited methods of the {{}} "
    "together (Holm), and an ε that is shown for its method alone: of many methods, one may show "
    "more than is claimed and not be refuted."
)


def refuted_by_guesses(p_values: Mapping[str, float]) -> set[str]:
    """Return which methods are refuted, so that any is wrongly at most once in twenty times.

    Args:
        p_values: of the claim of each method, over all guesses of its audit.
    """
    adjusted = zip(p_values, holm(list(p_values.values())), strict=True)
    return {name for name, p_value in adjusted if p_value < ERROR}


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for the number of comparisons; none is above 1 then.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def found_by_audits(results: Path, methods: Iterable[str]) -> dict[str, str]:
    """Return what audits found of some methods, by id, in words; nothing where there was no audit.

    Args:
        results: the results folder.
        methods: all that the verdicts are about together: those of a study.
    """
    names, audits = sorted(set(methods)), results / "audit"
    broken = {name for name in names if _broken(audits / "contract" / f"{name}.json")}
    guesses = {
        name: found
        for name in names
        if (found := _guesses(audits / "empirical" / f"{name}.json")) is not None
    }
    refuted = refuted_by_guesses({name: p_value for name, (p_value, _) in guesses.items()})
    words = {}
    for name in names:
        if name in broken or name in guesses:
            verdict = "refuted" if name in broken | refuted else "not refuted"
            reasons = ["contract broken"] * (name in broken)
            reasons += [guesses[name][1]] if name in guesses else []
            words[name] = f"{verdict}: {', '.join(reasons)}"
    return words


def _broken(path: Path) -> bool:
    """Return whether an audit found that a private method breaks its contract."""
    if not path.is_file():
        return False
    with _naming(path):
        found = read_json(path)
        return bool(found["private"] and found["verdict"] == "broken")


def _guesses(path: Path) -> tuple[float, str] | None:
    """Return the p-value of a method's claim and what attacks show; None if there was no attack."""
    if not path.is_file():
        return None
    with _naming(path):
        found = read_json(path)
        if "p_value" not in found:
            return None  # version 1.0.0 tested each method by itself
        bounds = (float(found[name]["epsilon"]) for name in ("bound", "final_bound"))
        shown = f"attacks show ε {max(bounds):.2f} of {float(found['claimed_epsilon']):.2f}"
        return float(found["p_value"]), shown


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file is damaged.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: damaged result file ({error!r}). Delete it.") from None
