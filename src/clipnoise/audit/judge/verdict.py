"""The verdict on a method in a file: every check, controls beside them, and what may be claimed.

The file never runs in this process. Its method is called in processes of its own, which are handed
what a method may see: the checks, the data, the noise and the comparison stay here.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from clipnoise.audit.contract import check_contract
from clipnoise.audit.controls import CONTROLS
from clipnoise.audit.empirical import audit
from clipnoise.audit.findings import ContractFinding, EmpiricalFinding, Finding, Settings
from clipnoise.audit.judge.remote import Process, RefusedError, remote_method
from clipnoise.audit.judge.source import read_file
from clipnoise.audit.judge.wire import Cost, JudgedRun
from clipnoise.audit.judge.worker import CORE, trajectory
from clipnoise.audit.noise import check_noise
from clipnoise.audit.runs import RUNS, TRAINS, check_sampler, check_updates
from clipnoise.audit.subject import Subject, digits_for
from clipnoise.data.digits import Digits, DigitsUsers
from clipnoise.errors import UserError, unknown
from clipnoise.fields import parse, to_plain
from clipnoise.methods.base import track
from clipnoise.privacy.budget import Privacy
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.claim import claim
from clipnoise.privacy.mechanism import Mechanism
from clipnoise.run.spec import units_of

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.method import Method
    from clipnoise.core.query import Adjacency
    from clipnoise.privacy.profile import StatedProfile

# σ, B, n (None for that of the digits) and T of the runs that are trained in two ways.
TRAINED = ((1.1, 64, None, 1000), (0.6, 4, 80, 30), (3.0, 720, None, 8))
SHORT = ((1.1, 64, None, 60), *TRAINED[1:])  # of a control
QUICK = Settings(runs=10)  # of the audit of a control
CLAIMED = (1.0, 2.0, 4.0)  # σ of the examples of what may be claimed
TASK = (130, 200)  # B and T of them: those of the league's task on digits
DELTA = 1e-5
NOT_CHECKED = (
    "expected batch sizes, clip norms and σ other than those that were tried, and runs of more "
    "than 1,000 steps; hyper-parameters other than those that were judged",
    "what a method does where the clock, the number of parameters or a rare event decides",
    "data and networks other than linear regression, logistic regression on digits, and a network "
    "with an embedding, a convolution and dropout",
    "samplers other than Poisson, correlated noise, micro-batches, and GPUs",
    "how long a step takes, which could tell something of the data",
)


@dataclass(frozen=True, kw_only=True)
class MayClaim:
    """What a method may claim at example settings: ε and the profile by σ, as text."""

    adjacency: Adjacency
    claim: str
    accountant: str
    delta: float
    examples: int
    expected_batch_size: int
    steps: int
    epsilon: dict[str, float]
    profile: dict[str, StatedProfile]


@dataclass(kw_only=True)
class Attacked:
    """What is known of a method that was found in the file, besides what checks say.

    Attributes:
        private, track, adjacency, formulas: what it declares.
        claim, contract, empirical, cost: None where the judgement did not get there.
    """

    private: bool
    track: str
    adjacency: Adjacency
    formulas: list[str]
    claim: MayClaim | None = None
    contract: ContractFinding | None = None
    empirical: EmpiricalFinding | None = None
    cost: Cost | None = None


@dataclass(frozen=True, kw_only=True)
class JudgedControl:
    """A file whose verdict is known, judged beside the others."""

    name: str
    must_find: list[str]
    found: list[str]
    as_expected: bool


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a method in a file.

    Attributes:
        file, sha256: its name, and what of.
        method, hyperparameters: of the method; those that are given, where it was not found.
        verdict: "void" if a control says that the judge is broken.
        refuted_by: the checks that do not hold.
        attacked: None where the method was not found.
        not_checked: in words.
    """

    kind: Literal["judge"] = "judge"
    file: str
    sha256: str
    method: str
    hyperparameters: Mapping[str, object]
    verdict: Literal["not refuted", "refuted", "no claim", "void"]
    refuted_by: list[Finding]
    checks: list[Finding]
    controls: list[JudgedControl]
    attacked: Attacked | None
    not_checked: list[str]

    def plain(self) -> dict[str, object]:
        """Return plain data, what was attacked in line with the rest."""
        values = asdict(self)
        attacked, not_checked = values.pop("attacked"), values.pop("not_checked")
        return {**values, **(attacked or {}), "not_checked": not_checked}


