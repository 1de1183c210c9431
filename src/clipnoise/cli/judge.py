"""The judge: bring a method in a file, and get a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clipnoise.cli import options
from clipnoise.errors import UserError
from clipnoise.files import require_writable, write_atomically, write_json

TYPES = Path(".mypy_cache/judge")


@options.command()
def judge(
    file: Annotated[Path, options.ARGUMENT],
    method: Annotated[str | None, "Id of the method, where the file has several."] = None,
    hyperparameters: options.Hyperparameters = options.NO_HYPERPARAMETERS,
    out: Annotated[Path, "Folder for judgement.pdf and judgement.json."] = Path("judgement"),
    cache: options.Cache = options.CACHE,
    template: options.Template = options.TEMPLATES / "audit.typ",
) -> int:
    """Judge the method in a Python FILE: say what refutes its claim, if anything does.

    The file runs in processes of its own. A page of PDF and a JSON file say what was checked, what
    was found, and which ε the method may claim. The exit code is 0 if nothing refutes it, 1 if
    something does, and 2 for a mistake. docs/judge.md says what the judge cannot see.
    """
    import torch

    from clipnoise.audit.judge.verdict import judge as judge_file
    from clipnoise.report.judgement import build_judgement

    if not template.is_file():
        raise UserError(f"{template}: no such template; run this where clipnoise is checked out.")
    require_writable(out)
    torch.set_num_threads(1)  # sums in another order would not be the same bit for bit
    result = judge_file(file, cache, name=method, options=hyperparameters, types=TYPES.resolve())
    write_json(out / "judgement.json", result)
    write_atomically(out / "judgement.pdf", build_judgement(result, template))
    for check in result["checks"]:
        print(f"{'ok' if check['holds'] else 'REFUTED':<9}{check['name']:<12}{check['said']}")
    for control in result["controls"]:
        found = ", ".join(control["found"]) or "nothing"
        print(
            f"{'ok' if control['as_expected'] else 'FAILED':<9}control {control['name']}: {found}"
        )
    print(f"{out / 'judgement.pdf'}, {out / 'judgement.json'}")
    reasons = "; ".join(f"{each['name']}: {each['said']}" for each in result["refuted_by"])
    wrong = ", ".join(one["name"] for one in result["controls"] if not one["as_expected"])
    last = {"refuted": f": {reasons}", "void": f": the control {wrong} came out wrong"}
    print(f"{result['method'] or file}: {result['verdict']}{last.get(result['verdict'], '')}")
    return 1 if result["verdict"] in last else 0
