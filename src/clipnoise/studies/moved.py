"""Keys and kinds that study files had in earlier versions, and what stands in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ITEM_KEYS = {"panel": "panels: NAME", "each": "its items one after the other, with `panels`"}
ITEM_KINDS = {
    "accuracy-along-epsilon": "kind: curves, along: epsilon",
    "best-of": "`searches` in `tune`, whose runs show how much searches differ",
    "corrections": "kind: moments, show: corrections",
    "critical-differences": "kind: overview or kind: interquartile-means",
    "estimates": "kind: moments, show: estimates",
    "heat-map": "kind: sweep, over: [ACROSS, DOWN]",
    "momentum-sweep": "kind: sweep, over: beta or history, rho: true",
    "noise-bias": "kind: moments, show: noise-bias",
    "published": "kind: table, published: NAME, the study's name or another table's",
}
TUNE_KEYS = {"at": "per: [dataset, model], for one choice at all ε, by the mean over them"}
CLAIM_KEYS = {"at_least": "between: [LOW, null]", "at_most": "between: [null, HIGH]"}


def refuse_moved(values: Any, keys: Mapping[str, str], kinds: Mapping[str, str]) -> Any:
    """Return the values of an entry that has no such key, and is of no such kind.

    Raises:
        ValueError: says what to write.
    """
    if not isinstance(values, Mapping):
        return values
    kind = values.get("kind")
    if isinstance(kind, str) and kind in kinds:
        raise ValueError(f"kind: {kind} is gone; write {kinds[kind]}")
    for key, now in keys.items():
        if key in values:
            raise ValueError(f"{key}: it is gone; write {now}")
    return values