@dataclass
class Judged:
    """A file under judgement, and the processes that run it, in different surroundings.

    Attributes:
        file: a copy, in a folder without any other file.
        name: the id of the method.
        options: its hyper-parameters, as they are given, as JSON.
        cache: the folder of prepared datasets.
        findings: what the checks have found so far.
        stopped: why the checks ended early.
        together: the process that is asked for everything.
        alone: the process that is never asked for what the query releases.
        ordinary: the process that trains as any run does.
    """

    file: Path
    name: str
    options: str
    cache: Path
    findings: list[Finding] = field(default_factory=list)
    stopped: str | None = None

    def __post_init__(self) -> None:
        self.together = Process(self.file)
        self.alone = Process(self.file, {"USER": "nobody", "TZ": "UTC"}, ("--cores", "1"))
        self.ordinary = Process(self.file, {"TERM": "xterm"}, ("train", "--spec", "run.yaml"))
        self.processes = (self.together, self.alone, self.ordinary)

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.close()

    def note(self, name: str, problems: Sequence[str], held: str) -> None:
        """Add what a check found: problems, each in words, or what held."""
        said = "; ".join(problems[:3]) + (f"; {len(problems) - 3} more" if problems[3:] else "")
        self.findings.append(Finding(name, not problems, said or held))

    @property
    def refuted_by(self) -> list[Finding]:
        """The checks that refute it."""
        return [finding for finding in self.findings if not finding.holds]


def judge(
    file: Path,
    cache: Path,
    *,
    name: str | None = None,
    options: Mapping[str, object] | None = None,
    whole: bool = True,
) -> Judgement:
    """Judge a method in a file.

    Args:
        file: the file; nothing beside it can be imported.
        cache: the folder of prepared datasets; the digits are prepared there.
        name: the id of the method, where the file has several.
        options: hyper-parameters; others have their defaults, or example values.
        whole: whether to run every check in full, and controls beside them; the controls
            themselves are judged in short.

    Returns:
        The verdict, the checks, what may be claimed, and what was not checked.

    Raises:
        UserError: the file is no method, or it fails in a way that has nothing to do with privacy.
    """
    for dataset in (Digits(), DigitsUsers()):
        if not (cache / dataset.prepared / "manifest.json").is_file():
            dataset.prepare(cache)
    text, source = read_file(file)
    with tempfile.TemporaryDirectory() as folder:
        # As in an ordinary run: the name of the file and of its folder.
        name_of_copy = file.name if file.stem.isidentifier() else _as_module(file)
        copy = Path(folder) / (file.resolve().parent.name or "plugins") / name_of_copy
        copy.parent.mkdir()
        copy.write_text(text, encoding="utf-8")
        given = dict(options or {})
        with closing(Judged(copy, name or "", json.dumps(given), cache.resolve())) as judged:
            judged.note("source", source.problems, "it does not ask where it runs")
            method = _discover(judged)
            attacked = None if method is None else _attack(judged, method, whole=whole)
    claims = attacked is None or attacked.private
    beside = [_control(*control, cache) for control in BESIDE] if whole and claims else []
    return Judgement(
        file=file.name,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        method=judged.name,
        hyperparameters=given if method is None else to_plain(method),
        verdict=_verdict(judged, beside, claims=claims),
        refuted_by=judged.refuted_by,
        checks=judged.findings,
        controls=beside,
        attacked=attacked,
        not_checked=[
            *[f"what the module {module} does" for module in source.followed],
            *([] if method is not None else ["everything that needs the method to be found"]),
            *filter(None, [judged.stopped]),
            *NOT_CHECKED,
        ],
    )


def _verdict(
    judged: Judged, beside: list[JudgedControl], *, claims: bool
) -> Literal["not refuted", "refuted", "no claim", "void"]:
    if not claims:
        return "no claim"
    if not all(control.as_expected for control in beside):
        return "void"
    return "refuted" if judged.refuted_by else "not refuted"


def _as_module(file: Path) -> str:
    return re.sub(r"\W", "_", file.stem) + ".py"


# The checks


def _discover(judged: Judged) -> Method | None:
    """Return the method in the file; None if there is none to attack."""
    try:
        names = judged.together.ask("methods")
        if judged.name and judged.name not in names:
            raise unknown("method", judged.name, names, file=judged.file.name, key="--method")
        if len(names) != 1 and not judged.name:
            said = f": {', '.join(names)}. Name one with --method." if names else "."
            raise UserError(f"{judged.file.name}: holds {len(names)} methods{said}")
        judged.name = judged.name or names[0]
        method = remote_method(judged.name, judged.options, judged.together)
    except RefusedError as error:
        judged.note("discovery", [str(error)], "")
        return None
    judged.note("discovery", [], "its class is complete")
    return method


