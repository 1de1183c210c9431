"""Which training code, plug-ins and data the runs of a study come from, by their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pandas as pd


def digests(runs: pd.DataFrame) -> dict[str, str]:
    """Return what names the code and the data of finished runs, whatever a commit contains.

    Args:
        runs: with a result; results of earlier versions have no digests.

    Returns:
        Name → digests; what is unknown is left out.
    """
    plugins = {one for text in set(runs["plugins"]) for one in text.split("; ") if one}
    pairs = runs[runs["data_digest"] != ""][["data", "data_digest"]].drop_duplicates()
    found = {
        "Training code": _together(runs["fingerprint"]),
        "Plug-ins": "; ".join(sorted(plugins)),
        "Prepared data": "; ".join(sorted(map(" ".join, pairs.itertuples(index=False)))),
    }
    return {name: text for name, text in found.items() if text}


def _together(column: Iterable[str]) -> str:
    """Return the one digest that there is, or that of all of them in order."""
    every = sorted(set(column) - {""})
    if len(every) < 2:
        return "".join(every)
    joined = hashlib.sha256("\n".join(every).encode()).hexdigest()[:12]
    return f"{len(every)} versions of the code; digest of all: {joined}"
