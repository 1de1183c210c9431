"""Federated training: average the updates of users, then step with momentum or Adam at the server.

The private methods clip the updates first; AdaDPS divides local gradients by side information.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from clipnoise.methods.base import (
    Adam,
    ClippedUserMean,
    Count,
    LocalTraining,
    Momentum,
    PlainUserMean,
    Positive,
    PrivateMethod,
    Public,
    Released,
    SingleRateMethod,
    State,
    Tensor,
    WithSideInformation,
)


@dataclass(frozen=True, kw_only=True)
class FederatedMethod(SingleRateMethod):
    """What federated methods share: a round draws users, and an update of a user is one vector.

    In a round every one of N users is drawn with probability b/N. A drawn user starts at the global
    θ, runs `local_epochs` of SGD on their own examples, and hands in Δ_u = θ_u − θ: what a step
    adds, of the sign of a step and not of a gradient. Their sum is divided by the constant b.
    """

    local_learning_rate: Positive = 0.1
    local_epochs: Count = 1
    local_batch_size: Count = 100

    def local_training(self) -> LocalTraining:
        return LocalTraining(self.local_learning_rate, self.local_epochs, self.local_batch_size)


@dataclass(frozen=True, kw_only=True)
class PrivateFederatedMethod(FederatedMethod, PrivateMethod):
    """What private federated methods share: Δ̃ = (Σ clip(Δ_u) + noise)/b.

    Users are protected: adjacency is adding or removing a user with all their data.

    `noise_placement: central` puts noise of deviation σC on the sum. `per-user` puts σC on each
    selected user: √b·σC on the sum, and the accountant is given √b·σ. With Poisson sampling the
    number of drawn users is private and may be 0, so the noise on the sum must not depend on it:
    it is that of b users whoever is drawn (each of k drawn users adds √(b/k)·σC). Under a target ε
    the sum is what is calibrated, and the two placements are the same.

    Source: McMahan et al. 2018 (central); AdaDPS, Algorithm 3 (per user).
    """

    query = ClippedUserMean()

    noise_placement: Literal["central", "per-user"] = "central"

    def effective_noise_multiplier(
        self, noise_multiplier: float, expected_batch_size: float
    ) -> float:
        users = expected_batch_size if self.noise_placement == "per-user" else 1.0
        return math.sqrt(users) * noise_multiplier


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Momentum, FederatedMethod):
    """m ← βm + Δ; θ ← θ + ηm, on the mean update Δ of users.

    At β = 0 and η = 1 it is federated averaging. (A moving average βm + (1−β)Δ at η is this at
    (1−β)η.)
    """

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (delta,) = released
        return self.learning_rate * self.velocity(delta, state)


@dataclass(frozen=True, kw_only=True)
class DPFedAvg(ServerMomentum, PrivateFederatedMethod):
    """m ← βm + Δ̃; θ ← θ + ηm, on the released mean update Δ̃ of users.

    Source: McMahan et al. 2018, Algorithm 1; AdaDPS, section 6.2 and appendix B (server momentum).
    """

    id = "dp-fedavg"


@dataclass(frozen=True, kw_only=True)
class FedAvg(ServerMomentum):
    """m ← βm + Δ; θ ← θ + ηm, on the mean update Δ of users. Non-private.

    Source: McMahan et al. 2017, Algorithm 1; AdaDPS, Figure 6 and appendix B (server momentum).
    """

    id = "fedavg"
    query = PlainUserMean()


@dataclass(frozen=True, kw_only=True)
class LocalScale(WithSideInformation, ServerMomentum):
    """FedAvg whose local steps are w ← w − η ∇f(w)/(A + γ), A public side information."""

    def local_training(self) -> LocalTraining:
        return replace(super().local_training(), gamma=self.gamma)


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


@dataclass(frozen=True, kw_only=True)
class ServerAdam(Adam, FederatedMethod):
    """θ ← θ + η m̂/(√v̂ + γ), with Adam's moments of the mean update of users.

    Without `bias_correction` m and v take the place of m̂ and v̂, as Reddi et al. print it.
    """

    bias_correction: bool = True

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        (delta,) = released
        if self.bias_correction:
            m, v = state.moments(delta, self.betas)
        else:
            m = state.decay("m", delta, self.betas[0])
            v = state.decay("v", delta.square(), self.betas[1])
        return -self.descend(m, v)  # Δ has the sign of a change, not of a gradient


@dataclass(frozen=True, kw_only=True)
class DPFedAdam(ServerAdam, PrivateFederatedMethod):
    """θ ← θ + η m̂/(√v̂ + γ), with Adam's moments of the released mean update Δ̃ of users.

    Source: Reddi et al. 2021, Algorithm 2 (FedAdam); AdaDPS, section 6.2 and Figure 6.
    """

    id = "dp-fedadam"


@dataclass(frozen=True, kw_only=True)
class FedAdam(ServerAdam):
    """θ ← θ + η m̂/(√v̂ + γ), with Adam's moments of the mean update of users. Non-private.

    Source: Reddi et al. 2021, Algorithm 2 (FedAdam); AdaDPS, Figure 6.
    """

    id = "fedadam"
    query = PlainUserMean()