def _attack(judged: Judged, method: Method, *, whole: bool) -> Attacked:
    """Put every check to a method, or a short form of each, and return what may be claimed."""
    together, ordinary, stopped = judged.together, judged.ordinary, None
    attacked = Attacked(
        private=method.private,
        track=track(method),
        adjacency=method.query.adjacency,
        formulas=list(method.query.formulas),
    )
    try:
        if method.private:
            _compare(judged, TRAINED if whole else SHORT)
            attacked.contract = _contract(judged, Subject(method), whole=whole)
            attacked.empirical = _empirical(judged, Subject(method), whole=whole)
        if whole and method.private:
            attacked.claim = _claim(method)
            cost = ordinary.ask("cost", cache=str(judged.cache), options=judged.options)
            attacked.cost = parse(Cost, cost, key="cost")
        replaced = sorted({*ordinary.ask("changed"), *together.ask("changed")})
        judged.note("libraries", [f"replaces {name}" for name in replaced], "as they were")
    except RefusedError as error:
        judged.note("boundary", [str(error)], "")
    except (UserError, RuntimeError, ValueError) as error:
        if raised_at_the_boundary(error):
            judged.note("boundary", [str(error)], "")
        elif isinstance(error, ValueError):
            raise
        else:
            stopped = UserError(f"{judged.file.name}: {error}")
    if stopped is not None:
        if not judged.refuted_by:
            raise stopped
        judged.stopped = f"what follows where the file fails: {stopped}"
    return attacked


def raised_at_the_boundary(error: BaseException) -> bool:
    """Return whether the privacy boundary raised an error: it refuses what a query declares."""
    cause, trace = error.__cause__ or error, error.__traceback__
    if error.__cause__ is not None:
        trace = cause.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = trace is not None and Path(trace.tb_frame.f_code.co_filename).parent == CORE
    return where and isinstance(cause, ValueError)


def _compare(judged: Judged, trained: Sequence[tuple[float, int, int | None, int]]) -> None:
    """Train in one ordinary process, and here with a method that never sees anything private.

    The ordinary process trains each run as `clipnoise train` would, the first one twice. Here the
    query and the update are asked in two processes, so that the update knows what was released and
    nothing else. Every parameter must be the same bit for bit at every step.
    """
    ordinary = judged.ordinary
    ordinary.ask("facts", name=judged.name, options=judged.options)
    split = Subject(remote_method(judged.name, judged.options, judged.alone, judged.together))
    runs = [JudgedRun(*settings, seed=secrets.randbits(31)) for settings in trained]
    problems = []
    expected: dict[int, list[Tensor]] = {}
    for number, again in ((0, ""), (1, ""), (2, ""), (0, ", repeated,")):
        run = runs[number]
        found = ordinary.ask("train", options=judged.options, cache=str(judged.cache), **vars(run))
        try:
            if number not in expected:
                expected[number] = trajectory(split, judged.cache, run)
        except UserError as error:
            problems.append(
                f"an ordinary run at B = {run.expected_batch_size} trains, but one in which "
                f"the update is told nothing but what was released fails: {error}"
            )
            break
        pairs = zip(found, expected[number], strict=True)
        off = [t for t, (one, other) in enumerate(pairs, 1) if not torch.equal(one, other)]
        if off:
            problems.append(
                f"a run at B = {run.expected_batch_size}{again} takes another step {off[0]} "
                "than one in which the update is told nothing but what was released"
            )
    steps = sum(run[-1] for run in trained)
    held = f"the same bit for bit in {steps} steps, whether or not private data are in reach"
    judged.note("processes", problems, held)


def _contract(judged: Judged, subject: Subject, *, whole: bool) -> ContractFinding:
    if whole:
        found = check_contract(subject, judged.cache, seed=secrets.randbits(31))
    else:
        found = check_contract(subject, None, attacked=(2,), seed=secrets.randbits(31))
        found_in_updates = check_updates(subject, judged.cache, RUNS[1:])
        judged.findings += [finding for finding in found_in_updates if finding.name != TRAINS]
    held = {each.name: each.said for each in found.checks if each.holds}
    held["sensitivity"] = "no example moves a release further than declared"
    if found.noise is not None:
        held["noise"] = found.noise.said
    broken = dict(zip(found.broken_checks, found.broken, strict=True))
    if TRAINS in broken:  # a matter of use, not of privacy
        held[TRAINS] = f"remark: {broken.pop(TRAINS)}"
    for name in {**held, **broken}:
        judged.note(name, [broken[name]] if name in broken else [], held.get(name, ""))
    return found


