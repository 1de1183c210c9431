"""Diagnostics: what noise does to the moments of Adam, measured beside the noise-free moments.

They read what privacy protects, so a run with diagnostics is non-private whatever noise it adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clipnoise.core.clipping import ClippedSum, Clipping
from clipnoise.core.method import Method
from clipnoise.core.query import Query, Released
from clipnoise.core.state import Public, State
from clipnoise.core.step import clean_values, privatize
from clipnoise.resumable import gather, restore
from clipnoise.run.outcome import Histogram, Recorded

BETAS = (0.9, 0.999)  # of methods that have none
POINTS = 100  # of a series that is kept, and of a sorted curve
BINS = 80
OUTLIERS = 0.999  # linear histograms span this quantile of the absolute values
STATISTICS = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "max": 1.0}
SERIES = ("negative_fraction", "clipped_gradient_norm")


class Diagnostics:
    """Adam's moments of what was released and of what would have been without noise.

    Both are taken along the trajectory of the run itself. The clipped update divides the private
    first moment by the clipped second moment, as in the source.

    Source: DP-AdamBC, section 3, Table 2 and Figures 1 and 4; On Design Principles for Private
    Adaptive Optimizers, section 5.2.
    """

    def __init__(self, method: Method, like: Tensor) -> None:
        """Begin with moments of zero.

        Args:
            method: the method to observe; its two betas, its γ′ and the Φ that it subtracts are
                used where it has them.
            like: a tensor with the shape, dtype and device of the parameters.
        """
        betas = getattr(method, "betas", None)
        self._betas: tuple[float, float] = betas if betas and len(betas) == 2 else BETAS
        self._floor: float | None = getattr(method, "gamma_prime", None)
        self._query = method.query
        self._subtracted: float | None = getattr(method, "phi", None)
        self._private, self._clipped = State(like), State(like)
        self._phi = 0.0
        self._rows: list[list[float]] = []  # SERIES, one row a step

    def cross(
        self,
        total: ClippedSum,
        query: Query,
        clipping: Clipping,
        noise: Sequence[Tensor],
        public: Public,
    ) -> tuple[Released, ...]:
        """Cross the privacy boundary as `privatize` does, and take in what is released."""
        released = privatize(total, query, clipping, noise, public)
        (clean, *_) = clean_values(total, query, clipping, public)
        self.observe(released[0], clean, clipping, public)
        return released

    def observe(self, released: Tensor, clean: Tensor, clipping: Clipping, public: Public) -> None:
        """Take in a step: its first released value, and the same without noise, shape (d,)."""
        for state, value in ((self._private, released), (self._clipped, clean)):
            state.step += 1
            state.decay("m", value, self._betas[0])
            state.decay("v", value.square(), self._betas[1])
        norm, clip_norm = math.nan, clipping.clip_norm
        if clip_norm is not None:
            bias = self._private.noise_bias(public, clip_norm, self._betas[1])
            size = public.expected_batch_size
            component = self._query.components(clip_norm, size)[0]
            relative = component.noise_factor * component.sensitivity * size / clip_norm
            self._phi = bias * relative**2  # noise variance relative to that of a clipped mean
            norm = float(torch.linalg.vector_norm(clean, dtype=torch.float64)) / clip_norm
        negative = (self._second(self._private) < self._phi).double().mean()
        self._rows.append([float(negative), norm])

    def get_state(self) -> dict[str, Tensor]:
        """Return the moments and series so far, for a checkpoint."""
        return {
            "rows": torch.tensor(self._rows, dtype=torch.float64).reshape(-1, len(SERIES)),
            "phi": torch.tensor(self._phi, dtype=torch.float64),
            **gather(self._moments()),
        }

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Go to a saved position; what follows is the same bit for bit."""
        self._phi = float(state["phi"])
        self._rows = state["rows"].tolist()
        restore(self._moments(), state)

    def _moments(self) -> dict[str, State]:
        return {"private": self._private, "clipped": self._clipped}

    def result(self) -> Recorded:
        """Return the measurements; the moments are those of the last step.

        Returns:
            The step; Φ; minimum, quartiles, maximum and mean of every quantity over coordinates,
            and of the series over steps; histograms with their ends, those of second moments over
            log10, then of their roots, and updates as they are and as shares of the largest;
            sorted second moments at evenly spaced ranks; the series at evenly spaced steps: the
            fraction of coordinates with v̂ < Φ, and ‖ḡ‖/C. Φ is what noise adds to v̂.
        """
        values = dict(self._quantities())
        series = dict(zip(SERIES, torch.tensor(self._rows, dtype=torch.float64).T, strict=True))
        ordered = {name: value.sort().values for name, value in values.items() if len(value)}
        over = {**ordered, **{name: x.sort().values for name, x in series.items()}}
        shown = _evenly(len(self._rows))
        firsts, seconds, updates = (
            {name: value for name, value in values.items() if name.startswith(kind)}
            for kind in ("m_", "v_", "update_")
        )
        del updates["update_clipped"]
        return Recorded(
            step=self._private.step,
            phi=self._phi,
            statistics={
                f"{name}.{key}": number
                for name, value in over.items()
                for key, number in _statistics(value).items()
            },
            histograms={
                "first": _histograms(firsts),
                "second": _histograms(seconds, log=True),
                "update": _histograms(updates),
                "root": _histograms({name: v.sqrt() for name, v in seconds.items()}, low=0.0),
                "rescaled": _histograms(
                    {name: _rescaled(u) for name, u in updates.items()}, ends=(-1.0, 1.0)
                ),
            },
            sorted={
                name: tuple(_quantile(ordered[name], i / POINTS) for i in range(POINTS + 1))
                for name in seconds
                if name in ordered
            },
            series={
                "step": tuple(row + 1 for row in shown),
                **{
                    name: tuple(float(value[row]) for row in shown)
                    for name, value in series.items()
                },
            },
        )

    def _first(self, state: State) -> Tensor:
        return state["m"] / (1 - self._betas[0] ** state.step)

    def _second(self, state: State) -> Tensor:
        return state["v"] / (1 - self._betas[1] ** state.step)

    def _quantities(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each quantity by name, of shape (d,); the corrected ones for a method with γ′."""
        first, private = self._first(self._private), self._second(self._private)
        yield "m_clipped", self._first(self._clipped)
        yield "m_private", first
        seconds = {"clipped": self._second(self._clipped), "private": private}
        if self._floor is not None:
            phi = self._phi if self._subtracted is None else self._subtracted
            seconds["corrected"] = (private - phi).clamp(min=self._floor)
        for name, second in seconds.items():
            yield f"v_{name}", second
        for name, second in seconds.items():
            moved = second > 0  # a coordinate without any gradient so far has no update
            yield f"update_{name}", first[moved] / second[moved].sqrt()


def _evenly(length: int) -> list[int]:
    """Return at most POINTS evenly spaced positions in a list; the last position is included."""
    stride = -(-length // POINTS)
    return list(range((length - 1) % stride, length, stride)) if length else []


def _statistics(ordered: Tensor) -> dict[str, float]:
    """Return minimum, quartiles, maximum and mean of sorted values."""
    quantiles = {key: _quantile(ordered, share) for key, share in STATISTICS.items()}
    return {**quantiles, "mean": float(ordered.double().mean())}


def _quantile(ordered: Tensor, share: float) -> float:
    """Return a quantile of sorted values, between two of them by linear interpolation."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low if low == high else low + (place - below) * (high - low)


def _rescaled(values: Tensor) -> Tensor:
    """Return values divided by the largest absolute one."""
    largest = values.abs().max() if len(values) else 0.0
    return values / largest if largest else values


def _histograms(
    values: dict[str, Tensor],
    *,
    log: bool = False,
    low: float | None = None,
    ends: tuple[float, float] | None = None,
) -> Histogram:
    """Count each quantity's values in the same bins; values outside the bins are left out.

    Args:
        values: each of shape (d,).
        log: whether the bins are evenly spaced in log10; zeros are then left out.
        low: where the bins start; None for as far below 0 as they end above it.
        ends: where they start and end, instead.
    """
    if ends is not None:
        low, high = ends
    elif log:
        values = {name: value[value > 0].log10() for name, value in values.items()}
        span = [end for x in values.values() if len(x) for end in (float(x.min()), float(x.max()))]
        low, high = (min(span), max(span)) if span else (0.0, 1.0)
    else:
        spans = [_quantile(x.abs().sort().values, OUTLIERS) for x in values.values() if len(x)]
        high = max(spans, default=0.0)
        low = -high if low is None else low
    if low == high:
        low, high = low - 0.5, high + 0.5
    return Histogram(
        low=low,
        high=high,
        log10=log,
        counts={
            name: tuple(int(n) for n in torch.histc(x.float(), BINS, low, high))
            for name, x in values.items()
        },
    )
