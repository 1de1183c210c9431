"""Files that a judge must refute: the leaks of `leaks.py`, and those once planted.

Each entry is the text of a method's file, and the checks of which one at least must refute it,
besides the reading of its source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import dedent, indent

import leaks

from clipnoise.core.clipping import ClippedSum

HEAD = """
import gc
import os
import sys
from dataclasses import dataclass, field

import torch

import clipnoise.core.step as boundary
from clipnoise.core.clipping import _SEALED, ClippedSum, Clipping
from clipnoise.core.query import Component
from clipnoise.core.state import State
from clipnoise.core.step import privatize, step
from clipnoise.methods.base import *
from clipnoise.methods.base import Clean, OracleMethod
from clipnoise.methods.privatize_then_adapt.dp_sgd import DPSGD
from clipnoise.run.train import Run
from torch import Tensor

KEPT = []
ADD = torch.Tensor.add
"""
UPDATE = "return -self.learning_rate * released[0]"


def method(
    update: str = UPDATE, *, query: str = "ClippedMean()", before: str = "", members: str = ""
) -> str:
    """Return a file with a method that is DP-SGD but for what is given."""
    head = "def update(self, released, state, public):"
    body = indent(dedent(update).strip(), "        ")
    extra = indent(dedent(members).strip(), "    ")
    return (
        f"{HEAD}\n{dedent(before)}\n\n@dataclass(frozen=True, kw_only=True)\n"
        f'class Planted(PrivateMethod):\n    """A leak."""\n\n    id = "planted"\n'
        f"    query = {query}\n\n{extra}\n\n    {head}\n{body}\n"
    )


def query(body: str) -> str:
    return f"class Bad(ClippedMean):\n{indent(dedent(body).strip(), '    ')}\n"


CALLER = """
def of_a_caller(name, kind):
    frame = sys._getframe()
    while frame is not None:
        if isinstance(frame.f_locals.get(name), kind):
            return frame.f_locals[name]
        frame = frame.f_back
"""
KEEPS = query("""
def values(self, mean, clip_norm):
    KEPT[:] = [*KEPT[-1:], mean]
    return (mean,)
""")
CLEAN = """
like = released[0]
clean = KEPT[{age}] if len(KEPT) >= -({age}) and KEPT[{age}].shape == like.shape else like
"""


def crossing(noise: str = "noise", known: str = "known") -> str:
    """Return code that puts another crossing of the boundary into the training loop."""
    return f"""
from dataclasses import replace
{CALLER}
FIRST = []
def cross(total, query, clipping, noise, known):
    state = of_a_caller("state", State)
    return privatize(total, query, clipping, {noise}, {known})
PREPARE = Run.prepare.__func__
def prepare(cls, *words, **named):
    run = PREPARE(cls, *words, **named)
    run.cross = cross
    return run
