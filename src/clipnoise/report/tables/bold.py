"""Bold: the best method of a column, and every method that is not significantly worse."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from clipnoise.report.statistics import ALPHA, Sample, holm, paired_p_value

K = TypeVar("K", bound=Hashable)

TEST = f"two-sided paired t-test over seeds, Holm-corrected, α = {ALPHA}"
Withheld = Literal["", "unfinished", "alone", "failed", "one seed"]


@dataclass(frozen=True)
class Verdict(Generic[K]):
    """Which methods lead a column.

    Attributes:
        leaders: the best and all that are not significantly worse; they are printed bold.
        p_values: Holm-adjusted p-value against the best, which itself has none.
        withheld: why there are no leaders; empty where there are some.
    """

    leaders: frozenset[K] = frozenset()
    p_values: Mapping[K, float] = field(default_factory=dict)
    withheld: Withheld = ""


def judge(samples: Mapping[K, Sample], *, higher_is_better: bool) -> Verdict[K]:
    """Find the best competitor and all that are not significantly worse.

    The mean over the runs that survived flatters a method that diverges, so only methods whose
    planned runs all completed can lead. A column with missing or damaged runs has no leaders.

    Args:
        samples: the competitors of one column.
        higher_is_better: the direction of the metric.
    """
    if any(sample.missing or sample.corrupt for sample in samples.values()):
        return Verdict(withheld="unfinished")
    if len(samples) < 2:
        return Verdict(withheld="alone")
    able = {key: sample for key, sample in samples.items() if sample.complete}
    if not able:
        return Verdict(withheld="failed")
    if min(sample.n for sample in able.values()) < 2:
        return Verdict(withheld="one seed")
    sign = 1.0 if higher_is_better else -1.0
    best = max(able, key=lambda key: sign * able[key].mean)
    others = [key for key in able if key != best]
    raw = [paired_p_value(able[best].values, able[key].values) for key in others]
    p_values = dict(zip(others, holm(raw), strict=True))
    return Verdict(frozenset({best, *(k for k in others if p_values[k] >= ALPHA)}), p_values)


def bold_note(verdicts: Iterable[Verdict[K]]) -> str:
    """Return the footnote that explains a table's bold, or why columns have none."""
    verdicts = list(verdicts)
    reasons = {verdict.withheld for verdict in verdicts}
    explanations = (
        (
            any(verdict.leaders for verdict in verdicts),
            f"Bold: the best of a column and all that are not significantly worse ({TEST}).",
        ),
        ("unfinished" in reasons, "Columns with missing runs have no bold yet."),
        ("one seed" in reasons, "There is no bold with one seed, because nothing can be tested."),
        (
            "failed" in reasons,
            "Columns in which no method completed all its runs have no bold.",
        ),
    )
    return " ".join(text for applies, text in explanations if applies)
