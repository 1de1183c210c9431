"""Noise: standard normals, independent or mixed with those of earlier steps (DP-MF).

`NoiseCorrelation` is how a run spec chooses its noise, `OwnNoise` how users bring a kind of theirs,
and `NoiseSource` draws it. For methods the only difference between kinds is the variance, which is
`row_norm_squared(t)` times that of independent noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from annotated_types import Le

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, Decay
from clipnoise.lazy import Tensor, np, torch
from clipnoise.plugins import SEALED, OwnKind, WithOwnKinds, as_sealed
from clipnoise.privacy.draws import Draws

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from clipnoise.privacy.noise_strategies import Array, Strategy

# The largest standard deviation that the noise of one step may have at σ = 1. Beyond it, the
# coefficients amplify the noise from step to step.
LARGEST_DEVIATION = 1e6
OPTIONS = {
    "bands": ("banded", "banded-inverse"),
    "cancelled": ("lambda-cgd",),
    "buffers": ("blt",),
}


@dataclass(frozen=True, kw_only=True)
class NoiseCorrelation(WithOwnKinds):
    """How the noise of a run is correlated across its steps.

    Attributes:
        kind: "independent" (DP-SGD); "banded" (Toeplitz, optimised for prefix sums over T steps);
            "dense" (optimal for prefix sums if each example takes part once; memory for T vectors);
            "banded-inverse" (BISR: each noise is a mixture of the last few independent ones);
            "lambda-cgd" (DP-λCGD: part of the last step's noise is taken back; memory for one
            vector); "blt" (buffered linear Toeplitz, optimised for prefix sums); "tree" (DP-FTRL;
            memory for log₂ T vectors). Any other is the id of an `OwnNoise`.
        bands: b of "banded": memory for b vectors, and with the sampler cyclic-poisson b steps
            between participations. p of "banded-inverse": memory for p vectors.
        cancelled: λ of "lambda-cgd".
        buffers: how many vectors "blt" keeps; more than four hardly reduce its error.
    """

    __pydantic_config__: ClassVar = STRICT
    builtin: ClassVar[tuple[str, ...]] = (
        "independent",
        "banded",
        "dense",
        "banded-inverse",
        "lambda-cgd",
        "blt",
        "tree",
    )

    kind: str = "independent"
    bands: Count | None = None
    cancelled: Decay | None = None
    buffers: Annotated[Count, Le(8)] | None = None

    def __post_init__(self) -> None:
        if self.kind not in self.builtin:
            raise ValueError(f"kind: {self.kind!r} is not one of {', '.join(self.builtin)}")
        for name, kinds in OPTIONS.items():
            if (self.kind in kinds) != (getattr(self, name) is not None):
                raise ValueError(
                    f"{name} is required for kind {' and '.join(kinds)} and not allowed otherwise"
                )

    def bands_over(self, steps: int) -> int:
        """Return the number of bands of C over T steps: 1 for independent noise, T for full C."""
        independent = 1 in (self.bands, steps) or self.cancelled == 0
        if self.kind == "independent" or independent:
            return 1
        most = self.bands if self.kind == "banded" and self.bands else steps
        return max(1, min(most, steps))

    def prefix_cost(self, steps: int, groups: int) -> float:
        """Return by how much the first t < T steps may cost more than the participations in them.

        Args:
            steps, groups: as for `strategy`.
        """
        if self.kind != "tree" or steps < 2:
            return 1.0
        from clipnoise.privacy.noise_strategies import prefix_cost

        return prefix_cost(steps, min(groups, steps))

    def strategy(self, steps: int, groups: int) -> Strategy | None:
        """Compute the strategy matrix; None for independent noise.

        Args:
            steps: T ≥ 1.
            groups: how many steps lie between participations of an example. The strategy is scaled
                so that each of them costs one release at σ: see `fitted`.
        """
        if as_sealed(self, "bands_over")(steps) == 1:
            return None
        from clipnoise.privacy.noise_strategies import fitted

        groups = min(groups, steps)
        return fitted(as_sealed(self, "_unscaled")(steps, groups), groups)

    def _unscaled(self, steps: int, groups: int) -> Strategy:
        """Return the strategy matrix at any scale."""
        from clipnoise.privacy import noise_strategies as strategies

        if self.kind == "banded":
            return strategies.optimal_toeplitz(steps, self.bands or 0)
        if self.kind == "dense":
            return strategies.optimal_dense(steps)
        if self.kind == "banded-inverse":
            return strategies.inverse_square_root(steps, self.bands or 0)
        if self.kind == "lambda-cgd":
            return strategies.cancelling(steps, self.cancelled or 0.0)
        if self.kind == "blt":
            return strategies.optimal_buffers(steps, self.buffers or 0, groups)
        return strategies.Tree(steps)

    def source(
        self, steps: int, groups: int, generator: torch.Generator | None, like: Tensor
    ) -> NoiseSource:
        """Start the stream of noise.

        Args:
            steps, groups: as for `strategy`.
            generator, like: as for `NoiseSource`.
        """
        return NoiseSource(generator, like, as_sealed(self, "strategy")(steps, groups))


@dataclass(frozen=True, kw_only=True)
class OwnNoise(OwnKind, NoiseCorrelation):
    """Base of the kinds of noise that users bring: the entries of a strategy matrix.

    The suite draws the noise, computes the sensitivity of the strategy under the participation of
    the run, and scales the strategy accordingly, so that σ keeps its meaning whatever the entries.

    Attributes:
        inverse: the column that `entries` returns is that of C⁻¹, not of C.
    """

    needs: ClassVar[tuple[str, ...]] = ("entries",)
    sealed: ClassVar[tuple[str, ...]] = (
        *SEALED,
        "_unscaled",
        "bands_over",
        "prefix_cost",
        "source",
        "strategy",
    )
    what: ClassVar[str] = "kind of noise"
    inverse: ClassVar[bool] = False

    bands: None = None
    cancelled: None = None
    buffers: None = None

    def entries(self, steps: int) -> ArrayLike:
        """Return the strategy matrix C of a run, of any scale.

        Args:
            steps: T ≥ 2.

        Returns:
            Either a column of b ≥ 1 numbers, the first above 0: C is Toeplitz, and these are its
            entries on the diagonal and below it. Memory is then needed for min(b, T) vectors, and
            noise of at most as many bands as the sampler cyclic-poisson has groups keeps the
            amplification. Or all of C, shape (T, T), lower triangular with a diagonal above 0;
            then memory is needed for T vectors, and there is no amplification.
        """
        raise NotImplementedError

    @final
    def bands_over(self, steps: int) -> int:
        if steps < 2:
            return 1
        entries = _entries(self, steps)
        toeplitz = entries.ndim == 1 and not self.inverse
        return len(entries) if toeplitz or len(entries) == 1 else steps

    @final  # for type checkers; at run time `sealed` refuses an override
    def strategy(self, steps: int, groups: int) -> Strategy | None:
        return super().strategy(steps, groups)

    @final
    def _unscaled(self, steps: int, groups: int) -> Strategy:
        return _strategy_of(self, steps)


NoiseCorrelation.own = OwnNoise


@cache
def _entries(noise: OwnNoise, steps: int) -> Array:
    """Return the entries that describe the strategy of a run.

    Raises:
        UserError: they describe none.
    """
    with noise.explained():
        entries, again = (np.array(noise.entries(steps), dtype=np.float64) for _ in range(2))
        if not np.array_equal(entries, again, equal_nan=True):
            raise UserError("entries must be the same whenever they are asked for.")
        if entries.ndim == 1 and entries.size:
            entries = entries[:steps]
        elif noise.inverse or entries.shape != (steps, steps):
            whole = "" if noise.inverse else f", or all of C: ({steps}, {steps})"
            raise UserError(f"entries must have shape (b,){whole}; they have {entries.shape}.")
        square = np.atleast_2d(entries)
        if not (np.isfinite(entries).all() and (np.diag(square) > 0).all()):
            raise UserError("entries must be finite, and above 0 on the diagonal.")
        if entries.ndim == 2 and np.triu(entries, 1).any():
            raise UserError("entries above the diagonal must be 0: no step knows later noise.")
        return entries


@cache
def _strategy_of(noise: OwnNoise, steps: int) -> Strategy:
    """Return the strategy that the entries describe, of any scale.

    Raises:
        UserError: its noise grows from step to step without bound.
    """
    from clipnoise.privacy.noise_strategies import Dense, Toeplitz

    entries = _entries(noise, steps)
    strategy: Strategy = (
        Dense(entries) if entries.ndim == 2 else Toeplitz(entries, steps, noise.inverse)
    )
    with noise.explained(), np.errstate(over="ignore", invalid="ignore"):
        # Of the largest step, for an example that takes part once.
        variance = strategy.squared_row_norms.max() * strategy.squared_distances(steps).max()
        if not variance < LARGEST_DEVIATION**2:
            raise UserError(
                f"with these entries the noise of some step of {steps} has a standard deviation of "
                f"{variance**0.5:.2g}σ; at most {LARGEST_DEVIATION:g}σ is allowed."
            )
    return strategy


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
