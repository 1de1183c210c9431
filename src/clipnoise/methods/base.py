"""All that a method's file imports: field types, queries, kinds of methods, and update rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clipnoise.core.method import (
    Clean,
    ClippingMethod,
    LocalTraining,
    Method,
    OracleMethod,
    PrivateMethod,
    SingleRateMethod,
    WarmStart,
)
from clipnoise.core.query import Released
from clipnoise.core.state import Public, State
from clipnoise.errors import UserError
from clipnoise.fields import Count, Decay, Fraction, NonNegative, Positive, Probability
from clipnoise.methods.rules import SGD, AdaGrad, Adam, Momentum, RMSProp, RootScaled
from clipnoise.privacy.queries import (
    CleanClippedMean,
    ClippedMean,
    ClippedUserMean,
    IndependentMoments,
    IndependentMomentsForFree,
    JointMoments,
    JointMomentsAsPublished,
    PlainMean,
    PlainUserMean,
    Query,
)

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # for annotations only: listing the methods does not load torch

__all__ = [
    "SGD",
    "AdaGrad",
    "Adam",
    "Clean",
    "CleanClippedMean",
    "ClippedMean",
    "ClippedUserMean",
    "ClippingMethod",
    "Count",
    "Decay",
    "Fraction",
    "IndependentMoments",
    "IndependentMomentsForFree",
    "JointMoments",
    "JointMomentsAsPublished",
    "LocalTraining",
    "Method",
    "Momentum",
    "NonNegative",
    "OracleMethod",
    "PlainMean",
    "PlainUserMean",
    "Positive",
    "PrivateMethod",
    "Probability",
    "Public",
    "Query",
    "RMSProp",
    "Released",
    "RootScaled",
    "SingleRateMethod",
    "State",
    "Tensor",
    "UserError",
    "WarmStart",
]