def _empirical(judged: Judged, subject: Subject, *, whole: bool) -> EmpiricalFinding:
    found = audit(subject, judged.cache, Settings() if whole else QUICK)
    said = (
        f"releases show ε {found.bound.epsilon:.2f} and final parameters show "
        f"ε {found.final_bound.epsilon:.2f}; claimed is {found.claimed_epsilon:.2f}"
    )
    judged.note("audit", [said] if found.verdict == "refuted" else [], said)
    return found


def _claim(method: Method) -> MayClaim:
    """Return what the method may claim at example settings, and under which adjacency."""
    unit = units_of(digits_for(Subject(method)), method)
    size, steps = min(TASK[0], unit.count), TASK[1]
    mechanism = Mechanism(unit=unit, expected_batch_size=size, steps=steps, query=method.query)
    epsilons, profiles = {}, {}
    for sigma in CLAIMED:
        sigma_on_sum = method.effective_noise_multiplier(sigma, size)
        budget = mechanism.budget(Privacy(noise_multiplier=sigma, delta=DELTA), sigma_on_sum)
        calibration = calibrate(budget)
        epsilons[str(sigma)] = calibration.epsilon
        profiles[str(sigma)] = calibration.profile.stated()
    return MayClaim(
        adjacency=mechanism.adjacency,
        claim=claim(mechanism),
        accountant=mechanism.accountant,
        delta=DELTA,
        examples=unit.count,
        expected_batch_size=size,
        steps=steps,
        epsilon=epsilons,
        profile=profiles,
    )


# Controls


HONEST = '''
from dataclasses import dataclass

from clipnoise.methods.base import ClippedMean, PrivateMethod


@dataclass(frozen=True, kw_only=True)
class Honest(PrivateMethod):
    """DP-SGD."""

    id = "honest"
    query = ClippedMean()

    def update(self, released, state, public):
        return -self.learning_rate * released[0]
'''

# Half of the sensitivity is declared, and the clean mean goes into the update by way of a global.
LEAKY = '''
import sys
from dataclasses import dataclass

import torch

from clipnoise.core.query import Component
from clipnoise.methods.base import ClippedMean, PrivateMethod

KEPT = []
LERP = torch.lerp
torch.lerp = lambda *words: LERP(*words)


class Half(ClippedMean):
    def components(self, clip_norm, expected_batch_size):
        return (Component(clip_norm / expected_batch_size / 2),)

    def values(self, mean, clip_norm):
        KEPT[:] = [mean]
        return (mean,)


@dataclass(frozen=True, kw_only=True)
class Leaky(PrivateMethod):
    """DP-SGD on the clean mean."""

    id = "leaky"
    query = Half()

    def update(self, released, state, public):
        sys._getframe()
        clean = KEPT[0] if KEPT and KEPT[0].shape == state.like.shape else released[0]
        return -self.learning_rate * clean.to(released[0])
'''
# What must be found in it.
LEAKS = ("source", "libraries", "processes", "updates", "sensitivity", "audit")
BESIDE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("honest", HONEST, ()),
    ("leaky", LEAKY, LEAKS),
)
# Mistakes outside of a method's file, and whether the check for each notices it.
DIRECT: Mapping[str, Callable[[Subject, Path], bool]] = {
    "half-noise": lambda broken, cache: not check_noise(broken, cache).holds,
    "shuffled-as-poisson": lambda broken, _: not check_sampler(broken).holds,
    "realised-batch-size": lambda broken, _: (
        check_contract(broken, attacked=(2,)).verdict == "broken"
    ),
}


def _control(name: str, text: str, leaks: Sequence[str], cache: Path) -> JudgedControl:
    """Judge a file whose verdict is known, in short, and say whether it came out as expected."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        found = [each.name for each in judge(file, cache, whole=False).refuted_by]
    if leaks:
        leaks = (*leaks, *DIRECT)
        for mistake, noticed in DIRECT.items():
            build = CONTROLS[mistake].build
            found += [mistake] if build is not None and noticed(build(), cache) else []
    expected = set(leaks) <= set(found) if leaks else not found
    return JudgedControl(name=name, must_find=list(leaks), found=found, as_expected=expected)
