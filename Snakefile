from pathlib import Path

from snakemake.exceptions import WorkflowError

from clipnoise.errors import UserError
from clipnoise.studies.plan import NAME, RESERVED, RUN, Plan


configfile: "config.yaml"


try:
    plan = Plan.from_values(config, Path(workflow.basedir) / "workflow" / "studies")
except UserError as error:
    raise WorkflowError(str(error)) from None

RESULTS, REPORTS, CACHE = plan.config.results, plan.config.reports, plan.config.cache
COLLECTED = plan.collected
LOCK = f"{workflow.basedir}/envs/environment.yaml"

# What a job was made with is kept by the process that plans it: a job on a node starts sooner without.
fingerprint = plan.fingerprint if workflow.is_main_process else lambda run_hash: ""

# A paper is what has a folder of studies or of reproductions; its report is all its artefacts.
REPRODUCTIONS = glob_wildcards(
    f"{workflow.basedir}/workflow/reproductions/{{artefact}}.yaml"
).artefact
ARTEFACTS = sorted({*plan.artefacts(), *REPRODUCTIONS})
PAPERS = sorted({artefact.split("/")[0] for artefact in ARTEFACTS})

# What has a report and is no study, with the character that comes after its name.
NO_STUDY = "|".join(
    [rf"({'|'.join(RESERVED)})/", *(rf"{name}[./]" for name in REPRODUCTIONS)]
)


# Seconds of work, or work that needs the network: not worth a place in a cluster's queue.
localrules:
    all,
    fetch,
    select,
    collect,
    table,
    figure,
    compare,
    report,
    partial_report,
    audit_report,
    reproduction_report,
    track,


# A fresh store that many jobs open at once breaks: it is made before the first of them. A rule would
# be asked for again after each change of a study, and Snakemake then takes what follows an ancient()
# input for up to date, missing runs included.
onstart:
    shell(plan.open_store)
    plan.note_batches()


wildcard_constraints:
    dataset="[a-z0-9-]+",
    model="[a-z0-9-]+",
    method="[a-z0-9-]+",
    budget="(eps|sigma)=[0-9.e+-]+|non-private",
    seed="[0-9]+",
    hash="[0-9a-f]{12}",
    key="[0-9a-f]{12}",
    batch="[0-9a-f]{12}",
    study=f"(?!{NO_STUDY}){NAME}",
    panel="[A-Za-z0-9_-]+",
    number="[0-9]+",


include: "workflow/rules/data.smk"
include: "workflow/rules/calibrate.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/tune.smk"
include: "workflow/rules/track.smk"
include: "workflow/rules/aggregate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/reproduce.smk"
include: "workflow/rules/bundle.smk"
include: "workflow/rules/audit.smk"


rule all:
    default_target: True
    input:
        plan.reports(),
        expand(f"{COLLECTED}/{{study}}/tracked.json", study=plan.configured),
