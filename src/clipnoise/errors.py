"""Errors for users: what is wrong, where, what is allowed, and the nearest valid name."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

ENDED_BY_CODE = "code that was called has ended the program, as sys.exit() does: nothing is done."
# What text of a study or a message may not hold: control characters, with which it could act on a
# terminal or break a table, and those that turn the direction of writing, with which it could look
# like other text.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Packages that are imported by another name than their own.
IMPORTED_AS = {
    "PIL": "pillow",
    "google": "protobuf",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}


class UserError(Exception):
    """A mistake that the user can fix. The CLI prints only its message and exits with code 2."""


def printable(text: str) -> str:
    """Return text for a terminal: what it may not hold is written as Python writes it."""
    return UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)


def or_exit(step: Callable[[], T]) -> T:
    """Return what a step before the first job returns; a mistake ends the process in one line.

    Raises:
        SystemExit: with status 2 for a user's mistake, 130 for Ctrl-C, and 1 where the user's code
            ends the program, after a message on standard error.
    """
    try:
        with naming_extras():
            return step()
    except KeyboardInterrupt:
        print("clipnoise: stopped before the first job.", file=sys.stderr)
        raise SystemExit(130) from None
    except UserError as error:
        print(printable(f"clipnoise: {error}"), file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit:
        print(f"clipnoise: {ENDED_BY_CODE}", file=sys.stderr)
        raise SystemExit(1) from None


def reason(error: BaseException, otherwise: str = "") -> str:
    """Return the first line of what an error says; if it says nothing, `otherwise` or its kind."""
    if isinstance(error, ModuleNotFoundError) and (lacks := _lacks(error)):
        return lacks
    return str(error).strip().partition("\n")[0] or otherwise or type(error).__name__


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn an import that lacks an optional package into an error that names its extra.

    Raises:
        UserError: the `with` block has imported a package of an extra that is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if lacks := _lacks(error):
            raise UserError(lacks) from None
        raise


def _lacks(error: ModuleNotFoundError) -> str | None:
    """Say with which extra the missing package is installed; None if it belongs to none."""
    from importlib.metadata import PackageNotFoundError, requires

    top = (error.name or "").partition(".")[0]
    if top == "clipnoise":  # a module that is not there, of a package that is
        return None
    package = IMPORTED_AS.get(top, top.replace("_", "-"))
    try:
        wanted = requires("clipnoise") or []
    except PackageNotFoundError:  # the code is used without being installed
        return None
    found = (re.match(r"([\w.-]+).*\bextra == ['\"]([\w-]+)", line) for line in wanted)
    names = {match[2] for match in found if match and match[1] == package}
    extras = sorted(names, key=lambda name: (name == "audit", name))  # which brings little else
    if not extras:
        return None
    return (
        f"{package} is not installed. It comes with the extra {' or '.join(extras)}: "
        f"pip install 'clipnoise[{extras[0]}]'"
    )


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn whatever the user's code raises in the `with` block into an error that says where.

    Raises:
        UserError: the block raised something.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UserError(f"{where}: {reason(error)}") from error


def shorten(value: object, limit: int = 80) -> str:
    """Return a value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


# What other libraries and papers call what is meant.
ELSEWHERE = {
    "batch_size": "expected_batch_size",
    "lr": "learning_rate",
    "max_grad_norm": "clip_norm",
    "sigma": "noise_multiplier",
}


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Suggest the valid name closest to a mistyped one: first, its words in another order.

    Returns:
        `" Did you mean 'x'?"`, or an empty string when nothing is close.
    """
    names = list(allowed)
    if ELSEWHERE.get(name) in names:
        return f" Did you mean {ELSEWHERE[name]!r}?"
    turned = [one for one in names if _words(one) == _words(name)]
    matches = turned or difflib.get_close_matches(name[:80], names, n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def _words(name: str) -> list[str]:
    return sorted(name.lower().replace("_", "-").split("-"))


def unknown(
    kind: str,
    name: str,
    allowed: Iterable[str],
    *,
    file: str | None = None,
    key: str | None = None,
    proposed: Iterable[str] | None = None,
) -> UserError:
    """Return the error for a name that is not one of those allowed.

    Args:
        kind: what the name denotes, e.g. `"method"`.
        name: what the user wrote.
        allowed: every valid name.
        file, key: where it was read, if anywhere.
        proposed: the valid names that may be suggested; None for all.
    """
    names = sorted(allowed)
    near = names if proposed is None else sorted(proposed)
    where = "".join([f"{file}: " if file else "", f"{key}: " if key else ""])
    allowed_names = f"Allowed: {', '.join(names)}." if names else "There is none."
    return UserError(f"{where}unknown {kind} {shorten(name)}.{nearest(name, near)} {allowed_names}")


NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "bad_alloc",
    "alloc_failed",  # of cuBLAS and cuDNN
    "could not create a primitive",  # oneDNN gives no other reason
    "failed to map segment",  # of a library that is loaded
)


def out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory ran out, on a GPU or on a CPU."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(phrase in words for phrase in NO_MEMORY)
