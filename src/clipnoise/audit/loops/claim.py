"""What is claimed of a training loop, and what a check has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clipnoise.errors import UserError
from clipnoise.fields import STRICT, Count, NonNegative, Positive, Probability, parse

if TYPE_CHECKING:
    from clipnoise.privacy.profile import StatedProfile

Drawn = Literal["poisson", "shuffled", "cyclic", "fixed-size", "full"]
Level = Literal["quick", "full"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed of a training loop; what is not given, no check can contradict.

    Attributes:
        epsilon, delta: the guarantee, for the number of examples that the loop is judged with.
        noise_multiplier: σ, the standard deviation of the noise relative to the clip norm.
        clip_norm: C.
        expected_batch_size: B.
        steps: T.
        sampler: how batches are drawn, in the words of `docs/samplers.md`.
    """

    __pydantic_config__: ClassVar = STRICT

    epsilon: NonNegative | None = None
    delta: Probability | None = None
    noise_multiplier: Positive | None = None
    clip_norm: Positive | None = None
    expected_batch_size: Positive | None = None
    steps: Count | None = None
    sampler: Drawn = "poisson"

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.delta is None):
            raise UserError("epsilon, delta: give both of them, or neither.")

    @classmethod
    def checked(cls, claim: Claim, file: str | None = None) -> Claim:
        """Return a claim whose values are in their ranges.

        Raises:
            UserError: names the file, the key and the value.
        """
        return parse(cls, asdict(claim), file=file, key="claim")

    def lacks(self, names: tuple[str, ...]) -> list[str]:
        """Return which of some parts are not given."""
        return [name for name in names if getattr(self, name) is None]


@dataclass(frozen=True)
class LoopFinding:
    """What one check has found.

    Attributes:
        name: of the check.
        holds: whether nothing contradicts the claim; None where the check could not be made.
        said: the finding, or why there is none, in words.
        power: what would have been seen.
        remarks: what the reader should know and what refutes nothing.
    """

    name: str
    holds: bool | None
    said: str
    power: str = ""
    remarks: tuple[str, ...] = ()

    @classmethod
    def skipped(cls, name: str, why: str) -> LoopFinding:
        """Return that a check could not be made."""
        return cls(name, None, why)


@dataclass(frozen=True, kw_only=True)
class LoopJudgement:
    """The verdict on a training loop.

    Attributes:
        file, sha256: of the file with the loop; None of a loop that is called.
        profile: what attacks a claim that is not refuted allows.
        examples, level, runs: how many private examples the loop has, and what was spent on it.
        checks, skipped: the checks that could be made, and those that could not.
        false_refutation: the probability, at most, that an honest loop is refuted by chance.
        not_checked: in words.
    """

    file: str | None = None
    sha256: str | None = None
    kind: Literal["judge-loop"] = "judge-loop"
    claim: Claim
    profile: StatedProfile | None
    examples: int
    level: Level
    runs: int
    verdict: Literal["refuted", "not refuted"]
    refuted_by: list[LoopFinding]
    checks: list[LoopFinding]
    skipped: list[LoopFinding]
    remarks: list[str]
    false_refutation: float
    not_checked: list[str]
