"""What audits find, as it is written to their files and read from them. Imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator

from clipnoise.audit.curve import Guesses
from clipnoise.core.query import Adjacency, Component
from clipnoise.privacy.accountants import AccountantName
from clipnoise.privacy.claim import Claim

if TYPE_CHECKING:
    from clipnoise.audit.sensitivity import Changes

# JSON has no infinity: null in a file stands for it.
Unbounded = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes:
        name: what was checked.
        holds: whether the promise is kept.
        said: the finding in words.
    """

    name: str
    holds: bool
    said: str


@dataclass(frozen=True, kw_only=True)
class NoiseFinding:
    """What the noise check has found, in the run whose noise is furthest off.

    Attributes:
        variance: of the noise, 1 when as declared.
        margin: by how much chance may move it.
        numbers: how many all runs rest on.
        off: how far off the noise is: at most 1 for a sound mechanism.
        holds, said: as of every finding.
    """

    variance: Unbounded
    margin: float
    numbers: int
    off: Unbounded
    holds: bool
    said: str


@dataclass
class Largest:
    """The largest change that one example caused, in units of what was declared.

    Attributes:
        joint: over everything, all components of the release at once.
        components: over everything, for each component.
        kinds: by how the neighbouring datasets were made.
        paths: by engine and physical batch size.
        pairs: how many comparisons were made.
    """

    joint: Unbounded = 0.0
    components: list[Unbounded] = field(default_factory=list)
    kinds: dict[str, Unbounded] = field(default_factory=dict)
    paths: dict[str, Unbounded] = field(default_factory=dict)
    pairs: int = 0

    def note(self, kind: str, path: str, change: Changes) -> None:
        """Take one comparison into account."""
        components, joint = change
        self.joint, self.pairs = max(self.joint, joint), self.pairs + 1
        self.components = [
            max(pair) for pair in zip(self.components or components, components, strict=True)
        ]
        self.kinds[kind] = max(self.kinds.get(kind, 0.0), joint)
        self.paths[path] = max(self.paths.get(path, 0.0), joint)


@dataclass(frozen=True, kw_only=True)
class ContractFinding:
    """What the contract check has found.

    Attributes:
        declared: what the method declares at the clip norm (None without clipping) and B below.
        measured: None where nothing is clipped.
        noise: None where it was not checked.
        checks: what each has found; one that was made several times holds if it held every time.
        broken, broken_checks: what is broken, in words, and the checks that say so.
    """

    kind: Literal["contract"] = "contract"
    method: str
    private: bool
    adjacency: Adjacency
    declared: list[Component]
    microbatch_size: int
    clip_norm: float | None
    expected_batch_size: float
    measured: Largest | None
    noise: NoiseFinding | None
    checks: list[Finding]
    broken: list[str]
    broken_checks: list[str]
    verdict: Literal["kept", "broken", "no claim"]


@dataclass(frozen=True)
class Settings:
    """How much is spent on an audit, and on which mechanism.

    Attributes:
        canaries: per run, at most one per parameter; one of a method that releases a number.
        runs: independent runs, each with canaries of its own; a canary is in one run only, so all
            together are one (ε, δ)-DP mechanism for each of them.
        noise_multiplier: σ.
        sampling_rate: q, to the nearest whole expected batch size.
        steps: T.
        delta: δ.
        accountant: a tight one, so that what is claimed is close to what is true.
        confidence: of all that an audit says, together.
        seed: of the first run; the coins too.
    """

    canaries: int = 640
    runs: int = 100
    noise_multiplier: float = 4.0
    sampling_rate: float = 0.9
    steps: int = 4
    delta: float = 1e-5
    accountant: AccountantName = "prv"
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Bound:
    """How private a mechanism was shown not to be.

    With the confidence of the audit, what was released is not as private as the claimed mechanism
    would be at this σ, whose curve was refuted, or at a larger one.

    Attributes:
        epsilon: what the claimed mechanism would cost at this σ, by its accountant and at its δ; 0
            if nothing was refuted.
        noise_multiplier: this σ, the smallest that is refuted; None if none is.
    """

    epsilon: Unbounded
    noise_multiplier: float | None


@dataclass(frozen=True, kw_only=True)
class EmpiricalFinding:
    """What the empirical audit has found.

    Attributes:
        adjacency, claim, claimed_epsilon, accountant, sampler, sampling_rate: the claim.
        score, final_score: how canaries are ranked by releases, and by final parameters, in words.
        p_value: of the claim, over all guesses.
        bound, final_bound: what releases show, and what final parameters show.
        verdict: with the confidence of the settings.
        words: what the verdict means.
    """

    kind: Literal["empirical"] = "empirical"
    method: str
    adjacency: Adjacency
    claim: Claim
    claimed_epsilon: Unbounded
    accountant: str
    sampler: str
    sampling_rate: float
    score: str
    settings: Settings
    final_score: str
    guesses: Guesses
    p_value: float
    bound: Bound
    final_bound: Bound
    verdict: Literal["refuted", "not refuted"]
    words: str


@dataclass(frozen=True)
class FalseClaim:
    """A claim and what contradicts it.

    Attributes:
        claimed: the ε that is claimed.
        at_least: an ε that the mechanism costs at least, at the δ of the comparison.
        said: why, with the numbers.
    """

    claimed: float
    at_least: float
    said: str

    @property
    def refuted(self) -> bool:
        """Whether the claim is false."""
        return self.at_least > self.claimed


@dataclass(kw_only=True)
class ControlFinding:
    """What the checks have found of a deliberately broken variant.

    Attributes:
        control, mistake: its name, and what is wrong with it.
        contract, empirical, claim: what each check that applies has found.
        said: the same in words.
        refuted_by: the checks that notice; none when the mistake went through, which means that the
            audit is broken.
        refuted: whether any does.
    """

    kind: Literal["control"] = "control"
    control: str
    mistake: str
    contract: ContractFinding | None = None
    empirical: EmpiricalFinding | None = None
    claim: FalseClaim | None = None
    said: list[str] = field(default_factory=list)
    refuted_by: list[str] = field(default_factory=list)
    refuted: bool = False

    def plain(self) -> dict[str, object]:
        """Return plain data, without what does not apply."""
        return {name: value for name, value in asdict(self).items() if value is not None}
