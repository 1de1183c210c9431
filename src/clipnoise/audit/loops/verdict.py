"""The verdict on a training loop: every check that its claim and its releases allow."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from clipnoise.audit.loops.accounting import check_accounting, check_sampling, claimed_profile
from clipnoise.audit.loops.boundary import check_apart, check_divisor, check_sensitivity_of_loop
from clipnoise.audit.loops.claim import Claim, Level, LoopFinding, LoopJudgement
from clipnoise.audit.loops.experiments import ALPHA, Experiments
from clipnoise.audit.loops.noise import check_noise_size
from clipnoise.audit.loops.published import check_canaries, check_published, check_training
from clipnoise.audit.loops.smallest import check_smallest_batch
from clipnoise.audit.loops.watched import Loop
from clipnoise.errors import UserError, reason

MODULE = "judged_loop"  # what the file is imported as
CHECKS: tuple[Callable[[Experiments], LoopFinding], ...] = (
    check_accounting,
    check_sampling,
    check_apart,
    check_divisor,
    check_noise_size,
    check_sensitivity_of_loop,
    check_smallest_batch,
    check_training,
    check_published,
    check_canaries,
)
NOT_CHECKED = (
    "what the loop does where it is not run as here: on other hardware, on several processes, "
    "after an interruption",
    "data other than those of the loop, changed as the checks change them; what an example adds is "
    "measured in the first step, and in the one with the smallest batch",
    "noise that is correlated across steps, users, and nodes of a graph: they cannot be claimed",
    "whether what is handed to record is all that the loop releases",
)


@dataclass(frozen=True)
class LoopFile:
    """What a file with a loop holds.

    Attributes:
        claim: what is claimed.
        train: the loop.
        data: its private examples.
    """

    claim: Claim
    train: Callable[..., Any]
    data: Any


def judge_loop(
    claim: Claim, train: Callable[..., Any], data: Any, *, level: Level = "full", seed: int = 0
) -> LoopJudgement:
    """Put every check to a training loop.

    Args:
        claim: what is claimed of it.
        train: (data, record) → the model, or whatever is published. It calls record with what each
            step releases. record may be left out; where there is an argument seed it is given.
        data: the private examples: a Dataset or sequence of (input, target), the same at every
            read.
        level: "quick" or "full".
        seed: of the runs; the same one gives the same judgement of a loop that can be repeated.

    Returns:
        The verdict, what each check found and would have found, what attacks a claim that is not
        refuted allows, and what was not checked.

    Raises:
        UserError: the loop fails, the claim has a value out of range, or nothing can be checked.
    """
    claim = Claim.checked(claim)
    runs = Experiments(Loop(train, claim.steps), claim, data, level, seed)
    findings = [_explained(check, runs) for check in CHECKS]
    made = [finding for finding in findings if finding.holds is not None]
    if not made:
        why = "; ".join(f"{each.name}: {each.said}" for each in findings)
        raise UserError(f"nothing of the claim can be checked. {why}")
    refuted = [finding for finding in made if not finding.holds]
    profile = None if refuted else claimed_profile(claim, runs.examples)
    return LoopJudgement(
        claim=claim,
        profile=None if profile is None else profile.stated(),
        examples=runs.examples,
        level=level,
        runs=runs.count,
        verdict="refuted" if refuted else "not refuted",
        refuted_by=refuted,
        checks=made,
        skipped=[finding for finding in findings if finding.holds is None],
        remarks=[remark for finding in findings for remark in finding.remarks],
        false_refutation=ALPHA,
        not_checked=list(NOT_CHECKED),
    )


def _explained(check: Callable[[Experiments], LoopFinding], runs: Experiments) -> LoopFinding:
    """Make a check; what the loop raises is a mistake of the user's."""
    try:
        return check(runs)
    except UserError:
        raise
    except Exception as error:
        code = getattr(inspect.unwrap(runs.loop.train), "__code__", None)
        file = None if code is None else code.co_filename
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if not lines:
            raise
        what = f"{type(error).__name__}: {reason(error)}"
        raise UserError(f"{file}:{lines[-1]}: the loop failed: {what}") from error


def read_loop(file: Path) -> LoopFile:
    """Read a file with a claim, a loop and perhaps its data.

    Args:
        file: a Python file with `claim`, `train` and, where it has data of its own, `data`. What
            lies beside it can be imported.

    Raises:
        UserError: the file cannot be run, or lacks one of them.
    """
    if not file.is_file():
        raise UserError(f"{file}: no such file.")
    sys.path.insert(0, str(file.resolve().parent))
    try:
        names = vars(_module(file))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{file}: {type(error).__name__}: {reason(error)}") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    if not isinstance(names.get("claim"), Claim):
        raise UserError(
            f"{file}: claim: required. Write: from clipnoise.audit import Claim; "
            "claim = Claim(epsilon=3, delta=1e-5, …)."
        )
    if not callable(names.get("train")):
        raise UserError(f"{file}: train: required, a function of (data, record).")
    names["claim"] = Claim.checked(names["claim"], str(file))
    data = names.get("data")
    return LoopFile(names["claim"], names["train"], digits() if data is None else data)


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[MODULE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits() -> list[tuple[Any, Any]]:
    """Return 1,797 handwritten digits: inputs of 64 numbers in [0, 1], targets from 0 to 9."""
    import torch
    from sklearn.datasets import load_digits

    found = load_digits()
    inputs = torch.as_tensor(found.data, dtype=torch.float32) / 16
    return list(zip(inputs, torch.as_tensor(found.target), strict=True))


def judge_file(file: Path, *, level: Level = "full") -> LoopJudgement:
    """Judge the loop in a file, as `judge_loop` does."""
    found = read_loop(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    result = judge_loop(found.claim, found.train, found.data, level=level)
    return replace(result, file=file.name, sha256=digest)
