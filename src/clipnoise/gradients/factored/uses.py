"""Uses of parameters: the contract of a layer family, and how the examples are grouped.

A `ParameterGradient` takes all uses of a parameter together: squared norms and weighted sums.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple, cast

import torch
from torch import Tensor

from clipnoise.core.clipping import Clipping
from clipnoise.gradients.clipping import BLOCK, block_norms, row_norms

# Costs of computing norms, in multiply-adds of a matrix product. An element of an instantiated
# gradient costs many of them, because it passes through memory.
ELEMENT = 20  # for one element of an instantiated gradient
OVERHEAD = 20  # for one inner product of two rows, beside the product itself

PAIR = 8  # numbers in memory for a pair of rows: inner products of both factors, most in float64
SLACK = 8  # roundings of the terms of a squared norm that may have made it too low
USES = 64  # of one parameter, whose inner products may have lost as much
LONG = 2048  # inner products of longer float32 rows are summed in float64
# Elements of a piece: 8 MB in float32, which fit in a processor's last cache. In smaller pieces a
# wide layer has one example at a time, and its threads wait for each other.
CACHED = 2**21
# Elements of a band: some rows of a wide parameter, whose scale and gradients then stay in the
# cache of one core while they are multiplied and their norms are taken.
BAND = 2**17
# How many times as much of all these a GPU forms at once: it waits between kernels, which take as
# long for a few numbers as for a million.
ON_A_GPU = 32


def times_larger(like: Tensor) -> int:
    """Return how many times as much is formed at once as on a CPU, where this tensor is."""
    return ON_A_GPU if like.is_cuda else 1


@dataclass(frozen=True)
class Piece:
    """Successive examples that form whole groups of equal size.

    Attributes:
        examples: their rows in the batch.
        count: how many groups they form.
        size: examples in each group.
    """

    examples: slice
    count: int
    size: int

    def cut(self, tensor: Tensor) -> Tensor:
        """Cut the piece out of a batch: (b, …) → (examples, …)."""
        whole = tensor.shape[0] == self.count * self.size
        return tensor if whole else tensor[self.examples]

    def rows(self, tensor: Tensor) -> Tensor:
        """Cut the piece out of a batch: (b, …) → (groups, examples per group, …)."""
        return self.grouped(self.cut(tensor))

    def joined(self, tensor: Tensor) -> Tensor:
        """Cut out the piece and join the rows of each group: (b, T, …) → (groups, T′, …)."""
        part = self.cut(tensor)
        if self.size == 1:
            return part
        return part.reshape(self.count, self.size * part.shape[1], *part.shape[2:])

    def grouped(self, part: Tensor) -> Tensor:
        """Divide the piece's own rows: (examples, …) → (groups, examples per group, …)."""
        return part.reshape(self.count, self.size, *part.shape[1:])

    def added_up(self, part: Tensor) -> Tensor:
        """Add up the piece's own rows within each group: (examples, …) → (groups, …)."""
        return part if self.size == 1 else self.grouped(part).sum(dim=1)


