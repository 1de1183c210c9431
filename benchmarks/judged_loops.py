"""Count how often the judge of training loops refutes an honest one, and what a judgement costs.

    python benchmarks/judged_loops.py --repetitions 200 --level quick

The honest loops of tests/privacy/loops.py are judged again and again, each time with other noise
and other batches. Prints for each loop how many judgements refuted it, and by which checks, and the
median of the processor seconds; at the end the rate of false refutations with a 95% interval
(Clopper and Pearson). A judge that keeps its word refutes at most 0.1%.

Exit status: 0 if the interval reaches down to 0.1%, 1 if it does not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from scipy.stats import beta

from clipnoise.audit.loops.experiments import ALPHA
from clipnoise.audit.loops.verdict import judge_loop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "privacy"))
from loops import HONEST, claim, examples

CONFIDENCE = 0.95
REPORTED = 20  # repetitions between two lines


def main(words: Sequence[str] | None = None) -> int:
    """Judge, count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=200, help="judgements of each loop")
    parser.add_argument("--level", choices=["quick", "full"], default="quick")
    parser.add_argument("--first-seed", type=int, default=1000, help="seed of the first repetition")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    data = examples()
    loops = {kind.__name__: (kind(), claim(**changes)) for kind, changes in HONEST.items()}
    refuted: dict[str, list[str]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for repetition in range(arguments.repetitions):
        for name, (loop, true) in loops.items():
            begun = time.process_time()
            seed = arguments.first_seed + repetition
            found = judge_loop(true, loop, data, level=arguments.level, seed=seed).refuted_by
            seconds[name].append(time.process_time() - begun)
            if found:
                refuted[name].append(", ".join(each.name for each in found))
                print(f"seed {seed}: {name} is refuted by {refuted[name][-1]}", flush=True)
        if (repetition + 1) % REPORTED == 0:
            done = (repetition + 1) * len(loops)
            print(f"{done} judgements, {sum(map(len, refuted.values()))} refuted", flush=True)
    for name in loops:
        by = "; ".join(f"{count} by {each}" for each, count in Counter(refuted[name]).items())
        print(
            f"{name:<12}{len(refuted[name])} of {len(seconds[name])} refuted{by and ': '}{by}, "
            f"{median(seconds[name]):.2f} s each"
        )
    count, total = sum(map(len, refuted.values())), sum(map(len, seconds.values()))
    low, high = interval(count, total)
    print(
        f"{count} of {total} judgements refute an honest loop: {count / total:.2%}, between "
        f"{low:.2%} and {high:.2%}; allowed is {ALPHA:.2%}"
    )
    return int(low > ALPHA)


def interval(count: int, total: int) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson for a probability."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - tail, count + 1, total - count))
    return low, high


if __name__ == "__main__":
    sys.exit(main())
