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
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from clipnoise.audit.contract import check_contract
from clipnoise.audit.controls import CONTROLS
from clipnoise.audit.declaration import check_adjacency
from clipnoise.audit.empirical import audit
from clipnoise.audit.findings import ContractFinding, EmpiricalFinding, Finding, Settings
from clipnoise.audit.judge.remote import Process, RefusedError, remote_method
from clipnoise.audit.judge.source import read_file
from clipnoise.audit.judge.worker import at_the_boundary, trajectory
from clipnoise.audit.noise import check_noise
from clipnoise.audit.runs import RUNS, TRAINS, check_sampler, check_updates
from clipnoise.audit.subject import Subject, run_spec
from clipnoise.data.digits import Digits, DigitsUsers
from clipnoise.errors import UserError, unknown
from clipnoise.fields import parse, to_plain
from clipnoise.methods.base import track
from clipnoise.plugins import NO_PLUGINS
from clipnoise.privacy.calibration import calibrate
from clipnoise.privacy.claim import claim

if TYPE_CHECKING:
    from torch import Tensor

    from clipnoise.core.method import Method
    from clipnoise.core.query import Adjacency
    from clipnoise.privacy.profile import StatedProfile

# Of the runs that are trained in two ways: between which values settings are drawn, as are σ and
# the seed, so that no file can know at what it has to behave. The last one asks for σ, not for ε.
Ranges = Mapping[str, tuple[int, int]]
TRAINED: tuple[Ranges, ...] = (
    {
        "expected_batch_size": (16, 256),
        "steps": (800, 1000),
        "evaluations": (1, 20),
        "epsilon": (1, 8),
    },
    {
        "expected_batch_size": (1, 16),
        "steps": (24, 30),
        "evaluations": (1, 20),
        "epsilon": (1, 8),
        "units": (80, 80),
        "hidden": (1, 100),
    },
    {"expected_batch_size": (256, 1296), "steps": (6, 8), "evaluations": (1, 8)},
)
SHORT = ({**TRAINED[0], "steps": (48, 60)}, *TRAINED[1:])  # of a control
QUICK = Settings(runs=10)  # of the audit of a control
CLAIMED = (1.0, 2.0, 4.0)  # σ of the examples of what may be claimed
TASK = (130, 200)  # B and T of them: those of the league's task on digits
NOT_CHECKED = (
    "expected batch sizes, clip norms and σ other than those that were tried, and runs of more "
    "than 1,000 steps; hyper-parameters other than those that were judged",
    "what a method does where the clock, a narrow range of settings or a rare event decides",
    "data and networks other than linear regression, logistic regression and small perceptrons on "
    "digits, and a network with an embedding, a convolution and dropout",
    "samplers other than Poisson, correlated noise, micro-batches, and GPUs",
    "how long a step takes, which could tell something of the data",
    "runs that are resumed more than once, or at other settings than one run was",
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


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a step costs.

    Attributes:
        than: the method that it is compared with.
        unit: "example" or "user".
        time: as a multiple of that method's.
        passes: gradients of each drawn unit.
        buffers: numbers that are remembered for each parameter.
    """

    than: str
    unit: str
    time: float
    passes: int
    buffers: int


@dataclass(kw_only=True)
class Judgement:
    """The verdict on a method in a file.

    Attributes:
        file, sha256: its name, and what of.
        method, hyperparameters: of the method; those that are given, where it was not found.
        verdict: "void" if a control says that the judge is broken, or until it is finished.
        refuted_by: the checks that do not hold.
        controls: files whose verdict is known: each holds if it came out as it must.
        private, track, adjacency, formulas: what the method declares; None where it was not found.
        claim, contract, empirical, cost: None where the judgement did not get there.
        not_checked: in words.
    """

    kind: Literal["judge"] = "judge"
    file: str
    sha256: str
    method: str
    hyperparameters: Mapping[str, object]
    verdict: Literal["not refuted", "refuted", "no claim", "void"] = "void"
    refuted_by: list[Finding] = field(default_factory=list)
    checks: list[Finding] = field(default_factory=list)
    controls: list[Finding] = field(default_factory=list)
    private: bool | None = None
    track: str | None = None
    adjacency: Adjacency | None = None
    formulas: list[str] | None = None
    claim: MayClaim | None = None
    contract: ContractFinding | None = None
    empirical: EmpiricalFinding | None = None
    cost: Cost | None = None
    not_checked: list[str] = field(default_factory=list)

    def note(self, name: str, problems: Sequence[str], held: str) -> None:
        """Add what a check found: problems, each in words, or what held."""
        said = "; ".join(problems[:3]) + (f"; {len(problems) - 3} more" if problems[3:] else "")
        self.checks.append(Finding(name, not problems, said or held))
        self.refuted_by += [] if not problems else self.checks[-1:]


@dataclass
class Judged:
    """A file under judgement, and the processes that run it, in different surroundings.

    Attributes:
        file: a copy, in a folder without any other file.
        options: the hyper-parameters that are given, as JSON.
        cache: the folder of prepared datasets.
        result: what is known so far.
        together: the process that is asked for everything.
        alone: the process that is never asked for what the query releases.
        ordinary: the process that trains as any run does.
    """

    file: Path
    options: str
    cache: Path
    result: Judgement

    def __post_init__(self) -> None:
        self.together = Process(self.file)
        self.alone = Process(self.file, {"USER": "nobody", "TZ": "UTC"}, ("--cores", "1"))
        self.ordinary = self.another()

    def another(self) -> Process:
        """Return another process that trains as any run does."""
        return Process(self.file, {"TERM": "xterm"}, ("train", "--spec", "run.yaml"))

    @property
    def training(self) -> dict[str, object]:
        """The method and its data, as a process is asked to train with it."""
        return {"method": [self.result.method, self.options, ""], "cache": str(self.cache)}

    def close(self) -> None:
        """End the processes."""
        for process in (self.together, self.alone, self.ordinary):
            process.close()


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
    # As in an ordinary run: the name of the file and of its folder.
    importable = file.with_stem(re.sub(r"\W", "_", file.stem)).name
    if file.suffix != ".py" or any(map(Path(importable).match, ("__init__.py", *NO_PLUGINS))):
        raise UserError(
            f"{file}: files with such names are not imported: the name must end in .py, and not be "
            f"__init__.py or one of a test ({', '.join(NO_PLUGINS)})."
        )
    text, problems, unread = read_file(file)
    result = Judgement(
        file=file.name,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        method=name or "",
        hyperparameters=dict(options or {}),
    )
    result.note("source", problems, "it does not ask where it runs")
    result.not_checked += [f"what the module {module} does" for module in unread]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / (file.resolve().parent.name or "plugins") / importable
        copy.parent.mkdir()
        copy.write_text(text, encoding="utf-8")
        given = json.dumps(result.hyperparameters)
        with closing(Judged(copy, given, cache.resolve(), result)) as judged:
            method = _discover(judged)
            if method is not None:
                _attack(judged, method, whole=whole)
    if result.private is not False and whole:
        result.controls = _controls(cache)
    result.not_checked += NOT_CHECKED
    result.verdict = _verdict(result)
    return result


def _verdict(result: Judgement) -> Literal["not refuted", "refuted", "no claim", "void"]:
    if result.private is False:
        return "no claim"
    if not all(control.holds for control in result.controls):
        return "void"
    return "refuted" if result.refuted_by else "not refuted"


# The checks


def _discover(judged: Judged) -> Method | None:
    """Return the method in the file; None if there is none to attack."""
    result = judged.result
    try:
        names = judged.together.ask("methods")
        if result.method and result.method not in names:
            raise unknown("method", result.method, names, key="--method")
        if len(names) != 1 and not result.method:
            said = f": {', '.join(names)}. Name one with --method." if names else "."
            raise UserError(f"holds {len(names)} methods{said}")
        result.method = result.method or names[0]
        method = remote_method(result.method, judged.options, judged.together)
    except RefusedError as error:
        result.note("discovery", [str(error)], "")
        result.not_checked.append("everything that needs the method to be found")
        return None
    except UserError as error:
        raise UserError(f"{result.file}: {error}") from None
    result.note("discovery", [], "its class is complete")
    return method


def _attack(judged: Judged, method: Method, *, whole: bool) -> None:
    """Put every check to a method, or a short form of each, and find out what may be claimed."""
    result = judged.result
    result.hyperparameters, result.private = to_plain(method), method.private
    result.track, result.adjacency = track(method), method.query.adjacency
    result.formulas = list(method.query.formulas)
    try:
        if method.private:
            adjacency = check_adjacency(method)
            if not adjacency.holds:  # no run trains with it
                result.note(adjacency.name, [adjacency.said], "")
            _compare(judged, TRAINED if whole else SHORT)
            result.contract = _contract(judged, Subject(method), whole=whole)
            result.empirical = _empirical(judged, Subject(method), whole=whole)
        if whole and method.private:
            result.claim = _claim(method)
            cost = judged.ordinary.ask("cost", **judged.training)
            result.cost = parse(Cost, cost, key="cost")
        _libraries(judged)
    except (RefusedError, UserError, RuntimeError, ValueError) as error:
        if isinstance(error, RefusedError) or at_the_boundary(error):
            result.note("boundary", [str(error)], "")
        elif isinstance(error, ValueError):
            raise
        else:
            with suppress(RefusedError, UserError):  # it may fail because of what it replaces
                _libraries(judged)
            if not result.refuted_by:
                raise UserError(f"{result.file}: {error}") from None
            said = f"what follows where the file fails: {result.file}: {error}"
            result.not_checked.append(said)


def _libraries(judged: Judged) -> None:
    """Ask two processes which functions of libraries have been replaced."""
    replaced = sorted({*judged.ordinary.ask("changed"), *judged.together.ask("changed")})
    judged.result.note("libraries", [f"replaces {name}" for name in replaced], "as they were")


def _compare(judged: Judged, trained: Sequence[Ranges]) -> None:
    """Train in ordinary processes, and here with a method that never sees anything private.

    One process trains each run as `clipnoise train` would, the first one twice, and another one
    resumes a run. Here the query and the update are asked in two processes, so that the update
    knows what was released and nothing else. Every parameter, and all that a checkpoint would
    hold, must be the same bit for bit at every step.
    """
    method = remote_method(judged.result.method, judged.options, judged.alone, judged.together)
    runs = [_drawn(ranges) for ranges in trained]
    draw = secrets.SystemRandom()
    resumed = draw.randrange(len(runs))
    stop = draw.randint(1, int(runs[resumed]["steps"]) - 1)
    problems: list[str] = []
    expected: dict[int, list[Tensor]] = {}
    saved: dict[str, Tensor] = {}
    for number, again in ((0, ""), (1, ""), (2, ""), (0, ", repeated,")):
        run = runs[number]
        try:
            found = judged.ordinary.ask("train", **judged.training, **run)
        except (RefusedError, UserError):
            if not problems:
                raise
            break  # what an earlier run has shown stands
        try:
            if number not in expected:
                expected[number] = []
                for shown, training in trajectory(Subject(method), judged.cache, **run):
                    if (number, training.state.step) == (resumed, stop):
                        saved = training.get_state()
                    expected[number].append(shown)
        except UserError as error:
            problems.append(
                f"an ordinary run at B = {run['expected_batch_size']} trains, but one in which "
                f"the update is told nothing but what was released fails: {error}"
            )
            break
        problems += _differences(run, again, found, expected[number])
    if saved and not problems:  # a run that has diverged before is not resumed
        with closing(judged.another()) as process:
            found = process.ask("train", **judged.training, **runs[resumed], saved=saved)
        said = f", resumed after step {stop},"
        problems += _differences(runs[resumed], said, found, expected[resumed][stop:], stop)
    steps = sum(len(states) - 1 for states in expected.values())
    held = f"the same bit for bit in {steps} steps, whether or not private data are in reach"
    judged.result.note("processes", problems, held)


def _differences(
    run: Mapping[str, float],
    how: str,
    found: Sequence[Tensor],
    expected: Sequence[Tensor],
    begun: int = 0,
) -> list[str]:
    """Say at which step what a run shows first differs from what was expected, if it does.

    Args:
        run: its settings.
        how: it was trained, in words.
        found, expected: what `trajectory` shows, from the step on after which the run began.
        begun: that step.
    """
    pairs = zip_longest(found, expected, fillvalue=torch.zeros(0))
    off = [t for t, (one, other) in enumerate(pairs, begun) if not torch.equal(one, other)]
    return [
        f"a run at B = {run['expected_batch_size']}{how} takes another step {t} "
        "than one in which the update is told nothing but what was released"
        for t in off[:1]
    ]


def _drawn(ranges: Ranges) -> dict[str, float]:
    """Return the settings of a run, as `run_spec` takes them."""
    draw = secrets.SystemRandom()
    settings: dict[str, float] = {name: draw.randint(*ends) for name, ends in ranges.items()}
    return {**settings, "noise_multiplier": draw.uniform(0.3, 8.0), "seed": secrets.randbits(31)}


def _contract(judged: Judged, subject: Subject, *, whole: bool) -> ContractFinding:
    if whole:
        found = check_contract(subject, judged.cache, seed=secrets.randbits(31))
        findings = found.checks
    else:
        found = check_contract(subject, None, attacked=(2,), seed=secrets.randbits(31))
        in_updates = check_updates(subject, judged.cache, RUNS[1:])
        findings = [*found.checks, *(each for each in in_updates if each.name != TRAINS)]
    for finding in findings:
        if finding.name == TRAINS and not finding.holds:  # a matter of use, not of privacy
            judged.result.note(TRAINS, [], f"remark: {finding.said}")
        else:
            problems = [] if finding.holds else [finding.said]
            judged.result.note(finding.name, problems, finding.said)
    return found


def _empirical(judged: Judged, subject: Subject, *, whole: bool) -> EmpiricalFinding:
    found = audit(subject, judged.cache, Settings() if whole else QUICK)
    said = (
        f"releases show ε {found.bound.epsilon:.2f} and final parameters show "
        f"ε {found.final_bound.epsilon:.2f}; claimed is {found.claimed_epsilon:.2f}"
    )
    judged.result.note("audit", [said] if found.verdict == "refuted" else [], said)
    return found


def _claim(method: Method) -> MayClaim:
    """Return what the method may claim at example settings, and under which adjacency."""
    (size, steps), calibrations = TASK, {}
    for sigma in CLAIMED:
        spec = run_spec(
            Subject(method),
            noise_multiplier=sigma,
            expected_batch_size=size,
            steps=steps,
            accountant="pld",
        )
        assert spec.budget is not None
        calibrations[str(sigma)] = calibration = calibrate(spec.budget)
    mechanism = spec.mechanism
    return MayClaim(
        adjacency=mechanism.adjacency,
        claim=claim(mechanism),
        accountant=mechanism.accountant,
        delta=calibration.budget.delta,
        examples=mechanism.unit.count,
        expected_batch_size=spec.training.expected_batch_size,
        steps=mechanism.steps,
        epsilon={sigma: found.epsilon for sigma, found in calibrations.items()},
        profile={sigma: found.profile.stated() for sigma, found in calibrations.items()},
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
        clean = KEPT[0] if KEPT and KEPT[0].shape == state.theta.shape else released[0]
        return -self.learning_rate * clean.to(released[0])
'''
# Mistakes outside of a method's file, and whether the check for each notices it.
DIRECT: Mapping[str, Callable[[Subject, Path], bool]] = {
    "half-noise": lambda broken, cache: not check_noise(broken, cache).holds,
    "shuffled-as-poisson": lambda broken, _: not check_sampler(broken).holds,
    "realised-batch-size": lambda broken, _: (
        check_contract(broken, attacked=(2,)).verdict == "broken"
    ),
}
# What must be found in the leaky file, and beside it.
LEAKS = ("source", "libraries", "processes", "updates", "sensitivity", "audit", *DIRECT)


def _controls(cache: Path) -> list[Finding]:
    """Judge two files whose verdicts are known."""
    return [_control("honest", HONEST, (), cache), _control("leaky", LEAKY, LEAKS, cache)]


def _control(name: str, text: str, leaks: Sequence[str], cache: Path) -> Finding:
    """Judge a file whose verdict is known, in short, and say whether it came out as it must."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        found = [each.name for each in judge(file, cache, whole=False).refuted_by]
    for mistake, noticed in DIRECT.items() if leaks else ():
        build = CONTROLS[mistake].build
        found += [mistake] if build is not None and noticed(build(), cache) else []
    missed = [leak for leak in leaks if leak not in found]
    said = f"refuted by {', '.join(found) or 'nothing'}"
    if missed:
        said += f", and not by {', '.join(missed)}"
    return Finding(name, not missed if leaks else not found, said)
