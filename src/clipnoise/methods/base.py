"""All that a method's file imports, and how a method is found by its id.

A method's file takes from here field types, queries, kinds of methods, and update rules. Each rule
is written once: a method joins one with a query. Rules post-process what the query releases, so
they add nothing to the privacy cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import SequenceMatcher
from typing import Any, TypeVar

from clipnoise.core.clip_rules import EACH_LAYER, SHORTEST, ClipNorm, ClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.core.method import (
    Clean,
    ClippingMethod,
    LocalTraining,
    Method,
    OracleMethod,
    PrivateMethod,
    SingleRateMethod,
    WarmStart,
    WithClipRule,
)
from clipnoise.core.query import Released
from clipnoise.core.state import Public, State
from clipnoise.data.side_information import FREQUENCY, SideInformation
from clipnoise.errors import UserError, unknown
from clipnoise.fields import Count, Decay, Fraction, NonNegative, Positive, Probability, unhashed_at
from clipnoise.lazy import Tensor
from clipnoise.plugins import or_no_folder, plugins
from clipnoise.privacy.queries import (
    CleanClippedMean,
    ClippedLossMean,
    ClippedMean,
    ClippedMeanAndCount,
    ClippedMeanAndSlacks,
    ClippedUserMean,
    IndependentMoments,
    IndependentMomentsForFree,
    JointMoments,
    JointMomentsAsPublished,
    PerturbedMinimum,
    PlainMean,
    PlainUserMean,
    Query,
)

M = TypeVar("M", bound=Method)

# A value for each hyper-parameter without a default. None of them changes what ε rests on, except
# the clip norms, in whose units every result is given.
SLIP = 0.8  # above this similarity, one name is a misspelling of another
EXAMPLE_SETTINGS: Mapping[str, Any] = {
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "phase_lengths": (2, 2),
    "learning_rates": (0.1, 0.05),
    "clip_norms": (1.0, 2.0),
    "phi": 1e-3,
}


@dataclass(frozen=True, kw_only=True)
class SGD(SingleRateMethod):
    """θ ← θ − ηg."""

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return -self.learning_rate * g


@dataclass(frozen=True, kw_only=True)
class Momentum(SingleRateMethod):
    """b ← βb + g; θ ← θ − ηb."""

    momentum: Decay = 0.9

    def velocity(self, g: Tensor, state: State) -> Tensor:
        """Return b ← βb + g, shape (d,); without momentum nothing is remembered."""
        if self.momentum:
            state["b"] = self.momentum * state["b"] + g
            return state["b"]
        return g

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return -self.learning_rate * self.velocity(g, state)


@dataclass(frozen=True, kw_only=True)
class WithSideInformation(Method):
    """Base of the methods that divide by A + γ, A public side information fixed before training.

    A must not be counted on the private training file: it would then be no side information, and
    the guarantee would be void. Per feature or token it stands for the column of weights (or the
    row of an embedding) that belongs to it, and is 1 for every other parameter, like a bias: the
    feature of a bias is always 1. γ must suit the scale of A, whose largest value is 1 where tokens
    are counted: where γ is far above A nothing is scaled.
    """

    uses_side_information = True

    gamma: NonNegative = 1e-3
    side_information: SideInformation = FREQUENCY

    def uses_public_data(self) -> bool:
        return self.side_information.needs_public_examples


@dataclass(frozen=True, kw_only=True)
class AdaGrad(SingleRateMethod):
    """ν ← ν + g²; θ ← θ − η g/√ν, where 0/0 = 0."""

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        state["v"] = state["v"] + g.square()
        root = state["v"].sqrt()
        return -self.learning_rate * g / root.masked_fill(root == 0, 1.0)


@dataclass(frozen=True, kw_only=True)
class RootScaled(SingleRateMethod):
    """What Adam and RMSProp share: a direction divided by the root of a second moment."""

    gamma: NonNegative = 1e-8

    def descend(self, direction: Tensor, v: Tensor) -> Tensor:
        """Return −η·direction/(√v + γ), shape (d,)."""
        return -self.learning_rate * direction / (v.sqrt() + self.gamma)


@dataclass(frozen=True, kw_only=True)
class RMSProp(RootScaled):
    """v ← βv + (1−β)g²; θ ← θ − η g/(√v + γ), without bias correction."""

    beta: Decay = 0.9

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return self.descend(g, state.decay("v", g.square(), self.beta))


@dataclass(frozen=True, kw_only=True)
class Adam(RootScaled):
    """θ ← θ − η m̂/(√v̂ + γ), m̂ and v̂ the bias-corrected running averages of g and g²."""

    betas: tuple[Decay, Decay] = (0.9, 0.999)

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (g,) = released
        return self.descend(*state.moments(g, self.betas))

    def update_from(self, g: Tensor, g_squared: Tensor, state: State) -> Tensor:
        """Return the change for moments of two different values, each of shape (d,)."""
        m = state.average("m", g, self.betas[0])
        return self.descend(m, state.average("v", g_squared, self.betas[1]).clamp(min=0))


# Look-up by id


def methods() -> Mapping[str, type[Method]]:
    """Return every registered method class by id."""
    return plugins("clipnoise.methods", Method)


def method_class(name: str, *, file: str | None = None, key: str = "method.id") -> type[Method]:
    """Return the method class of an id.

    Args:
        name: a method id as in the papers' naming, e.g. `"dp-adambc"`.
        file: where the name was read, for the error message.
        key: of the name in that file, for the same.

    Raises:
        UserError: there is no such method; the message names the nearest one. One without privacy
            is suggested only for a slip in its own name.
    """
    known = methods()
    if name not in known:
        near = [one for one, kind in known.items() if _protects(kind) or _is_slip(name, one)]
        raise or_no_folder(unknown("method", name, known, file=file, key=key, proposed=near))
    return known[name]


def _protects(kind: type[Method]) -> bool:
    """Return whether a method protects, at whatever options."""
    return kind.sees == "released values" and getattr(kind.query, "private", True)


def _is_slip(name: str, meant: str) -> bool:
    """Return whether a name that does not speak of privacy is another one but for a letter."""
    close = SequenceMatcher(None, name[:80], meant).ratio() > SLIP
    return close and ("dp" not in name.lower() or "dp" in meant)


def example_settings(kind: type[Method]) -> dict[str, Any]:
    """Return a value for each hyper-parameter of a method that has no default."""
    names = [option.name for option in fields(kind) if option.default is MISSING]
    return {name: EXAMPLE_SETTINGS[name] for name in names if name in EXAMPLE_SETTINGS}


def example(kind: type[M], **options: Any) -> M:
    """Return an instance of a method; what `options` leave out are defaults or example settings."""
    return kind(**{**example_settings(kind), **options})


def track(method: Method) -> str:
    """Return with which methods it can be ranked: those that protect and are given the same."""
    if method.local_training() is not None:
        return "users"
    if method.uses_side_information:
        return "side information"
    return "public data" if method.uses_public_data() else "no public data"
