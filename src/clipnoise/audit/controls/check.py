"""Put every check that applies to a broken variant, and say which of them exposed it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clipnoise.audit.catalog import MISTAKES
from clipnoise.audit.contract import check_contract
from clipnoise.audit.controls.registry import CONTROLS
from clipnoise.audit.empirical import Settings, audit
from clipnoise.audit.nodes import check_nodes
from clipnoise.audit.runs import check_sampler
from clipnoise.errors import unknown

if TYPE_CHECKING:
    from pathlib import Path


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
        findings = (check_sampler(broken), check_nodes(broken))
        result["contract"] = check_contract(broken, findings=findings)
        if result["contract"]["verdict"] == "broken":
            refuted_by.append("contract check")
            said += result["contract"]["broken"]
        if control.empirical:
            result["empirical"] = found = audit(broken, cache, settings)
            if found["verdict"] == "refuted":
                refuted_by.append("empirical audit")
            said.append(
                f"the audit shows ε of at least {found['bound']['epsilon']:.2f}, "
                f"claimed is {found['claimed_epsilon']:.2f}"
            )
    if control.claim is not None:
        false = control.claim()
        result["claim"] = asdict(false)
        said.append(false.said)
        refuted_by += ["re-accounting"] if false.refuted else []
    return {**result, "said": said, "refuted_by": refuted_by, "refuted": bool(refuted_by)}
