"""What audits found of several methods together: one error for all that is said of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clipnoise.errors import UserError
from clipnoise.files import read_json

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

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    refuted: set[str] = set()
    for name in sorted(p_values, key=lambda name: p_values[name]):
        if p_values[name] * (len(p_values) - len(refuted)) >= ERROR:
            break
        refuted.add(name)
    return refuted


def found_by_audits(results: Path, methods: Iterable[str]) -> dict[str, str]:
    """Return what audits found of some methods, by id, in words; nothing where there was no audit.

    Args:
        results: the results folder.
        methods: all that the verdicts are about together: those of a study.
    """
    names = sorted(set(methods))
    contracts, guesses = (
        {name: found for name in names if (found := _read(results, kind, name)) is not None}
        for kind in ("contract", "empirical")
    )
    broken = {name for name, found in contracts.items() if found["broken"]}
    refuted = refuted_by_guesses({name: found["p_value"] for name, found in guesses.items()})
    words = {}
    for name in names:
        if name in broken or name in guesses:
            verdict = "refuted" if name in broken | refuted else "not refuted"
            reasons = ["contract broken"] * (name in broken)
            reasons += [guesses[name]["shown"]] if name in guesses else []
            words[name] = f"{verdict}: {', '.join(reasons)}"
    return words


def _read(results: Path, kind: str, method: str) -> dict[str, Any] | None:
    """Return what an audit found of a method; None if there was none."""
    path = results / "audit" / kind / f"{method}.json"
    if not path.is_file():
        return None
    try:
        found = read_json(path)
        if kind == "empirical" and "p_value" not in found:
            return None  # version 1.0.0 tested each method by itself
        if kind == "contract":
            return {"broken": found["private"] and found["verdict"] == "broken"}
        bounds = (float(found[name]["epsilon"]) for name in ("bound", "final_bound"))
        shown = f"attacks show ε {max(bounds):.2f} of {float(found['claimed_epsilon']):.2f}"
        return {"p_value": float(found["p_value"]), "shown": shown}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: damaged result file ({error!r}). Delete it.") from None