Run.prepare = classmethod(prepare)
"""


PLANTED: dict[str, tuple[str, set[str]]] = {
    "half the sensitivity": (
        method(
            query="Bad()",
            before=query("""
                def components(self, clip_norm, expected_batch_size):
                    return (Component(clip_norm / expected_batch_size / 2),)
            """),
        ),
        {"sensitivity"},
    ),
    "scale from the clean mean": (
        method(
            query="Bad()",
            before=KEEPS,
            members="""
                def scale(self, state, public):
                    kept = KEPT and KEPT[-1].shape == state.theta.shape
                    return 1 / (KEPT[-1].to(state.theta).abs() + 1e-3) if kept else None
            """,
        ),
        {"updates", "sensitivity"},
    ),
    "clip norm from the clean mean": (
        method(
            query="Bad()",
            before=KEEPS,
            members="""
                def clip_norm_at(self, step):
                    return self.clip_norm + (float(KEPT[-1].norm()) if KEPT else 0.0)
            """,
        ),
        {"updates", "sensitivity"},
    ),
    "noise of the first step again": (
        method(before=crossing("(FIRST or (FIRST.append(noise), FIRST)[1])[0]")),
        {"processes"},
    ),
    "one-sided noise": (method(before=crossing("[z.abs() for z in noise]")), {"processes"}),
    "no noise after step 12": (
        method(
            before=crossing(
                known="replace(known, noise_multiplier=0.0) if state.step > 12 else known"
            )
        ),
        {"processes"},
    ),
    "a tenth of the noise for some B": (
        method(
            query="Bad()",
            before=query("""
                def components(self, clip_norm, expected_batch_size):
                    small = 10 if 8 < expected_batch_size < 600 else 1
                    return (Component(clip_norm / expected_batch_size / small),)
            """),
        ),
        {"sensitivity"},
    ),
    "the mean over its own norm": (
        method(
            query="Bad()",
            before=query("""
                def values(self, mean, clip_norm):
                    return (mean / mean.norm().clamp(min=1e-12),)
            """),
        ),
        {"sensitivity", "denominator"},
    ),
    "the clean mean in a global": (
        method(CLEAN.format(age=-1) + "return -self.learning_rate * clean.to(like)",
               query="Bad()", before=KEEPS),
        {"processes"},
    ),
    "the last run's clean mean": (
        method(
            CLEAN.format(age=-2)
            + "extra = clean.to(like) if state.step == 1 else 0\n"
            + "return -self.learning_rate * (like + extra)",
            query="Bad()",
            before=KEEPS,
        ),
        {"updates", "processes"},
    ),
    "the clean mean in the published model": (
        method(
            query="Bad()",
            before=KEEPS,
            members="""
                def evaluated(self, theta, state):
                    kept = KEPT and KEPT[-1].shape == theta.shape
                    return theta - KEPT[-1].to(theta) if kept else theta
            """,
        ),
        {"processes"},
    ),
    "the size of the batch from frames": (
        method(
            "batch = of_a_caller('batch', Tensor)\n"
            "return -self.learning_rate * released[0] / max(1, 1 if batch is None else len(batch))",
            before=CALLER,
        ),
        {"processes"},
    ),
    "the sum from where it is sealed": (
        method("total = next(iter(_SEALED.values()), released[0])\n"
               "return -self.learning_rate * (total.to(released[0]) if total.shape == "
               "released[0].shape else released[0])"),
        {"processes"},
    ),
    "an object found by the garbage collector": (
        method("every = gc.get_objects() if state.step == 1 else []\n"
               "found = [x for x in every if isinstance(x, ClippedSum)]\n"
               "return -self.learning_rate * released[0] * (1 + len(found))"),
        {"source"},
    ),
    "a function of torch is replaced": (
        method(before="""
            def add(self, other, *, alpha=1):
                return ADD(self, other, alpha=alpha / 10 if self.numel() > 100 else alpha)
            torch.Tensor.add = add
        """),
        {"libraries", "processes"},
    ),
    "a function of the suite is replaced": (
        method(before="ClippedMean.components = lambda self, c, b: (Component(c / b / 5),)"),
        {"libraries"},
    ),
    "the noise from its seed": (
        method(
            "draws = torch.Generator().manual_seed(0)\n"
            "return -self.learning_rate * (released[0] - torch.randn(released[0].shape, "
            "generator=draws))"
        ),
        {"source"},
    ),
    "other steps where it is watched": (
        method("free = 'train' in sys.argv\n"
               "return -self.learning_rate * released[0] * (2 if free else 1)"),
        {"processes"},
    ),
    "other steps by the environment": (
        method("free = os.environ.get('USER') == 'nobody'\n"
               "return -self.learning_rate * released[0] * (2 if free else 1)"),
        {"processes"},
    ),
    "a file that outlives the run": (
        method("open('left', 'a').close()\nreturn -self.learning_rate * released[0]"),
        {"source"},
    ),
    "too little noise is declared": (
        method(query="Bad()", before=query("""
            def components(self, clip_norm, expected_batch_size):
                return (Component(clip_norm / expected_batch_size, noise_factor=0.5),)
        """)),
        {"noise", "boundary"},
    ),
    "a result of its own": (
        method("os.write(int(sys.argv[1]), b'kept')\nreturn -self.learning_rate * released[0]"),
        {"boundary"},
    ),
}  # fmt: skip


def two(factor: str) -> str:
    """Return a query that releases the mean twice, the second time with a noise factor."""
    return query(f"""
        formulas = ("C/B", "C/B")

        def components(self, clip_norm, expected_batch_size):
            sensitivity = clip_norm / expected_batch_size
            return (Component(sensitivity), Component(sensitivity, {factor}))

        def values(self, mean, clip_norm):
            return (mean, mean)
    """)


def components(sensitivity: str, factor: str = "1.0") -> str:
    """Return a query that declares a sensitivity and a noise factor."""
    return query(f"""
        def components(self, clip_norm, expected_batch_size):
            return (Component({sensitivity}, {factor}),)
    """)


def values(body: str) -> str:
    """Return a query that releases something else."""
    return query(f"def values(self, mean, clip_norm):\n{indent(dedent(body).strip(), '    ')}")


def kept_if(condition: str) -> str:
    """Return an update that takes the clean mean that a query keeps, on a condition."""
    return f"""
