"""AdaDPS in federated training: users divide their local gradients by side information."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.fields import NonNegative
from clipnoise.methods.base import LocalTraining
from clipnoise.methods.federated.fed_avg import (
    PrivateFederatedMethod,
    ServerMomentum,
)
from clipnoise.privacy.queries import PlainUserMean


@dataclass(frozen=True, kw_only=True)
class LocalScale(ServerMomentum):
    """FedAvg whose local steps are w ← w − η ∇f(w)/(A + γ), A public side information."""

    uses_side_information = True

    gamma: NonNegative = 1e-3

    def local_training(self) -> LocalTraining:
        return LocalTraining(
            self.local_learning_rate, self.local_epochs, self.local_batch_size, self.gamma
        )


@dataclass(frozen=True, kw_only=True)
class AdaDPSFed(LocalScale, PrivateFederatedMethod):
    """DP-FedAvg whose local steps are w ← w − η ∇f(w)/(A + γ), A public side information.

    Source: AdaDPS, Algorithm 3; section 6.2.
    """

    id = "adadps-fed"


@dataclass(frozen=True, kw_only=True)
class AdaSFed(LocalScale):
    """FedAvg whose local steps are w ← w − η ∇f(w)/(A + γ), A side information. Non-private.

    Source: AdaDPS, Algorithm 3 without clip and noise; Figure 6.
    """

    id = "adas-fed"
    query = PlainUserMean()
