"""What audits found, where results lie."""

from __future__ import annotations

import json
from pathlib import Path


def audit_of(results: Path, method: str) -> str | None:
    """Return what the empirical audit of a method found, in words; None where there is none.

    Args:
        results: the results folder.
        method: its id.
    """
    path = results / "audit" / "empirical" / f"{method}.json"
    if not path.is_file():
        return None
    found = json.loads(path.read_text())
    bound, claimed = found["bound"]["epsilon"], found["claimed_epsilon"]
    return f"{found['verdict']}: ε ≥ {bound:.2f} of {claimed:.2f}"