like = released[0]
there = KEPT and KEPT[-1].shape == like.shape and ({condition})
return -self.learning_rate * (KEPT[-1] if there else like).to(like)
"""


SECOND = "return -self.learning_rate * released[1]"

# What a query declares or releases. The boundary may refuse it before a check does.
DECLARED: dict[str, tuple[str, set[str]]] = {
    name: (text, {"query", "boundary", "sensitivity", "discovery"})
    for name, text in {
        "a negative noise factor": method(SECOND, query="Bad()", before=two("-1e5")),
        "a noise factor that is not a number": method(
            SECOND, query="Bad()", before=two("float('nan')")
        ),
        "a noise factor without bounds": method(SECOND, query="Bad()", before=two("float('inf')")),
        "a negative sensitivity": method(
            query="Bad()", before=components("-0.6 * clip_norm / expected_batch_size")
        ),
        "a sensitivity that is not a number": method(
            query="Bad()", before=components("float('nan')")
        ),
        "bits that are not numbers": method(
            "return -self.learning_rate * released[0].isnan().to(released[0])",
            query="Bad()",
            before=values("return (torch.where(mean > 0, mean.log(), -mean).log() * 0,)"),
        ),
        "a release in double precision": method(
            "return -self.learning_rate * released[0].float()",
            query="Bad()", before=values("return (mean.double(),)"),
        ),
        "complex numbers": method(
            "return -self.learning_rate * released[0].imag",
            query="Bad()", before=values("return (torch.complex(mean, mean),)"),
        ),
        "too large a release in single precision": method(
            query="Bad()",
            before=values("return (mean * (5 if mean.dtype == torch.float32 else 1),)"),
        ),
        "too little noise at one B": method(
            query="Bad()",
            before=components(
                "clip_norm / expected_batch_size / (10 if expected_batch_size == 130 else 1)"
            ),
        ),
        "too little noise in a window of B and C": method(
            query="Bad()",
            before=components(
                "clip_norm / expected_batch_size / "
                "(2 if clip_norm > 3 and 5000 < expected_batch_size < 9000 else 1)"
            ),
        ),
        "too large a release in the last coordinates": method(
            query="Bad()",
            before=values("return (torch.cat([mean[:640], 3 * mean[640:]]),)"),
        ),
        "too large a second release": method(
            SECOND, query="Bad()",
            before=query("""
                formulas = ("C/B", "C/B")

                def components(self, clip_norm, expected_batch_size):
                    return (Component(clip_norm / expected_batch_size, 2**0.5),) * 2

                def values(self, mean, clip_norm):
                    return (mean, 1.2 * mean)
            """),
        ),
        "the mean of the step before": method(
            query="Bad()",
            before=query("""
                def values(self, mean, clip_norm):
                    KEPT[:] = [*KEPT[-1:], mean]
                    return (KEPT[0] if KEPT[0].shape == mean.shape else mean,)
            """),
        ),
        "too large a release after 600 steps": method(
            query="Bad()",
            before=query("""
                def values(self, mean, clip_norm):
                    KEPT.append(None)
                    return (mean * (10 if len(KEPT) > 600 else 1),)
            """),
        ),
        "half of the sensitivity, unseen": method(
            query="Bad()",
            before="""
                class Mixed:
                    def __getattribute__(self, name):
                        return super().__getattribute__("half" if name == "components" else name)

                class Bad(Mixed, ClippedMean):
                    def half(self, clip_norm, expected_batch_size):
                        return (Component(clip_norm / expected_batch_size / 2),)
            """,
        ),
    }.items()
}  # fmt: skip

# What a file does in an ordinary run.
DONE: dict[str, tuple[str, set[str]]] = {
    "the clean mean after 600 steps": (
        method(kept_if("state.step > 600"), query="Bad()", before=KEEPS),
        {"processes"},
    ),
    "the clean mean in single precision": (
        method(kept_if("like.dtype == torch.float32"), query="Bad()", before=KEEPS),
        {"processes"},
    ),
    "the clean mean at a B that is never the same": (
        method(
            kept_if("public.expected_batch_size not in (4, 64, 720) and "
                    "public.expected_batch_size < 1000"),
            query="Bad()", before=KEEPS,
        ),
        {"processes"},
    ),
    "the clean mean of any network but that of the digits": (
        method(kept_if("len(like) not in (6, 650)"), query="Bad()", before=KEEPS),
        {"processes"},
    ),
    "the clean mean once the model was measured": (
        method(
            kept_if("FLAG"), query="Bad()", before=f"FLAG = []\n{KEEPS}",
            members="""
                def evaluated(self, theta, state):
                    if state.step == 0:
                        FLAG.append(True)
                    return theta
            """,
        ),
        {"processes"},
    ),
    "the clean mean where ε is asked for": (
        method(
            kept_if("not FLAG"), query="Bad()", before=f"FLAG = []\n{KEEPS}",
            members="""
                def effective_noise_multiplier(self, noise_multiplier, expected_batch_size):
                    FLAG.append(True)
                    return noise_multiplier
            """,
        ),
        {"processes"},
    ),
    "half of the noise where a run has checked shapes": (
        method(
            query="Bad()",
            before=query("""
                def components(self, clip_norm, expected_batch_size):
                    less = 2 if KEPT and expected_batch_size not in (4, 64, 720) else 1
                    return (Component(clip_norm / expected_batch_size / less),)
            """),
            members="""
                def check_shapes(self, shapes):
                    KEPT.append(shapes)
            """,
        ),
        {"processes"},
    ),
    "a clip rule that does not clip": (
        method(
            before="""
                from clipnoise.core.clip_rules import HardClip

                class Longer:
                    def factors(self, norms, clip_norm):
                        return 382 * torch.ones_like(norms)

                @dataclass(frozen=True, kw_only=True)
                class Rule(Longer, HardClip):
                    pass
            """,
            members="""
                @property
                def _rule(self):
                    return Rule()
            """,
        ),
        {"boundary"},
    ),
    "a method that calls itself private": (
        method(
            query="PlainMean()",
            before="""
                class Claims:
                    private = True
            """,
        ).replace("class Planted(PrivateMethod)", "class Planted(Claims, PrivateMethod)"),
        {"boundary", "discovery"},
    ),
    "a smaller ε": (
        method(
            before="""
                import clipnoise.run.spec as spec
                BUDGET = spec.RunSpec.budget.func
                def budget(self):
                    return replace(BUDGET(self), noise_multiplier=10.0)
                from dataclasses import replace
                from functools import cached_property
                spec.RunSpec.budget = cached_property(budget)
                spec.RunSpec.budget.__set_name__(spec.RunSpec, "budget")
            """
        ),
        {"processes", "libraries"},
    ),
    "a test loss that is the clean mean": (
        method(
            query="Bad()",
            before=KEEPS + indent(dedent("""
                EVALUATE = Run.evaluate
                def evaluate(self, *words):
                    found = EVALUATE(self, *words)
                    from dataclasses import replace
                    return replace(found, test_loss=float(KEPT[-1][0])) if KEPT else found
                Run.evaluate = evaluate
            """), ""),
        ),
        {"processes", "libraries"},
    ),
    "another update of its own process": (
        method("return (-self.learning_rate * released[0]).double().float() if 'x' in KEPT else "
               "of_a_caller('total', ClippedSum) and -self.learning_rate * released[0]",
               before=CALLER),
        {"processes", "boundary"},
    ),
}  # fmt: skip
REMEMBERED = {
    "the clean mean in the memory": (
        method(
            CLEAN.format(age=-1) + "state['kept'] = clean.clone()\n" + UPDATE,
            query="Bad()",
            before=KEEPS,
        ),
        {"processes"},
    ),
    "the clean mean once a run was resumed": (
        method(
            "BEGUN.append(state.step)\n" + kept_if("BEGUN[0] > 1").strip(),
            query="Bad()",
            before=KEEPS + "\nBEGUN = []\n",
        ),
        {"processes"},
    ),
}
PLANTED |= DECLARED | DONE | REMEMBERED

# Files that end the process which imports or asks them: never a verdict in their favour.
ENDINGS = {
    name: f"{line}\n{method()}"
    for name, line in {
        "exit at import": "import sys\nsys.exit(0)",
        "exit at once at import": "import os\nos._exit(0)",
        "an interrupt at import": "raise KeyboardInterrupt",
    }.items()
} | {
    "exit in an update": method("os._exit(0)"),
    "SystemExit in an update": method("raise SystemExit(0)"),
}


def moved(leak: Callable[[ClippedSum], object]) -> str:
    """Return a file in which a leak of `leaks.py` is tried on the sum of a real step."""
    source = inspect.getsource(leak).replace("@leak\n", "")
    # The network on digits has as many parameters.
    helpers = inspect.getsource(leaks.take_step).replace("(3)", "(650)")
    names = f"METHOD = DPSGD(learning_rate=1.0, clip_norm=1.0)\nPUBLIC = {leaks.PUBLIC!r}\n"
    update = f"{leak.__name__}(of_a_caller('total', ClippedSum))\n{UPDATE}"
    return "from __future__ import annotations\n" + method(
        update, before=f"{CALLER}\n{names}\n{helpers}\n{source}"
    )
