"""The contract of a method: what it asks of a batch, and what it makes of the released values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final

from clipnoise.core.clip_rules import HARD, ClipNorm, ClipRule
from clipnoise.core.clipping import Clipping
from clipnoise.core.schedule import at_step, own_names, scheduled, with_schedules
from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Positive
from clipnoise.plugins import require_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import GetCoreSchemaHandler
    from torch import Tensor

    from clipnoise.core.query import Query, Released
    from clipnoise.core.state import Public, State


# All but the clip norms act on what is released, so no privacy depends on them. The noise of a step
# is in proportion to the clip norm of that step, so no ε does on these.
MAY_CHANGE = (
    *("learning_rate", "learning_rates", "clip_learning_rate", "weight_decay"),
    *("clip_norm", "clip_norms"),
)


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


class Immutable:
    """Base of objects without a memory: what a method remembers belongs in `State`.

    Checkpoints save the state and nothing else. Being a frozen dataclass is not enough: a subclass
    that is not itself a dataclass could still set new attributes.
    """

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse every assignment.

        Raises:
            FrozenInstanceError: always.
        """
        raise FrozenInstanceError(f"cannot assign to {name!r}: keep it in the state")


@dataclass(frozen=True, kw_only=True)
class Method(Immutable):
    """Base of every optimizer.

    A plug-in is a frozen dataclass with an `id`, a `query`, hyper-parameters as fields, an
    `update`, and a docstring that ends in `Source: paper, algorithm, equation`. Hooks before the
    boundary (`points`, `scale`, `offset`) see released and public values only; the
    gradients themselves never pass through a method.

    Attributes:
        id: the name in run specs and tables.
        sees: what `update` is handed; clean values only in an oracle.
        uses_public_gradient: whether `public.gradient` must be there in every step.
        uses_side_information: whether `public.side_information` must be there; such a method has
            an option `side_information` that names its source.
        gradients_of: what is differentiated: the loss of the task, the negative output of an
            example's class, or its margin, the mean of all outputs less that of its class. In one
            linear layer the gradients of the latter two follow from the features alone.
        made_for: the id of a model, where the method is for networks like that one alone; audits
            train it.
        may_change: the hyper-parameters that a schedule may change from step to step. The hooks and
            `update` read the number of the step; a method whose formulas take one of them to be the
            same at every step leaves it out.
    """

    __pydantic_config__: ClassVar = STRICT
    needs: ClassVar[tuple[str, ...]] = ("query", "update")
    sealed: ClassVar[tuple[str, ...]] = ("private", "schedules", "extremes", "at")
    id: ClassVar[str]
    sees: ClassVar[Literal["released values", "clean values"]] = "released values"
    uses_public_gradient: ClassVar[bool] = False
    uses_side_information: ClassVar[bool] = False
    gradients_of: ClassVar[Literal["loss", "class score", "class margin"]] = "loss"
    made_for: ClassVar[str | None] = None
    may_change: ClassVar[tuple[str, ...]] = MAY_CHANGE

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Let schedules stand for the numbers that may change, in methods of the user, too."""
        schema = handler(source)
        with_schedules(handler.resolve_ref_schema(schema), own_names(cls, cls.may_change), handler)
        return schema

    @final
    @cached_property
    def schedules(self) -> tuple[str, ...]:
        """The hyper-parameters that change from step to step.

        Raises:
            UserError: one of them may not.
        """
        names = tuple(one.name for one in fields(self) if any(scheduled(getattr(self, one.name))))
        for name in names:
            if name not in self.may_change:
                raise UserError(
                    f"method.{name}: {self.id} needs one number for all steps; schedules are for "
                    f"{', '.join(own_names(type(self), self.may_change))}."
                )
        return names

    @final
    def extremes(self, steps: int) -> list[int]:
        """Return steps of T that have the smallest and the largest number of every schedule."""
        every = (one for name in self.schedules for one in scheduled(getattr(self, name)))
        return sorted(set[int]().union(*(one.extremes(steps) for one in every)))

    @final
    def at(self, step: int, steps: int) -> Self:
        """Return the method as it is in step t, from 1, of T: numbers stand for schedules.

        What is released does not change with them: the query is that of the method itself.
        """
        if not self.schedules:
            return self
        numbers = {name: at_step(getattr(self, name), step, steps) for name in self.schedules}
        method = replace(self, **numbers)
        vars(method)["query"] = self.query
        return method

    @property
    def query(self) -> Query:
        """What is released. Most methods set it in the class; an option may decide it instead."""
        raise NotImplementedError(f"{type(self).__name__} declares no query")

    @property
    def _rule(self) -> ClipRule:
        """The clip rule. Methods that accept any rule have it as their option `clip_rule`."""
        return HARD

    @final
    @property
    def private(self) -> bool:
        """Whether the method's releases protect examples. Those of an oracle never do."""
        return self.sees == "released values" and self.query.private

    def __init_subclass__(cls) -> None:
        """Refuse a method that declares itself private: its query decides, and is asked for once.

        A query that an option decides cannot be another one in a later step of the same method.
        """
        super().__init_subclass__()
        require_sealed(cls)
        if "__post_init__" in vars(cls):
            cls.__post_init__ = _of_numbers(cls.__post_init__)  # type: ignore[attr-defined]
        query = vars(cls).get("query")
        if isinstance(query, property) and query.fget is not None:
            cls.query = cached_property(query.fget)  # type: ignore[assignment]
            cls.query.__set_name__(cls, "query")  # type: ignore[attr-defined]

    @classmethod
    def source(cls) -> str:
        """Return where the method comes from: what its docstring says after `Source:`."""
        return " ".join((cls.__doc__ or "").partition("Source:")[2].split())

    @classmethod
    def family(cls) -> str:
        """Return the family: the folder or file in `methods`, or the folder of a plug-in."""
        names = cls.__module__.split(".")
        return names[2 if names[:2] == ["clipnoise", "methods"] else -2].replace("_", "-")

    @classmethod
    def warms_up(cls) -> bool:
        """Return whether training on public examples precedes the run."""
        return cls.warm_start is not Method.warm_start

    def against_correlated_noise(self) -> str | None:
        """Return why noise must be independent from step to step, or None where it need not be."""
        return None

    def uses_public_data(self) -> bool:
        """Return whether the method asks for public examples in any way."""
        return self.uses_public_gradient or self.warms_up()

    def check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise UserError where the method is not for a network with parameters of these shapes."""

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
        """Return how many of the last iterates `points` reads, the current one included."""
        return 1

    def passes(self) -> int:
        """Return how many gradients of a drawn example a step takes: one at each point.

        A release at a minimum takes as many again for each sum that the solver asks for.
        """
        local = self.local_training()
        return self.iterates() if local is None else local.epochs

    def clip_norm_at(self, step: int) -> float | None:
        """Return C of step t, counted from 1; None without clipping or where releases decide."""
        return None

    def points(
        self, iterates: Sequence[Tensor], state: State, public: Public
    ) -> Sequence[tuple[float, Tensor]]:
        """Return (w_j, p_j): v_i is formed from Σ_j w_j g_i(p_j), g_i the gradient of example i.

        Args:
            iterates: θ_t and those before it that exist, newest first, as many as `iterates()`.
            state: the method's memory, at the step that is taken.
            public: what is known without private data.
        """
        return [(1.0, iterates[0])]

    def scale(self, state: State, public: Public) -> Tensor | None:
        """Return s_t of shape (d,), fixed before the step, or None for all ones."""
        return None

    def offset(self, state: State, public: Public) -> Tensor | None:
        """Return the public vector added to each example's gradient before the scale, or None."""
        return None

    def clipping(self, state: State, public: Public) -> Clipping:
        """Return how the engine forms and bounds the vectors of a step, from the hooks above.

        Args:
            state: θ and the method's memory, at the step that is taken.
            public: what is known without private data.
        """
        iterates = (state.theta, *state.past)[: self.iterates()]
        weights, points = zip(*self.points(iterates, state, public), strict=True)
        return Clipping(
            clip_norm=self.clip_norm_at(state.step),
            weights=weights,
            points=points,
            of=self.query.of,
            scale=self.scale(state, public),
            offset=self.offset(state, public),
            rule=self._rule,
        )

    def update(self, released: tuple[Released, ...], state: State, public: Public) -> Tensor:
        """Turn released values into the change that is added to the parameters.

        Args:
            released: the query's values, each of shape (d,), or (1,) where losses are asked for.
            state: the method's memory; `state.step` is the number of this step.
            public: constants, and the public gradient where the method asks for one.

        Returns:
            The change, shape (d,).
        """
        raise NotImplementedError

    def evaluated(self, theta: Tensor, state: State) -> Tensor:
        """Return the parameters that are measured and published as the model: θ, or an average.

        Both come from released values alone, so this adds nothing to the privacy cost.

        Args:
            theta: where gradients are taken, shape (d,).
            state: the method's memory after the step; it is not changed.
        """
        return theta


