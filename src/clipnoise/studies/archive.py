"""An archive of a study: what is needed to read its results, and to repeat its runs elsewhere."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml

from clipnoise.errors import UserError, reason
from clipnoise.files import inside, read_yaml
from clipnoise.plugins import OWN, own_packages
from clipnoise.run.provenance import versions
from clipnoise.run.results import run_folder
from clipnoise.studies.columns import RUN_COLUMNS, read_table
from clipnoise.studies.plan import Plan
from clipnoise.studies.study import Study

MANIFEST, PLUGINS, STUDIES = "manifest.json", "plugins", "workflow/studies"
LARGEST = 2**32  # bytes that an archive may unpack to
EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every member: equal contents make equal archives
RUN_FILES = ("spec.yaml", "summary.json", "metrics.csv")
BESIDE = ("CITATION.cff", "LICENSE", "envs/requirements.lock")

README = """# {title}

Results of the study `{name}`, made with clipnoise {version}.

- `reports/`: what the study says, as PDF, page and tables.
- `results/`: every run with its spec, its privacy statement and its metrics; what σ costs which ε;
  what searches chose; and the tables `runs` and `curves`, as Parquet and CSV.
- `workflow/studies/`: the study. `config.yaml`: how it was run. `plugins/`: the code that is not
  part of clipnoise.
- `envs/requirements.lock`: the packages, with hashes. `manifest.json`: the SHA-256 of each file.
{lacks}
## Verify

    clipnoise verify {file}

checks the hashes, trains finished runs again, drawn at random, and compares every number to the
last bit. It needs the same versions ({versions}), the prepared datasets of the runs, and a machine
of the same kind. It runs the code in `plugins/`: read that first.
{reveals}
## Cite

Cite clipnoise (`CITATION.cff`) and the papers of the methods, which their descriptions name.
"""


OUTDATED = (
    "Tables and reports are left out: they are of other runs than those that the study has now. "
    "Ask Snakemake for its report first."
)
SEEDED = (
    "It holds the seeds of runs with seeded noise. Their ε holds for whoever does not know the "
    "seed: with it, noise can be taken away from what was released."
)
SEARCHED = (
    "It holds the searches whose number of trials was drawn. An ε that covers such a search holds "
    "for whoever sees the reported run alone, and not its trials, their number or their scores."
)


def reveals(study: Study) -> list[str]:
    """Return what an archive of a study reveals that its privacy statements rule out."""
    private = [spec for spec in study.specs.values() if spec.protects]
    seeded = any(not spec.secure_noise for spec in private)
    searched = any(spec.search_law is not None for spec in private)
    return [*([SEEDED] if seeded else []), *([SEARCHED] if searched else [])]


def lacks(plan: Plan, study: Study, root: Path) -> list[str]:
    """Return what of a study its archive does not have, in sentences.

    Args:
        plan: of the configuration.
        study: the study.
        root: the folder of config.yaml.
    """
    folders = [run_folder(root / plan.config.results, one) for one in study.specs.values()]
    without = sum(not (folder / "summary.json").is_file() for folder in folders)
    runs = [f"{without} of its {len(folders)} runs have no result yet."] if without else []
    return [*runs, *([] if _is_current(plan, study, root) else [OUTDATED])]


def _is_current(plan: Plan, study: Study, root: Path) -> bool:
    """Return whether tables and report, if there are any, are of the runs that the study plans.

    A run that had no result when they were made must have none now.
    """
    table = root / plan.collected / study.name / "runs.parquet"
    if not table.is_file():
        return not any(_reports(plan, study, root))
    rows = read_table(table, RUN_COLUMNS)
    results = root / plan.config.results
    have = {
        run.spec.hash: (run_folder(results, run.spec) / "summary.json").is_file()
        for run in study.runs
    }
    return dict(zip(rows["hash"], rows["status"] != "missing", strict=True)) == have


def archive(plan: Plan, study: Study, config: Path, out: Path) -> tuple[bytes, list[str]]:
    """Return the archive of a study, and what should be known of it, in sentences.

    The same files make the same bytes.

    Args:
        plan: of the configuration.
        study: the study.
        config: config.yaml; folders are relative to its own.
        out: what the archive will be called.

    Raises:
        UserError: no run of the study has a result.
    """
    root = config.parent
    remarks, missing = reveals(study), lacks(plan, study, root)
    members = dict(_members(plan, study, root))
    if OUTDATED not in missing:
        members |= _reports(plan, study, root)
    if not any(name.endswith("/summary.json") for name in members):
        raise UserError(f"{study.name}: no run has a result yet, so there is nothing to archive.")
    members["config.yaml"] = _config(study, config)
    known = versions()
    text = README.format(
        lacks="\n" + "\n".join(missing) + "\n" if missing else "",
        reveals="\n## What it reveals\n\n" + "\n\n".join(remarks) + "\n" if remarks else "",
        title=study.title, name=study.name, file=out.name, version=known.get("clipnoise", ""),
        versions=", ".join(f"{name} {number}" for name, number in known.items()),
    )  # fmt: skip
    members["README.md"] = text.encode()
    digests = {name: hashlib.sha256(members[name]).hexdigest() for name in sorted(members)}
    manifest = {"study": study.name, "versions": known, "sha256": digests}
    members[MANIFEST] = json.dumps(manifest, indent=1).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(members):
            file.writestr(zipfile.ZipInfo(name, EPOCH), members[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue(), [*missing, *remarks]


def _below(path: Path, root: Path, otherwise: str) -> str:
    """Return the path below the folder of config.yaml; a file from elsewhere gets another one."""
    with suppress(ValueError):
        return path.resolve().relative_to(root.resolve()).as_posix()
    return otherwise


def _config(study: Study, config: Path) -> bytes:
    values = {**read_yaml(config), "studies": [study.name]}
    values |= {"results": "results", "reports": "reports"}
    if own_packages():
        values["plugins"] = [_plugin(name, place) for name, place in own_packages().items()]
    return yaml.safe_dump(values, sort_keys=False).encode()


def _members(plan: Plan, study: Study, root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file, but for tables and reports."""
    file = f"{STUDIES}/{study.name}.yaml"
    yield file, study.path.read_bytes()
    for path in study.sources:  # which are found beside it
        beside = path.parent.resolve() == study.path.parent.resolve()
        place = f"{Path(file).parent.as_posix()}/{path.name}"
        yield place if beside else _below(path, root, place), path.read_bytes()
    for table in dict.fromkeys(plan.published_tables(study).values()):
        yield _below(table, root, f"reports/published/{table.name}"), table.read_bytes()
    if plan.scale:
        yield f"workflow/scales/{plan.scale.name}", plan.scale.read_bytes()
    for name in BESIDE:
        if (root / name).is_file():
            yield name, (root / name).read_bytes()
    results = root / plan.config.results
    for spec in study.specs.values():
        folder = run_folder(results, spec)
        for name in RUN_FILES:
            if (folder / name).is_file():
                yield f"results/runs/{spec.folder}/{name}", (folder / name).read_bytes()
    keys = {spec.budget.key for spec in study.specs.values() if spec.budget is not None}
    for kind, names in (("calibration", keys), ("tuning", study.searches)):
        for name in names:
            path = results / kind / f"{name}.json"
            if path.is_file():
                yield f"results/{kind}/{name}.json", path.read_bytes()
    for package, own in own_packages().items():
        if _is_folder(package) and own.is_dir():
            yield from _files(own, _plugin(package, own))


