"""FedAdam: average the updates of users, with Adam at the server; DP-FedAdam clips them first."""

from __future__ import annotations

from dataclasses import dataclass

from clipnoise.methods.base import Adam, PlainUserMean, Public, Released, State, Tensor
from clipnoise.methods.federated.fed_avg import FederatedMethod, PrivateFederatedMethod


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