def _of_numbers(check: Callable[[Method], None]) -> Callable[[Method], None]:
    """Return a method's own check of its options, made of the numbers of each step alone."""

    @wraps(check)
    def post_init(self: Method) -> None:
        if not self.schedules:
            check(self)

    return post_init


@dataclass(frozen=True, kw_only=True)
class SingleRateMethod(Method):
    """Base of the methods with one learning rate η; by itself, of those that do not clip."""

    learning_rate: Positive


@dataclass(frozen=True, kw_only=True)
class WithClipRule(Method):
    """Base of the methods that clip: what bounds a vector is an option of each of them."""

    clip_rule: ClipRule = HARD

    @property
    def _rule(self) -> ClipRule:
        return self.clip_rule


@dataclass(frozen=True, kw_only=True)
class ClippingMethod(WithClipRule, SingleRateMethod):
    """Base of the methods that clip, at one clip norm C."""

    clip_norm: ClipNorm

    def clip_norm_at(self, step: int) -> float | None:
        return self.clip_norm


@dataclass(frozen=True, kw_only=True)
class PrivateMethod(ClippingMethod):
    """Base of the methods that clip and that see only what their query releases."""

    sees: ClassVar[Literal["released values"]] = "released values"


@dataclass(frozen=True)
class Clean:
    """What only an oracle is shown: private values without noise.

    Attributes:
        values: what the query would release without noise, each of shape (d,).
        gradient: the mean gradient of the batch, not even clipped, shape (d,); None unless the
            oracle has an `oracle_scale`.
    """

    values: tuple[Tensor, ...]
    gradient: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class OracleMethod(ClippingMethod):
    """Base of the methods that are handed clean values: upper bounds, never private.

    An oracle defines `oracle_update` in place of `update`, and `oracle_scale` in place of `scale`
    where its scale depends on the clean gradient.
    """

    needs: ClassVar[tuple[str, ...]] = ("query", "oracle_update")
    sealed: ClassVar[tuple[str, ...]] = ("sees",)
    sees: ClassVar[Literal["clean values"]] = "clean values"

    def __init_subclass__(cls) -> None:
        """Refuse an oracle that is also a private method.

        Raises:
            TypeError: the class derives from both.
        """
        if issubclass(cls, PrivateMethod):
            raise TypeError(f"{cls.__name__}: an oracle sees clean values and is never private")
        super().__init_subclass__()

    @classmethod
    def reads_gradient(cls) -> bool:
        """Return whether the mean gradient of the private batch is taken, for the scale."""
        return cls.oracle_scale is not OracleMethod.oracle_scale

    def passes(self) -> int:
        return super().passes() + self.reads_gradient()

    def oracle_scale(self, state: State, public: Public, gradient: Tensor) -> Tensor | None:
        """Return s_t of shape (d,) from the clean mean gradient of the batch, shape (d,)."""
        return self.scale(state, public)

    def oracle_update(
        self, released: tuple[Released, ...], state: State, public: Public, clean: Clean
    ) -> Tensor:
        """Turn released and clean values into the change that is added to the parameters."""
        raise NotImplementedError