def _reports(plan: Plan, study: Study, root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the collected tables and the report."""
    collected = Path(plan.collected) / study.name
    yield from _files(root / collected, f"results/{collected.name}")
    report = root / plan.report(study.name)
    yield from _files(report.parent if report.name == "report.pdf" else report.with_suffix(""),
                      f"reports/{study.name}")  # fmt: skip
    if report.is_file():
        yield (
            f"reports/{report.relative_to(root / plan.config.reports).as_posix()}",
            report.read_bytes(),
        )


def _is_folder(package: str) -> bool:
    """Return whether a package of the user's is a folder, and not an installed package."""
    return package == OWN or package.startswith(f"{OWN}_")


def _plugin(package: str, place: Path) -> str:
    """Return what config.yaml in the archive says of a folder or package of plug-ins."""
    return f"{PLUGINS}/{place.name}" if _is_folder(package) else package


def _files(folder: Path, below: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and "__pycache__" not in parts and not parts[-1].startswith("."):
            yield f"{below}/{'/'.join(parts)}", path.read_bytes()


# What reading an archive raises where a byte is another one.
DAMAGED = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError),
    *(zipfile.BadZipFile, zlib.error),
)


def unpack(path: Path, folder: Path) -> Path:
    """Unpack an archive whose files are as they were when it was made; return its config.yaml.

    Raises:
        UserError: it is damaged, has been changed, or holds what no archive has.
    """
    try:
        with zipfile.ZipFile(path) as file:
            if sum(member.file_size for member in file.infolist()) > LARGEST:
                raise UserError(f"{path}: unpacks to more than {LARGEST / 1e9:.0f} GB.")
            members = {name: file.read(name) for name in file.namelist()}
        digests = dict(json.loads(members.pop(MANIFEST))["sha256"])
    except DAMAGED as error:
        raise UserError(f"{path}: no archive of a study, or damaged ({reason(error)}).") from None
    if {name: hashlib.sha256(data).hexdigest() for name, data in members.items()} != digests:
        raise UserError(f"{path}: a file in it has been changed, added or removed.")
    for name, data in members.items():
        place = inside(folder, name, key=str(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return folder / "config.yaml"