@dataclass(frozen=True)
class Groups:
    """How the examples of a batch are grouped; each group is clipped as one.

    Attributes:
        runs: (size, count) for each run of successive groups of equal size.
        at_once: how many times as much of them is formed at once as on a CPU: see `times_larger`.
    """

    runs: tuple[tuple[int, int], ...]
    at_once: int = 1

    @classmethod
    def single(cls, examples: int) -> Groups:
        """Return groups of one example each."""
        return cls(((1, examples),))

    @classmethod
    def of(cls, clipping: Clipping, examples: int) -> tuple[Groups, Tensor | None]:
        """Group a batch as a clipping says, ordered so that groups of equal size are adjacent.

        Args:
            clipping: says which groups.
            examples: b, at least 1.

        Returns:
            The groups, and the order of the examples, shape (b,); None if the order is unchanged.

        Raises:
            ValueError: a group size without groups.
        """
        if clipping.groups is None:
            if clipping.group_size > 1:
                raise ValueError("micro-batches need the group of each example")
            return cls.single(examples), None
        _, sizes = torch.unique_consecutive(clipping.groups, return_counts=True)
        order = sizes.repeat_interleave(sizes).argsort(stable=True)
        distinct, counts = sizes.sort().values.unique_consecutive(return_counts=True)
        return cls(tuple(zip(distinct.tolist(), counts.tolist(), strict=True))), order

    @cached_property
    def count(self) -> int:
        """How many groups there are, n."""
        return sum(count for _, count in self.runs)

    @cached_property
    def examples(self) -> int:
        """How many examples there are, b."""
        return sum(size * count for size, count in self.runs)

    @cached_property
    def largest(self) -> int:
        """Examples in the largest group."""
        return max(size for size, _ in self.runs)

    def pieces(self, elements: int) -> Iterator[Piece]:
        """Cut the batch into pieces that fit in a CPU's cache and hold groups of one size each.

        Each thread gets as many groups as the others, where more than one fits.

        Args:
            elements: numbers held in memory for one example.
        """
        start, threads = 0, torch.get_num_threads()
        for size, count in self.runs:
            fitting = max(1, self.at_once * CACHED // max(1, elements * size))
            fitting = fitting // threads * threads or fitting
            for first in range(0, count, fitting):
                number = min(fitting, count - first)
                yield Piece(slice(start, start + number * size), number, size)
                start += number * size

    def piece_of(self, group: int) -> Piece:
        """Return one group, by its number."""
        start = 0
        for size, count in self.runs:
            if group < count:
                first = start + group * size
                return Piece(slice(first, first + size), 1, size)
            group, start = group - count, start + size * count
        raise IndexError(group)

    def to_examples(self, values: Tensor) -> Tensor:
        """Repeat a value per group for its examples: shape (n,) → (b,)."""
        if self.largest == 1:
            return values
        sizes = torch.cat([torch.full((count,), size) for size, count in self.runs])
        return values.repeat_interleave(sizes.to(values.device))


class Squares(NamedTuple):
    """Squared norms, or parts of them, one for each group.

    Attributes:
        values: shape (n,), float64.
        slack: how far too low rounding may have made each, shape (n,), float64; None where nothing
            cancels, so that rounding is small beside the value.
    """

    values: Tensor
    slack: Tensor | None = None

    @classmethod
    def total(cls, terms: Sequence[Squares]) -> Squares:
        """Add up at least one term."""
        first, *others = (values for values, _ in terms)
        slacks = [slack for _, slack in terms if slack is not None]
        slack = sum(slacks[1:], start=slacks[0]) if slacks else None
        return cls(sum(others, start=first), slack)

    @classmethod
    def joined(cls, parts: Sequence[Squares]) -> Squares:
        """Join those of successive groups, of which either all or none have slack."""
        if len(parts) == 1:
            return parts[0]
        slacks = [slack for _, slack in parts if slack is not None]
        return cls(
            torch.cat([values for values, _ in parts]), torch.cat(slacks) if slacks else None
        )


class Use(ABC):
    """One use of one parameter in one pass: each example's gradient G_i, as factors.

    Attributes:
        shape: the parameter's shape.
        elements: how many numbers the factors hold for one example.
        workspace: how many more numbers are formed while computing one example's gradient.
    """

    shape: torch.Size
    elements: int
    workspace: int = 0

    @abstractmethod
    def instantiate(self, piece: Piece) -> Tensor:
        """Return Σ G_i over each group of a piece, shape (groups, *shape)."""

    def by_rows(self, piece: Piece) -> Callable[[slice], Tensor]:
        """Return what forms some rows of Σ G_i: along the first axis, (groups, rows, …)."""
        gradients = self.instantiate(piece)
        return lambda rows: gradients[:, rows]

    @abstractmethod
    def add(self, factors: Tensor, into: Tensor) -> None:
        """Add Σ f_i G_i, in place.

        Args:
            factors: f, shape (b,).
            into: shape of the parameter.
        """

    def squared_norms(self) -> Tensor | None:
        """Return ‖G_i‖² where nothing cancels in it: float64 of shape (b,), never too low.

        None where it does not follow from the factors at once.
        """
        return None

    @property
    def gradient_elements(self) -> int:
        """How many numbers one example's gradient holds."""
        return math.prod(self.shape)


class InProducts(Use):
    """A use whose gradients have inner products that follow from the factors alone."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows an example has, T: each adds an outer product to its gradient."""

    @abstractmethod
    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        """Return whether inner products cost less than instantiating the gradients.

        Gradients too large to be kept are computed again for their weighted sum; where they are
        kept, the sum costs nothing more.

        Args:
            total: rows that are compared with each other: those of all uses, times the examples in
                a group.
            scaled: whether the gradients are scaled elementwise.
            keeps: whether instantiated gradients would be kept.
        """

    @abstractmethod
    def takes(self, other: InProducts) -> bool:
        """Return whether `products` accepts another use of the same parameter."""

    @abstractmethod
    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Squares:
        """Return ⟨s ⊙ G, s ⊙ G′⟩ for the groups of a piece; slack only of a use with itself.

        Args:
            other: the use that G′ belongs to; one that `takes` accepts.
            piece: the groups.
            square: s², shape of the parameter; None for ones.
        """


class Vectors:
    """Vectors, one for each example, whose norms are taken once."""

    def __init__(self, values: Tensor) -> None:
        """Take vectors of shape (b, …)."""
        self.values = values

    @cached_property
    def norms(self) -> Tensor:
        """The norm of each, shape (b,)."""
        values = self.values
        return row_norms(values if values.ndim == 2 else values.reshape(len(values), -1))


class ExplicitGradients(Use):
    """Per-example gradients held as they are: those of biases and tokens."""

    def __init__(self, rows: Tensor | Vectors) -> None:
        """Take gradients of shape (b, *shape)."""
        self._rows = rows if isinstance(rows, Vectors) else Vectors(rows)
        self.gradients = self._rows.values
        self.shape = self.gradients.shape[1:]
        self.elements = self.gradient_elements

    def squared_norms(self) -> Tensor:
        return self._rows.norms.double().square_()

    def instantiate(self, piece: Piece) -> Tensor:
        return piece.added_up(piece.cut(self.gradients))

    def add(self, factors: Tensor, into: Tensor) -> None:
        add_rows(self.gradients, factors, into)


def add_rows(rows: Tensor, factors: Tensor, into: Tensor) -> None:
    """Add Σ f_i r_i, in place, with r of shape (b, *shape) and f of shape (b,)."""
    if rows.ndim != 2:
        rows, into = rows.reshape(len(rows), -1), into.view(-1)
    into.addmv_(rows.T, factors)


class Constant(InProducts):
    """The same gradient for each example: a public offset."""

    rows = 0
    elements = 0

    def __init__(self, value: Tensor) -> None:
        """Take the gradient, shape of the parameter."""
        self.value, self.shape = value, value.shape

    def instantiate(self, piece: Piece) -> Tensor:
        return (piece.size * self.value).expand(piece.count, *self.shape)

    def add(self, factors: Tensor, into: Tensor) -> None:
        into += factors.sum() * self.value

    def pays(self, total: int, *, scaled: bool, keeps: bool) -> bool:
        return True

    def takes(self, other: InProducts) -> bool:
        return isinstance(other, Constant)

    def products(self, other: Use, piece: Piece, square: Tensor | None) -> Squares:
        assert isinstance(other, Constant)
        terms = self.value.double() * other.value
        terms = terms if square is None else terms * square
        return Squares((piece.size**2 * terms.sum()).expand(piece.count))


def gram(left: Tensor, right: Tensor) -> Tensor:
    """Return all inner products of rows, accurate for long rows.

    Args:
        left: shape (n, T, p).
        right: shape (n, T′, p).

    Returns:
        Shape (n, T, T′).
    """
    if left.shape[2] <= LONG:
        return torch.bmm(left, right.mT)
    parts = zip(torch.split(left, LONG, dim=2), torch.split(right, LONG, dim=2), strict=True)
    return torch.stack([(a @ b.mT).double() for a, b in parts]).sum(dim=0)


def add_pairs(lefts: Tensor, rights: Tensor, lengths: int, *, same: bool) -> Squares:
    """Add up the products of all pairs of rows.

    Pairs may cancel, and what rounding changed is then large beside the sum. For a use with itself,
    a few roundings of the terms that cannot cancel are its slack.

    Args:
        lefts, rights: inner products of the left and of the right factors, shape (n, T, T′).
        lengths: of a left and a right factor together, o + p.
        same: whether both factors are those of one use.
    """
    total = (lefts.double() * rights).sum(dim=(1, 2))
    if not same:
        return Squares(total)
    squares = [part.diagonal(dim1=1, dim2=2).double() for part in (lefts, rights)]
    alone = total if lefts.shape[1] == 1 else (squares[0] * squares[1]).sum(dim=1)
    left, right = (part.sum(dim=1) for part in squares)
    lost = lost_of(left, right, lengths, lefts.shape[1], lefts.dtype)
    return Squares(total, slack_of(alone, lefts.dtype) + lost)


def scaled_pairs(
    rows: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], square: Tensor, *, same: bool
) -> Squares:
    """Return ⟨s ⊙ G, s ⊙ G′⟩ = Σ_t,u (l_t ⊙ l′_u)ᵀ s² (r_t ⊙ r′_u), with slack as `add_pairs`.

    Args:
        rows: l and r, shapes (n, T, o) and (n, T, p).
        others: l′ and r′, shapes (n, T′, o) and (n, T′, p).
        square: s², shape (o, p).
        same: whether both are those of one use; each pair is then formed once.
    """
    pairs = torch.ones(rows[0].shape[1], others[0].shape[1], dtype=torch.bool)
    first, second = (pairs.triu() if same else pairs).nonzero(as_tuple=True)
    held = len(first) * (len(square) + 2 * square.shape[1])
    fitting = max(1, times_larger(square) * CACHED // held)
    parts = zip(*(torch.split(factor, fitting) for factor in (*rows, *others)), strict=True)
    some = []
    for left, right, left_, right_ in parts:
        lefts, rights = left[:, first] * left_[:, second], right[:, first] * right_[:, second]
        some.append(((lefts @ square) * rights).sum(dim=2, dtype=torch.float64))
    terms = torch.cat(some)
    if not same:
        return Squares(terms.sum(dim=1))
    alone = terms[:, first == second].sum(dim=1)
    left, right = (factor.double().square().sum(dim=(1, 2)) for factor in rows)
    lost = lost_of(left, right, sum(square.shape), len(pairs), square.dtype) * square.max()
    lost += torch.finfo(square.dtype).tiny * len(pairs) * left * right  # where s² is 0 and s is not
    return Squares(2 * terms.sum(dim=1) - alone, slack_of(alone, square.dtype) + lost)


def scaled_pairs_pay(total: int, *, keeps: bool) -> bool:
    """Return whether all pairs of rows cost less than instantiating scaled gradients.

    Args:
        total: rows that are compared with each other.
        keeps: whether instantiated gradients would be kept.
    """
    return total * (total + 1) // 2 + total * keeps < total + ELEMENT


def lost_of(left: Tensor, right: Tensor, lengths: int, rows: int, dtype: torch.dtype) -> Tensor:
    """Return how much of a squared norm may be missing, because products of small numbers are 0.

    An inner product of two rows misses less than the smallest normal number for each product. What
    it is multiplied by may be large: its part of the sum misses as many times as much.

    Args:
        left, right: the sums of squares of the T left and right factors, shape (n,), float64.
        lengths: of a left and a right factor together, o + p.
        rows: T.
        dtype: in which the inner products of rows are.
    """
    return USES * rows * lengths * torch.finfo(dtype).tiny * (left + right)


def slack_of(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how far too low rounding may make a sum whose terms would, without signs, add to this.

    Args:
        terms: shape (n,), float64.
        dtype: in which the factors are.
    """
    return rounding_of(dtype) * terms


def rounding_of(dtype: torch.dtype) -> float:
    """Return the share by which rounding may make a sum of positive terms too low."""
    return SLACK * torch.finfo(dtype).eps


@dataclass
class ParameterGradient:
    """The gradients v = Σ_u G_u of one parameter, by group; not all held at once.

    Attributes:
        uses: G_u, over layers and points.
        groups: how examples are grouped; a group's gradient is the sum over its examples.
        kept: s ⊙ v for all groups, if that takes no more memory than the factors do.
    """

    uses: list[Use]
    groups: Groups
    kept: Tensor | None = None

    def squared_norms(self, scale: Tensor | None) -> Squares:
        """Return ‖s ⊙ v‖² for each group. The parameter has at least one use.

        Args:
            scale: s, shape of the parameter, or None for ones.
        """
        if scale is None and len(self.uses) == 1 and self.groups.largest == 1:
            squares = self.uses[0].squared_norms()
            if squares is not None:
                return Squares(squares)
        keeps = self._worth_keeping()
        uses = self._in_products(scaled=scale is not None, keeps=keeps)
        if uses is None:
            return self._by_keeping(scale) if keeps else self._by_bands(scale)
        return self._by_products(uses, None if scale is None else scale.square())

    def squared_norm_of(self, group: int, scale: Tensor | None) -> Tensor:
        """Return ‖s ⊙ v‖² for one group by forming v, which takes longer, but loses little.

        Args:
            group: its number.
            scale: s, the same as for all norms, which come first.
        """
        if self.kept is not None:
            vector = self.kept[group]
        elif not self.uses:
            return torch.zeros((), dtype=torch.float64)
        else:
            vector = self.instantiate(self.groups.piece_of(group))
            vector = vector if scale is None else vector * scale
        return row_norms(vector.reshape(1, -1)).double().square().squeeze(0)

    def add_weighted(self, factors: Tensor, scale: Tensor | None, into: Tensor) -> None:
        """Add Σ f (s ⊙ v) over the groups, in place.

        Args:
            factors: f, shape (n,).
            scale: s, the same as for the norms.
            into: zeros, shape of the parameter.
        """
        if self.kept is not None:
            add_rows(self.kept, factors, into)
            return
        by_example = self.groups.to_examples(factors)
        for use in self.uses:
            use.add(by_example, into)
        if scale is not None:
            into *= scale

    def instantiate(self, piece: Piece) -> Tensor:
        """Return v for the groups of a piece, shape (groups, *shape)."""
        first, *others = (use.instantiate(piece) for use in self.uses)
        return sum(others, start=first)

    def _worth_keeping(self) -> bool:
        """Return whether instantiated gradients take no more memory than their factors."""
        gradients = self.uses[0].gradient_elements * self.groups.count
        return gradients <= self.groups.examples * sum(use.elements for use in self.uses)

    def _in_products(self, *, scaled: bool, keeps: bool) -> list[InProducts] | None:
        """Return the uses, each accepting all later ones, if inner products cost less."""
        if not all(isinstance(use, InProducts) for use in self.uses):
            return None
        uses = cast("list[InProducts]", self.uses)
        if len(uses) > 1:
            uses = sorted(uses, key=lambda use: sum(not use.takes(other) for other in uses))
        if not all(use.takes(other) for use, other in combinations(uses, 2)):
            return None
        total = sum(use.rows for use in uses) * self.groups.largest
        pays = all(use.pays(total, scaled=scaled, keeps=keeps) for use in uses)
        return uses if pays else None

    def _by_products(self, uses: list[InProducts], square: Tensor | None) -> Squares:
        rows = max(use.rows for use in uses)
        parts = []
        for piece in self.groups.pieces(PAIR * rows * rows * self.groups.largest):
            terms = [use.products(use, piece, square) for use in uses]
            for use, other in combinations(uses, 2):
                terms.append(Squares(2 * use.products(other, piece, square).values))
            parts.append(Squares.total(terms))
        return Squares.joined(parts)

    def _by_keeping(self, scale: Tensor | None) -> Squares:
        """Instantiate all gradients, keep them, and take their norms."""
        elements = sum(use.gradient_elements + use.workspace for use in self.uses)
        done, parts = 0, []
        for piece in self.groups.pieces(elements):
            gradients = self.instantiate(piece)
            if piece.count == self.groups.count and scale is None:
                gradients = self.kept = gradients.contiguous()
            else:
                if self.kept is None:
                    self.kept = gradients.new_empty(self.groups.count, *gradients.shape[1:])
                gradients = self.kept[done : done + piece.count].copy_(gradients)
            if scale is not None:
                gradients.mul_(scale)
            parts.append(row_norms(gradients.view(piece.count, -1)))
            done += piece.count
        self.uses = []
        return Squares(torch.cat(parts).double().square())

    def _by_bands(self, scale: Tensor | None) -> Squares:
        """Instantiate some rows of some gradients at a time, and take their norms."""
        bands = bands_of(self.uses[0].shape, self.groups.at_once)
        held = math.prod(self.uses[0].shape[1:]) * bands[0].stop
        parts = []
        for piece in self.groups.pieces(sum(held + use.workspace for use in self.uses)):
            forms = [use.by_rows(piece) for use in self.uses]
            norms = []
            for rows in bands:
                first, *others = (form(rows) for form in forms)
                gradients = sum(others, start=first)
                if scale is not None:
                    gradients = gradients.mul_(scale[rows])
                norms.append(block_norms(gradients.reshape(piece.count, -1)))
            whole = [some[:, :-1] for some in norms[:-1]]  # nothing is left of these
            parts.append(torch.linalg.vector_norm(torch.cat([*whole, norms[-1]], dim=1), dim=1))
        return Squares(torch.cat(parts).double().square())


def bands_of(shape: torch.Size, at_once: int = 1) -> list[slice]:
    """Cut a parameter into bands of rows along its first axis, all but the last in whole blocks.

    Args:
        shape: of the parameter.
        at_once: as in `Groups`.
    """
    row = math.prod(shape[1:])
    whole = BLOCK // math.gcd(BLOCK, row)  # rows
    rows = max(whole, at_once * BAND // row // whole * whole)
    return [slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]
