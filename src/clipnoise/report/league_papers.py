"""What the league's published tasks show of the claims of the papers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from clipnoise.data.base import dataset_class
from clipnoise.report.blocks import ListBlock
from clipnoise.report.formats import ACCURACY, DASH, count
from clipnoise.report.inference.confirmed import Confirmed
from clipnoise.report.inference.gains import EstimatedGain
from clipnoise.report.inference.over_tasks import LEAST_ERROR, MixedModel, by_data_set
from clipnoise.report.inference.sign_flips import units_needed
from clipnoise.report.league import LeagueFindings
from clipnoise.report.records import where
from clipnoise.report.statistics import ALPHA

Settings = Mapping[tuple[str, float], Confirmed]


@dataclass(frozen=True)
class PairClaim:
    """A claim that one confirmed method is better than another one.

    Attributes:
        paper: a short name.
        says: what it claims, and where.
        better, worse: the methods, by their labels.
        not_on: the kind of examples on which it is not claimed; empty for none.
    """

    paper: str
    says: str
    better: str
    worse: str
    not_on: str = ""


# The four papers first, then newer methods. A paper without a claim that one private method is
# better than another one has no line.
CLAIMS = (
    PairClaim(
        *("DP-AdamBC", "bias correction improves DP-Adam, though not on images (section 5)"),
        *("dp-adambc", "dp-adam", "image"),
    ),
    PairClaim("DP-PMLF", "it outperforms DP-SGD (appendix)", "dp-pmlf", "dp-sgd"),
    PairClaim("DP-PMLF", "it outperforms LP-DPSGD (Table 1)", "dp-pmlf", "lp-dpsgd"),
    PairClaim(
        *("DP-PMLF", "InnerOuter is better on simple data or with small networks (appendix)"),
        *("innerouter", "dp-pmlf"),
    ),
    PairClaim(
        *("Design principles", "scale-then-privatize improves on post-processing (section 5.2)"),
        *("stp-adam", "dp-adam"),
    ),
    PairClaim(
        *("Design principles", "independent moments do worse than post-processing (section 5.2)"),
        *("dp-adam", "ime-adam"),
    ),
    PairClaim("AdaDPS", "it improves over DP-SGD (section 6.1.1)", "adadps-rmsprop", "dp-sgd"),
    PairClaim("AdaDPS", "it improves over DP-R-Pub (section 6.1.1)", "adadps-rmsprop", "dp-r-pub"),
    PairClaim("AdaDPS", "it improves over PDA-DPMD (Table 2)", "adadps-rmsprop", "pda-dpmd"),
    PairClaim(
        "AdaDPS", "it improves over a warm start (appendix C.1)", "adadps-rmsprop", "dp-sgd-warm"
    ),
    PairClaim("AdaDPS", "it improves over DP-Adam-Pub (Table 8)", "adadps-rmsprop", "dp-adam-pub"),
    PairClaim("AdaCliP (2019)", "its models are more accurate (abstract)", "adaclip", "dp-sgd"),
    PairClaim("DP-LSSGD (2020)", "its models generalize better (abstract)", "dp-lssgd", "dp-sgd"),
    PairClaim("DP-SAT (2023)", "it improves private training (abstract)", "dp-sat", "dp-sgd"),
    PairClaim("DP² (2023)", "it converges faster (abstract)", "dp2-rmsprop", "dp-sgd"),
    PairClaim("DOPPLER (2024)", "its filter improves DP-SGD (abstract)", "lp-dpsgd", "dp-sgd"),
    PairClaim("DOPPLER (2024)", "its filter improves DP-Adam (abstract)", "lp-dpadam", "dp-adam"),
    PairClaim("DiSK (2024)", "its filter improves DP-SGD (abstract)", "disk", "dp-sgd"),
    PairClaim("DiSK (2024)", "its filter improves DP-Adam (abstract)", "disk-adam", "dp-adam"),
    PairClaim("BLT (2024)", "it beats tree aggregation (abstract)", "dp-sgd blt", "dp-sgd tree"),
    PairClaim("BLT (2024)", "it beats tree aggregation (abstract)", "dp-adam blt", "dp-adam tree"),
    PairClaim("DP-AdamW (2025)", "it outperforms DP-SGD (abstract)", "dp-adamw", "dp-sgd"),
    PairClaim("DP-AdamW (2025)", "it outperforms DP-Adam (abstract)", "dp-adamw", "dp-adam"),
    PairClaim("DP-AdamW (2025)", "it outperforms DP-AdamBC (abstract)", "dp-adamw", "dp-adambc"),
    PairClaim(
        "DP-AdamW (2025)", "bias correction makes it worse (abstract)", "dp-adamw", "dp-adamw-bc"
    ),
    PairClaim(
        *("DP-MicroAdam (2025)", "it outperforms adaptive DP optimizers (abstract)"),
        *("dp-microadam", "dp-adam"),
    ),
    PairClaim("SlaClip (2026)", "it improves performance (abstract)", "dp-sgd-slaclip", "dp-sgd"),
    PairClaim("FiBeR (2026)", "it improves DP optimizers (abstract)", "fiber", "dp-adam"),
    PairClaim(
        "DP-Muon (2026)",
        "it improves fine-tuning (abstract; here the gradient is clipped as a whole)",
        *("dp-muon", "dp-sgd"),
    ),
    PairClaim("DP-MacAdam (2026)", "it improves over DP-SGD (abstract)", "dp-macadam", "dp-sgd"),
    PairClaim("DP-MacAdam (2026)", "it improves over DP-Adam (abstract)", "dp-macadam", "dp-adam"),
    PairClaim("DP-MacAdam (2026)", "it improves over AdaCliP (abstract)", "dp-macadam", "adaclip"),
)
HEADS = ("paper", "claim", "compared", "settings", "seen", "opposite", "gain over tasks")


def claims_block(found: LeagueFindings) -> Iterator[ListBlock]:
    """Yield in how many settings each claim is seen, and what the tasks say of it together.

    That is one table, or none where no claim is of methods that a task confirms.
    """
    rows = []
    for claim in CLAIMS:
        both = {claim.better, claim.worse}
        if not any(both <= {*one.methods} for one in found.settings.values()):
            continue
        claimed = _claimed(found, claim)
        settings = sum(both <= {*one.methods} for one in claimed.values())
        ways = ((claim.better, claim.worse), (claim.worse, claim.better))
        apart = found.apart[found.apart["task"].isin({task for task, _ in claimed})]
        seen = [len(where(apart, better=first, worse=last)) for first, last in ways]
        compared = f"{claim.better} over {claim.worse}"
        gain = _over_tasks(claimed, claim, found.data_sets) or DASH
        rows.append([claim.paper, claim.says, compared, *map(str, (settings, *seen)), gain])
    if not rows:
        return
    needed = units_needed(ALPHA)
    most = max(len({*found.units(epsilon)}) for _, epsilon in found.settings)
    notes = ["Left out: claims on methods that no task of this track confirms."]
    if found.screened:
        notes[0] += (
            " A method that is not confirmed in any case has the settings of tasks whose screen it "
            "passed, which favours it."
        )
    if most < needed:
        notes.insert(
            0,
            "Too little is published to judge a claim about methods in general: no ε has more than "
            f"{count(most, 'confirmed data set')}, and {needed} are needed for a test over tasks.",
        )
    yield ListBlock(
        title="What papers claim, and what was seen here",
        caption="Settings: in how many both methods are confirmed, without tasks that a claim "
        "excludes. Seen: in how many the two are told apart as the paper says. Opposite: in how "
        "many they are told apart the other way round. In all others they are not told apart. "
        "Gain over tasks: what the first is expected to have over the second on a task, in points, "
        "with its 95% interval, each by itself. The tasks are not those of the papers.",
        heads=HEADS,
        rows=rows,
        align="l" * (len(HEADS) - 4) + "rrrr",
        notes=notes,
    )


def _claimed(found: LeagueFindings, claim: PairClaim) -> Settings:
    """Return the settings of which a paper claims something."""
    kinds = {
        task: {dataset_class(name)().signature.kind for name in set(runs["dataset"])}
        for task, runs in found.confirmed.items()
    }
    return {
        (task, epsilon): one
        for (task, epsilon), one in found.settings.items()
        if claim.not_on not in kinds[task]
    }


def _over_tasks(settings: Settings, claim: PairClaim, data_sets: Mapping[str, str]) -> str:
    """Return the expected gain at each ε that has tasks of two data sets or more, in words."""
    gains: dict[float, dict[str, EstimatedGain]] = defaultdict(dict)
    for (task, epsilon), one in settings.items():
        if {claim.better, claim.worse} <= {*one.methods}:
            gains[epsilon][task] = one.gain(claim.better, claim.worse)
    said = (
        f"ε = {epsilon:g}: {_expected(each.values(), units)}"
        for epsilon, each in sorted(gains.items())
        if len(set(units := [data_sets[task] for task in each])) > 1
    )
    return "; ".join(one.replace(" ", "\N{NO-BREAK SPACE}") for one in said)  # a line for each ε


def _expected(gains: Iterable[EstimatedGain], units: Sequence[str]) -> str:
    found = np.array([(one.mean, max(one.error, LEAST_ERROR)) for one in gains]).T
    return MixedModel(*by_data_set(found, units)).mean.show(ACCURACY)
