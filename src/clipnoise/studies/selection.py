"""Selection: from the runs of a search to a choice, and what the search cost in ε."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clipnoise.errors import UserError
from clipnoise.privacy.accountants.selection import composed_epsilon, selected_epsilon
from clipnoise.run.choice import Choice, Metric, Spent, Tried
from clipnoise.studies.tuning import Charge

Summary = Mapping[str, Any]

ADDITIVE = ("add-remove", "add-remove-user")
PARTIAL = "Some runs of the search diverged; a configuration with such a run cannot win."
NONE_LEFT = "Every configuration of the search has a diverged run; the first one was taken."


def choose(summaries: Iterable[Summary], parameters: Sequence[str], metric: Metric) -> Choice:
    """Choose the configuration with the best mean metric on the validation split.

    Of two equally good configurations the first wins. A configuration with a diverged run cannot
    win, because its mean over the other runs would be too good.

    Args:
        summaries: summary.json of every run, in the order of the grid.
        parameters: the tuned hyper-parameters.
        metric: it is averaged over the runs of a configuration.

    Raises:
        UserError: completed runs do not have the metric.
    """
    runs = list(summaries)
    done = [run["final"].get(metric) for run in runs if run["status"] == "completed"]
    if done and not any(value is not None and math.isfinite(value) for value in done):
        raise UserError(f"tune.metric: the runs have no {metric}: their task or split has none.")
    groups: dict[str, list[Summary]] = {}
    for summary in runs:
        method = summary["spec"]["method"]
        values = {name: method[name] for name in parameters}
        groups.setdefault(json.dumps(values), []).append(summary)
    tried = tuple(_tried(json.loads(text), group, metric) for text, group in groups.items())
    able = [configuration for configuration in tried if configuration.mean is not None]
    sign = -1.0 if metric.endswith("loss") else 1.0
    best = max(able, key=lambda able_one: sign * (able_one.mean or 0.0)) if able else tried[0]
    remark = "" if len(able) == len(tried) else PARTIAL if able else NONE_LEFT
    return Choice(metric=metric, choice=best.values, tried=tried, spent=_spent(runs), remark=remark)


def _tried(values: dict[str, Any], runs: Sequence[Summary], metric: Metric) -> Tried:
    values_found = [run["final"].get(metric) for run in runs if run["status"] == "completed"]
    finite = [value for value in values_found if value is not None and math.isfinite(value)]
    mean = sum(finite) / len(finite) if len(finite) == len(runs) else None
    return Tried(values=values, mean=mean, n=len(finite), planned=len(runs))


def _spent(runs: Sequence[Summary]) -> tuple[Spent, ...]:
    """Group the private runs by the budget that they spent."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for summary in runs:
        privacy = summary["privacy"]
        if privacy["claim"] != "non-private":
            numbers = (privacy["noise_multiplier"], privacy["sampling_rate"], privacy["steps"])
            counts[(*numbers, privacy["claim"], composable(privacy))] += 1
    return tuple(
        Spent(
            noise_multiplier=sigma,
            sampling_rate=rate,
            steps=steps,
            runs=number,
            claim=claim,
            composable=adds_up,
        )
        for (sigma, rate, steps, claim, adds_up), number in counts.items()
    )


def composable(privacy: Mapping[str, Any]) -> bool:
    """Return whether a run's releases are plain Poisson-subsampled Gaussians.

    Those of a graph are not, because a node also changes the gradients of its neighbours.
    """
    noise = privacy.get("noise") or {"kind": "independent"}
    plain = privacy["sampler"] == "poisson" and noise["kind"] == "independent"
    return bool(plain and privacy["adjacency"] in ADDITIVE)


def epsilon_with_tuning(charge: Charge, privacy: Mapping[str, Any], choice: Choice) -> float:
    """Return ε of a run with the search that chose its hyper-parameters.

    Args:
        charge: "composition": everything that the search and the run release, composed in RDP. It
            is nominal if runs with the same seed share their noise; with secure noise they do not.
            "selection": a search that tries a Poisson-distributed number of configurations, on
            average as many as were tried here, and publishes its best run. This ε is nominal,
            because the grid here has a fixed number.
        privacy: the privacy section of the run's summary.
        choice: the outcome of the search.

    Returns:
        ε; NaN if nothing is charged, or if no formula here covers what was released.
    """
    covered = composable(privacy) and all(spent.composable for spent in choice.spent)
    if charge == "nothing" or not covered or privacy["epsilon"] is None:
        return math.nan
    sigma, rate, steps = (privacy[key] for key in ("noise_multiplier", "sampling_rate", "steps"))
    if charge == "composition":
        search = [
            (spent.noise_multiplier, spent.sampling_rate, spent.steps * spent.runs)
            for spent in choice.spent
        ]
        return composed_epsilon([*search, (sigma, rate, steps)], delta=privacy["delta"])
    return selected_epsilon(
        noise_multiplier=sigma,
        sampling_rate=rate,
        steps=steps,
        delta=privacy["delta"],
        expected_runs=len(choice.tried),
    )
