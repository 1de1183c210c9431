"""The plug-in for pytest: a fixture that judges a training loop.

It is asked for by name and is no entry point: pytest would rewrite the assertions of the whole
package, and the fingerprints of code would be of other text than that of the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from clipnoise.audit.loops.claim import Claim, Level, LoopJudgement

Audit = Callable[..., "LoopJudgement"]


@pytest.fixture
def dp_audit() -> Audit:
    """Return a function that judges a training loop, and fails the test if it is refuted.

    Its arguments are those of `judge_loop`, level "quick" by default; without data it takes
    handwritten digits. It returns the judgement.
    """

    def audit(
        train: Callable[..., Any], claim: Claim, data: Any = None, level: Level = "quick"
    ) -> LoopJudgement:
        from clipnoise.audit.loops.verdict import digits, judge_loop

        result = judge_loop(claim, train, digits() if data is None else data, level=level)
        reasons = [f"{each.name}: {each.said}" for each in result.refuted_by]
        if reasons:
            pytest.fail("the claim is refuted\n" + "\n".join(reasons), pytrace=False)
        return result

    return audit
