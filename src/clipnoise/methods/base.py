"""The contract of a method: a query before the privacy boundary, an update after it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.fields import STRICT, Positive
from clipnoise.privacy.noise import next_bias_factor
from clipnoise.privacy.queries import Clipping, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from clipnoise.privacy.queries import Released, Unreleased


PublicVector = Literal["gradient", "side_information", "clean_gradient"]


@dataclass(frozen=True)
class Public:
    """What an update may know besides the released values: constants fixed without private data.

    Attributes:
        noise_multiplier: σ, the standard deviation of the noise relative to the sensitivity.
        expected_batch_size: the constant denominator, never the realised batch size: B = q·n, or
            B/m where micro-batches of m examples are clipped.
        total_steps: T.
        noise_row_norm_squared: ρ_t, the variance of this step's noise relative to independent noise
            at the same σ; 1 unless noise is correlated across steps.
        sensitivity_factor: how far one example can move the clipped sum, in units of C for adding
            or removing it: 1, or 2 for micro-batches. The noise is scaled by it.
        gradient: mean gradient on a public mini-batch for this step, shape (d,), or None.
        side_information: how large or frequent each coordinate is known to be, shape (d,), from
            public sources and fixed before training, or None. Never from the private examples.
        clean_gradient: mean gradient of the private batch without clip and noise, shape (d,). Only
            an oracle sees it: a method that is marked non-private and asks for it.
    """

    noise_multiplier: float
    expected_batch_size: float
    total_steps: int
    noise_row_norm_squared: float = 1.0
    sensitivity_factor: float = 1.0
    gradient: Tensor | None = None
    side_information: Tensor | None = None
    clean_gradient: Tensor | None = None

    def require(self, name: PublicVector) -> Tensor:
        """Return one of the vectors that not every run has.

        Raises:
            ValueError: this run has none.
        """
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(f"the method reads public.{name}, but this run has none")
        return value

    def noise_variance(self, clip_norm: float) -> float:
        """Return Φ, the variance of independent noise on a coordinate of the mean.

        It is (σC/B)²; for micro-batches (σ·2C/(B/m))².
        """
        sensitivity = self.sensitivity_factor * clip_norm / self.expected_batch_size
        return (self.noise_multiplier * sensitivity) ** 2


@dataclass
class State:
    """What a method remembers between steps: named flat buffers, all zero at the start.

    Attributes:
        like: a tensor with the shape, dtype and device of the parameters.
        step: t, counted from 1; 0 before the first step.
        buffers: the memory itself; plain data, so that a checkpoint can hold it.
    """

    like: Tensor
    step: int = 0
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        """Return a buffer; one that was never written is zero."""
        if name not in self.buffers:
            self.buffers[name] = self.like.new_zeros(self.like.shape)
        return self.buffers[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.buffers[name] = value

    def get_state(self) -> dict[str, Tensor]:
        """Return the step number and the buffers, for a checkpoint."""
        import torch

        held = {f"buffer {name}": value for name, value in self.buffers.items()}
        return {"step": torch.tensor(self.step), **held}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Go to a saved step; those that follow are the same bit for bit."""
        self.step = int(state["step"])
        self.buffers = {
            name.removeprefix("buffer "): value.to(self.like.device)
            for name, value in state.items()
            if name != "step"
        }

    def decay(self, name: str, value: Tensor, beta: float) -> Tensor:
        """Update the running average x ← βx + (1−β)·value in place and return it.

        Args:
            name: the buffer that holds x.
            value: the new value, shape (d,).
            beta: β in [0, 1).

        Returns:
            x, shape (d,): the buffer itself.
        """
        return self[name].mul_(beta).add_(value, alpha=1 - beta)

    def average(self, name: str, value: Tensor, beta: float) -> Tensor:
        """Update the running average as `decay` does and return it bias-corrected, x/(1−β^t).

        Args:
            name: the buffer that holds x.
            value: the new value, shape (d,).
            beta: β in [0, 1).

        Returns:
            x/(1−β^t), shape (d,); a new tensor.
        """
        return self.decay(name, value, beta) / (1 - beta**self.step)

    def moments(self, g: Tensor, betas: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Update Adam's two moments with g and return them bias-corrected, (m̂, v̂)."""
        return self.average("m", g, betas[0]), self.average("v", g.square(), betas[1])

    def noise_bias(self, public: Public, clip_norm: float, beta: float) -> float:
        """Return the bias that noise leaves in a bias-corrected running average of squares.

        Call it once per step. Under independent noise it is Φ at every step.

        Args:
            public: the constants of the run, with the relative variance ρ_t of this step's noise.
            clip_norm: C.
            beta: β of the running average.

        Returns:
            Φ·Σ_{i≤t} w_i ρ_i with w_i = (1−β)β^{t−i}/(1−β^t).

        Source: On Design Principles for Private Adaptive Optimizers, appendix A.
        """
        before = float(self.buffers.get("noise_bias", 0.0))
        factor = next_bias_factor(before, public.noise_row_norm_squared, beta, self.step)
        self.buffers["noise_bias"] = self.like.new_tensor(factor, dtype=None)
        return public.noise_variance(clip_norm) * factor


@dataclass(frozen=True)
class Observation:
    """What one step released, and what it would have released without noise: non-private.

    Attributes:
        released: the first released value, shape (d,).
        clean: the same without noise, shape (d,).
        clip_norm: C of the step; None where nothing was clipped.
        public: the constants of the step.
    """

    released: Tensor
    clean: Tensor
    clip_norm: float | None
    public: Public


@dataclass(frozen=True)
class WarmStart:
    """Training on public examples that comes before the first private step.

    Attributes:
        method: what trains; its query is not private.
        epochs: passes over the public examples.
        batch_size: public examples per step.
    """

    method: Method
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class LocalTraining:
    """What a user does in a round of federated training: SGD on their own examples.

    Attributes:
        learning_rate: the local η.
        epochs: passes over the user's examples.
        batch_size: examples per local step.
        gamma: γ where local gradients are divided by A + γ, A the side information; None where
            they are not.
    """

    learning_rate: float
    epochs: int
    batch_size: int
    gamma: float | None = None


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of every optimizer.

    A plug-in is a frozen dataclass with an `id`, a `query`, hyper-parameters as fields, an
    `update`, and a docstring that ends in `Source: paper, algorithm, equation`. Hooks before the
    boundary (`scale`, `offset`, `iterate_weights`) see released and public values only; the
    gradients themselves never pass through a method.

    Attributes:
        id: the name in run specs and tables.
        query: what is released; an instance may carry another than its class, by its options.
        uses_public_gradient: whether `public.gradient` must be there in every step.
        uses_side_information: whether `public.side_information` must be there.
        uses_clean_gradient: whether `public.clean_gradient` must be there; non-private only.
    """

    __pydantic_config__: ClassVar = STRICT
    id: ClassVar[str]
    query: ClassVar[Query]
    uses_public_gradient: ClassVar[bool] = False
    uses_side_information: ClassVar[bool] = False
    uses_clean_gradient: ClassVar[bool] = False

    @classmethod
    def source(cls) -> str:
        """Return where the method comes from: what its docstring says after `Source:`."""
        return " ".join((cls.__doc__ or "").partition("Source:")[2].split())

    @classmethod
    def family(cls) -> str:
        """Return the family: the name of the folder that the method's file is in."""
        return cls.__module__.split(".")[2].replace("_", "-")

    @classmethod
    def warms_up(cls) -> bool:
        """Return whether training on public examples precedes the run."""
        return cls.warm_start is not Method.warm_start

    @classmethod
    def uses_public_data(cls) -> bool:
        """Return whether the method asks for public examples in any way."""
        return cls.uses_public_gradient or cls.uses_side_information or cls.warms_up()

    def warm_start(self) -> WarmStart | None:
        """Return the training on public examples that precedes the run, or None."""
        return None

    def local_training(self) -> LocalTraining | None:
        """Return what each drawn user does; None for a method on the gradients of examples."""
        return None

    def effective_noise_multiplier(
        self, noise_multiplier: float, expected_batch_size: float
    ) -> float:
        """Return the multiplier of the noise that is really on the clipped sum.

        Args:
            noise_multiplier: σ as it is asked for.
            expected_batch_size: B.
        """
        return noise_multiplier

    def iterates(self) -> int:
        """Return how many iterates each example's gradient is taken at (passes per step)."""
        return 1

    def clip_norm_at(self, step: int) -> float | None:
        """Return C of step t, counted from 1; None for a method that does not clip."""
        return None

    def iterate_weights(self, available: int) -> tuple[float, ...]:
        """Return the weights over the iterates that exist, newest first."""
        return (1.0,)

    def scale(self, state: State, public: Public) -> Tensor | None:
        """Return s_t of shape (d,), fixed before the step, or None for all ones."""
        return None

    def offset(self, state: State, public: Public) -> Tensor | None:
        """Return the public vector added to each example's gradient before the scale, or None."""
        return None

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        """Turn released values into the step that is added to the parameters.

        Args:
            released: the query's values, each of shape (d,).
            state: the method's memory; `state.step` is the number of this step.
            public: constants, and the public gradient where the method asks for one.

        Returns:
            The step, shape (d,).
        """
        raise NotImplementedError

    def clipping(self, state: State, public: Public, available: int) -> Clipping:
        """Collect the hooks into the clipping by which the engine forms the clipped sum."""
        return Clipping(
            clip_norm=self.clip_norm_at(state.step),
            weights=self.iterate_weights(available),
            scale=self.scale(state, public),
            offset=self.offset(state, public),
        )


@dataclass(frozen=True, kw_only=True)
class SingleRateMethod(Method):
    """Base of the methods with one learning rate η; by itself, of those that do not clip."""

    learning_rate: Positive


@dataclass(frozen=True, kw_only=True)
class PrivateMethod(SingleRateMethod):
    """Base of the methods that clip, at one clip norm C."""

    clip_norm: Positive

    def clip_norm_at(self, step: int) -> float | None:
        return self.clip_norm


def step(
    method: Method,
    state: State,
    public: Public,
    *,
    available: int,
    clipped_sum: Callable[[Clipping], Unreleased],
    noise: Sequence[Tensor],
    observe: Callable[[Observation], None] | None = None,
) -> Tensor:
    """Take one step of any method: form the sum, cross the privacy boundary, update.

    Args:
        method: the optimizer.
        state: its memory; its step counter is advanced.
        public: the constants of the run.
        available: how many iterates exist, the current one included (1 at the first step).
        clipped_sum: the only access to private data: Σ v_i of the batch under a clipping.
        noise: standard normal tensors of shape (d,), one per noisy component of the query.
        observe: is shown the release with and without noise, in a run that is marked non-private;
            None in any other.

    Returns:
        The step to add to the parameters, shape (d,).
    """
    state.step += 1
    if method.uses_clean_gradient:
        public = replace(public, clean_gradient=_clean_mean(method, public, clipped_sum))
    clipping = method.clipping(state, public, min(available, method.iterates()))
    clip_norm = clipping.clip_norm if clipping.clip_norm is not None else float("inf")
    total = clipped_sum(clipping)
    released = method.query.release(
        total,
        noise,
        noise_multiplier=public.noise_multiplier,
        clip_norm=clip_norm,
        expected_batch_size=public.expected_batch_size,
        sensitivity_factor=public.sensitivity_factor,
    )
    if observe is not None:
        clean = method.query.values(total / public.expected_batch_size, clip_norm)
        observe(Observation(released[0], clean[0], clipping.clip_norm, public))
    return method.update(released, state, public)


def _clean_mean(
    method: Method, public: Public, clipped_sum: Callable[[Clipping], Unreleased]
) -> Tensor:
    """Return the mean gradient of the private batch as it is, for an oracle and nobody else."""
    if method.query.private:
        raise RuntimeError(f"{method.id} is private and must not see a clean gradient")
    return clipped_sum(Clipping(clip_norm=None)) / public.expected_batch_size
