import os
from collections import Counter
from pathlib import Path

from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod

from clipnoise.errors import or_exit
from clipnoise.files import read_yaml
from clipnoise.studies.plan import PLANNED_CODE, RUN, Plan
from clipnoise.studies.snakemake_changes import adapt
from clipnoise.studies.status import outlooks

# Snakemake itself takes the last of two equal keys, and does not say where a file is wrong.
for file in filter(
    Path.is_file, {Path("config.yaml"), *map(Path, workflow.configfiles)}
):
    or_exit(lambda: read_yaml(file))


configfile: "config.yaml"


# A checkout that is moved has other absolute paths, and Snakemake would make all reports again.
BASE = Path(os.path.relpath(workflow.basedir))
plan = or_exit(
    lambda: Plan.from_values(
        config,
        BASE / "workflow" / "studies",
        planned=(
            None if workflow.is_main_process else os.environ.get(PLANNED_CODE, "")
        ),
    )
)
if workflow.is_main_process:
    or_exit(plan.require_writable)
    plan.track_again()
RESULTS, REPORTS, CACHE = plan.config.results, plan.config.reports, plan.config.cache
COLLECTED = plan.collected
JOB = plan.config.resources

# Snakemake notes the whole file, half a megabyte, for each output, also where it makes no environment.
if DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method:
    LOCK = f"{workflow.basedir}/envs/environment.yaml"  # relative ones begin at the rule's file
else:
    LOCK = lambda wildcards: None


# To save each job the imports, its command is forked from a process that has done them already; see
# clipnoise.cli.warm. That process ends when this one does. The `set` is Snakemake's default prefix.
shell.prefix("set -euo pipefail; export CLIPNOISE_WARM_OWNER=$PPID; ")

# The files of a study and of its scale, as inputs `study` and `scale`.
STUDY = unpack(lambda wildcards: or_exit(lambda: plan.files(wildcards.study)))


# Seconds of work, or work that needs the network: not worth waiting in a cluster's queue.
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
    study_audit,
    reproduction_report,
    track,


# The display estimates times by kinds of jobs. The notes tell MLflow, while runs train, which study
# they belong to.
onstart:
    or_exit(lambda: adapt(workflow, plan.config, logger.warning))
    kinds = Counter(
        (job.rule.name, job.priority) for job in workflow.dag.needrun_jobs()
    )
    trained = {
        job.wildcards.hash for job in workflow.dag.jobs if job.rule.name == "train"
    }
    studies = [study for study in plan.read if trained & study.specs.keys()]
    for line in outlooks(studies, Path(RESULTS), workflow.cores or 1, Path(CACHE)):
        logger.info(line, extra={"kinds": kinds})
    or_exit(plan.note_studies)
    os.environ[PLANNED_CODE] = plan.code(trained)  # sbatch passes it on
    planned = {rule for rule, _ in kinds}
    if (
        plan.config.tracking != "off"
        and "train" in planned
        and "track" not in planned
    ):
        logger.info(
            "These targets do not record their runs in MLflow. `snakemake` without a target records"
            " the configured studies, `clipnoise mlflow-sync --study FILE` any study."
        )


onsuccess:
    for line in plan.what_mlflow_lacks():
        logger.warning(line)


onerror:
    for line in plan.what_mlflow_lacks():
        logger.warning(line)


wildcard_constraints:
    dataset="[a-z0-9-]+",
    model="[a-z0-9-]+",
    method="[a-z0-9-]+",
    budget="(eps|sigma)=[0-9.e+-]+|non-private",
    seed="[0-9]+",
    hash="[0-9a-f]{12}",
    key="[0-9a-f]{12}",
    study=plan.patterns["study"],
    panel="[A-Za-z0-9_.-]+",
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
        plan.trained(),
        plan.tracked(),
