"""The tracks of the league: which tasks are ranked together, and over which baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clipnoise.data.base import Dataset
from clipnoise.data.features import Features
from clipnoise.methods.base import example, methods, track
from clipnoise.plugins import plugins
from clipnoise.studies.file import Panel

PLAIN = "no public data"  # what methods need of which nothing else is said, as `track` has it
CYCLIC = ("cyclic", "cyclic-poisson")  # batches that go with correlated noise
OTHERS = "Tasks with private examples alone are on [the main page](../index.md)."
TRAINED = (
    "[The protocol](../../../league.md#public-data-correlated-noise-and-users) says how they were "
    f"trained, and {{}}. {OTHERS}"
)


@dataclass(frozen=True)
class Track:
    """Tasks of the league that are ranked together, and never with those of another track.

    Attributes:
        id: what `clipnoise league --track` calls it.
        about: what tells its tasks from those of the first one.
        head: of its page, after a sentence on who prints it.
        place: of its page: a folder below that of the first one, which has none.
        baseline: the label of the method that gains are over.
        called: what sentences call that method.
        takes: which methods may enter, as `methods.base.track` sorts them.
    """

    id: str
    about: str
    head: str
    place: str = ""
    baseline: str = "dp-sgd"
    called: str = "DP-SGD"
    takes: tuple[str, ...] = (PLAIN,)

    @property
    def title(self) -> str:
        """The title of its page."""
        return f"The league{self.about and ' '}{self.about}, task by task"


PRIVATE = Track(
    "private",
    "",
    "[The protocol](../../league.md) says how they were trained, and [another page](practice.md) "
    "says what to start with. Tasks [on pretrained features](features/index.md), [with public data]"
    "(public/index.md), [with correlated noise](correlated/index.md) and [for users]"
    "(users/index.md) are on pages of their own, and never ranked together with these.",
)
PRETRAINED = Track(
    "pretrained",
    "on pretrained features",
    "[The protocol](../../../league.md#pretrained-features) says how they were trained, and what "
    f"each encoder saw. {OTHERS}",
    place="features/",
)
PUBLIC = Track(
    "public",
    "with public data",
    TRAINED.format("how many examples are public"),
    place="public/",
    takes=(PLAIN, "public data", "side information"),
)
CORRELATED = Track(
    "correlated",
    "with correlated noise",
    TRAINED.format("with which noise"),
    place="correlated/",
    baseline="dp-sgd banded",
    called="DP-SGD with banded noise",
)
USERS = Track(
    "users",
    "for users",
    TRAINED.format("who the users are"),
    place="users/",
    baseline="dp-fedavg",
    called="DP-FedAvg",
    takes=("users",),
)
TRACKS = (PRIVATE, PRETRAINED, PUBLIC, CORRELATED, USERS)


def track_of(datasets: Iterable[str], trained: Iterable[str], samplers: Iterable[str]) -> Track:
    """Return the track of a task: by what its methods protect and are given.

    Args:
        datasets: its datasets by id.
        trained: the ids of its methods; one that is not installed says nothing.
        samplers: how their batches are drawn.
    """
    known, data = methods(), plugins("clipnoise.data", Dataset)
    needs = {track(example(known[one])) for one in trained if one in known}
    if needs & {*USERS.takes}:
        return USERS
    if needs - {PLAIN}:
        return PUBLIC
    if {*samplers} & {*CYCLIC}:
        return CORRELATED
    encoded = any(issubclass(data.get(one, Dataset), Features) for one in datasets)
    return PRETRAINED if encoded else PRIVATE


def planned_track(panels: Iterable[Panel]) -> Track:
    """Return the track of a task by the panels of its study."""
    each = [*panels]
    return track_of(
        [one.id for panel in each for one in panel.datasets],
        [one.id for panel in each for one in panel.methods],
        [str(panel.privacy.get("sampler")) for panel in each],
    )
