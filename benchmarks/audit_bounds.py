"""What each bound of the audits shows for DP-SGD: `python benchmarks/audit_bounds.py`.

The runs of the empirical audit (the digits, T = 4, q = 0.9) are scored once, by their releases, and
every bound is computed from the same guesses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from clipnoise.audit.curve import Guesses, looks
from clipnoise.audit.empirical import Refutation, claimed_curve, observe
from clipnoise.audit.findings import Settings
from clipnoise.audit.subject import subject
from clipnoise.privacy.accountants.poisson import epsilon

RESULTS = Path(__file__).parent / "results" / "audit-bounds.md"
HEAD = (
    "| claimed ε | runs | one point | the curve | p-value of the claim | of half its noise | "
    "refuted after |\n|---|---|---|---|---|---|---|\n"
)
WORDS = """# What the bounds of the audits show

`python benchmarks/audit_bounds.py` made this table: DP-SGD on the digits, {canaries} canaries in
each run, T = 4, q = 0.9, δ = 10⁻⁵, scores by releases, 95% confidence.

- **one point**: the largest ε that is refuted at this δ, where nothing else is claimed.
- **the curve**: what the report of the audits shows. With more noise the mechanism would cost less,
  and claim another curve: this is the largest ε of a curve that is refuted.
- **p-value of the claim**: how probable so many right guesses are, at most, if the claim is true.
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


def rows(target: float, counts: list[int], cache: Path) -> list[str]:
    """Return the rows of a target ε, one for each number of runs."""
    settings = Settings(runs=max(counts))
    sigma = calibrated(target, settings)
    settings = Settings(runs=max(counts), noise_multiplier=sigma)
    _, calibration, runs = observe(subject("dp-sgd"), cache, settings)
    budget = calibration.budget
    true, false = claimed_curve(budget, sigma), claimed_curve(budget, 2 * sigma)
    each = [Guesses.by(scores, coins).p_value(false) for scores, _, coins in runs]
    found = []
    for count in counts:
        scores = np.concatenate([run[0] for run in runs[:count]], axis=-1)
        coins = np.concatenate([run[2] for run in runs[:count]])
        guesses = Guesses.by(scores, coins)
        at_delta = guesses.epsilon_at_least(settings.delta)
        ways = np.ones(len(guesses.made), dtype=bool)
        by_curve = Refutation(guesses, budget, sigma, settings.confidence).bound(ways).epsilon
        p, q = (guesses.p_value(curve) for curve in (true, false))
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
