"""What each bound of the audits shows for DP-SGD: `python benchmarks/audit_bounds.py`.

The runs of the empirical audit (the digits, T = 4, q = 0.9) are scored once, by their releases, and
every bound is computed from the same guesses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from clipnoise.audit.curve import curve_of, looks, mu_at_least, smallest_p_value
from clipnoise.audit.empirical import Settings, lower_bound, observe
from clipnoise.audit.subject import subject
from clipnoise.privacy.accountants.gaussian import gaussian_epsilon
from clipnoise.privacy.accountants.poisson import epsilon, loss_distribution

RESULTS = Path(__file__).parent / "results" / "audit-bounds.md"
HEAD = (
    "| claimed ε | runs | at δ | against the curve | p-value of the claim | of half its noise | "
    "refuted after |\n|---|---|---|---|---|---|---|\n"
)
WORDS = """# What the bounds of the audits show

`python benchmarks/audit_bounds.py` made this table: DP-SGD on the digits, {canaries} canaries in
each run, T = 4, q = 0.9, δ = 10⁻⁵, scores by releases, 95% confidence.

- **at δ**: the lower bound on ε of `lower_bound` (Steinke, Nasr and Jagielski 2023).
- **against the curve**: the largest μ-Gaussian DP that is refuted, as ε at the same δ. The
  mechanism is not exactly Gaussian, so this is not a bound on its ε at δ.
- **p-value of the claim**: whether the same guesses refute the curve that is claimed.
- **of half its noise**: the p-value of a claim of twice the noise that was added; then, after how
  many runs an audit that looks after each of them refutes it.

"""


def calibrated(target: float, settings: Settings) -> float:
    """Return σ for a target ε, by bisection."""
    values = {"sampling_rate": settings.sampling_rate, "steps": settings.steps}
    low, high = 0.1, 100.0
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        spent = epsilon("pld", noise_multiplier=middle, delta=settings.delta, **values)
        low, high = (middle, high) if spent > target else (low, middle)
    return high


def claimed(sigma: float, settings: Settings) -> Callable[[Any], Any]:
    """Return the curve that DP-SGD with a noise multiplier claims."""
    loss = loss_distribution(sigma, settings.sampling_rate, settings.steps)
    return curve_of(lambda epsilons: np.asarray(loss.get_delta_for_epsilon(epsilons)))


def rows(target: float, counts: list[int], cache: Path) -> list[str]:
    """Return the rows of a target ε, one for each number of runs."""
    settings = Settings(runs=max(counts))
    sigma = calibrated(target, settings)
    settings = Settings(runs=max(counts), noise_multiplier=sigma)
    _, _, runs = observe(subject("dp-sgd"), cache, settings)
    true, false = claimed(sigma, settings), claimed(2 * sigma, settings)
    each = [smallest_p_value(scores, coins, false) for scores, _, coins in runs]
    found = []
    for count in counts:
        scores = np.concatenate([run[0] for run in runs[:count]], axis=-1)
        coins = np.concatenate([run[2] for run in runs[:count]])
        at_delta = lower_bound(scores, coins, delta=settings.delta).epsilon
        mu = mu_at_least(scores, coins)
        by_curve = gaussian_epsilon(1 / mu, settings.delta) if mu else 0.0
        p, q = (smallest_p_value(scores, coins, curve) for curve in (true, false))
        seen = next((look.runs for look in looks(each[:count]) if look.refuted), None)
        after = "–" if seen is None else f"{seen} runs"
        found.append(
            f"| {target:g} | {count} | {at_delta:.2f} | {by_curve:.2f} | {p:.2g} | {q:.2g} | "
            f"{after} |\n"
        )
    return found


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1, 4, 8])
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--cache", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    body = [row for target in given.epsilons for row in rows(target, given.runs, given.cache)]
    given.out.write_text(WORDS.format(canaries=Settings().canaries) + HEAD + "".join(body))
    print(given.out.read_text())


if __name__ == "__main__":
    main()
