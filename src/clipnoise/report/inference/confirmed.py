"""The confirmed runs of a setting, and what they say: who can be the best, gains, collapses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from clipnoise.errors import UserError
from clipnoise.report.formats import ACCURACY
from clipnoise.report.inference.gains import (
    Components,
    EstimatedGain,
    best_in_population,
    components,
    gain,
    simultaneous_intervals,
)
from clipnoise.report.inference.sign_flips import (
    Floats,
    adjusted_best,
    best_p_values,
    pairs_apart,
)
from clipnoise.report.statistics import ALPHA, Interval, exceeds_chance

K = TypeVar("K", bound="tuple[Any, ...]")
GAIN = ("gain", "error", "search_error", "test_error", "low", "high", "all_low", "all_high")


@dataclass(frozen=True)
class Confirmed:
    """All confirmed runs of one setting, a task at one ε.

    Attributes:
        methods: their labels.
        right: which test examples each run gets right, of shape (methods, searches, seeds,
            examples); none where it diverged.
        diverged: of shape (methods, searches, seeds).
        chance: accuracy of the best constant prediction on these examples.
    """

    methods: tuple[str, ...]
    right: NDArray[np.bool_]
    diverged: NDArray[np.bool_]
    chance: float

    @cached_property
    def accuracy(self) -> Floats:
        """Of shape (methods, searches, seeds); 0, the least there is, where a run diverged."""
        return np.asarray(self.right.mean(axis=3))

    @cached_property
    def by_search(self) -> Floats:
        """The mean over the seeds of each search, of shape (methods, searches)."""
        return np.asarray(self.accuracy.mean(axis=2))

    @cached_property
    def collapsed(self) -> NDArray[np.bool_]:
        """Which runs diverged or ended no better than a constant prediction."""
        examples = self.right.shape[3]
        seen, places = np.unique(self.accuracy, return_inverse=True)
        learned = [exceeds_chance(one, self.chance, ACCURACY, examples) for one in seen]
        return np.asarray(self.diverged | ~np.array(learned)[places].reshape(self.diverged.shape))

    @cached_property
    def components(self) -> Components:
        """The variances of searches and test examples."""
        return components(self.right.mean(axis=2))

    def gain(self, method: str, other: str) -> EstimatedGain:
        """Return what a method gains over another one, both by their labels."""
        return gain(self.components, *map(self.methods.index, (method, other)))


def gather(runs: pd.DataFrame, chance: float) -> Confirmed:
    """Arrange the confirmed runs of one setting.

    Args:
        runs: with `label`, `search`, `seed`, `status`, and `right`: a bool array over the test
            examples, read only of runs that completed. All methods have the same searches and
            seeds.
        chance: accuracy of the best constant prediction.

    Raises:
        UserError: there are fewer than two methods or searches, a run is missing or there twice, or
            runs were measured on different numbers of examples.
    """
    labels, searches = list(dict.fromkeys(runs["label"])), sorted(set(runs["search"]))
    if len(labels) < 2 or len(searches) < 2:
        raise UserError(
            f"a confirmation compares two methods or more over two searches or more; there are "
            f"{len(labels)} and {len(searches)}."
        )
    done = runs["status"] == "completed"
    lacking = runs[~done & (runs["status"] != "diverged")]
    if len(lacking):
        run = lacking.iloc[0]
        raise UserError(
            f"the run of {run['label']!r} with search {run['search']} and seed {run['seed']} is "
            f"{run['status']}; a confirmation needs all of them."
        )
    lengths = {len(one) for one in runs.loc[done, "right"]}
    if len(lengths) != 1:
        raise UserError(f"confirmed runs have {sorted(lengths)} test examples; all need the same.")
    seeds = {s: sorted(set(runs.loc[runs["search"] == s, "seed"])) for s in searches}
    each = {len(one) for one in seeds.values()}
    shape = (len(labels), len(searches), max(each))
    right = np.zeros((*shape, lengths.pop()), dtype=bool)
    diverged = np.zeros(shape, dtype=bool)
    times = np.zeros(shape, dtype=int)
    for label, search, seed, status, bits in zip(
        *(runs[name] for name in ("label", "search", "seed", "status", "right")), strict=True
    ):
        place = (labels.index(label), searches.index(search), seeds[search].index(seed))
        times[place] += 1
        if status == "completed":
            right[place] = bits
        else:
            diverged[place] = True
    if len(each) > 1 or (times != 1).any():
        k, s, r = (int(i) for i in np.argwhere(times != 1)[0])
        raise UserError(
            f"{labels[k]!r} has {times[k, s, r]} runs of search {searches[s]} and its seed number "
            f"{r + 1}; every method needs one of each."
        )
    return Confirmed(tuple(labels), right, diverged, chance)


def who_can_be_best(settings: Mapping[K, Confirmed], names: tuple[str, ...]) -> pd.DataFrame:
    """Return for each method of each setting whether it can be the best.

    A method is excluded if two tests exclude it: of `best_p_values`, exact for these test examples,
    and of `best_in_population`, for all examples like them. Both are adjusted for the number of
    settings; the larger p-value counts. The settings are those of one family, e.g. of a track.

    Args:
        settings: by their places.
        names: what the parts of a place are, e.g. `("task", "epsilon")`.

    Returns:
        A row per method and setting: `names`, `method`, `mean`, `runs`, `diverged`, `collapsed`
        (with the diverged ones), `p_here`, `p_population`, `adjusted`, `can_be_best`.
    """
    here = {key: best_p_values(one.by_search) for key, one in settings.items()}
    wide = {key: best_in_population(one.components) for key, one in settings.items()}
    larger = adjusted_best({key: np.maximum(here[key], wide[key]) for key in settings})
    rows = [
        {
            **dict(zip(names, key, strict=True)),
            "method": method,
            "mean": float(one.by_search[index].mean()),
            "runs": one.diverged[index].size,
            "diverged": int(one.diverged[index].sum()),
            "collapsed": int(one.collapsed[index].sum()),
            "p_here": float(here[key][index]),
            "p_population": float(wide[key][index]),
            "adjusted": float(larger[key][index]),
            "can_be_best": bool(larger[key][index] > ALPHA),
        }
        for key, one in settings.items()
        for index, method in enumerate(one.methods)
    ]
    return pd.DataFrame(rows)


def told_apart(settings: Mapping[K, Confirmed], names: tuple[str, ...]) -> pd.DataFrame:
    """Return the pairs of methods that differ on these test examples, at one family-wise level.

    Returns:
        A row per pair: `names`, `better`, `worse`, `difference` (of the means) and `adjusted`, the
        p-value of `pairs_apart`.
    """
    rows = []
    for key, pairs in pairs_apart({key: one.by_search for key, one in settings.items()}).items():
        one = settings[key]
        level = one.by_search.mean(axis=1)
        for pair, p_value in pairs.items():
            if p_value <= ALPHA:
                worse, better = sorted(pair, key=lambda index: level[index])
                rows.append(
                    {
                        **dict(zip(names, key, strict=True)),
                        "better": one.methods[better],
                        "worse": one.methods[worse],
                        "difference": float(level[better] - level[worse]),
                        "adjusted": p_value,
                    }
                )
    return pd.DataFrame(rows, columns=[*names, "better", "worse", "difference", "adjusted"])


def gains_over(
    settings: Mapping[K, Confirmed], names: tuple[str, ...], baseline: str
) -> pd.DataFrame:
    """Return what each method gains over a baseline, with intervals.

    Returns:
        A row per method and setting that has the baseline: `names`, `method`, `gain`, its standard
        `error` with the parts `search_error` and `test_error`, `low` and `high` of the interval of
        this gain alone, and `all_low` and `all_high` of the simultaneous 95% intervals over all
        rows.
    """
    having = {key: one for key, one in settings.items() if baseline in one.methods}
    rows = []
    for key, one in having.items():
        of, base = one.components, one.methods.index(baseline)
        together = simultaneous_intervals(of, base, settings=len(having))
        rows += [
            {
                **dict(zip(names, key, strict=True)),
                "method": one.methods[index],
                **_columns(gain(of, index, base), interval),
            }
            for index, interval in together.items()
        ]
    return pd.DataFrame(rows, columns=[*names, "method", *GAIN])


def _columns(one: EstimatedGain, together: Interval) -> dict[str, float]:
    ends = (one.interval.low, one.interval.high, together.low, together.high)
    values = (one.mean, one.error, one.search_error, one.test_error, *ends)
    return dict(zip(GAIN, values, strict=True))
