"""A stream of noise: standard normals, independent or mixed with those of earlier steps (DP-MF)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipnoise.lazy import Tensor, torch
from clipnoise.privacy.draws import Draws

if TYPE_CHECKING:
    from clipnoise.privacy.noise_strategies import Strategy


class NoiseSource(Draws):
    """A stream of noise, in order: row t of C⁻¹z at step t, for a strategy C.

    Without a strategy C = I: z_t ~ N(0, I_d), fresh at every step (DP-SGD). With one, only the few
    vectors that the strategy keeps are in memory, not z or C⁻¹. Several draws per step are
    independent streams.

    z is drawn in one call, in the dtype and on the device of the parameters. Its tail is that of a
    normal distribution as far as `REACH`. The usual caveat applies: floating-point normals are
    close to, but not exactly, the real-valued ones that accountants assume.

    Source: On Design Principles for Private Adaptive Optimizers, Algorithm 1; McKenna 2024,
    "Scaling up the Banded Matrix Factorization Mechanism", section 3.
    """

    def __init__(
        self,
        generator: torch.Generator | None,
        like: Tensor,
        strategy: Strategy | None = None,
    ) -> None:
        """Start the stream.

        Args:
            generator: a stream of random numbers on the device of `like`, used by nothing else;
                None draws from a cryptographic source.
            like: a tensor with the shape (d,), dtype and device of the parameters.
            strategy: C; None for independent noise.
        """
        super().__init__(generator)
        self.strategy = strategy
        self._like = like.new_empty(0)
        self._shape = like.shape
        self._step = 0
        self._memory: Tensor | None = None  # shape (draws, slots, d)

    def next(self, draws: int = 1) -> list[Tensor]:
        """Return the next step's noise, one tensor of shape (d,) per noisy released value.

        Raises:
            ValueError: no step of the strategy is left, or `draws` changed after the first step.
        """
        shape, strategy = (draws, *self._shape), self.strategy
        if strategy is None:
            return list(self.normals(shape, self._like).unbind())
        if self._step == strategy.steps:
            raise ValueError(f"all {strategy.steps} steps of the strategy are taken")
        if self._memory is None:
            self._memory = self._like.new_zeros((draws, strategy.slots, *self._shape))
        if len(self._memory) != draws:
            raise ValueError(
                f"the stream began with {len(self._memory)} draws per step, not {draws}"
            )
        self._step += 1
        weights = torch.as_tensor(strategy.weights(self._step)).to(self._like)
        outputs = []
        for normal, memory in zip(self.normals(shape, self._like), self._memory, strict=True):
            # y_t = (z_t − Σ_i w_i m_i)/C[t, t]
            mixed = normal - weights @ memory[: len(weights)] if len(weights) else normal
            outputs.append(mixed / strategy.diagonal(self._step))
            strategy.remember(memory, self._step, normal, outputs[-1])
        return outputs

    def row_norm_squared(self, step: int) -> float:
        """Return ‖row t of C⁻¹‖², the variance of each coordinate at step t (counted from 1)."""
        if self.strategy is None:
            return 1.0
        if not 1 <= step <= self.strategy.steps:
            raise ValueError(f"step must lie in 1 … {self.strategy.steps}, got {step}")
        return float(self.strategy.squared_row_norms[step - 1])

    def get_state(self) -> dict[str, Tensor]:
        """Return the position in the stream and the outputs that later ones depend on."""
        if self.strategy is None:
            return super().get_state()
        memory = self._like if self._memory is None else self._memory
        step = torch.tensor(self._step)
        return {**super().get_state(), "step": step, "memory": memory.clone()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Go to a saved position; the noise that follows is the same bit for bit.

        Raises:
            ValueError: the noise comes from a cryptographic source, which has no positions.
        """
        super().set_state(state)
        if self.strategy is not None:
            self._step = int(state["step"])
            self._memory = state["memory"].to(self._like.device).clone() if self._step else None
