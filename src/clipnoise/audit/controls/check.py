"""Put every check that applies to a broken variant, and say which of them exposed it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clipnoise.audit.catalog import MISTAKES
from clipnoise.audit.contract import check_contract
from clipnoise.audit.controls.registry import CONTROLS
from clipnoise.audit.empirical import Settings, audit
from clipnoise.errors import unknown

if TYPE_CHECKING:
    from pathlib import Path

ATTACKED = (1, 3)  # steps: mistakes are not as subtle as methods are complicated


def check_control(name: str, cache: Path, settings: Settings | None = None) -> dict[str, Any]:
    """Audit a broken variant.

    Args:
        name: of the control.
        cache: the folder of prepared datasets.
        settings: of the empirical audit.

    Returns:
        Plain data: the mistake, what each check said, and `refuted_by`; empty when the mistake went
        through, which means that the audit is broken.

    Raises:
        UserError: there is no such control.
    """
    if name not in CONTROLS:
        raise unknown("control", name, list(CONTROLS), key="control")
    control, said, refuted_by = CONTROLS[name], [], []
    result: dict[str, Any] = {"kind": "control", "control": name, "mistake": MISTAKES[name]}
    if control.build is not None:
        broken = control.build()
        result["contract"] = contract = check_contract(broken, cache, attacked=ATTACKED)
        if contract["verdict"] == "broken":
            refuted_by.append(f"contract check ({', '.join(contract['broken_checks'])})")
            said += contract["broken"]
        if control.empirical:
            result["empirical"] = found = audit(broken, cache, settings)
            if found["verdict"] == "refuted":
                refuted_by.append("empirical audit")
            bound, final = found["bound"]["epsilon"], found["final_bound"]["epsilon"]
            seen = "the final parameters show" if final > bound else "releases show"
            said.append(
                f"{seen} an ε of at least {max(bound, final):.2f}, "
                f"claimed is {found['claimed_epsilon']:.2f}"
            )
    if control.claim is not None:
        false = control.claim()
        result["claim"] = asdict(false)
        said.append(false.said)
        refuted_by += ["re-accounting"] if false.refuted else []
    return {**result, "said": said, "refuted_by": refuted_by, "refuted": bool(refuted_by)}
